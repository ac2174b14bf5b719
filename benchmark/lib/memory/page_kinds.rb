# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../../../lib/cowruby/memory/page_kinds"
require_relative "address_space"

module CowBench
  # It is installed with ruby, for cowruby-memory.
  PageKinds = CowRuby::Memory::PageKinds
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../../../lib/cowruby/memory/address_space"

module CowBench
  # It is installed with ruby, for cowruby-memory.
  AddressSpace = CowRuby::Memory::AddressSpace
end

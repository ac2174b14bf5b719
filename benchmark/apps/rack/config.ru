# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "bundler/setup"
require_relative "library"

# Unicorn's own way to collect between requests.
if ENV["OOB_GC"] == "1" && defined?(Unicorn::HttpServer)
  require "unicorn/oob_gc"
  use Unicorn::OobGC, 10
end
if ENV["REHEARSAL"]
  require ENV["REHEARSAL"]
  run CowRuby::Rehearsal.of(Library.new, File.join(__dir__, "requests.txt"))
else
  run Library.new
end
# The other servers call it in a hook of their own before they fork.
if defined?(PhusionPassenger)
  require ENV.fetch("BEFORE_FORK")
  prepare_for_fork
end
RubyVM::YJIT.enable if ENV["YJIT"] != "0" && defined?(RubyVM::YJIT.enable)

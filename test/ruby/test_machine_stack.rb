# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Where the machine stack ends while C code calls deeply, SystemStackError is raised.
class TestMachineStack < Minitest::Test
  include CowTest

  # Ruby source for scripts. inspected?(depth, more) gives false if the stack ends before an array of +depth+
  # arrays, inside +more+ hashes, is inspected.
  DEEP = <<~'RUBY'
    def nested(depth, more)
      arrays = depth.times.inject([1]) { |inner, _| [inner] }
      more.times.inject(arrays) { |inner, _| { 1 => inner } }
    end
    def inspected?(depth, more)
      object = nested(depth, more)
      Fiber.new do
        object.inspect.size > 0
      rescue SystemStackError
        false
      end.resume
    end
    DEEPEST = (10..20_000).bsearch { |depth| !inspected?(depth, 0) } || 20_000
  RUBY

  # What ends a process there, with CRuby as well: the collector may itself come to the end of the stack.
  KNOWN = "[BUG] system stack overflow during GC"

  # Slots run out there, while the lock of the heap is held. Without the fix of the VM lock such a process
  # hung, and took no signal.
  def test_slots_that_run_out_at_the_end_of_the_stack
    out, status = run_ruby_status(DEEP + <<~'RUBY', timeout: 60)
      GC.disable
      1_500.times do |i|
        inspected?(DEEPEST + i % 50, i % 7)
        (i % 37).times { "x" * 30 }
      end
      GC.enable
      GC.start
      GC.verify_internal_consistency
    RUBY
    assert status.success? || out.include?(KNOWN), out
  rescue Minitest::Assertion => e
    raise unless e.message.include?(KNOWN) # which may hang while it reports
  end
end

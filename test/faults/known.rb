# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What goes wrong in pristine CRuby 3.4.5 in the same way, in code that is not ours. Each says by what it is
# known: what was printed and, where more than one fault prints that, the functions for which the call was
# made that failed first, from the innermost.
module Faults
  Known = Struct.new(:reason, :scenario, :places, :output, keyword_init: true) do
    def covers?(result, harness)
      return false unless scenario.nil? || scenario == result.scenario
      return false unless output.match?(result.output)
      places.nil? || (result.first && places.match?(harness.places(result.first).join(" < ")))
    end
  end

  KNOWN = [
    Known.new(reason: "an exception before there is a standard error ends the start with status 1",
              scenario: :boot, places: /\bruby_setup\b/, output: /\A\s*\z/),
    Known.new(reason: "before there is a thread NoMemoryError cannot be raised",
              scenario: :boot, places: /\bInit_BareVM\b/, output: /\A(?!.*WRONG)/m),
    Known.new(reason: "YJIT ends the process where it cannot change the protection of its code",
              output: /\[BUG\] Couldn't make JIT page|can rewrite existing code/),
    Known.new(reason: "YJIT writes a branch elsewhere where it cannot change the protection of its code",
              scenario: :yjit, places: /\Arb_yjit_mark_writable\b.*\byjit::core::regenerate_branch\b/,
              output: /WRONG: |branch stubs should never enlarge branches/),
    Known.new(reason: "a class or module without a table of methods is marked and freed",
              places: /\b(?:\w*make_metaclass|rb_(?:module|class)_(?:new|s_alloc)|rb_class_initialize)\b/,
              output: /\[BUG\] Segmentation fault at 0x0+10$/),
    Known.new(reason: "a symbol is in one of the two tables of symbols if there is no memory for the other",
              output: /\[BUG\] \S+ can't remove str from str_id/),
    Known.new(reason: "a thread, whose root fiber could not be allocated, is marked",
              places: /\brb_threadptr_root_fiber_setup\b/,
              output: /\[BUG\] (?:Segmentation fault at 0x0+20$|Cannot allocate memory)/),
    Known.new(reason: "a thread without a native thread, or a stack for signals, is waited for at the end",
              places: /\A(?:rb_allocate_sigaltstack|(?:\w+ < )?ruby_xcalloc < thread_create_core)\b/,
              output: /\A(?:[\w ]+ right, .*\n)*\z/),
    Known.new(reason: "a WeakMap or WeakKeyMap without a table is marked", places: /\bwk?map_allocate\b/,
              output: /\[BUG\] Segmentation fault at 0x0+18$/),
    Known.new(reason: "a child that gets no memory for its random seed raises NoMemoryError out of fork",
              places: /\brb_reset_random_seed\b/, output: /No child processes \(Errno::ECHILD\)/)
  ].freeze
end

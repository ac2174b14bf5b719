# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Fuzz
  # variants: the options and settings with which ruby runs a seed. The seed says which.
  module Variants
    ALL = [
      [{}, []],
      [{}, %w[--yjit --yjit-call-threshold=2]],
      [{ "RUBY_STRING_SHARE_MIDDLE" => "poison" }, []],
      [{ "FUZZ_BALLAST" => "70000" }, []],
      [{ "COWRUBY_YOUNG_CLASSES" => "all" }, []],
      [{ "RUBY_GC_FORK_COMPACT" => "1", "FUZZ_BALLAST" => "66000" }, []],
      [{ "RUBY_GC_SWEEP" => "discard" }, []],
      [{ "RUBY_GC_SWEEP" => "visit-all", "RUBY_GC_SEAL" => "off" }, []],
      [{ "RUBY_GC_TARGET_TIME" => "0", "RUBY_FREE_AT_EXIT" => "1" }, []],
      [{ "RUBY_GC_FORK_NURSERY_SLOTS" => "1", "RUBY_GC_FORK_REPORT" => "1" }, []],
      [{ "COWRUBY_YOUNG_CLASSES" => "all" }, %w[--yjit --yjit-call-threshold=1 --yjit-mem-size=2]],
      [{ "RUBY_GC_HEAP_FREE_SLOTS" => "10", "RUBY_GC_MALLOC_LIMIT" => "100000",
         "RUBY_GC_FORK_MALLOC" => "0" }, []],
      [{ "RUBY_STRING_SHARE_MIDDLE" => "0", "RUBY_GC_MEMORY_LIMIT" => "16M" }, []],
      [{ "RUBY_MN_THREADS" => "1" }, []]
    ].freeze

    # Environment and options; without YJIT no options.
    def self.of(seed, yjit: true)
      environment, options = ALL[seed / 2 % ALL.size]
      [environment, yjit ? options : []]
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "report"

module CowRuby
  module Memory
    # What is known to keep workers from sharing, looked for around one worker.
    class Surroundings
      HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
      # CowRuby's variables in the master's environment, the values that matter, and what they do.
      VARIABLES = {
        "RUBY_GC_SEAL" => ["off", "the heap is not sealed before a fork. Remove it."],
        "RUBY_GC_FORK_NURSERY" => ["0", "workers take free slots for the size of the master. Remove it."],
        "RUBY_GC_FORK_MALLOC" => ["0", "malloc does not know about forks. Remove it."],
        "RUBY_YJIT_FORK_POLICY" => ["off", "workers compile as if they were alone. Remove it."]
      }.freeze
      # CRuby's variable of free slots. Those of its ratios begin with it.
      FREE_SLOTS = "RUBY_GC_HEAP_FREE_SLOTS"
      CRUBYS_RULE = "CRuby's rule sizes the heaps of workers. Remove it."
      # What CRuby reads as a number of slots, 0 among them, and as a ratio.
      SLOTS = /\A\s*\+?(?:0x\h+|0[0-7]*|[1-9]\d*)[kmg]?\s*\z/i
      RATIO = /\A\s*\+?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?\z/i
      # The least and the greatest ratio where nothing is set.
      MIN_RATIO = 0.20
      MAX_RATIO = 0.65
      # Where a worker has so many times more of its own than it has inherited, it has loaded it itself.
      NOT_PRELOADED = 2
      # Bytes that every process makes for itself.
      LITTLE = 16 << 20

      # +kinds+: { kind => LostPages::Tally of bytes } of the worker. +cowruby+: whether it may be CowRuby's.
      def initialize(worker, kinds, procfs, cowruby:, huge_pages: HUGE_PAGES)
        @worker = worker
        @kinds = kinds
        @procfs = procfs
        @cowruby = cowruby
        @huge_pages = huge_pages
      end

      # A sentence each: what it is, and what to do.
      def findings
        [preloading, huge_pages, *variables].compact
      end

      private

      # Files are shared without a fork, too.
      def preloading
        tallies = @kinds.reject { |kind, _| kind == "files" }.values
        inherited = tallies.sum { |tally| tally.shared + tally.lost }
        own = tallies.sum(&:own)
        return unless own > LITTLE && own > inherited * NOT_PRELOADED

        "The worker has made most of its memory itself: the application is not loaded before the fork. Let " \
          "the server preload it."
      end

      def huge_pages
        huge = @worker.usage.huge.to_i
        return unless huge.positive? || huge_pages_always?

        size = " (#{huge >> 20} MB of this worker)" if huge.positive?
        "Transparent huge pages are in use#{size}. The kernel may give a worker a huge page of its own for " \
          "shared ones: write madvise to #{HUGE_PAGES}."
      end

      def huge_pages_always?
        File.read(@huge_pages).include?("[always]")
      rescue SystemCallError
        false
      end

      # As they were when the master was started. Others are not looked at, and none of another ruby.
      def variables
        return [] unless @cowruby

        environment = @procfs.read(@worker.member.origin, "environ").to_s.split("\0")
        set = environment.to_h { |text| text.split("=", 2).then { |name, value| [name, value.to_s] } }
        found = VARIABLES.filter_map { |name, (value, what)| [name, what] if set[name] == value } +
                free_slots(set).map { |name| [name, CRUBYS_RULE] }
        found.map { |name, what| "#{name}=#{Procfs.printable(set[name])[0, 40]} is set: #{what}" }
      rescue Forbidden
        []
      end

      # The names of those of CRuby's settings that ruby takes: it ignores what is no number or out of bounds.
      def free_slots(set)
        slots = set[FREE_SLOTS].to_s
        names = slots.match?(SLOTS) && slots.match?(/[1-9]|0x0*[a-f]/i) ? [FREE_SLOTS] : []
        min = ratio(set, "MIN") { |value| value > 0 && value <= 1 }
        max = ratio(set, "MAX") { |value| value > (min || MIN_RATIO) && value <= 1 }
        goal = ratio(set, "GOAL") do |value|
          value.zero? || value > (min || MIN_RATIO) && value <= (max || MAX_RATIO)
        end
        taken = { "MIN" => min, "GOAL" => goal, "MAX" => max }.compact
        names + taken.keys.map { |name| "#{FREE_SLOTS}_#{name}_RATIO" }
      end

      # nil if it is not set, or to what is no number or not within the bounds of the block.
      def ratio(set, name)
        text = set["#{FREE_SLOTS}_#{name}_RATIO"].to_s
        value = text.to_f if text.match?(RATIO)
        value if value && yield(value)
      end
    end
  end
end

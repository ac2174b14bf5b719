# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "report"

module CowRuby
  module Memory
    # What is known to keep workers from sharing, looked for around one worker.
    class Surroundings
      HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
      # Variables of the master's environment, the values that matter, and what they do.
      VARIABLES = {
        "RUBY_GC_SEAL" => [/\Aoff\z/, "the heap is not sealed before a fork. Remove it."],
        "RUBY_GC_FORK_NURSERY" => [/\A0\z/, "workers take free slots for the size of the master. Remove it."],
        "RUBY_GC_FORK_MALLOC" => [/\A0\z/, "malloc does not know about forks. Remove it."],
        "RUBY_YJIT_FORK_POLICY" => [/\Aoff\z/, "workers compile as if they were alone. Remove it."],
        "RUBY_GC_HEAP_FREE_SLOTS" => [/./, "CRuby's rule sizes the heaps of workers. Remove it."],
        "RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO" => [/./, "CRuby's rule sizes the heaps of workers. Remove it."],
        "RUBY_GC_HEAP_FREE_SLOTS_GOAL_RATIO" => [/./, "CRuby's rule sizes the heaps of workers. Remove it."],
        "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO" => [/./, "CRuby's rule sizes the heaps of workers. Remove it."]
      }.freeze
      # Where a worker has so many times more of its own than it has inherited, it has loaded it itself.
      NOT_PRELOADED = 2
      # Bytes that every process makes for itself.
      LITTLE = 16 << 20

      # +kinds+: { kind => LostPages::Tally of bytes } of the worker.
      def initialize(worker, kinds, procfs, huge_pages: HUGE_PAGES)
        @worker = worker
        @kinds = kinds
        @procfs = procfs
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

      # As they were when the master was started. Others are not looked at.
      def variables
        environment = @procfs.read(@worker.member.origin, "environ").to_s.split("\0")
        set = environment.to_h { |text| text.split("=", 2).then { |name, value| [name, value.to_s] } }
        VARIABLES.filter_map do |name, (values, what)|
          "#{name}=#{Procfs.printable(set[name])[0, 40]} is set: #{what}" if set[name]&.match?(values)
        end
      rescue Forbidden
        []
      end
    end
  end
end

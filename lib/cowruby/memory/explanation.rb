# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../memory"
require_relative "lost_pages"
require_relative "surroundings"
require_relative "text"

module CowRuby
  module Memory
    # What a worker has lost since it was forked, by kinds of memory, why, and what can be done.
    class Explanation
      # Why the pages of a kind are lost, and what to do; nil: nothing.
      CAUSES = {
        "GC pages" => [
          "The worker changed objects that it inherited: their variables, elements or flags.",
          "Rehearse the first requests in the master. Leave GC.compact and GC.start out of workers."
        ],
        "GC metadata" => ["Each full collection writes a mark bit for each object.", nil],
        "VM words" => [
          "The VM filled caches and counters that the first calls need.",
          "Rehearse: what the first requests fill is then there before the fork."
        ],
        "YJIT data" => [
          "YJIT noted what it compiled after the fork.",
          "Rehearse, so that the master compiles. Leave RUBY_YJIT_FORK_POLICY unset."
        ],
        "malloc" => [
          "The worker changed or freed strings, arrays, hashes and buffers that it inherited, or malloc " \
          "wrote between them.",
          "Use a ruby that is linked with jemalloc. Look for caches that requests change in place."
        ],
        "JIT code" => [
          "YJIT changed machine code that it had made before the fork.",
          "Rehearse, so that the master compiles."
        ],
        "stacks" => ["Each thread and fiber writes its own stack.", nil],
        "files" => ["Libraries and ruby itself wrote their variables.", nil],
        "anonymous other" => [
          "An extension or a library took this memory from the system itself. Who wrote it is not known.",
          nil
        ]
      }.freeze
      # The collector of other rubies writes without the program's doing.
      OTHER_RUBY = {
        "GC pages" => [
          "This is not CowRuby: its collector frees objects, and makes new ones, between those that the " \
          "worker inherited.",
          "Run the server on CowRuby."
        ]
      }.freeze
      # A kind of which less is lost is not explained.
      WORTH_A_WORD = 1 << 20
      HEAD = %w[kind shared lost own].freeze

      attr_reader :worker

      # +pid+: of the worker of the Report to look at. If it is another process, it is the worker with the
      # most private memory. Raises Error if nothing can be compared.
      def initialize(report, pid, procfs: Procfs.new)
        @worker = choose(report, pid)
        @lost = LostPages.new(@worker.member.origin, @worker.member.pid, contents: false)
        @surroundings = Surroundings.new(@worker, kinds, procfs, cowruby: @lost.cowruby != false)
      end

      def to_h
        { pid: worker.member.pid, forked_from_pid: worker.member.origin, cowruby: @lost.cowruby,
          kinds: kinds.map { |kind, bytes| kind(kind, bytes) }, findings: findings }
      end

      def to_s
        member = worker.member
        rows = [HEAD, *kinds.map { |kind, bytes| [kind, *bytes.to_h.values] }, ["all", *sums]]
        ["Process #{member.pid}: #{member.title[0, Text::TITLE]}",
         "compared with #{member.origin}, which it was forked from. Sizes are in MB.", "",
         *rows.map { |row| line(row) }, "",
         "lost: inherited, and now the worker's own copy. own: not there before the fork.",
         *reasons, *list(findings)].join("\n") + "\n"
      end

      private

      def choose(report, pid)
        workers = report.rows.select { |row| row.member.origin && row.usage.shares? }
        workers.find { |row| row.member.pid == pid } || workers.max_by { |row| row.usage.private_total } ||
          raise(Error, "process #{report.root} has no forked child that may be read: nothing to explain")
      end

      def list(sentences)
        sentences.empty? ? [] : ["", *sentences.map { |text| Text.wrap("- #{text}", "  ") }]
      end

      # { kind => Tally of bytes } of those that are there.
      def kinds
        @kinds ||= @lost.tallies.reject { |_, tally| tally.sum.zero? }.transform_values do |tally|
          LostPages::Tally.new(*tally.map { |pages| pages * AddressSpace::PAGE })
        end
      end

      def sums
        kinds.values.map(&:to_a).transpose.map(&:sum)
      end

      def kind(kind, bytes)
        why, what = cause(kind)
        { kind: kind, shared_bytes: bytes.shared, lost_bytes: bytes.lost, own_bytes: bytes.own, cause: why,
          advice: what }
      end

      def cause(kind)
        found = OTHER_RUBY[kind] if @lost.cowruby == false
        found || CAUSES.fetch(kind)
      end

      def reasons
        worth = kinds.select { |_, bytes| bytes.lost >= WORTH_A_WORD }.sort_by { |_, bytes| -bytes.lost }
        worth.flat_map do |kind, bytes|
          why, what = cause(kind)
          ["", Text.wrap("#{kind}, #{Memory.megabytes(bytes.lost)} lost: #{why}"),
           Text.wrap("    What to do: #{what || "nothing."}", "    ")]
        end
      end

      def findings
        @findings ||= [*@surroundings.findings, kinds_note].compact
      end

      def kinds_note
        return unless @lost.gc_pages_unknown?

        unread = "the contents of memory may not be read (run as root)"
        "Heap pages could not be told from malloc's memory, and count as such" \
          "#{": #{unread}" unless @lost.contents?}."
      end

      def line(cells)
        kind, *sizes = cells
        sizes = sizes.map { |size| (size.is_a?(Integer) ? Memory.megabytes(size, "") : size).rjust(10) }
        kind.ljust(16) + sizes.join
      end
    end
  end
end

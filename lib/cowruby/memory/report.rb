# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "process_tree"
require_relative "usage"

module CowRuby
  module Memory
    # What one look at a server has found.
    class Report
      SCHEMA = 1

      # A process and its Usage. +at_fork+: bytes of anonymous memory of the process that it was forked from;
      # +still_shared+: the part of them that the worker shares. Both are nil where they are not known.
      Row = Struct.new(:member, :usage, :at_fork, :still_shared) do
        # 0.0 to 1.0; nil where it is not known.
        def share
          still_shared.fdiv(at_fork) if still_shared && at_fork.positive?
        end
      end

      attr_reader :rows, :time

      # +usages+: { number => Usage } of those +members+ that have not ended meanwhile. +noted+: { number =>
      # bytes } that masters have noted before a fork. +kept+: how many usages are of an earlier look.
      def initialize(members, usages, noted: {}, kept: 0, time: Time.now)
        @time = time
        @kept = kept
        members = members.select { |member| usages[member.pid] }
        @rows = members.map do |member|
          at_fork = noted[member.origin] || usages[member.origin]&.anonymous
          shared = usages[member.pid].shared_anonymous
          Row.new(member, usages[member.pid], at_fork, at_fork && shared && [shared, at_fork].min)
        end
      end

      def root
        rows.first.member.pid
      end

      # Processes of which the kernel does not say what they share.
      def unreadable
        rows.reject { |row| row.usage.shares? }
      end

      # Bytes of all processes together, as far as they are known. Of +member+ pss this is what the server
      # takes.
      def sum(member)
        rows.sum { |row| row.usage.public_send(member) || 0 }
      end

      # Swapped memory that processes share counts once, where the kernel says so.
      def swap
        rows.sum { |row| row.usage.swap_pss || row.usage.swap || 0 }
      end

      # What the user should know of the figures, a sentence each.
      def notes
        [unreadable_note, smaps_note, swap_note, kept_note].compact
      end

      # Numbers and names for a program. All sizes are bytes; nil is what is not known. The keys stay as they
      # are, and +schema+ grows by one if one of them changes its meaning or goes.
      def to_h
        { schema: SCHEMA, time: time.utc.strftime("%Y-%m-%dT%H:%M:%SZ"), root_pid: root,
          process_count: rows.size, unreadable_count: unreadable.size, pss_bytes: sum(:pss),
          private_bytes: sum(:private_total), resident_bytes: sum(:rss), swap_bytes: swap, notes: notes,
          processes: rows.map { |row| process(row) } }
      end

      private

      def process(row)
        member, usage = row.member, row.usage
        { pid: member.pid, parent_pid: member.parent, depth: member.depth, role: member.role,
          index: member.index&.to_i, title: member.title, private_bytes: usage.private_total,
          private_dirty_bytes: usage.private_dirty, shared_bytes: usage.shared_total, pss_bytes: usage.pss,
          resident_bytes: usage.rss, anonymous_bytes: usage.anonymous, huge_page_bytes: usage.huge,
          swap_bytes: usage.swap, inherited_bytes: row.at_fork, inherited_shared_bytes: row.still_shared,
          source: usage.source }
      end

      def unreadable_note
        return if unreadable.empty?

        "It could not be read what #{numbers(unreadable)} shared: the sums of private memory and Pss are " \
          "without it. Run as root or as the user of the server; old kernels do not say it to anybody."
      end

      def smaps_note
        slow = rows.select { |row| row.usage.source == "smaps" }
        return if slow.empty?

        "smaps was read of #{numbers(slow)}, which takes longer: smaps_rollup was not usable."
      end

      def swap_note
        return unless swap.positive?

        "Some of it is swapped out. What is swapped counts neither as private nor as shared."
      end

      def kept_note
        return unless @kept.positive?

        "The figures of #{@kept} process#{"es" if @kept > 1} are of an earlier look: to read all each time " \
          "would take more than 1 % of a processor."
      end

      def numbers(some)
        pids = some.map { |row| row.member.pid }
        "process#{"es" if pids.size > 1} #{pids.first(5).join(", ")}#{" and others" if pids.size > 5}"
      end
    end
  end
end

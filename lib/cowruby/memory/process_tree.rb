# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "procfs"

module CowRuby
  module Memory
    # Which processes belong to a server, and which of them forked which. It remembers what it has read:
    # refresh reads only of processes that are new.
    class ProcessTree
      # +role+ is "master" (the root), "mold" (of Pitchfork), "worker" (forked from one of these) or "other"
      # (a program that one of them started). +index+ is the number in a worker's title, nil if it has none.
      # +origin+ is the process that it was forked from, nil if that is not in the tree.
      Member = Struct.new(:pid, :parent, :depth, :role, :index, :title, :origin)

      # After so many times all is read anew: a worker may have another title, a number another process.
      REREAD = 12
      INDEX = /\bworker(?:\[| )(\d+)\b/
      MOLD = /\Apitchfork .*\bmold\b/

      def initialize(procfs)
        @procfs = procfs
        @times = 0
        forget
      end

      def refresh
        forget if (@times += 1) % REREAD == 0
        old, @stats = @stats, {}
        @procfs.pids.each { |pid| @stats[pid] = old[pid] || @procfs.stat(pid) }
        @stats.compact!
        # A process whose parent has ended has another one. The first of all has none.
        orphans = old.keys.select { |pid| @stats.key?(pid) && !@stats.key?(@stats[pid].parent) }
        orphans.reject { |pid| @stats[pid].parent.zero? }.each { |pid| @stats[pid] = @procfs.stat(pid) }
        @stats.compact!
        @titles.select! { |pid, _| @stats.key?(pid) }
        self
      end

      # The process from which +pid+ descends by forks alone: the master, if +pid+ is of a server that forks.
      # Raises Gone.
      def root_of(pid)
        stat = known(pid)
        seen = []
        # Files that are read one after the other may say that parents are a circle.
        until seen.include?(pid) || !forked?(stat)
          seen << pid
          stat, pid = @stats[stat.parent], stat.parent
        end
        pid
      end

      # The processes from which +pid+ descends, as far as they can be seen.
      def ancestors(pid)
        found = []
        found << pid while (pid = @stats[pid]&.parent) && @stats.key?(pid) && !found.include?(pid)
        found
      end

      # Ticks at which the process started: they tell it from a later one with its number. Raises Gone.
      def started(pid)
        known(pid).started
      end

      # +root+ and all its descendants, each before its children and these by their numbers. Raises Gone, also
      # if +root+ did not start at +started+.
      def members(root, started = started(root))
        raise Gone, "process #{root} has ended" unless known(root).started == started

        children = living.reject { |pid, _| pid == root }.group_by { |_, stat| stat.parent }
        children.transform_values! { |found| found.map(&:first).sort }
        found = descend(root, 0, children)
        found.each { |member| member.role, member.index = describe(member, root) }
        found.each { |member| member.origin = origin(member, found) }
      end

      # { number => title } of all processes.
      def titles
        living.keys.to_h { |pid| [pid, title(pid)] }
      end

      private

      def forget
        @stats = {}
        @titles = {}
      end

      def known(pid)
        stat = @stats[pid]
        return stat if stat && !stat.ended?

        raise Gone, stat ? "process #{pid} has ended" : "there is no process #{pid}"
      end

      def living
        @stats.reject { |_, stat| stat.ended? }
      end

      def forked?(stat)
        !stat.image.nil? && @stats[stat.parent]&.image == stat.image
      end

      def descend(pid, depth, children)
        member = Member.new(pid, @stats[pid].parent, depth, nil, nil, title(pid))
        [member, *children.fetch(pid, []).flat_map { |child| descend(child, depth + 1, children) }]
      end

      # A title that is none, as of a kernel's thread, is empty.
      def title(pid)
        @titles[pid] ||= Procfs.printable(@procfs.title(pid))
      end

      # Role and index.
      def describe(member, root)
        return ["master", nil] if member.pid == root
        return ["mold", nil] if member.title.match?(MOLD)

        index = member.title[INDEX, 1]
        image = @stats[member.pid].image
        forked = image ? image == @stats[member.parent]&.image || image == @stats[root].image : index
        forked ? ["worker", index] : ["other", nil]
      end

      # The kernel gives the children of Pitchfork's mold to the monitor.
      def origin(member, members)
        return unless %w[worker mold].include?(member.role)

        mold = members.find { |other| other.role == "mold" } if member.role == "worker"
        mold&.pid || (member.parent if members.any? { |other| other.pid == member.parent })
      end
    end
  end
end

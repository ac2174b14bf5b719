# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "report"

module CowRuby
  module Memory
    # Looks at a server, again and again if need be.
    class Observer
      attr_reader :root

      # +pid+: any process of the server. Raises Gone, Unsupported.
      def initialize(pid, procfs: Procfs.new.check, tree: ProcessTree.new(procfs).refresh)
        @procfs = procfs
        @tree = tree
        @root = @tree.root_of(pid)
        @started = @tree.started(@root)
        @fresh = true
        @usages = {}
      end

      # Gives a Report. Reads one file of each process, and of a process that is new a few more. Raises Gone
      # when the master has ended.
      #
      # +seconds+: processor time that a look may take. The kernel goes through all pages of a process for its
      # file. When the time is over, the other processes keep the figures that they had; the next look begins
      # with them. New processes, and one of the others, are read in any case.
      def look(noted: {}, seconds: nil)
        ending = seconds && processor_time + seconds
        @tree.refresh unless @fresh
        @fresh = false
        members = members()
        kept = read(members.map(&:pid), ending)
        return Report.new(members, @usages, noted: noted, kept: kept) if @usages[@root]

        raise Gone, "process #{@root} has no memory: it is ending, or a thread of the kernel"
      end

      private

      def members
        @tree.members(@root, @started)
      rescue Gone
        raise Gone, "process #{@root} has ended"
      end

      # Brings @usages up to date, in which what was read longest ago stands first. Gives the number of
      # processes that were not read.
      def read(pids, ending)
        @usages.select! { |pid, _| pids.include?(pid) }
        due = pids - @usages.keys + @usages.keys
        due.each_with_index do |pid, i|
          old = @usages.delete(pid)
          usage = Usage.of(@procfs, pid)
          @usages[pid] = usage if usage
          return due.size - i - 1 if old && ending && processor_time > ending
        end
        0
      end

      def processor_time
        Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
      end
    end
  end
end

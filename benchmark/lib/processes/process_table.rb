# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # The processes of this machine, from /proc.
  module ProcessTable
    # +ticks+ are the CPU time so far, of the process and of its children that were waited for;
    # +started+ are ticks from the start of the machine.
    Stat = Struct.new(:state, :parent, :group, :ticks, :started) do
      # A zombie: it has ended, and its parent has not waited for it yet.
      def ended?
        state == "Z"
      end
    end

    class << self
      # Fields of /proc/PID/stat (proc(5)); nil where there is no such process.
      def stat(pid)
        # The name, in brackets, may hold anything.
        fields = File.read("/proc/#{pid}/stat").rpartition(")").last.split
        Stat.new(fields[0], fields[1].to_i, fields[2].to_i, fields[11, 4].sum(&:to_i), fields[19].to_i)
      rescue Errno::ENOENT, Errno::ESRCH
        nil
      end

      def alive?(pid)
        found = stat(pid)
        !found.nil? && !found.ended?
      end

      # The title that a process gave itself, or else its command; "" where there is none.
      def title(pid)
        File.binread("/proc/#{pid}/cmdline").tr("\0", " ").strip
      rescue Errno::ENOENT, Errno::ESRCH
        ""
      end

      # { number => Stat } of all processes, also of those that have ended.
      def all
        numbers = Dir.children("/proc").grep(/\A\d+\z/).map(&:to_i)
        numbers.to_h { |pid| [pid, stat(pid)] }.compact
      end

      def running
        all.reject { |_, stat| stat.ended? }
      end

      # +pid+ and all its descendants, parents before their children.
      def tree(pid)
        children = running.group_by { |_, stat| stat.parent }
        found = [pid]
        found.each { |known| found.concat(children.fetch(known, []).map(&:first)) }
      end

      # The members of a process group.
      def group(number)
        running.select { |_, stat| stat.group == number }.keys
      end

      # Members of a process group that have ended, and that this process has to wait for.
      def ended(number)
        all.select { |_, stat| stat.ended? && stat.group == number && stat.parent == Process.pid }.keys
      end
    end
  end
end

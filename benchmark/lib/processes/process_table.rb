# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../../../lib/cowruby/memory/procfs"

module CowBench
  # The processes of this machine, from /proc.
  module ProcessTable
    PROC = CowRuby::Memory::Procfs.new
    private_constant :PROC

    class << self
      # Its Procfs::Stat; nil where there is no such process.
      def stat(pid)
        PROC.stat(pid)
      end

      # The title that a process gave itself, or else its command; "" where there is none.
      def title(pid)
        PROC.title(pid)
      end

      def alive?(pid)
        found = stat(pid)
        !found.nil? && !found.ended?
      end

      # { number => Stat } of all processes, also of those that have ended.
      def all
        PROC.pids.to_h { |pid| [pid, stat(pid)] }.compact
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

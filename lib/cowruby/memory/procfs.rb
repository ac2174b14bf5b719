# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "errors"

module CowRuby
  module Memory
    # Reads what the kernel says of processes, in /proc.
    class Procfs
      # +ticks+ are the CPU time so far, of the process and of its children that were waited for; +started+
      # are ticks from the start of the machine. +image+ tells programs apart: a forked child has that of its
      # parent until it starts another program. It is nil if this user may not know it. +faults+ are the page
      # faults so far, of the same processes as +ticks+.
      Stat = Struct.new(:state, :parent, :group, :ticks, :started, :image, :faults) do
        # Z is a zombie: it has ended, and its parent has not waited for it yet. X is not even that any more.
        def ended?
          %w[Z X x].include?(state)
        end
      end

      # Text of another process, on one line and fit for a terminal: whoever started it has chosen the bytes.
      def self.printable(text)
        text.dup.force_encoding(Encoding::UTF_8).scrub("?").gsub(/[^[:print:]]/, " ")
      end

      # Files that were opened so far.
      attr_reader :reads

      # +root+: another directory of the same shape, for tests.
      def initialize(root = "/proc")
        @root = root
        @reads = 0
      end

      # Raises Unsupported where there is no such /proc.
      def check
        return self if File.exist?(File.join(@root, "self/stat"))

        raise Unsupported, "this system has no Linux /proc, which says how much memory is shared"
      end

      # The numbers of all processes that this user may see.
      def pids
        Dir.children(@root).grep(/\A\d+\z/).map(&:to_i)
      end

      def exist?(pid)
        File.exist?(File.join(@root, pid.to_s))
      end

      # The text of a file of a process; nil if there is no such file or the process has ended. Raises
      # Forbidden.
      def read(pid, name)
        @reads += 1
        File.binread(File.join(@root, pid.to_s, name))
      rescue Errno::ENOENT, Errno::ESRCH
        nil
      rescue Errno::EACCES, Errno::EPERM
        raise Forbidden, "may not read #{name} of process #{pid}: run as root, or as its user"
      end

      # Fields of /proc/PID/stat (proc(5)); nil where there is no such process.
      def stat(pid)
        # The name, in brackets, may hold anything.
        fields = read(pid, "stat")&.rpartition(")")&.last&.split
        return unless fields && fields.size > 25

        image = fields.values_at(23, 25).map(&:to_i)
        Stat.new(fields[0], fields[1].to_i, fields[2].to_i, fields[11, 4].sum(&:to_i), fields[19].to_i,
                 (image unless image.last.zero?), fields[7, 4].sum(&:to_i))
      rescue Forbidden
        nil
      end

      # The words with which a process was started, or the title that it gave itself; empty where there is
      # neither.
      def command_line(pid)
        read(pid, "cmdline").to_s.split("\0")
      rescue Forbidden
        []
      end

      # The same on one line.
      def title(pid)
        command_line(pid).join(" ").strip
      end
    end
  end
end

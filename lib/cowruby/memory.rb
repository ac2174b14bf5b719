# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "memory/observer"

module CowRuby
  # What the processes of a forking server share, as the kernel counts it. Linux only; works with any ruby
  # from 3.0 on. The program cowruby-memory prints the same.
  #
  # In an application, as for a page that says how the server is:
  #
  #   require "cowruby/memory"
  #   CowRuby::Memory.report[:pss_bytes]     # what the whole server takes
  module Memory
    # Frozen, so that all Ractors can read it.
    @noted = {}.freeze

    class << self
      # Looks at the server to which +pid+ belongs: at its master and all processes that descend from it.
      # Gives a Hash of numbers and names (Report#to_h). Of a process that this one may not read only
      # +resident_bytes+, +anonymous_bytes+ and +swap_bytes+ are known. It reads one or two small files of
      # each process of the machine, and takes about a millisecond for each 80 MB that the processes have. Any
      # Ractor may call it, from ruby 3.1 on.
      #
      # Raises CowRuby::Memory::Gone if there is no such process, Unsupported if the system is not Linux.
      def report(pid = Process.pid)
        Observer.new(pid).look(noted: @noted).to_h
      end

      # To be called in the master before it forks. From then on reports of this process and of those that it
      # forks take what it has now for what the workers inherit; without it they take what the master has when
      # they are made. Gives a line that says how much that is, for a log. Raises nothing: where it cannot be
      # read, the line says that.
      def before_fork(procfs: Procfs.new)
        pid = Process.pid
        bytes = anonymous(procfs, pid)
        line = "cowruby: process #{pid} forks with "
        return "#{line}memory of which /proc does not say how much it is" unless bytes

        note(pid, bytes)
        "#{line}#{megabytes(bytes)} of memory that workers can share; to see what they do share: " \
          "cowruby-memory #{pid}"
      end

      # As in a server's hook, where no descriptor may be left.
      def anonymous(procfs, pid)
        Usage.of(procfs, pid)&.anonymous
      rescue SystemCallError
        nil
      end

      def note(pid, bytes)
        @noted = @noted.merge(pid => bytes).freeze
      rescue Ractor::IsolationError
        nil # only the main Ractor may change it
      end
      private :anonymous, :note

      # Seconds of a clock that nobody sets.
      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # +bytes+ for people: in MB (1,048,576 bytes), with commas; "-" if it is nil.
      def megabytes(bytes, unit = " MB")
        return "-" unless bytes

        whole, part = format("%.1f", bytes.fdiv(1 << 20)).split(".")
        "#{whole.gsub(/(?<=\d)(?=(?:\d{3})+\z)/, ",")}.#{part}#{unit}"
      end
    end
  end
end

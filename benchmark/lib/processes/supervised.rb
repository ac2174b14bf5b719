# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "tempfile"
require_relative "clock"
require_relative "process_table"

module CowBench
  # A child process in a process group of its own: started, waited for and, whatever happens,
  # stopped, each process of the group by its own number.
  class Supervised
    attr_reader :pid, :status

    # From now on orphans of our children become children of this process, so that a server's master
    # that another master started can be waited for. False where that cannot be done.
    def self.adopt_orphans
      require "fiddle"
      types = [Fiddle::TYPE_INT] + [Fiddle::TYPE_LONG] * 4
      prctl = Fiddle::Function.new(Fiddle.dlopen(nil)["prctl"], types, Fiddle::TYPE_INT)
      prctl.call(SET_CHILD_SUBREAPER, 1, 0, 0, 0).zero?
    rescue LoadError, Fiddle::DLError
      false
    end
    SET_CHILD_SUBREAPER = 36
    private_constant :SET_CHILD_SUBREAPER

    # Runs +command+ to its end; gives what it printed and its status, nil where it was stopped
    # after +seconds+.
    def self.capture(*command, seconds:, **options)
      Tempfile.create("output") do |file|
        child = new(*command, in: File::NULL, out: file, err: file, **options)
        status = child.wait(seconds)
        [File.read(file.path).scrub, status]
      ensure
        child&.kill
      end
    end

    # +options+ are those of Process.spawn. An interrupt at the terminal reaches this process
    # alone, as the child has a group of its own.
    def initialize(*command, environment: {}, **options)
      @pid = @group = Process.spawn(environment, *command, pgroup: true, **options)
    end

    # All that belong to it: those whose parent has ended stay in the group.
    def processes
      ProcessTable.tree(@pid) | ProcessTable.group(@group)
    end

    def ended?
      @status ||= Process.wait2(@pid, Process::WNOHANG)&.last
      !@status.nil?
    end

    # The status at its end; nil where it goes on for more than +seconds+.
    def wait(seconds)
      return @status ||= Process.wait2(@pid).last if seconds == Float::INFINITY

      Clock.wait_until(seconds, pause: 0.01) { ended? } && @status
    end

    def signal(name, pid = @pid)
      Process.kill(name, pid)
    rescue Errno::ESRCH
      nil
    end

    # Asks the first process to end; what is left of all of them after +seconds+ is killed.
    def stop(name, seconds)
      known = processes
      signal(name) unless @status
      Clock.wait_until(seconds) do
        known |= processes
        ended? && known.none? { |pid| ProcessTable.alive?(pid) }
      end
      kill(known)
    end

    # Seconds that killed processes may take to be gone.
    GOING = 10

    # At once. The first process is halted before the others are listed, so that it starts no more.
    def kill(known = [])
      signal(:STOP) unless ended?
      left = (known | processes).select { |pid| ProcessTable.alive?(pid) }
      left.each { |pid| signal(:KILL, pid) }
      @status ||= Process.wait2(@pid).last
      Clock.wait_until(GOING, pause: 0.01) { left.none? { |pid| ProcessTable.alive?(pid) } }
    end

    # Another process has taken the first one's place: the old one is asked to go. False where
    # it does not go within +seconds+.
    def hand_over(successor, name, seconds)
      signal(name)
      return false unless wait(seconds)

      @pid = successor
      @status = nil
      true
    end

    # Waits for adopted orphans that have ended. Nobody else does, and a master that looks for a
    # worker that is not its child (Puma's with fork_worker, when worker 0 was killed) would
    # wait for it for ever.
    def reap
      ProcessTable.ended(@group).each { |pid| Process.wait(pid, Process::WNOHANG) unless pid == @pid }
    end
  end
end

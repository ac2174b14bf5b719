# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "etc"
require "fileutils"
require "socket"
require_relative "../memory/memory"
require_relative "../processes/supervised"

module CowBench
  # A program of an application that is started, watched from outside and stopped, with all its processes. A
  # subclass is a kind of program, for HTTP (Server) or for jobs (JobServer); it has NAME, WORKER, which are
  # the titles of the processes that are forked, and +command+.
  class Service
    Failed = Class.new(StandardError)
    Missing = Class.new(StandardError)
    CONFIGURATIONS = File.expand_path("../../servers", __dir__)
    LIBRARY = File.expand_path("../../../lib", __dir__)
    # Loaded into each process, says how long its first fork took.
    FORK_TIME = File.join(CONFIGURATIONS, "fork_time.rb")
    # The same, notes how long collections take.
    GC_TIME = File.join(CONFIGURATIONS, "gc_time.rb")
    # Seconds; bounds only.
    START = 120
    STOP = 15
    SETTLE = 10
    # Seconds between two looks at a program that settles, and the CPU seconds between them that are rest.
    PAUSE = 0.3
    REST = 0

    # One process at one moment; +sample+ is Memory's.
    Seen = Struct.new(:pid, :parent, :worker, :title, :sample)

    class << self
      # puma-fork_worker for PumaForkWorker::NAME.
      def title
        self::NAME
      end

      # What must be installed beside the gems: one line where it is missing.
      def missing
      end

      def free_port
        TCPServer.open("127.0.0.1", 0) { |socket| socket.local_address.ip_port }
      end
    end
    # Settings of this kind of program alone, for its environment.
    ENVIRONMENT = {}.freeze
    # The signal that ends it.
    STOP_SIGNAL = :TERM

    attr_reader :directory, :settings

    # +directory+ is the run's own. +settings+ holds :warmup and :yjit; in :group the Cgroup that all
    # processes are in, and in :times the directory for GC_TIME, if there are such; :rehearsed and others are
    # told by the subclass.
    def initialize(app, build, directory, settings)
      @app = app
      @build = build
      @directory = directory
      @settings = settings
      @log = File.join(directory, "server.log")
    end

    # Starts it and waits until all workers are there and at rest.
    def start
      FileUtils.mkdir_p(@directory)
      before_start
      @master = launch(*join(@settings[:group]), *command, environment: environment, chdir: @app.directory)
      wait_for_workers
    end

    def pid
      @master.pid
    end

    def wait_for_workers
      wait("all workers", START) { ready? }
      settle
    end

    # CPU time of all processes so far, in seconds, that of children that were
    # waited for included. A killed worker's orphans take theirs along.
    def cpu
      processes.sum { |pid| ProcessTable.stat(pid)&.ticks.to_i }.fdiv(Etc.sysconf(Etc::SC_CLK_TCK))
    end

    # Page faults of the same processes so far.
    def faults
      processes.sum { |pid| ProcessTable.stat(pid)&.faults.to_i }
    end

    # Waits until the processes have nothing to do: no more time is spent than at rest. Not where the load
    # goes on meanwhile.
    def settle
      return if @under_load

      spent = nil
      Clock.wait_until(SETTLE, pause: self.class::PAUSE) do
        before = spent
        spent = cpu
        before && spent - before <= self.class::REST
      end
    end

    # The processes with what they hold; those that end meanwhile are left out.
    def look
      processes.filter_map do |pid|
        Seen.new(pid, parent(pid), worker?(pid), ProcessTable.title(pid), Memory.sample(pid, mappings: false))
      rescue Errno::ENOENT, Errno::ESRCH
        nil
      end
    end

    def workers
      processes.select { |pid| worker?(pid) }
    end

    # Whether a worker of this title answers requests or does jobs.
    def serves?(title)
      title.match?(self.class::WORKER)
    end

    # Those of the workers that do.
    def serving
      workers.select { |pid| serves?(ProcessTable.title(pid)) }
    end

    # How many of these there are when all are there.
    def number_of_serving
      number_of_workers
    end

    # How many requests or jobs such a worker may have taken when it is killed.
    def at_work
      self.class::AT_WORK
    end

    # The process that a worker was forked from.
    def origin(worker)
      parent(worker)
    end

    # Politely first; what is left after that is killed.
    def stop
      halt
    end

    # Stopped and started again while it is used, from where it was.
    def restart
      @under_load = true
      halt
      start
    end

    # All its processes are killed at once, then it is started again.
    def crash
      @master.kill
      restart
    end

    def ended?
      @master.ended?
    end

    # How many processes are forked when all are there.
    def number_of_workers
      raise NotImplementedError
    end

    # Waits for orphans that have ended, where Supervised.adopt_orphans was called.
    def reap
      @master.reap
    end

    # How often one of its processes has said that it has a bug.
    def bugs
      logged(/\[BUG\]/).size
    end

    # What it said last, or first of an error.
    def complaint
      lines = written_logs.flat_map { |file| File.readlines(file).map { |line| line.scrub.strip } }
      lines.reject!(&:empty?)
      (lines.grep(/error|cannot/i).first(1) + lines.last(1)).uniq.join(" | ")
    end

    # What the rehearsal says of its end; nil where there was none.
    def rehearsal
      logged(/rehearsal: \d+ #{self.class::REHEARSED} in .*/).first
    end
    # What is rehearsed.
    REHEARSED = "requests"

    # How long the first fork took of the process that the workers come from, in ms; nil where it is
    # not known.
    def first_fork
      origin = workers.first&.then { |worker| origin(worker) }
      logged(/first fork of #{origin}: [\d.]+ ms/).first&.then { |line| line[/([\d.]+) ms/, 1].to_f }
    end

    private

    # Ends what a restart starts anew.
    def halt
      @master&.stop(self.class::STOP_SIGNAL, self.class::STOP)
      @master = nil
    end

    def before_start
    end

    def ready?
      workers.size == number_of_workers
    end

    # What makes the command after it a member of the group.
    def join(group)
      group ? ["sh", "-c", 'echo 0 >"$0" && exec "$@"', group.members] : []
    end

    def launch(*command, **options)
      Supervised.new(*command, in: File::NULL, out: [@log, "a"], err: [@log, "a"], **options)
    end

    def logs
      [@log]
    end

    def written_logs
      logs.select { |file| File.exist?(file) }
    end

    def logged(pattern)
      written_logs.filter_map { |log| File.binread(log)[pattern] }
    end

    def environment
      switches = %i[warmup yjit oob_gc].to_h { |name| [name.to_s.upcase, switch(@settings[name])] }
      @app.environment(@build, @directory)
          .merge(switches, "RUBYOPT" => loaded, "GC_TIMES" => @settings[:times], **self.class::ENVIRONMENT)
    end

    def loaded
      [FORK_TIME, *(GC_TIME if @settings[:times])].map { |file| "-r#{file}" }.join(" ")
    end

    def switch(value)
      value.is_a?(String) ? value : (value ? "1" : "0")
    end

    # A rehearsal that needs no line in the application: CowRuby loads the library by itself.
    def rehearsal_without_a_line(variable, value)
      return { variable => value } if @build.version.include?("CowRuby")

      { variable => value, "RUBYLIB" => LIBRARY, "RUBYOPT" => "#{loaded} -rcowruby/rehearsal/auto" }
    end

    # Runs a program of the application's gems.
    def in_bundle(*program)
      [@build.path, File.join(File.dirname(@build.path), "bundle"), "exec", *program]
    end

    def configuration(name)
      File.join(CONFIGURATIONS, name)
    end

    # A worker is known by the title that its server gives it.
    def worker?(pid)
      self.class::WORKER.match?(ProcessTable.title(pid))
    end

    def parent(pid)
      ProcessTable.stat(pid)&.parent
    end

    def processes
      @master.processes
    end

    # Does anybody listen at the port?
    def listening?(port)
      TCPSocket.open("127.0.0.1", port).close
      true
    rescue SystemCallError
      false
    end

    def wait(what, seconds)
      Clock.wait_until(seconds, pause: 0.1) do
        raise Failed, "ended early: #{complaint}" if @master.ended?

        yield
      end or raise Failed, "no #{what} after #{seconds} s: #{complaint}"
    end
  end
end

# frozen_string_literal: true

require "erb"
require "etc"
require "fileutils"
require "open3"
require "socket"
require_relative "clock"
require_relative "memory"

# A server that is started, watched from outside and stopped, each of its
# processes by its own number. A subclass is one kind of server; its
# configuration is a file in benchmark/servers.
class Server
  Failed = Class.new(StandardError)
  Missing = Class.new(StandardError)
  CONFIGURATIONS = File.expand_path("../servers", __dir__)
  WORKERS = 4
  REHEARSAL = File.expand_path("../../lib/cowruby/rehearsal", __dir__)
  # Seconds; bounds only.
  START = 120
  STOP = 15
  SETTLE = 10

  # One process at one moment; +sample+ is Memory's.
  Seen = Struct.new(:pid, :parent, :worker, :title, :sample)

  class << self
    def all
      @all ||= []
    end

    def inherited(subclass)
      super
      Server.all << subclass
    end

    # puma-fork_worker for PumaForkWorker::NAME.
    def title
      self::NAME
    end

    def find(name)
      all.find { |server| server.title == name }
    end

    # What must be installed beside the gems: one line where it is missing.
    def missing
    end
  end

  attr_reader :port, :pid, :directory

  # +directory+ is the run's own. +settings+ holds :warmup and :yjit, :oob_gc where
  # workers shall collect between requests, and :rehearsed where the application
  # shall be rehearsed before the first fork (lib/cowruby/rehearsal.rb).
  def initialize(app, build, directory, settings)
    @app = app
    @build = build
    @directory = directory
    @settings = settings
    @port = Server.free_port
    @log = File.join(directory, "server.log")
  end

  # Starts it and waits until all workers are there and at rest.
  def start
    FileUtils.mkdir_p(@directory)
    before_start
    @pid = Process.spawn(environment, *command, chdir: @app.directory, in: File::NULL, out: [@log, "a"], err: [@log, "a"], pgroup: true)
    @group = @pid
    wait_for_workers
  end

  def wait_for_workers
    wait("all workers", START) { workers.size == WORKERS && listening? }
    settle
  end

  # CPU time of all processes so far, in seconds, that of children that were
  # waited for included. A killed worker's orphans take theirs along.
  def cpu
    tree.sum { |pid| ticks(pid) }.fdiv(Etc.sysconf(Etc::SC_CLK_TCK))
  end

  # Waits until the processes have nothing to do: no time is spent any more.
  def settle
    spent = nil
    deadline = Clock.now + SETTLE
    loop do
      now = cpu
      return if now == spent || Clock.now > deadline

      spent = now
      sleep 0.3
    end
  end

  # The processes with what they hold; those that end meanwhile are left out.
  def look
    tree.filter_map do |pid|
      Seen.new(pid, parent(pid), worker?(pid), title_of(pid), Memory.sample(pid, mappings: false))
    rescue Errno::ENOENT, Errno::ESRCH
      nil
    end
  end

  def workers
    tree.select { |pid| worker?(pid) }
  end

  # The process that a worker was forked from.
  def origin(worker)
    parent(worker)
  end

  def parent(pid)
    stat(pid)[1].to_i
  rescue Errno::ENOENT, Errno::ESRCH
    nil
  end

  # Another process has taken the master's place: the old one is asked to go.
  # What it leaves behind is ours to wait for (see Server.adopt).
  def handed_over(successor)
    old = @pid
    signal(:QUIT, old)
    deadline = Clock.now + STOP
    sleep 0.05 until (gone = Process.wait(old, Process::WNOHANG)) || Clock.now > deadline
    raise Failed, "the old master does not go" unless gone

    @pid = successor
  end

  # From now on orphans of servers become children of this process, so that a
  # master that was started by another master can be waited for.
  def self.adopt
    require "fiddle"
    prctl = Fiddle::Function.new(Fiddle.dlopen(nil)["prctl"], [Fiddle::TYPE_INT] + [Fiddle::TYPE_LONG] * 4, Fiddle::TYPE_INT)
    prctl.call(SET_CHILD_SUBREAPER, 1, 0, 0, 0).zero?
  rescue LoadError, Fiddle::DLError
    false
  end
  SET_CHILD_SUBREAPER = 36
  private_constant :SET_CHILD_SUBREAPER

  # Waits for orphans that have ended: since Server.adopt nobody else does, and a master
  # that looks for a worker it is not the parent of (Puma's with fork_worker, when worker 0
  # was killed) would take it for alive for ever.
  def reap
    Memory.ended(@group).each { |pid| Process.wait(pid, Process::WNOHANG) unless pid == @pid }
  end

  # Politely first; what is left after that is killed.
  def stop
    return unless @pid

    known = tree
    signal(stop_signal, @pid)
    deadline = Clock.now + STOP
    ended = false
    until (ended ||= !Process.wait(@pid, Process::WNOHANG).nil?) && known.none? { |pid| alive?(pid) }
      break if Clock.now > deadline

      known |= tree
      sleep 0.05
    end
    known.each { |pid| signal(:KILL, pid) if alive?(pid) }
    Process.wait(@pid) unless ended
    @pid = nil
  end

  # What it said last, or first of an error.
  def complaint
    lines = written_logs.flat_map { |file| File.readlines(file) }.map { |line| line.scrub.strip }.reject(&:empty?)
    (lines.grep(/error|cannot/i).first(1) + lines.last(1)).uniq.join(" | ")
  end

  # What the rehearsal says of its end; nil where there was none.
  def rehearsal
    written_logs.filter_map { |log| File.binread(log)[/rehearsal: \d+ requests in .*/] }.first
  end

  def self.free_port
    TCPServer.open("127.0.0.1", 0) { |socket| socket.local_address.ip_port }
  end

  private

  def before_start
  end

  def logs
    [@log]
  end

  def written_logs
    logs.select { |file| File.exist?(file) }
  end

  def stop_signal
    :TERM
  end

  def environment
    @app.environment(@build, @directory).merge("PORT" => port.to_s, "WORKERS" => WORKERS.to_s, "WARMUP" => @settings[:warmup] ? "1" : "0",
                                               "YJIT" => @settings[:yjit] ? "1" : "0", "OOB_GC" => @settings[:oob_gc] ? "1" : "0",
                                               "REHEARSAL" => (REHEARSAL if @settings[:rehearsed]))
  end

  def bundle_exec(*command)
    [@build.path, File.join(File.dirname(@build.path), "bundle"), "exec", *command]
  end

  def configuration(name)
    File.join(CONFIGURATIONS, name)
  end

  # A worker is known by the title that its server gives it.
  def worker?(pid)
    self.class::WORKER.match?(title_of(pid))
  end

  def title_of(pid)
    File.binread("/proc/#{pid}/cmdline").tr("\0", " ").strip
  rescue Errno::ENOENT, Errno::ESRCH
    ""
  end

  # Also those whose parent has died: they stay in the group.
  def tree
    Memory.tree(@pid) | Memory.group(@group)
  end

  # utime, stime, cutime and cstime of proc(5).
  def ticks(pid)
    stat(pid)[11, 4].sum(&:to_i)
  rescue Errno::ENOENT, Errno::ESRCH
    0
  end

  # When it was started, in ticks since the machine was.
  def started(pid)
    stat(pid)[19].to_i
  end

  # The fields after the name.
  def stat(pid)
    File.read("/proc/#{pid}/stat").rpartition(")").last.split
  end

  def alive?(pid)
    stat(pid).first != "Z"
  rescue Errno::ENOENT, Errno::ESRCH
    false
  end

  def listening?
    TCPSocket.open("127.0.0.1", port).close
    true
  rescue SystemCallError
    false
  end

  def wait(what, seconds)
    deadline = Clock.now + seconds
    until yield
      raise Failed, "ended early: #{complaint}" if Process.wait(@pid, Process::WNOHANG).tap { |ended| @pid = nil if ended }
      raise Failed, "no #{what} after #{seconds} s: #{complaint}" if Clock.now > deadline

      sleep 0.1
    end
  end

  def signal(name, pid)
    Process.kill(name, pid)
  rescue Errno::ESRCH
    nil
  end
end

require_relative "server_kinds"

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "tmpdir"
require_relative "../measure/build"
require_relative "../memory/census"
require_relative "../memory/faults"
require_relative "../memory/lost_pages"
require_relative "app"
require_relative "kinds"
require_relative "under_pressure"
require_relative "wrk"

module CowBench
  # One run of one setting on one build: the server is started, driven, looked at
  # and stopped. Gives a hash for JSON.
  class ServerRun
    STEPS = [0, 100, 1_000, 4_000, 10_000].freeze
    # A run for the pages ends here: perf's record grows with every fault.
    PAGES_AT = 4_000
    QUICK_STEPS = [0, 40].freeze

    def initialize(setting, build, app, quick: false, stops: nil)
      @setting = setting
      @build = ServerRun.with_malloc(build, setting.malloc)
      @app = app
      @quick = quick
      @steps = [0, *stops] if stops
      @steps ||= quick ? QUICK_STEPS : STEPS
      @steps = @steps.select { |step| step <= PAGES_AT } if setting.measure == :pages
    end

    def call
      start
      measure
    ensure
      stop
    end

    # Starts the server and waits until it is at rest.
    def start
      Server.find(@setting.server).missing&.then { |reason| raise Server::Missing, reason }
      @app.prepare(@build)
      @directory = Dir.mktmpdir("server")
      @census = File.join(@directory, "census") if @setting.measure == :pages
      learn if @setting.rehearsed == ServerMatrix::AUTO
      prepare_pressure if @setting.measure == :pressure
      start_server(@directory)
      raise Server::Failed, "not rehearsed: #{@server.rehearsal || @server.complaint}" unless rehearsed?
    end

    # Stops the server and removes what it has written.
    def stop
      @faults&.finish
      @server&.stop
    ensure
      @group&.remove
      remove(@directory) if @directory
      FileUtils.rm_f(all_notes) if @setting.rehearsed == ServerMatrix::AUTO
    end

    # Plays requests, and gives their figures, the server's CPU time for them in seconds and its page faults.
    def drive(from, to)
      before, faults = @server.cpu, @server.faults
      result = Wrk.play(@server.port, @app.requests, from, to - from)
      if result.errors.positive?
        raise Server::Failed, "#{result.errors} errors (#{result.complaint}) between #{from} and #{to} " \
                              "requests: #{@server.complaint}"
      end

      @server.wait_for_workers
      result.to_h.merge(from: from, to: to, rate: result.rate, cpu: @server.cpu - before,
                        faults: @server.faults - faults)
    end

    # The same ruby with another malloc. Checked builds are kept: a check takes
    # some starts of the ruby.
    def self.with_malloc(build, malloc)
      @builds ||= {}
      @builds[[build.name, malloc]] ||= begin
        env = malloc_environment(build, malloc)
        changed = env.empty? ? build : build.with(malloc, env)
        found = changed.allocator["name"].sub("libc", "glibc").sub("gglibc", "glibc")
        unless found == malloc.sub("arenas2", "glibc")
          raise Server::Missing, "#{build.name} runs with #{found} in place of #{malloc}"
        end

        changed
      end
    end

    def self.malloc_environment(build, malloc)
      linked = build.allocator["name"]
      return linked == "jemalloc" ? {} : { "LD_PRELOAD" => jemalloc } if malloc == "jemalloc"

      # The C library named first comes before an allocator that is linked.
      env = %w[glibc libc].include?(linked) ? {} : { "LD_PRELOAD" => "libc.so.6" }
      malloc == "arenas2" ? env.merge("MALLOC_ARENA_MAX" => "2") : env
    end

    def self.jemalloc
      Dir["/usr/lib/*/libjemalloc.so.2"].first or
        raise Server::Missing, "there is no jemalloc to preload (Debian package libjemalloc2)"
    end

    # What the processes hold after +step+ requests.
    def look(step)
      processes = @server.look.map { |seen| seen.to_h.except(:sample).merge(seen.sample) }
      { requests: step, processes: processes }
    end

    private

    def start_server(directory)
      settings = { **@setting.to_h, census: @census, **@pressure.to_h }
      @server = Server.find(@setting.server).new(@app, @build, directory, settings)
      @server.start
    end

    def prepare_pressure
      unless UnderPressure::SERVERS.include?(@setting.server)
        raise Server::Missing, "--measure pressure is for #{UnderPressure::SERVERS.join(", ")}"
      end

      @group = Cgroup.new
      times = File.join(@directory, "times")
      FileUtils.mkdir_p(times)
      @pressure = { group: @group, times: times, workers: UnderPressure::WORKERS }
    end

    # A server that serves all of the requests, and whose workers note them for the next one.
    def learn
      FileUtils.rm_f(all_notes)
      start_server(File.join(@directory, "learns"))
      drive(0, @steps.last)
      @server.stop
      raise Server::Failed, "nothing was noted: #{@server.complaint}" unless noted?
    end

    def noted?
      ["", ".journal"].any? { |ending| File.size?(notes + ending) }
    end

    def notes
      File.join(@app.directory, Server::NOTES)
    end

    # The file, its journal, its lock.
    def all_notes
      Dir["#{notes}*"]
    end

    # Seconds that Passenger's watchdog may go on to clean up there itself.
    CLEANING = 5

    def remove(directory)
      Clock.wait_until(CLEANING, pause: 0.1) do
        FileUtils.rm_rf(directory)
        !File.exist?(directory)
      end
    end

    def measure
      return { pressure: under_pressure.call, allocator: @build.allocator["name"] } if @pressure

      first_fork = @server.first_fork
      rehearsal = @server.rehearsal
      points = []
      loads = []
      @steps.each_with_index do |step, i|
        loads << drive(@steps[i - 1], step) if i.positive?
        points << look(step)
        watch if i.zero? && @setting.measure == :pages
      end
      { points: points, loads: loads, first_fork: first_fork, pages: (pages if @setting.measure == :pages),
        allocator: @build.allocator["name"], rehearsal: rehearsal }
    end

    def under_pressure
      UnderPressure.new(@server, @group, @app.requests, @pressure[:times], quick: @quick)
    end

    # As the setting wants it, and without a failure.
    def rehearsed?
      !@setting.rehearsed || @server.rehearsal&.then { |text| !text.include?("failed") }
    end

    # Records the page faults of the worker whose pages are looked at.
    def watch
      @watched = @server.workers.last
      @record = File.join(@directory, "perf.data")
      @faults = Faults.new(@watched, @record)
    rescue Faults::Impossible => e
      @no_faults = e.message
      @faults = nil
    end

    # Compares a worker with the process it was forked from.
    def pages
      @faults&.finish
      writers = Faults.first_writers(@record) if @faults
      @faults = nil
      worker = @server.workers.include?(@watched) ? @watched : @server.workers.last
      census = Census.load(@census) if File.exist?(@census)
      lost = LostPages.new(@server.origin(worker), worker, writers, census)
      { kinds: lost.to_h, writers: listed(lost.writers), idle_writers: listed(lost.idle_writers),
        own_writers: listed(lost.own_writers), structures: structures(lost), no_writers: @no_faults }
    end

    def listed(writers)
      writers.map { |(kind, function), mb| { kind: kind, function: function, mb: mb } }
    end

    def structures(lost)
      lost.structures.map { |(kind, name), row| { kind: kind, structure: name, **row } }
    end
  end
end

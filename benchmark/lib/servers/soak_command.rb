# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../measure/command_line"
require_relative "../measure/machine"
require_relative "app"
require_relative "soak"
require_relative "soak_report"

module CowBench
  # benchmark/soak. Status 1 where something failed that nothing excuses, a process was lost, memory grows, or
  # a server was not soaked.
  class SoakCommand < CommandLine
    NAME = "benchmark/soak"
    AFTER_INTERRUPT = "; the servers are stopped"
    ERRORS = [App::Missing].freeze
    MINUTES = 30
    ALL = "all"
    JOBS = "jobs"
    WORKERS = Server::WORKERS
    # Seconds from one line on the terminal to the next, if nothing happens.
    SHOWN = 30
    BANNER = <<~TEXT
      Usage: benchmark/soak --ruby NAME=PATH [options]
      Loads servers for a long time, disturbs them in the first third of it, and reports what failed and
      whether memory is flat in the last third. Several rubies are compared by --summary.

    TEXT

    def initialize(arguments)
      super
      @servers = %w[unicorn puma pitchfork-reforking]
      @app = "rails"
      @minutes = MINUTES
      @beside = 1
      @place = File.join(ROOT, "build")
      @settings = { warmup: true, yjit: true }
      @shown = {}
      @lock = Mutex.new
    end

    # "solid_queue, fork" as a word.
    def self.word(title)
      title.gsub(/[ ,]+/, "_")
    end

    private

    def work(rest)
      no_arguments(rest)
      return summary if @summary

      needs_rubies
      @builds = @rubies.map { |name, path| Build.new(name, path).check }
      @upgrades = Supervised.adopt_orphans
      warn "#{NAME}: no upgrades: a new master cannot be adopted" unless @upgrades
      @apps = [@app, JOBS].to_h { |name| [name, App.new(name, @place)] }
      soaks = @servers.product(@builds).map { |name, build| [kinds.fetch(name), build] }
      made = @go_on ? soaks.to_h { |soak| [soak, made(*soak)] }.compact : {}
      # All of them, also after one that failed.
      (run_beside(soaks - made.keys) + made.values.map(&:fine?)).all? ? 0 : FAILED
    end

    # The result of an earlier soak of the same ruby with the same settings; nil where there is none that came
    # to its end.
    def made(kind, build)
      result = result_in(file(directory_of(kind, build))) or return
      now = parse(text_of(what(kind, build)))
      result if now.all? { |key, value| result[key] == value } && !result[:ended_early]
    end

    # A SoakResult; nil where the file is not there or not whole, or of an earlier version of this program.
    def result_in(file)
      hash = parse(File.read(file))
      SoakResult.new(hash) if hash.key?(:asked)
    rescue Errno::ENOENT, JSON::ParserError
      nil
    end

    def parse(json)
      JSON.parse(json, symbolize_names: true)
    end

    # JSON without a path of this checkout.
    def text_of(hash)
      CommandLine.without_root(JSON.pretty_generate(hash))
    end

    # The ruby and the settings. A ruby that was built anew has the same version.
    def what(kind, build)
      { builds: [build.to_h], built: File.mtime(build.path).to_i, asked: asked(kind) }
    end

    def asked(kind)
      { minutes: @minutes, rate: kind <= JobServer ? @job_rate : @rate, app: app_of(kind), **@settings }
    end

    def kinds
      @kinds ||= (Server.all + JobServer.all).to_h { |kind| [SoakCommand.word(kind.title), kind] }
                                             .select { |_, kind| Soak::EVENTS.key?(kind.title) }
    end

    def define(options)
      define_rubies(options, "an installed ruby (make rubies); may be given again")
      options.on("--servers NAMES", Array, "#{ALL}, or of #{kinds.keys.join(", ")}",
                 "(default #{@servers.join(",")})") do |names|
        @servers = names == [ALL] ? kinds.keys : known("--servers", names, kinds.keys).uniq
      end
      options.on("--app NAME", App::NAMES, "one of #{App::NAMES.join(", ")} (default #{@app})") do |name|
        @app = name
      end
      options.on("--minutes N", Float, "for each server (default #{MINUTES})") do |number|
        @minutes = positive("--minutes", number)
      end
      define_load(options)
      define_settings(options)
      options.on("--go-on", "leave out what was soaked already") { @go_on = true }
      options.on("--summary", "a table of all soaks that were made, and nothing else") { @summary = true }
      options.on("--place DIR", "where applications, gems and results go (default build)") do |path|
        @place = File.expand_path(path)
      end
    end

    def define_load(options)
      options.on("--rate N", Float, "requests a second for a server (default: as many as",
                 "#{Clients::NUMBER} clients get answered)") { |number| @rate = positive("--rate", number) }
      options.on("--job-rate N", Float,
                 "jobs a second for a job server (default #{JobLoad::RATE})") do |number|
        @job_rate = positive("--job-rate", number)
      end
      options.on("--beside N", Integer, "so many soaks at once (default 1)") do |number|
        @beside = positive("--beside", number)
      end
    end

    def define_settings(options)
      options.on("--[no-]warmup", "call Process.warmup before the first fork (default: yes)") do |on|
        @settings[:warmup] = on
      end
      options.on("--[no-]yjit", "(default: yes)") { |on| @settings[:yjit] = on }
      options.on("--oob-gc", "workers collect between requests (Unicorn's middleware, Puma's out_of_band,",
                 "Pitchfork's after_request_complete)") { @settings[:oob_gc] = true }
    end

    # From the files that the soaks wrote.
    def summary
      found = Dir[file(File.join(@place, "soak/*"))].sort.to_h { |file| [file, result_in(file)] }
      found.each { |file, result| warn "left out, as it cannot be read: #{file}" unless result }
      results = found.values.compact.map do |result|
        build = result[:builds].first
        [build[:name], build[:version].include?("CowRuby"), result]
      end
      raise Bad, "no soak was made yet below #{@place}" if results.empty?

      say(SoakSummary.new(results).to_markdown)
    end

    # Gives, for each, whether it was made and fine.
    def run_beside(soaks)
      left = Queue.new
      soaks.each { |soak| left << soak }
      left.close
      threads = Array.new(@beside) do
        Thread.new do
          Thread.current.report_on_exception = false
          fine = []
          while (kind, build = left.pop)
            fine << soak(kind, build)
          end
          fine
        end
      end
      threads.flat_map(&:value)
    ensure
      threads&.each(&:kill)&.each(&:join)
    end

    def soak(kind, build)
      return skip(kind, kind.missing) if kind.missing

      @apps.fetch(app_of(kind)).prepare(build)
      directory = directory_of(kind, build)
      FileUtils.rm_rf(directory)
      facts = Machine.facts(ROOT).merge(name: "soak-#{File.basename(directory)}", commands: [to_s])
      group, notes = cgroup
      result = SoakResult.new(soaked(kind, build, directory, group).merge(notes: notes))
      save(result, what(kind, build), directory, facts)
      result.fine?
    rescue StandardError => e
      where = " (#{e.class}, #{e.backtrace.first})" unless e.is_a?(Service::Failed)
      $stderr.puts "failed: #{kind.title}, #{build.name}: #{e.message}#{where}"
      false
    ensure
      group&.remove
    end

    def skip(kind, reason)
      warn "skipped: #{kind.title}: #{reason}"
      false
    end

    # Without one there is no limit of memory, and a note that says why.
    def cgroup
      [Cgroup.new, []]
    rescue Cgroup::Unavailable => e
      [nil, ["no limit of memory: #{e.message}"]]
    end

    # A hash for JSON, also where the soak came to no good end.
    def soaked(kind, build, directory, group)
      server = kind.new(@apps.fetch(app_of(kind)), build, directory,
                        { **@settings, workers: WORKERS, group: group })
      server.start
      load = load_of(server).start
      soak = Soak.new(server, load, @minutes * 60, group: group, upgrades: @upgrades)
      early = reason_of_end do
        soak.run do |round|
          load.check
          show(kind, build, round)
        end
      end
      early ||= reason_of_end { load.stop }
      left = {}
      early ||= reason_of_end { left = load.finish }
      { **soak.to_h, app: app_of(kind), **@settings, ended_early: early,
        (server.is_a?(JobServer) ? :jobs : :records) => left }
    ensure
      begin
        reason_of_end { load&.stop }
      ensure
        server&.stop
      end
    end

    # Gives why the block came to no good end, or nil.
    def reason_of_end
      yield
      nil
    rescue Service::Failed, Soak::Failed => e
      e.message
    rescue StandardError => e
      "#{e.message} (#{e.class}, #{e.backtrace.first})"
    end

    def load_of(server)
      return JobLoad.new(server, rate: @job_rate) if server.is_a?(JobServer)

      Clients.new(server.port, @apps.fetch(@app).requests, rate: @rate)
    end

    def app_of(kind)
      kind <= JobServer ? JOBS : @app
    end

    def directory_of(kind, build)
      words = [SoakCommand.word(kind.title), app_of(kind), *("oob_gc" if @settings[:oob_gc]), build.name]
      File.join(@place, "soak", words.join("-"))
    end

    def file(directory)
      File.join(directory, "results.json")
    end

    # What happened, and a look every now and then.
    def show(kind, build, round)
      shown = @lock.synchronize do
        key = [kind, build.name]
        @shown[key] = Clock.now if round[:event] || Clock.now - @shown.fetch(key, 0) > SHOWN
      end
      return unless shown

      event = ", #{round[:event]}" if round[:event]
      warn format("[%s, %s, %s] %.1f MB a worker, %d of %d answered, %d failed%s", kind.title, build.name,
                  Clock.minutes(round[:seconds]), round[:private] || 0, round[:answered], round[:sent],
                  round[:failed], event)
    end

    def save(result, what, directory, facts)
      raw = { machine: facts, **what, **result.to_h, memory: result.memory, line: result.line&.to_h }
      File.write("#{file(directory)}.new", text_of(raw) << "\n")
      File.rename("#{file(directory)}.new", file(directory))
      puts SoakReport.new(result, facts, what[:builds].first[:name]).write(directory)
    end
  end
end

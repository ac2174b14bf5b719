# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../measure/command_line"
require_relative "../measure/machine"
require_relative "../measure/progress"
require_relative "matrix"
require_relative "server_report"
require_relative "server_run"
require_relative "side_by_side"

module CowBench
  # benchmark/run-servers. Each run is a file; one that is there already is not
  # repeated, so that an interrupted measurement goes on where it was.
  class ServersCommand < CommandLine
    NAME = "benchmark/run-servers"
    AFTER_INTERRUPT = "; the server is stopped, finished runs are kept"
    ERRORS = [SystemCallError].freeze
    MINUTES = 95
    SWITCH = { "on" => true, "off" => false }.freeze
    BANNER = <<~TEXT
      Usage: benchmark/run-servers --ruby NAME=PATH --ruby NAME=PATH [options]
      Measures installed rubies under real servers, in turn; the first is the base.
      A run that was made is kept and not repeated: call it again to go on.

    TEXT

    def initialize(arguments)
      super
      @axes = {}
      @rounds = 1
      @minutes = MINUTES
    end

    private

    def work(rest)
      no_arguments(rest)
      return say(settings.map(&:id)) if @list

      needs_rubies
      raise Bad, Wrk.missing if Wrk.missing

      measure
    end

    def define(options)
      define_rubies(options, "a ruby to measure; may be given again")
      define_env(options)
      options.on("--quick", "each server once, with a few requests") { @quick = true }
      options.on("--whole", "all combinations (many hours)") { @whole = true }
      options.on("--runs N", Integer, "rounds (default 1)") { |n| @rounds = positive("--runs", n) }
      options.on("--minutes N", Integer, "begin no run after so many minutes (default #{MINUTES})") do |n|
        @minutes = positive("--minutes", n)
      end
      options.on("--stops LIST", Array, "look after so many requests (default " \
                                        "#{ServerRun::STEPS.drop(1).join(",")})") do |list|
        @stops = list.map { |text| positive("--stops", Integer(text, 10, exception: false) || 0) }
        raise Bad, "--stops wants numbers that grow" unless @stops.any? && @stops == @stops.uniq.sort
      end
      define_axes(options)
      options.on("--output DIR", "where runs and tables go (default build/benchmark/servers)") do |path|
        @output = path
      end
      options.on("--list", "say which settings would be measured") { @list = true }
    end

    def define_axes(options)
      ServerMatrix::AXES.each do |name, values|
        words = values.to_h { |value| [SWITCH.key(value) || value.to_s, value] }
        options.on("--#{name} #{(words.keys - SWITCH.keys).empty? ? "on,off" : "NAMES"}", Array,
                   "only these, the other axes as usual: #{words.keys.join(", ")}") do |given|
          @axes[name] = words.values_at(*known("--#{name}", given, words.keys))
        end
      end
    end

    def settings
      return ServerMatrix.product if @whole
      return ServerMatrix.only(@axes) if @axes.any?

      @quick ? ServerMatrix.quick : ServerMatrix.chosen
    end

    def measure
      @builds = given_builds
      @output = output(@output || File.join(ROOT, "build/benchmark", @quick ? "servers-quick" : "servers"))
      FileUtils.mkdir_p(File.join(@output, "runs"))
      @apps = App::NAMES.to_h { |name| [name, App.new(name, File.join(ROOT, "build"))] }
      @omissions = []
      @progress = Progress.new
      run_all
      report
    end

    def run_all
      started = Clock.now
      1.upto(@rounds) do |round|
        left = jobs(round)
        @progress.round(round, left.size)
        left.each_with_index do |(setting, builds), i|
          return leave(round, left.drop(i)) if Clock.now - started > @minutes * 60

          run_one(setting, builds, round)
        end
      end
    ensure
      @progress.finish
    end

    # The time is over: the tables say which runs of a round are left, and how many of later ones.
    def leave(round, left)
      reason = "#{@minutes} minutes were over; call it again to go on"
      names = left.map { |setting, builds| name(setting, builds) }
      omit("skipped", "#{left.size} runs of round #{round}", "#{reason}: #{names.join("; ")}")
      (round + 1).upto(@rounds) do |later|
        number = jobs(later).size
        omit("skipped", "#{number} runs of round #{later}", reason) if number.positive?
      end
    end

    # What is left to do in a round: each a setting and the builds that are measured together. Where they are
    # measured one after the other, it is the other way round in every second round, and for every second
    # setting of a round.
    def jobs(round)
      settings.each_with_index.flat_map do |setting, i|
        turn = (round + i).even? ? @builds.reverse : @builds
        together = setting.measure == :speed ? [@builds] : turn.map { |build| [build] }
        left = together.reject { |builds| builds.all? { |build| kept?(setting, build, round) } }
        left.map { |builds| [setting, builds] }
      end
    end

    def name(setting, builds)
      what = setting.measure == :curve ? "" : ", #{setting.measure}"
      "#{setting.app}: #{setting.label}#{what}, #{builds.map(&:name).join(" and ")}"
    end

    def run_one(setting, builds, round)
      @progress.start(name(setting, builds))
      facts = Machine.facts(ROOT)
      builds.zip(outcomes(setting, builds)) do |build, outcome|
        run = { setting: setting.to_h, build: build.name, stamp: stamp(build, setting.measure), round: round,
                machine: facts, command: to_s, **outcome }
        keep(file(setting, build, round), run)
      end
    rescue App::Missing, Server::Missing, Build::Unusable, Cgroup::Unavailable => e
      omit("skipped", name(setting, builds), e.message)
    rescue Server::Failed, Wrk::Failed, AddressSpace::Unreadable, Faults::Impossible => e
      omit("failed", name(setting, builds), e.message)
    end

    # What was found of each build, in their order.
    def outcomes(setting, builds)
      app = @apps.fetch(setting.app)
      options = { quick: @quick, stops: @stops }
      return SideBySide.new(setting, builds, app, **options).call if setting.measure == :speed

      builds.map { |build| ServerRun.new(setting, build, app, **options).call }
    end

    def omit(word, what, reason)
      @omissions << Runner::Omission.new(word, what, reason)
      @progress.say(@omissions.last.to_s)
    end

    def file(setting, build, round)
      File.join(@output, "runs", "#{setting.id}-#{build.name}-#{round}.json")
    end

    # Whole or not at all.
    def keep(path, run)
      File.write("#{path}.new", JSON.generate(run) << "\n")
      File.rename("#{path}.new", path)
    end

    # Whether the run was made already, with this very ruby.
    def kept?(setting, build, round)
      JSON.parse(File.read(file(setting, build, round)))["stamp"] == stamp(build, setting.measure)
    rescue Errno::ENOENT, JSON::ParserError
      false
    end

    # Differs for a ruby that was built anew, for other stops, where other builds stood beside it, and where
    # percentiles were of something else.
    def stamp(build, measure)
      status = File.stat(build.path)
      beside = @builds.map(&:name) if measure.to_s == "speed"
      latencies = Latencies::ALONE if %w[curve pressure].include?(measure.to_s)
      ["#{build.version}, #{status.size} bytes, #{status.mtime.to_i}", *@stops, *beside, *latencies,
       *build.env.map { |pair| pair.join("=") }].join(", ")
    end

    # Over all runs that are there, also those of earlier calls.
    def report
      runs = finished_runs
      report = ServerReport.of(facts(runs), @builds, runs, @omissions)
      report.publish(@output, @progress)
      report.failed? ? FAILED : 0
    end

    def finished_runs
      runs = Dir[File.join(@output, "runs", "*.json")].sort.map { |path| JSON.parse(File.read(path)) }
      builds = @builds.to_h { |build| [build.name, build] }
      runs = runs.select do |run|
        builds[run["build"]]&.then { |build| stamp(build, run["setting"]["measure"]) == run["stamp"] }
      end
      order = (ServerMatrix.chosen + ServerMatrix.product).map(&:id).uniq.each_with_index.to_h
      names = @builds.map(&:name)
      runs.sort_by do |run|
        [order.fetch(ServerMatrix::Setting.of(run["setting"]).id), run["round"], names.index(run["build"])]
      end
    end

    # Of this call, with the commits and the commands that the runs were made with.
    def facts(runs)
      here = Machine.facts(ROOT)
      commits = runs.map { |run| run.dig("machine", "commit") || "none" }.uniq
      commands = runs.filter_map { |run| run["command"] }.uniq
      here.merge(name: File.basename(@output), commands: commands.empty? ? [to_s] : commands,
                 commit: commits.empty? ? here[:commit] : commits.join(", "))
    end
  end
end

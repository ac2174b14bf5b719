# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../measure/chart"
require_relative "../measure/command_line"
require_relative "../measure/machine"
require_relative "../measure/table"
require_relative "app"
require_relative "soak"

module CowBench
  # benchmark/soak. Status 1 where an error was served or a process was lost.
  class SoakCommand < CommandLine
    NAME = "benchmark/soak"
    AFTER_INTERRUPT = "; the server is stopped"
    ERRORS = [App::Missing].freeze
    MINUTES = 30
    BANNER = <<~TEXT
      Usage: benchmark/soak --ruby NAME=PATH [options]
      Loads servers for a long time, disturbs them, and reports whether memory levels off.

    TEXT
    COLUMNS = ["time", "event", "private a worker (MB)", "Pss (MB)", "errors", "excused", "workers"].freeze
    SUMMARY = ["server, application, ruby", "minutes", "requests", "events", "errors", "excused",
               "after the quiet part (MB a worker)", "growth"].freeze

    def initialize(arguments)
      super
      @servers = %w[unicorn puma pitchfork-reforking]
      @app = "rails"
      @minutes = MINUTES
      @place = File.join(ROOT, "build")
      @settings = { warmup: true, yjit: true }
    end

    private

    def work(rest)
      no_arguments(rest)
      return summary if @summary

      needs_rubies
      raise Bad, "--ruby: one ruby at a time" if @rubies.size > 1
      raise Bad, Wrk.missing if Wrk.missing

      @build = Build.new(*@rubies.first).check
      warn "#{NAME}: no upgrades: a new master cannot be adopted" unless Supervised.adopt_orphans
      @app = App.new(@app, @place)
      @app.prepare(@build)
      # All of them, also after one that failed.
      @servers.map { |name| soak(Server.find(name)) }.all? ? 0 : FAILED
    end

    def define(options)
      define_rubies(options, "an installed ruby (make rubies)")
      servers = Soak::EVENTS.keys
      options.on("--servers NAMES", Array, "of #{servers.join(", ")}",
                 "(default #{@servers.join(",")})") do |names|
        @servers = known("--servers", names, servers)
      end
      options.on("--app NAME", App::NAMES, "one of #{App::NAMES.join(", ")} (default #{@app})") do |name|
        @app = name
      end
      options.on("--minutes N", Float, "for each server (default #{MINUTES})") { |number| @minutes = number }
      define_settings(options)
      options.on("--summary", "a table of all soaks that were made, and nothing else") { @summary = true }
      options.on("--place DIR", "where applications, gems and results go (default build)") do |path|
        @place = File.expand_path(path)
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

    # One row a soak, from the files that report wrote.
    def summary
      files = Dir[File.join(@place, "soak/*/results.json")].sort
      raise Bad, "no soak was made yet below #{@place}" if files.empty?

      rows = files.map do |file|
        summary_row(File.basename(File.dirname(file)), JSON.parse(File.read(file), symbolize_names: true))
      end
      say(Table.new("soak: all", SUMMARY, rows).to_markdown)
    end

    def summary_row(name, soak)
      rounds = soak[:rounds]
      quiet = rounds.take_while { |round| !round[:event] }.last
      excused = rounds.sum { |round| [round[:errors], round[:excused]].min }
      [name.tr("-", " "), format("%d", rounds.last[:seconds] / 60),
       rounds.sum { |round| round[:requests] }.to_s,
       rounds.count { |round| round[:event] }.to_s, (rounds.sum { |round| round[:errors] } - excused).to_s,
       excused.to_s, quiet ? format("%.1f", quiet[:private]) : "-",
       soak[:growth] ? format("%+.1f %%", soak[:growth] * 100) : "-"]
    end

    # Says whether no error was served and nothing was lost.
    def soak(kind)
      if (missing = kind.missing)
        warn "skipped: #{kind.title}: #{missing}"
        return true
      end
      directory = directory_of(kind)
      FileUtils.rm_rf(directory)
      facts = Machine.facts(ROOT).merge(name: "soak-#{File.basename(directory)}", commands: [to_s])
      server = kind.new(@app, @build, directory, @settings)
      server.start
      soak = Soak.new(server, @app.requests, @minutes * 60)
      soak.run { |round| show(kind, round) }
      report(kind, soak, directory, facts)
      soak.errors.zero?
    rescue Server::Failed, Soak::Failed, Wrk::Failed => e
      warn "failed: #{kind.title}: #{e.message}"
      false
    ensure
      server&.stop
    end

    def directory_of(kind)
      oob_gc = "-oob_gc" if @settings[:oob_gc]
      File.join(@place, "soak", "#{kind.title}-#{@app.name}#{oob_gc}-#{@build.name}")
    end

    def show(kind, round)
      complaint = " (#{round.complaint})" unless round.complaint.to_s.empty?
      event = ", #{round.event}" if round.event
      warn format("[%s, %s] %.1f MB a worker, %d errors%s%s", kind.title, Clock.minutes(round.seconds),
                  round.private, round.errors, complaint, event)
    end

    def report(kind, soak, directory, facts)
      table = Table.new("soak: #{kind.title}, #{@app.name}, #{@build.name}", COLUMNS,
                        soak.rounds.map { |round| row(round) }, note: verdict(soak))
      puts table.to_text
      head = ["#{facts[:date]}, commit #{facts[:commit] || "none"}", *facts[:commands]].map do |line|
        "- #{line}"
      end
      write(directory, "tables.md", ["# #{facts[:name]}", "", *head, "", table.to_markdown].join("\n"))
      raw = { machine: facts, builds: [@build.to_h], settings: @settings, rounds: soak.rounds.map(&:to_h),
              growth: soak.growth }
      write(directory, "results.json", JSON.pretty_generate(raw) << "\n")
      chart(kind, soak).draw(directory) if Chart.available?
    end

    def write(directory, name, text)
      File.write(File.join(directory, name), CommandLine.without_root(text))
    end

    def row(round)
      sizes = [round.private, round.tree].map { |mb| format("%.1f", mb) }
      [Clock.minutes(round.seconds), round.event || "", *sizes,
       round.errors.to_s, round.excused.to_s, round.workers.to_s]
    end

    def chart(kind, soak)
      points = soak.rounds.map { |round| [round.seconds / 60.0, round.private] }
      title = "#{kind.title}: private dirty memory of a worker (less is better)"
      Chart::Lines.new(name: "soak", title: title,
                       x_title: "minutes", y_title: "private memory (MB)",
                       lines: [Chart::Line.new(@build.name, nil, points)])
    end

    def verdict(soak)
      growth = soak.growth
      word = soak.level? ? "levels off" : "GROWS"
      memory = format("memory %s: %+.1f %% from the middle third to the last", word, growth * 100) if growth
      "#{soak.rounds.sum(&:requests)} requests, #{soak.errors} errors that nothing excuses; " \
        "#{memory || "too short to judge memory"}"
    end
  end
end

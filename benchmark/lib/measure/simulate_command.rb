# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require "tmpdir"
require_relative "chart"
require_relative "command_line"
require_relative "machine"
require_relative "progress"
require_relative "simulation"
require_relative "table"

module CowBench
  # benchmark/simulate.
  class SimulateCommand < CommandLine
    NAME = "benchmark/simulate"
    AFTER_INTERRUPT = "; nothing is written"
    ERRORS = [Simulation::Failed].freeze
    BANNER = <<~TEXT
      Usage: benchmark/simulate [options]
      Plays recorded traces for many workers on one machine's memory, with pristine CRuby's rules, with the
      model of the heap's size, and with that and the rules for pressure, in one tree and each alone.

    TEXT
    WORKERS = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 768, 1_000].freeze
    QUICK = { workers: [1, 8], seconds: 60 }.freeze
    # The workers of which pictures show what happens over time.
    OVER_TIME = 384
    # The programs that the workers run, by turns.
    MIXED = "all three programs"
    SCENARIOS = { MIXED => Simulation::TRACES, **Simulation::TRACES.to_h { |name| [name, [name]] } }.freeze

    # +table+: in all scenarios, or only for the workers that run all three. +factor+ makes the unit of the
    # simulation's.
    Metric = Struct.new(:key, :title, :unit, :better, :digits, :factor, :always, keyword_init: true)
    METRICS = [
      Metric.new(key: :work, title: "own work that all workers do", unit: "s of CPU time a second",
                 better: :more, digits: 2, factor: 1, always: true),
      Metric.new(key: :stalled, title: "workers wait for memory", unit: "% of the time", better: :less,
                 digits: 1, factor: 100, always: true),
      Metric.new(key: :gc, title: "collections take", unit: "% of the CPU time", better: :less, digits: 1,
                 factor: 100, always: true),
      Metric.new(key: :mean, title: "memory of all workers, swapped out or not, mean", unit: "GB",
                 better: :less, digits: 2, factor: 1.0 / 1024, always: true),
      Metric.new(key: :peak, title: "the same, peak", unit: "GB", better: :less, digits: 2,
                 factor: 1.0 / 1024),
      Metric.new(key: :kept, title: "of the mean, what lives and the processes' own", unit: "GB",
                 better: :more, digits: 2, factor: 1.0 / 1024),
      Metric.new(key: :fairness, title: "fairness between workers, Jain's index", unit: "1 is equal",
                 better: :more, digits: 3, factor: 1),
      Metric.new(key: :least, title: "own work of the worker that does least", unit: "of the mean",
                 better: :more, digits: 2, factor: 1),
      Metric.new(key: :changes, title: "a worker changes its level of pressure", unit: "times a minute",
                 better: :less, digits: 1, factor: 1),
      Metric.new(key: :pressed_full, title: "a worker collects fully because of pressure",
                 unit: "times a minute", better: :less, digits: 2, factor: 1),
      Metric.new(key: :settled, title: "until the memory stays within 5 % of its final mean", unit: "s",
                 better: :less, digits: 0, factor: 1)
    ].freeze
    # One colour and one kind of dash a policy, and its name at the line's end.
    class Line < Chart::Line
      def label
        build
      end
    end

    def initialize(arguments)
      super
      @options = { memory: 16_384, cpus: 16, seconds: 600, seed: 1 }
      @workers = WORKERS
    end

    private

    def work(rest)
      no_arguments(rest)
      @output = output(@output || File.join(ROOT, "build/benchmark/simulation"))
      @progress = Progress.new
      @facts = Machine.facts(ROOT).merge(name: File.basename(@output), commands: [to_s])
      Dir.mktmpdir { |directory| simulate(Simulation.new(directory)) }
      @progress.finish
      publish
      0
    end

    def define(options)
      options.on("--quick", "1 and 8 workers for a minute, to see that it works") do
        @workers = QUICK[:workers]
        @options[:seconds] = QUICK[:seconds]
        @quick = true
      end
      options.on("--workers N,...", Array, "how many (default #{WORKERS.join(",")})") do |numbers|
        @workers = numbers.map { |text| whole("--workers", text, 1..1_000) }.uniq.sort
      end
      { memory: [1..(1 << 30), "MB of the machine"], cpus: [1..4096, "of the machine"],
        seconds: [10..1_000_000, "that are simulated"],
        seed: [0..4_000_000_000, "of what is left to chance"] }.each do |name, (range, text)|
        options.on("--#{name} N", "#{text} (default #{@options[name]})") do |value|
          @options[name] = whole("--#{name}", value, range)
        end
      end
      options.on("--output DIR", "where the results go (default build/benchmark/simulation)") do |path|
        @output = path
      end
    end

    def simulate(simulation)
      @progress.round(1, SCENARIOS.size * @workers.size + 1)
      @runs = SCENARIOS.keys.product(@workers).flat_map do |scenario, workers|
        @progress.start("#{scenario}, #{workers} workers")
        found = runs(simulation, scenario, workers: workers)
        found.map { |policy, run| { scenario: scenario, **run, policy: policy } }
      end
      @over_time = @workers.include?(OVER_TIME) ? OVER_TIME : @workers.last
      @progress.start("over time, #{@over_time} workers")
      found = runs(simulation, MIXED, workers: @over_time, series: 1)
      @series = found.transform_values { |run| run[:series] }
    end

    # { policy => figures }
    def runs(simulation, scenario, **more)
      Simulation::POLICIES.keys.to_h do |policy|
        [policy, simulation.run(policy, SCENARIOS[scenario], @options.merge(more))]
      end
    end

    def publish
      puts [*head, "", *tables.map(&:to_text)].join("\n")
      raw = { machine: @facts, options: @options, runs: @runs, over_time: @over_time, series: @series }
      markdown = ["# #{@facts[:name]}", "", *head.map { |line| "- #{line}" }, "",
                  *tables.map(&:to_markdown)].join("\n")
      files = { "tables.md" => markdown, "results.json" => JSON.generate(raw) << "\n" }
      files.each { |name, content| File.write(File.join(@output, name), CommandLine.without_root(content)) }
      puts "", "written: #{[*files.keys, *draw].join(", ")} in #{CommandLine.without_root(@output)}",
           "took #{@progress.elapsed}"
    end

    def head
      [*Machine.head(@facts),
       "simulated: #{@options[:memory]} MB, #{@options[:cpus]} CPUs, #{@options[:seconds]} s, of which the " \
       "last half is counted, seed #{@options[:seed]}",
       "pristine: CRuby's ratios; growth: the model, without pressure; pressure: with it, in one tree; " \
       "alone: each worker reads and collects for itself"]
    end

    def tables
      SCENARIOS.keys.flat_map do |scenario|
        shown = METRICS.select { |metric| metric.always || scenario == MIXED }
        shown.map { |metric| table(scenario, metric) }
      end
    end

    def table(scenario, metric)
      rows = @workers.map do |workers|
        [workers == 1 ? "1 worker" : "#{workers} workers",
         *Simulation::POLICIES.keys.map { |policy| cell(metric, value(scenario, metric, workers, policy)) }]
      end
      Table.new("simulation, #{scenario}: #{metric.title} (#{metric.unit}, #{metric.better} is better)",
                ["", *Simulation::POLICIES.keys], rows)
    end

    # Nil where the memory does not settle.
    def value(scenario, metric, workers, policy)
      run = @runs.find { |one| one.values_at(:scenario, :workers, :policy) == [scenario, workers, policy] }
      run[metric.key].negative? ? nil : run[metric.key] * metric.factor
    end

    def cell(metric, number)
      number ? format("%.#{metric.digits}f", number) : "-"
    end

    # Gives the names of the pictures.
    def draw
      unless Chart.available?
        warn "no charts: gnuplot is not installed (Debian package gnuplot-nox)"
        return []
      end
      [*charts, *charts_over_time].map { |chart| File.basename(chart.draw(@output)) }
    end

    CHARTS = %i[work stalled gc mean fairness changes].freeze

    def charts
      return [] if @workers.size < 2

      SCENARIOS.keys.flat_map do |scenario|
        keys = scenario == MIXED ? CHARTS : CHARTS.first(1)
        METRICS.select { |metric| keys.include?(metric.key) }.map { |metric| chart(scenario, metric) }
      end
    end

    def chart(scenario, metric)
      lines = Simulation::POLICIES.keys.map do |policy|
        Line.new(policy, policy, @workers.map { |n| [n, value(scenario, metric, n, policy)] })
      end
      lines_chart("#{metric.key}#{"-#{scenario}" if scenario != MIXED}",
                  "Simulated, #{scenario}: #{metric.title} (#{metric.better} is better)", "workers",
                  metric.unit, lines, log_x: true)
    end

    # What a second of a series has at which place, and what is drawn of it.
    OF_SERIES = { "memory" => [1, 1.0 / 1024, "memory of all workers", "GB"],
                  "work" => [5, 1, "own work that all workers do", "s of CPU time a second"],
                  "level" => [3, 1, "level of pressure, mean", "0 calm, 2 critical"] }.freeze

    def charts_over_time
      OF_SERIES.map do |name, (place, factor, title, unit)|
        lines = @series.map do |policy, looks|
          points = looks.each_slice(5).map { |some| mean(some, place, factor) }
          Line.new(policy, policy, points)
        end
        lines_chart("over-time-#{name}", "Simulated, #{@over_time} workers: #{title}", "s", unit, lines)
      end
    end

    # [s, mean] of some seconds.
    def mean(looks, place, factor)
      [looks.first[0], looks.sum { |look| look[place] } * factor / looks.size]
    end

    def lines_chart(name, title, x_title, y_title, lines, **more)
      Chart::Lines.new(name: name, title: title, x_title: x_title, y_title: y_title, lines: lines,
                       builds: Simulation::POLICIES.keys, cases: Simulation::POLICIES.keys, **more)
    end
  end
end

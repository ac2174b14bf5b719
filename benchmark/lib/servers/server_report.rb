# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../measure/benchmark"
require_relative "../measure/report"
require_relative "../measure/runner"
require_relative "matrix"

module CowBench
  # Tables and charts of the runs under servers.
  class ServerReport < Report
    # What Report wants to know of a benchmark; here it is an application.
    Application = Struct.new(:title, :summary, :charts_of, :metrics) do
      def synthetic?
        false
      end

      def charts(samples)
        charts_of.call(self, samples)
      end
    end

    # What is measured of each application.
    module Measures
      extend Benchmark::Metrics

      metric :private, "private dirty memory of a worker at the end", "MB", :less, 1
      metric :tree, "the whole server at the end (sum of Pss)", "MB", :less, 1
      metric :rate, "throughput after the warm-up", "requests/s", :more, 0
      metric :cpu, "the server's CPU time for a request, warm-up included", "ms", :less, 2
      metric :p50, "median latency", "ms", :less, 1
      metric :p99, "99th percentile of latency", "ms", :less, 1
      metric :first_fork, "the first fork that makes a worker, seal included", "ms", :less, 1
      metric :growth, "private dirty memory of a worker on the way", "MB", :less, 1
      metric :spread, "from the worker with the least to the one with the most, before the first request",
             "MB", :less, 2
      metric :lost_gc, "inherited and lost by one worker: GC pages", "MB", :less, 1
      metric :lost_malloc, "inherited and lost by one worker: malloc", "MB", :less, 1
      metric :own, "one worker's own: all kinds", "MB", :less, 1
      metric :words, "changed 8-byte words on its lost pages", "MB", :less, 2
    end

    SUMMARIES = { "rails" => "a Rails application of 90 models and 636 routes",
                  "rack" => "a plain Rack application over a large data set" }.freeze
    # In the order of Chart::DASHES.
    CASES = ["plain", "warmup", "rehearsed", "warmup, rehearsed"].freeze
    WRITERS = 15
    Finished = Struct.new(:samples, :omissions)

    # +runs+: hashes of the files in runs/, with "setting", "build", "round".
    def self.of(facts, builds, runs, omissions)
      samples = runs.map { |run| sample(run) }
      applications = samples.map(&:benchmark).uniq.map do |name|
        Application.new(name, SUMMARIES.fetch(name, name), method(:curves), Measures.metrics)
      end
      new(facts, builds, applications, Finished.new(samples, omissions)).tap { |report| report.runs = runs }
    end

    attr_writer :runs

    def self.sample(run)
      setting = ServerMatrix::Setting.of(run["setting"])
      outcome = Benchmark::Outcome.new(values: values(setting, run), raw: run)
      Runner::Sample.new(benchmark: setting.app, case: setting.label, build: run["build"], run: run["round"],
                         outcome: outcome)
    end

    # Figures of a run that perf watched say nothing about speed.
    def self.values(setting, run)
      return page_values(run["pages"]["kinds"]) if setting.measure.to_s == "pages"

      last = run["points"].last
      load = run["loads"].last
      growth = run["points"].to_h do |point|
        ["#{setting.label}, after #{point["requests"]}", private_of(point)]
      end
      { private: { "#{setting.label}, after #{last["requests"]}" => private_of(last) }, growth: growth,
        tree: Memory.mb(last["processes"].sum { |process| process["Pss"] }), rate: load["rate"],
        p50: load["p50"], p99: load["p99"], cpu: cpu_of(run["loads"]), first_fork: run["first_fork"],
        spread: spread_of(run["points"].first) }.compact
    end

    def self.page_values(kinds)
      own = kinds.values.sum { |kind| kind["own"] }
      { lost_gc: kinds.dig("GC pages", "lost"), lost_malloc: kinds.dig("malloc", "lost"), own: own,
        words: kinds.values.sum { |kind| kind["changed words"] } }
    end

    # Milliseconds a request; nil where a server's CPU time fell, because orphans left.
    def self.cpu_of(loads)
      return if loads.any? { |load| load["cpu"].to_f <= 0 }

      loads.sum { |load| load["cpu"] } * 1_000 / loads.sum { |load| load["to"] - load["from"] }
    end

    # Of a worker, in the mean.
    def self.private_of(point)
      sizes = private_sizes(point)
      sizes.sum.fdiv(sizes.size)
    end

    # nil where requests were served before it was looked.
    def self.spread_of(point)
      private_sizes(point).minmax.reverse.reduce(:-) if point["requests"].zero?
    end

    # Megabytes.
    def self.private_sizes(point)
      workers = point["processes"].select { |process| process["worker"] }
      workers.map { |worker| Memory.mb(worker["Private_Dirty"]) }
    end

    # A picture for each server and malloc: private memory over the requests served. All of an
    # application end at the same height, so that they can be compared.
    def self.curves(_application, samples)
      curves = samples.select { |sample| sample.outcome.values[:growth] }
      top = Chart.round_up(curves.flat_map { |sample| sample.outcome.values[:growth].values }.max || 0)
      curves.group_by { |sample| setting(sample).chart }.map do |words, runs|
        title = "#{words.join(", ")}: private dirty memory of a worker (less is better)"
        Chart::Lines.new(name: "#{words.join("-")}-growth", title: title,
                         x_title: "requests served by all workers",
                         y_title: "private memory (MB)", lines: lines(runs), cases: CASES, top: top)
      end
    end

    def self.lines(samples)
      samples.group_by { |sample| [sample.build, setting(sample).case_on_chart] }
             .map { |(build, kase), runs| Chart::Line.new(build, kase, points(runs)) }
    end

    def self.setting(sample)
      ServerMatrix::Setting.of(sample.outcome.raw["setting"])
    end

    def self.points(samples)
      growth = samples.flat_map { |sample| sample.outcome.values[:growth].to_a }
      growth.group_by { |label, _| label[/\d+\z/].to_i }
            .map { |requests, same| [requests, Statistics.median(same.map(&:last))] }.sort
    end

    def tables
      super + writer_tables
    end

    private

    # Which function wrote a lost page first: a table a setting, a column a build.
    def writer_tables
      watched = @runs.select do |run|
        run["setting"]["measure"].to_s == "pages" && run["pages"]["writers"].any?
      end
      watched.group_by { |run| run["setting"] }.map { |setting, runs| writer_table(setting, runs) }
    end

    def writer_table(setting, runs)
      names = @builds.map(&:name) & runs.map { |run| run["build"] }
      found = names.to_h { |name| [name, writers(runs.select { |run| run["build"] == name })] }
      keys = found.values.flat_map(&:keys).uniq.max_by(WRITERS) do |key|
        found.values.sum do |sizes|
          sizes.fetch(key, 0)
        end
      end
      rows = keys.map do |kind, function|
        [function, kind, *names.map { |name| format("%.2f", found[name].fetch([kind, function], 0)) }]
      end
      Table.new("#{setting["app"]}, #{ServerMatrix::Setting.of(setting).label}: " \
                "which function wrote a lost page first (MB)", ["function", "kind", *names], rows)
    end

    # The mean of several runs.
    def writers(runs)
      sums = Hash.new(0)
      runs.flat_map { |run| run["pages"]["writers"] }
          .each { |writer| sums[[writer["kind"], writer["function"]]] += writer["mb"] / runs.size }
      sums
    end
  end
end

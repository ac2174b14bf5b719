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

      # Windows of different length have no mean in common.
      WINDOW = /\d+ to \d+\z/

      metric :private, "private dirty memory of a worker at the end", "MB", :less, 1
      metric :tree, "the whole server at the end (sum of Pss)", "MB", :less, 1
      metric :rate, "throughput after the warm-up", "requests/s", :more, 0
      metric :cpu, "the server's CPU time for a request, warm-up included", "ms", :less, 2
      metric :faults, "the server's page faults for a request, warm-up included", "count", :less, 1
      metric :p50, "median latency", "ms", :less, 1
      metric :p99, "99th percentile of latency", "ms", :less, 1
      metric :p99_between, "99th percentile of latency between two stops", "ms", :less, 1
      metric :first_fork, "the first fork that makes a worker, seal included", "ms", :less, 1
      metric :growth, "private dirty memory of a worker on the way", "MB", :less, 1
      metric :share, "the same, in parts of what the master had in memory before the first request", "",
             :less, 3
      metric :cpu_so_far, "the server's CPU time for a request so far", "ms", :less, 2
      metric :cpu_beside, "the server's CPU time for a request, all requests, the rubies side by side",
             "ms", :less, 2, geometric: true
      metric :cpu_between, "the server's CPU time for a request between two stops, the rubies side by side",
             "ms", :less, 2, geometric: WINDOW
      metric :rate_between, "throughput between two stops, the rubies side by side", "requests/s", :more, 0,
             geometric: WINDOW
      metric :spread, "from the worker with the least to the one with the most, before the first request",
             "MB", :less, 2
      metric :lost_gc, "inherited and lost by one worker: GC pages", "MB", :less, 1
      metric :lost_malloc, "inherited and lost by one worker: malloc", "MB", :less, 1
      metric :own, "one worker's own: all kinds", "MB", :less, 1
      metric :idle, "lost without a difference", "MB", :less, 2
      metric :words, "changed 8-byte words on its lost pages", "MB", :less, 2
      metric :reached, "limited to seven tenths of its memory: the kernel took the limit (1) or refused (0)",
             "", :more, 0
      metric :ended, "so limited: processes that the system ended", "count", :less, 0
      metric :failed, "so limited: requests that failed", "count", :less, 0
      metric :back, "so limited: what the server took less after 4 s, of its workers' private memory", "%",
             :more, 0
      metric :pressed_gc, "so limited: collections take, of the workers' CPU time", "%", :less, 1
      metric :pressed_rate, "so limited: throughput, in parts of that before", "", :more, 2
      metric :pressed_p99, "so limited: 99th percentile of latency, in parts of that before", "", :less, 2
      metric :recovery, "from the end of the limit until 95 % of the throughput are back, 60 at most", "s",
             :less, 1
    end

    SUMMARIES = { "rails" => "a Rails application of 90 models and 636 routes",
                  "rack" => "a plain Rack application over a large data set" }.freeze
    # In the order of Chart::DASHES.
    CASES = ["plain", "warmup", "rehearsed", "warmup, rehearsed", "auto", "compact", "forms"].freeze
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
      return pressure_values(run["pressure"]) if setting.measure.to_s == "pressure"

      last = run["points"].last
      load = run["loads"].last
      growth = run["points"].to_h do |point|
        ["#{setting.label}, after #{point["requests"]}", private_of(point)]
      end
      master = master_of(run["points"].first)
      memory = { growth: growth, share: master && growth.transform_values { |mb| mb / master } }
      return memory.merge(speed_values(setting, run["loads"])).compact if setting.measure.to_s == "speed"

      { private: { "#{setting.label}, after #{last["requests"]}" => private_of(last) }, **memory,
        tree: Memory.mb(last["processes"].sum { |process| process["Pss"] }), rate: load["rate"],
        p50: load["p50"], p99: load["p99"], cpu: cpu_of(run["loads"]), faults: faults_of(run["loads"]),
        p99_between: between(setting, run["loads"]) { |part| part["p99"] },
        cpu_so_far: cpu_so_far(setting, run["loads"]), first_fork: run["first_fork"],
        spread: spread_of(run["points"].first) }.compact
    end

    # So far as well, for a reader who asks what a worker's whole life costs.
    def self.speed_values(setting, loads)
      { cpu_so_far: cpu_so_far(setting, loads), cpu_beside: cpu_of(loads), faults: faults_of(loads),
        cpu_between: between(setting, loads) { |load| cpu_of([load]) },
        rate_between: between(setting, loads) { |load| load["rate"] } }
    end

    # The block's figure of the requests between two stops.
    def self.between(setting, loads)
      loads.to_h { |load| ["#{setting.label}, #{load["from"]} to #{load["to"]}", yield(load)] }
    end

    def self.page_values(kinds)
      own = kinds.values.sum { |kind| kind["own"] }
      { lost_gc: kinds.dig("GC pages", "lost"), lost_malloc: kinds.dig("malloc", "lost"), own: own,
        idle: kinds.values.sum { |kind| kind["lost without a difference"] },
        words: kinds.values.sum { |kind| kind["changed words"] } }
    end

    # Nothing is said of a server that was not limited so far.
    def self.pressure_values(found)
      freely, pressed = found.values_at("freely", "pressed")
      return { reached: 0 } unless found["reached"]

      share = pressed["gc"] / pressed["cpu"] * 100 if pressed["cpu"].positive?
      back = (found["taken"] - found["left"]).fdiv(found["private"]) * 100 if found["ended"].zero?
      { reached: 1, ended: found["ended"], failed: pressed["errors"], back: back, pressed_gc: share,
        pressed_rate: pressed["rate"] / freely["rate"], pressed_p99: pressed["p99"]&.fdiv(freely["p99"]),
        recovery: found["recovery"] }.compact
    end

    # What the process that the workers come from has in memory, in MB: the largest that is no worker. nil
    # where requests were served before.
    def self.master_of(point)
      return unless point["requests"].zero?

      sizes = point["processes"].reject { |process| process["worker"] }.map { |process| process["Rss"] }
      Memory.mb(sizes.max) if sizes.any?
    end

    # Milliseconds a request; nil where a server's CPU time fell, because orphans left.
    def self.cpu_of(loads)
      return if loads.any? { |load| load["cpu"].to_f <= 0 }

      loads.sum { |load| load["cpu"] } * 1_000 / loads.sum { |load| load["to"] - load["from"] }
    end

    # Page faults a request; nil in runs that did not count them, and where orphans took theirs along.
    def self.faults_of(loads)
      counts = loads.map { |load| load["faults"] }
      return unless counts.all? { |count| count&.positive? }

      counts.sum.fdiv(loads.sum { |load| load["to"] - load["from"] })
    end

    # The same of CPU time up to each stop.
    def self.cpu_so_far(setting, loads)
      return if cpu_of(loads).nil?

      loads.each_index.to_h do |i|
        ["#{setting.label}, after #{loads[i]["to"]}", cpu_of(loads.take(i + 1))]
      end
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

    # What the pictures of each server and malloc show over the requests served: title and y axis.
    CURVES = {
      growth: ["private dirty memory of a worker (less is better)", "private memory (MB)"],
      share: ["private memory of a worker, in parts of the master's (less is better)", "private / master"]
    }.freeze

    # All of an application end at the same height, so that they can be compared.
    def self.curves(_application, samples)
      CURVES.flat_map do |metric, (title, y_title)|
        curves = samples.select { |sample| sample.outcome.values[metric] }
        top = Chart.round_up(curves.flat_map { |sample| sample.outcome.values[metric].values }.max || 0)
        curves.group_by { |sample| setting(sample).chart }.map do |words, runs|
          Chart::Lines.new(name: "#{words.join("-")}-#{metric}", title: "#{words.join(", ")}: #{title}",
                           x_title: "requests served by all workers", y_title: y_title,
                           lines: lines(metric, runs), cases: CASES, top: top)
        end
      end
    end

    def self.lines(metric, samples)
      samples.group_by { |sample| [sample.build, setting(sample).case_on_chart] }
             .map { |(build, kase), runs| Chart::Line.new(build, kase, points(metric, runs)) }
    end

    def self.setting(sample)
      ServerMatrix::Setting.of(sample.outcome.raw["setting"])
    end

    def self.points(metric, samples)
      growth = samples.flat_map { |sample| sample.outcome.values[metric].to_a }
      growth.group_by { |label, _| label[/\d+\z/].to_i }
            .map { |requests, same| [requests, Statistics.median(same.map(&:last))] }.sort
    end

    def tables
      super + writer_tables
    end

    private

    # Lists of a run for the pages: what their tables say, what an entry is called, and its figure.
    PAGE_LISTS = {
      "writers" => ["which function wrote a lost page first (MB)", "function", "mb"],
      "idle_writers" => ["the same, of lost pages without a difference (MB)", "function", "mb"],
      "own_writers" => ["which function wrote a page of the worker's own first (MB)", "function", "mb"],
      "structures" => ["lost pages on which words of a structure differ (MB)", "structure", "on pages of"]
    }.freeze

    # A table a setting and list, a column a build.
    def writer_tables
      watched = @runs.select { |run| run["setting"]["measure"].to_s == "pages" }
      watched.group_by { |run| run["setting"] }.flat_map do |setting, runs|
        PAGE_LISTS.keys.filter_map { |list| writer_table(setting, list, runs) }
      end
    end

    # nil where no run has such a list.
    def writer_table(setting, list, runs)
      runs = runs.select { |run| run["pages"][list]&.any? }
      return if runs.empty?

      title, word, = PAGE_LISTS.fetch(list)
      names = @builds.map(&:name) & runs.map { |run| run["build"] }
      found = names.to_h { |name| [name, writers(list, runs.select { |run| run["build"] == name })] }
      keys = found.values.flat_map(&:keys).uniq.max_by(WRITERS) do |key|
        found.values.sum do |sizes|
          sizes.fetch(key, 0)
        end
      end
      rows = keys.map do |kind, function|
        [function, kind, *names.map { |name| format("%.2f", found[name].fetch([kind, function], 0)) }]
      end
      Table.new("#{setting["app"]}, #{ServerMatrix::Setting.of(setting).label}: " \
                "#{title}", [word, "kind", *names], rows)
    end

    # The mean of several runs.
    def writers(list, runs)
      _, word, figure = PAGE_LISTS.fetch(list)
      sums = Hash.new(0)
      runs.flat_map { |run| run["pages"][list] }
          .each { |entry| sums[[entry["kind"], entry[word]]] += entry[figure] / runs.size }
      sums
    end
  end
end

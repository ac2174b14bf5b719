# frozen_string_literal: true

require_relative "report"
require_relative "runner"

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

  METRICS = [
    [:private, "private dirty memory of a worker at the end", "MB", :less, 1],
    [:tree, "the whole server at the end (sum of Pss)", "MB", :less, 1],
    [:rate, "throughput after the warm-up", "requests/s", :more, 0],
    [:cpu, "the server's CPU time for a request, warm-up included", "ms", :less, 2],
    [:p50, "median latency", "ms", :less, 1],
    [:p99, "99th percentile of latency", "ms", :less, 1],
    [:growth, "private dirty memory of a worker on the way", "MB", :less, 1],
    [:spread, "from the worker with the least to the one with the most, before the first request", "MB", :less, 2],
    [:lost_gc, "inherited and lost by one worker: GC pages", "MB", :less, 1],
    [:lost_malloc, "inherited and lost by one worker: malloc", "MB", :less, 1],
    [:own, "one worker's own: all kinds", "MB", :less, 1],
    [:words, "changed 8-byte words on its lost pages", "MB", :less, 2]
  ].map { |key, title, unit, better, digits| Benchmark::Metric.new(key: key, title: title, unit: unit, better: better, digits: digits) }.freeze

  SUMMARIES = { "rails" => "a Rails application of 90 models and 636 routes", "rack" => "a plain Rack application over a large data set" }.freeze
  WRITERS = 15
  Finished = Struct.new(:samples, :omissions)

  # +runs+: hashes as they stand in the files, with "setting", "build", "round".
  def self.of(facts, builds, runs, omissions)
    samples = runs.map { |run| sample(run) }
    applications = samples.map(&:benchmark).uniq.map { |name| Application.new(name, SUMMARIES.fetch(name, name), method(:curves), METRICS) }
    new(facts, builds, applications, Finished.new(samples, omissions)).tap { |report| report.runs = runs }
  end

  attr_writer :runs

  def self.sample(run)
    setting = ServerMatrix::Setting.new(**run["setting"].transform_keys(&:to_sym))
    Runner::Sample.new(benchmark: setting.app, case: setting.label, build: run["build"], run: run["round"],
                       outcome: Benchmark::Outcome.new(values: values(setting, run), raw: run))
  end

  # Figures of a run that perf watched say nothing about speed.
  def self.values(setting, run)
    return page_values(run["pages"]["kinds"]) if setting.measure.to_s == "pages"

    last = run["points"].last
    load = run["loads"].last
    growth = run["points"].to_h { |point| ["#{setting.label}, after #{point["requests"]}", private_of(point)] }
    { private: { "#{setting.label}, after #{last["requests"]}" => private_of(last) }, growth: growth,
      tree: mb(last["processes"].sum { |process| process["Pss"] }), rate: load["rate"], p50: load["p50"], p99: load["p99"],
      cpu: cpu_of(run["loads"]), spread: spread_of(run["points"].first) }.compact
  end

  def self.page_values(kinds)
    { lost_gc: kinds.dig("GC pages", "lost"), lost_malloc: kinds.dig("malloc", "lost"), own: kinds.values.sum { |kind| kind["own"] },
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
    point["processes"].select { |process| process["worker"] }.map { |worker| mb(worker["Private_Dirty"]) }
  end

  def self.mb(kilobytes)
    kilobytes / 1024.0
  end

  # A picture a server: private memory over the requests served.
  def self.curves(application, samples)
    samples.select { |sample| sample.outcome.values[:growth] }.group_by { |sample| sample.case[/\A[^,]+/] }.map do |server, runs|
      lines = runs.group_by { |sample| [sample.build, sample.case] }.map { |(build, label), all| ["#{build}: #{label}", points(all)] }
      Chart::Lines.new("#{application.title}-#{server}-growth", "#{application.title}, #{server}: private dirty memory of a worker (less is better)",
                       "requests served", "MB", lines)
    end
  end

  def self.points(samples)
    samples.flat_map { |sample| sample.outcome.values[:growth].map { |label, value| [label[/\d+\z/].to_i, value] } }
           .group_by(&:first).map { |requests, pairs| [requests, Statistics.median(pairs.map(&:last))] }.sort
  end

  def tables
    super + writer_tables
  end

  private

  # Which function wrote a lost page first: a table a setting, a column a build.
  def writer_tables
    watched = @runs.select { |run| run["setting"]["measure"].to_s == "pages" && run["pages"]["writers"].any? }
    watched.group_by { |run| run["setting"] }.map do |setting, runs|
      label = ServerMatrix::Setting.new(**setting.transform_keys(&:to_sym)).label
      names = @builds.map(&:name) & runs.map { |run| run["build"] }
      found = names.to_h { |name| [name, writers(runs.select { |run| run["build"] == name })] }
      keys = found.values.flat_map(&:keys).uniq.max_by(WRITERS) { |key| found.values.sum { |sizes| sizes.fetch(key, 0) } }
      Table.new("#{setting["app"]}, #{label}: which function wrote a lost page first (MB)", ["function", "kind", *names],
                keys.map { |kind, function| [function, kind, *names.map { |name| format("%.2f", found[name].fetch([kind, function], 0)) }] })
    end
  end

  # The mean of several runs.
  def writers(runs)
    sums = Hash.new(0)
    runs.each { |run| run["pages"]["writers"].each { |writer| sums[[writer["kind"], writer["function"]]] += writer["mb"] / runs.size } }
    sums
  end
end

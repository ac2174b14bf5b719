# frozen_string_literal: true

require "json"
require_relative "chart"
require_relative "statistics"
require_relative "table"

# Makes tables, charts and the raw file from what was measured.
class Report
  FORMAT = 1

  def initialize(facts, builds, benchmarks, runner)
    @facts = facts
    @builds = builds
    @benchmarks = benchmarks
    @samples = runner.samples
    @omissions = runner.omissions
  end

  # Whether something went wrong, or nothing was measured at all.
  def failed?
    @samples.empty? || @omissions.any? { |omission| omission.word == "failed" }
  end

  def text
    [*head, "", *tables.map(&:to_text), *@omissions].join("\n") << "\n"
  end

  def markdown
    list = head.map { |line| "- #{line}" }.join("\n")
    ["# Benchmarks", "", list, "", *tables.map(&:to_markdown), *@omissions.map { |omission| "- #{omission}" }].join("\n") << "\n"
  end

  # Writes all files and gives their names; a picture that cannot be drawn is
  # told to the block.
  def write(directory)
    raw = { format: FORMAT, machine: @facts, builds: @builds.map(&:to_h),
            samples: @samples.map { |sample| sample.to_h.merge(outcome: sample.outcome.to_h) }, omissions: @omissions.map(&:to_h) }
    files = { "results.json" => JSON.generate(raw) << "\n", "tables.md" => markdown }.map do |name, content|
      File.join(directory, name).tap { |path| File.write(path, content) }
    end
    return files.tap { yield "no charts: gnuplot is not installed (Debian package gnuplot-nox)" } unless Chart.available?

    files + charts.filter_map do |chart|
      chart.draw(directory)
    rescue Chart::Failed => e
      yield "no chart #{chart.name}: #{e.message}"
    end
  end

  def tables
    each_metric do |benchmark, metric, rows|
      worse = metric.geometric ? rows.select { |_, row| worse?(metric, row) } : {}
      [table(benchmark, metric, rows), *(table(benchmark, metric, worse, only: ", worse by more than 3 % in each run") if worse.any?)]
    end.flatten(1)
  end

  private

  def head
    machine = "#{@facts[:cores]} cores (#{@facts[:cpu]}), #{@facts[:memory_mb]} MB, #{@facts[:kernel]}, " \
              "transparent huge pages: #{@facts[:transparent_huge_pages] || "none"}"
    builds = @builds.map do |build|
      env = build.env.map { |pair| " #{pair.join("=")}" }.join
      layouts = ", #{build.layouts} layouts" if build.layouts > 1
      "#{build.name}: #{build.version}, #{build.allocator["name"]}#{layouts}#{env}"
    end
    ["#{@facts[:date]}, commit #{@facts[:commit] || "none"}", machine, *builds,
     "medians; ratio: to #{@builds.first.name}, pair by pair, median, with the least and the greatest as spread"]
  end

  # Yields each metric with its rows: { label => { build => { run => number } } }.
  def each_metric
    @benchmarks.flat_map do |benchmark|
      samples = @samples.select { |sample| sample.benchmark == benchmark.title }
      benchmark.metrics.filter_map do |metric|
        rows = rows_of(samples, metric)
        yield benchmark, metric, rows unless rows.empty?
      end
    end
  end

  def rows_of(samples, metric)
    samples.each_with_object({}) do |sample, rows|
      values = sample.outcome.values[metric.key]
      values = { sample.case => values } unless values.is_a?(Hash)
      values.compact.each { |label, value| ((rows[label] ||= {})[sample.build] ||= {})[sample.run] = value }
    end
  end

  # Beyond what a run alone may be.
  WORSE = 1.03

  # Whether a build is worse than the first in each pair of runs.
  def worse?(metric, row)
    base, *others = @builds.map { |build| row[build.name] || {} }
    others.any? do |runs|
      ratio = Statistics.ratio(base, runs)
      ratio && (metric.better == :less ? ratio.least > WORSE : ratio.most < 1 / WORSE)
    end
  end

  # +only+ says which of the metric's rows they are, where they are not all.
  def table(benchmark, metric, rows, only: nil)
    base, *others = measured_builds(rows)
    head = ["", base, *others.flat_map { |name| [name, "ratio", "spread"] }]
    body = rows.map do |label, row|
      [label, number(metric, row[base]), *others.flat_map { |name| [number(metric, row[name]), *ratio(metric.alone ? nil : row[base], row[name])] }]
    end
    body << ["geometric mean", "", *others.flat_map { |name| ["", mean_ratio(rows, base, name), ""] }] if metric.geometric && !only
    synthetic = ", synthetic" if benchmark.synthetic?
    title = "#{benchmark.title}: #{metric.title}#{only} (#{metric.unit}, #{metric.better} is better#{synthetic})"
    Table.new(title, head, body, note: (benchmark.summary if metric == benchmark.metrics.first && !only))
  end

  def measured_builds(rows)
    @builds.map(&:name).select { |name| rows.values.any? { |row| row.key?(name) } }
  end

  def number(metric, runs)
    runs ? format("%.#{metric.digits}f", Statistics.median(runs.values)) : "-"
  end

  def ratio(base, ours)
    ratio = Statistics.ratio(base || {}, ours || {})
    return %w[- -] unless ratio

    [format("%.2f", ratio.median), ratio.pairs == 1 ? "one run" : format("%.2f to %.2f", ratio.least, ratio.most)]
  end

  def mean_ratio(rows, base, name)
    mean = Statistics.geometric_mean(rows.values.filter_map { |row| Statistics.ratio(row[base] || {}, row[name] || {})&.median })
    mean ? format("%.3f", mean) : "-"
  end

  def charts
    bars = each_metric do |benchmark, metric, rows|
      names = measured_builds(rows)
      data = rows.map { |label, row| [label, names.map { |name| row[name] && Statistics.median(row[name].values) }] }
      Chart::Bars.new("#{benchmark.title}-#{metric.key}", "#{benchmark.title}: #{metric.title} (#{metric.better} is better)",
                      metric.unit, names, data)
    end
    bars + @benchmarks.flat_map do |benchmark|
      samples = @samples.select { |sample| sample.benchmark == benchmark.title }
      samples.empty? ? [] : benchmark.charts(samples)
    end
  end
end

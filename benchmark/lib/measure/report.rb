# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "chart"
require_relative "command_line"
require_relative "machine"
require_relative "statistics"
require_relative "table"

module CowBench
  # Makes tables, charts and the raw file from what was measured.
  class Report
    FORMAT = 2

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
      notes = @omissions.map { |omission| "- #{omission}" }
      ["# #{@facts.fetch(:name, "Results")}", "", list, "", *tables.map(&:to_markdown),
       *notes].join("\n") << "\n"
    end

    # Prints the tables and writes all files.
    def publish(directory, progress)
      puts text
      files = write(directory) { |line| progress.say(line) }
      puts "written: #{files.join(", ")}", "took #{progress.elapsed}"
    end

    # Writes all files and gives their names; yields a line for a picture that cannot be drawn.
    def write(directory)
      files = { "results.json" => JSON.generate(raw) << "\n", "tables.md" => markdown }.map do |name, content|
        File.join(directory, name).tap { |path| File.write(path, CommandLine.without_root(content)) }
      end
      unless Chart.available?
        yield "no charts: gnuplot is not installed (Debian package gnuplot-nox)"
        return files
      end

      files + charts.filter_map do |chart|
        chart.draw(directory)
      rescue Chart::Failed => e
        yield "no chart #{chart.name}: #{e.message}"
      end
    end

    def tables
      each_metric do |benchmark, metric, rows|
        worse = metric.geometric ? rows.select { |_, row| worse?(metric, row) } : {}
        apart = table(benchmark, metric, worse, only: ", worse by more than 3 % in each run") if worse.any?
        [table(benchmark, metric, rows), *apart]
      end.flatten(1)
    end

    private

    def raw
      { format: FORMAT, machine: @facts, builds: @builds.map(&:to_h),
        samples: @samples.map { |sample| sample.to_h.merge(outcome: sample.outcome.to_h) },
        omissions: @omissions.map(&:to_h) }
    end

    def head
      [*Machine.head(@facts), *@builds.map { |build| about(build) }, legend]
    end

    def about(build)
      env = build.env.map { |pair| " #{pair.join("=")}" }.join
      layouts = ", #{build.layouts} layouts" if build.layouts > 1
      "#{build.name}: #{build.version}, #{build.allocator["name"]}#{layouts}#{env}"
    end

    def legend
      base = @builds.first.name
      return "one run of each; ratio: to #{base}" unless @samples.any? { |sample| sample.run > 1 }

      "medians; ratio: to #{base}, pair by pair, median, with the least and the greatest as spread"
    end

    # Yields each metric with its rows: { label => { build => { run => number } } }.
    def each_metric
      @benchmarks.flat_map do |benchmark|
        samples = samples_of(benchmark)
        benchmark.metrics.filter_map do |metric|
          rows = rows_of(samples, metric)
          yield benchmark, metric, rows unless rows.empty?
        end
      end
    end

    def samples_of(benchmark)
      @samples.select { |sample| sample.benchmark == benchmark.title }
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
      synthetic = ", synthetic" if benchmark.synthetic?
      title = "#{benchmark.title}: #{metric.title}#{only} " \
              "(#{metric.unit}, #{metric.better} is better#{synthetic})"
      first = metric == benchmark.metrics.first && !only
      Table.new(title, *columns(metric, rows, mean: (metric.geometric unless only)),
                note: (benchmark.summary if first))
    end

    # Head and rows. Where no row has two pairs of runs, there is no column for the spread.
    def columns(metric, rows, mean:)
      base, *others = measured_builds(rows)
      spread = repeated?(rows, base, others)
      about = ["ratio", *("spread" if spread)]
      body = rows.map do |label, row|
        cells = others.flat_map do |name|
          [number(metric, row[name]), *ratio(metric.alone ? nil : row[base], row[name], spread)]
        end
        [label, number(metric, row[base]), *cells]
      end
      means(rows, mean).each { |label, same| body << mean_row(label, same, base, others, spread) } if mean
      [["", base, *others.flat_map { |name| [name, *about] }], body]
    end

    def repeated?(rows, base, others)
      rows.values.any? do |row|
        others.any? do |name|
          (row.fetch(base, {}).keys & row.fetch(name, {}).keys).size > 1
        end
      end
    end

    # Labels of means, and the rows of each. Of a part with one row there is none.
    def means(rows, pattern)
      return { "geometric mean" => rows } unless pattern.is_a?(Regexp)

      parts = rows.group_by { |label, _| label[pattern] }.select { |_, same| same.size > 1 }
      parts.to_h { |part, same| ["geometric mean, #{part}", same.to_h] }
    end

    def mean_row(label, rows, base, others, spread)
      means = others.flat_map do |name|
        ["", mean_ratio(rows, base, name), *(mean_spread(rows, base, name) if spread)]
      end
      [label, "", *means]
    end

    # The least and the greatest of the rounds in which each row has a pair.
    def mean_spread(rows, base, name)
      pairs = rows.values.map { |row| [row[base] || {}, row[name] || {}] }
      pairs.select! { |runs| Statistics.ratio(*runs) }
      rounds = pairs.map { |one, other| one.keys & other.keys }.reduce(:&) || []
      means = rounds.filter_map do |round|
        ratios = pairs.filter_map { |pair| Statistics.ratio(*pair.map { |runs| runs.slice(round) })&.median }
        Statistics.geometric_mean(ratios)
      end
      means.size > 1 ? format("%.3f to %.3f", *means.minmax) : ""
    end

    def measured_builds(rows)
      @builds.map(&:name).select { |name| rows.values.any? { |row| row.key?(name) } }
    end

    def number(metric, runs)
      runs ? format("%.#{metric.digits}f", Statistics.median(runs.values)) : "-"
    end

    def ratio(base, ours, spread)
      ratio = Statistics.ratio(base || {}, ours || {})
      return ["-", *("-" if spread)] unless ratio

      extent = ratio.pairs == 1 ? "one run" : format("%.2f to %.2f", ratio.least, ratio.most)
      [format("%.2f", ratio.median), *(extent if spread)]
    end

    def mean_ratio(rows, base, name)
      ratios = rows.values.filter_map { |row| Statistics.ratio(row[base] || {}, row[name] || {})&.median }
      mean = Statistics.geometric_mean(ratios)
      mean ? format("%.3f", mean) : "-"
    end

    def charts
      bars = each_metric { |benchmark, metric, rows| bars(benchmark, metric, rows) }
      bars.compact + @benchmarks.flat_map do |benchmark|
        # Another environment of a ruby has its rows in the tables.
        samples = samples_of(benchmark).select { |sample| Chart.ruby_of(sample.build) == sample.build }
        charts = samples.empty? ? [] : benchmark.charts(samples)
        charts.each { |chart| chart.builds = @builds.map(&:name) }
      end
    end

    def bars(benchmark, metric, rows)
      return if rows.size > Chart::Bars::MOST

      names = measured_builds(rows)
      data = rows.map do |label, row|
        [label, names.map { |name| row[name] && Statistics.median(row[name].values) }]
      end
      Chart::Bars.new(name: "#{benchmark.title}-#{metric.key}", x_title: metric.unit, digits: metric.digits,
                      title: "#{benchmark.title}: #{metric.title} (#{metric.better} is better)",
                      builds: names, rows: data)
    end
  end
end

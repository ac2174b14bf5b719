# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../../../benchmark/lib/measure/chart"
require_relative "../../../benchmark/lib/measure/command_line"
require_relative "../../../benchmark/lib/measure/machine"
require_relative "../../../benchmark/lib/measure/table"
require_relative "policies"

module Scheduling
  # Tables, pictures and results.json of what was simulated.
  class Report
    # A figure: its key in a row, what makes its unit, and whether it is drawn.
    Metric = Struct.new(:key, :title, :unit, :better, :digits, :factor, :drawn, keyword_init: true)
    METRICS = [
      Metric.new(key: :address_space_switches_per_message, title: "switches of address space",
                 unit: "a 1,000 messages", better: "less is better", digits: 1, factor: 1_000, drawn: true),
      Metric.new(key: :switches_per_message, title: "switches of threads", unit: "a 1,000 messages",
                 better: "less is better", digits: 1, factor: 1_000),
      Metric.new(key: :messages_per_second, title: "messages", unit: "a second", better: "more is better",
                 digits: 0, factor: 1, drawn: true),
      Metric.new(key: :longest_wait_ms, title: "longest wait for a CPU", unit: "ms",
                 better: "less is better", digits: 1, factor: 1, drawn: true),
      Metric.new(key: :bound_ms, title: "bound of the wait for a CPU", unit: "ms", better: "by the rule",
                 digits: 0, factor: 1),
      Metric.new(key: :p99_wait_ms, title: "wait for a CPU, 99th percentile", unit: "ms",
                 better: "less is better", digits: 2, factor: 1, drawn: true),
      Metric.new(key: :mean_wait_ms, title: "wait for a CPU, mean", unit: "ms", better: "less is better",
                 digits: 3, factor: 1),
      Metric.new(key: :migrations_per_message, title: "a thread runs on another CPU than before",
                 unit: "a 1,000 messages", better: "less is better", digits: 1, factor: 1_000),
      Metric.new(key: :jain, title: "fairness between processes that want the same, Jain's index",
                 unit: "1 is equal", better: "more is better", digits: 4, factor: 1, drawn: true),
      Metric.new(key: :hungry_least, title: "CPU time of the process that never blocks and has least",
                 unit: "% of one CPU", better: "as without the rule", digits: 2, factor: 100),
      Metric.new(key: :hungry_most, title: "CPU time of the process that never blocks and has most",
                 unit: "% of one CPU", better: "as without the rule", digits: 2, factor: 100),
      Metric.new(key: :fair_share_least, title: "CPU time of the process that has least",
                 unit: "of its fair share", better: "1 is best", digits: 3, factor: 1),
      Metric.new(key: :fair_share_most, title: "CPU time of the process that has most",
                 unit: "of its fair share", better: "1 is best", digits: 3, factor: 1),
      Metric.new(key: :busy, title: "CPUs are busy", unit: "% of the time", better: "more is better",
                 digits: 1, factor: 100)
    ].freeze
    WAKE_UP = "a wake-up of a thread by another"
    # In which policies get their colours.
    ORDER = ["default", *Policies::ALL.keys, "recorded"].freeze

    # Figures by message: +messages+ is how many a hand-over counts as. Nil where nobody hands over.
    def self.per_message(figures, messages, seconds)
      count = figures[:hand_overs] * messages
      per = ->(key) { figures[key] / count.to_f if count.positive? }
      { address_space_switches_per_message: per.(:address_space_switches),
        switches_per_message: per.(:switches), migrations_per_message: per.(:migrations),
        messages_per_second: (count / seconds if count.positive?) }
    end

    def initialize(facts, options, rows, measured)
      @facts = facts
      @options = options
      @rows = rows
      @measured = measured
    end

    def publish(directory, progress)
      puts [*head, "", *tables.map(&:to_text)].join("\n")
      raw = { machine: @facts, options: @options, rows: @rows, measured: @measured }
      files = { "tables.md" => markdown, "results.json" => "#{JSON.generate(raw)}\n" }
      files.each do |name, content|
        File.write(File.join(directory, name), CowBench::CommandLine.without_root(content))
      end
      puts "", "written: #{[*files.keys, *draw(directory)].join(", ")} in " \
               "#{CowBench::CommandLine.without_root(directory)}", "took #{progress.elapsed}"
    end

    private

    def markdown
      ["# #{@facts[:name]}", "", *head.map { |line| "- #{line}" }, "", *tables.map(&:to_markdown)].join("\n")
    end

    def head
      beside = @rows.sum { |row| row[:idle_beside_queue_ns] }
      [*CowBench::Machine.head(@facts),
       "simulated: #{time}, of which the first fifth is not counted; slice " \
       "#{@options[:slice]} ms#{limits}; a switch costs #{@options[:switch_cost]} ns, one of address " \
       "spaces #{@options[:space_cost]} ns more; seed #{@options[:seed]}",
       "a message is #{@options[:messages] ? "what the traced program counted" : WAKE_UP}",
       "CPUs idled beside a queue for #{beside} ns in all runs; no wait was longer than its bound",
       *("measured, for comparison: #{compared}" if @measured.any?)]
    end

    def time
      @options[:cpu_seconds] ? "#{@options[:cpu_seconds]} s by the number of CPUs" : "#{@options[:seconds]} s"
    end

    def limits
      times = %i[credit carry].map { |key| ", #{key} #{@options[key]} ms" if @options[key] }
      [*times, ", clock #{@options[:clock]}"].join
    end

    def compared
      @measured.map do |row|
        per = row[:address_space_switches_per_message]
        found = [("#{format("%.1f", per * 1_000)} switches of address space a 1,000 messages" if per),
                 ("longest wait #{format("%.1f", row[:longest_wait_ms])} ms" if row[:longest_wait_ms])]
        bonus = " #{format("%g", row[:bonus_ms])} ms" if row[:bonus_ms]
        where = "#{" #{IN_TRACE}" if row[:in_trace]} on #{row[:cpus]} CPU#{"s" if row[:cpus] > 1}"
        "#{row[:policy]}#{bonus}#{where} #{found.compact.join(", ")}"
      end.join("; ")
    end

    def tables
      counts.flat_map do |asked|
        METRICS.filter_map { |metric| table(asked, metric) }
      end
    end

    # The numbers of threads that were asked for.
    def counts
      @rows.map { |row| row[:asked_threads] }.uniq
    end

    def columns
      @columns ||= @rows.map { |row| column(row) }.uniq
    end

    # A bonus stands in the name of a column where there are several.
    def column(row)
      bonus = row[:bonus_ms]
      several = bonus && @options[:bonus].size > 1
      several ? "#{row[:policy]} #{format("%g", bonus)} ms" : row[:policy]
    end

    def about(asked)
      row = @rows.find { |one| one[:asked_threads] == asked }
      "#{row[:workload]}, #{row[:threads]} threads in #{row[:processes]} processes"
    end

    # Nil where no run has the figure.
    def table(asked, metric)
      rows = cpus.map do |count|
        cells = columns.map { |name| cell(metric, value(metric, asked, count, name)) }
        [count == 1 ? "1 CPU" : "#{count} CPUs", *cells]
      end
      return if rows.all? { |_, *cells| cells.all?("-") }

      CowBench::Table.new("simulated, #{about(asked)}: #{metric.title} (#{metric.unit}, #{metric.better})",
                          ["", *columns], rows)
    end

    def cpus
      @rows.map { |row| row[:cpus] }.uniq
    end

    def value(metric, asked, count, name)
      row = @rows.find { |one| one[:asked_threads] == asked && one[:cpus] == count && column(one) == name }
      number = row && row[metric.key]
      number && number * metric.factor
    end

    def cell(metric, number)
      number ? format("%.#{metric.digits}f", number) : "-"
    end

    # Gives the names of the pictures.
    def draw(directory)
      unless CowBench::Chart.available?
        warn "no charts: gnuplot is not installed (Debian package gnuplot-nox)"
        return []
      end
      return [] if cpus.size < 2

      charts.map { |chart| File.basename(chart.draw(directory)) }
    end

    def charts
      counts.flat_map do |asked|
        METRICS.select(&:drawn).filter_map { |metric| chart(asked, metric) }
      end
    end

    # A line a policy and bonus, and a point for each measured row.
    def chart(asked, metric)
      lines = columns.filter_map do |name|
        points = cpus.sort.filter_map { |count| (y = value(metric, asked, count, name)) && [count, y] }
        Line.new(*name.split(" ", 2).values_at(0, 1), points) if points.any?
      end
      return if lines.empty?

      Picture.new(name: "#{metric.key.to_s.tr("_", "-")}-#{asked.zero? ? "recorded" : asked}",
                  title: "Simulated, #{about(asked)}: #{metric.title} (#{metric.better})", x_title: "CPUs",
                  y_title: metric.unit, lines: lines + points(metric), log_x: true,
                  builds: ORDER,
                  cases: [*columns.map { |name| name.split(" ", 2)[1] }.uniq, MEASURED, IN_TRACE])
    end

    def points(metric)
      @measured.filter_map do |row|
        number = row[metric.key] or next
        bonus = "#{format("%g", row[:bonus_ms])} ms, " if row[:bonus_ms]
        source = row[:in_trace] ? IN_TRACE : MEASURED
        Line.new(row[:policy], "#{bonus}#{source}", [[row[:cpus], number * metric.factor]])
      end
    end

    MEASURED = "measured"
    IN_TRACE = "in the trace"
    Line = CowBench::Chart::Line

    # Measured rows are points, as each is of one machine.
    class Picture < CowBench::Chart::Lines
      private

      def axes
        counts = lines.flat_map { |line| line.points.map(&:first) }.uniq.sort
        "#{super}set xtics (#{counts.map { |count| "\"#{count}\" #{count}" }.join(", ")})\n"
      end

      def plots
        super.zip(lines).map do |plot, line|
          next plot unless line.case&.end_with?(MEASURED, IN_TRACE)

          plot.sub("with lines linewidth 2.5", "with points pointtype 7 pointsize 0.9")
              .sub(/ dashtype .*/, "")
        end
      end
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "guest"
require_relative "../../benchmark/lib/measure/statistics"
require_relative "../../benchmark/lib/measure/table"

module CowSched
  # From what one run of a workload left in the guest's /out to rows of figures, and from rows to tables.
  module Figures
    Metric = Struct.new(:key, :title, :unit, :scale, :digits, keyword_init: true)
    METRICS = [
      Metric.new(key: :address_space_switches_per_message, title: "switches between address spaces",
                 unit: "for each 1,000 messages, less is better", scale: 1_000, digits: 1),
      Metric.new(key: :switches_per_message, title: "switches between threads",
                 unit: "for each 1,000 messages, less is better", scale: 1_000, digits: 1),
      Metric.new(key: :instructions, title: "instructions, kernel and all, nothing counted by process",
                 unit: "thousands a message, less is better", scale: 0.001, digits: 2),
      Metric.new(key: :mean_wait_ms, title: "mean wait of a thread that could run",
                 unit: "ms, less is better", scale: 1, digits: 2),
      Metric.new(key: :longest_wait_ms, title: "longest wait",
                 unit: "ms, less is better", scale: 1, digits: 1),
      Metric.new(key: :lone, title: "a process of one thread that computes, beside a chatroom of 8 processes",
                 unit: "ms of CPU time a second", scale: 1, digits: 2),
      Metric.new(key: :each_of_three, title: "each thread of one with three, at the same time",
                 unit: "ms of CPU time a second", scale: 1, digits: 2)
    ].freeze

    module_function

    # The figures of one run. Guest::Error, if the scheduler was not at work all the time.
    def of(workload, policy, result)
      attached(policy, result)
      said = last_line(result, "said")
      workload.share ? shares(said) : costs(workload, result, said)
    end

    def attached(policy, result)
      %w[counted plain].each do |name|
        next unless policy != "default" && File.exist?("#{result.directory}/#{name}.json")

        report = result.json("#{name}.json")
        next if report["ending"]["kind"].zero? && report["decisions"]["dispatches"].positive?

        raise Guest::Error, "the scheduler was not at work to the end: #{report["ending"]}"
      end
    end

    def last_line(result, name) = JSON.parse(result.file(name).lines.last)

    # What the process with one thread got, and for each thread the one with three, in ms a second.
    def shares(said)
      one, three = said["processes"].map { |process| process["threads"].sum / process["threads"].size }
      { lone: one * 1_000 / said["ms"], each_of_three: three * 1_000 / said["ms"] }
    end

    def costs(workload, result, said)
      counted = result.json("counted.json")
      rows = counted["processes"].select { |row| workload.counts?(row["name"]) }
      raise Guest::Error, "no process of the workload was counted" if rows.empty?

      messages = said["messages"]
      waits = rows.sum { |row| row["waits"] }
      { messages: messages,
        address_space_switches_per_message: rows.sum { |row| row["address_space_switches"] }.fdiv(messages),
        switches_per_message: rows.sum { |row| row["switches"] }.fdiv(messages),
        **instructions(result),
        mean_wait_ms: waits.zero? ? 0 : rows.sum { |row| row["wait_total_ms"] } / waits,
        longest_wait_ms: rows.map { |row| row["longest_wait_ms"] }.max,
        decisions: counted["decisions"], beside_ms: beside(counted["processes"] - rows) }
    end

    # CPU time of what else ran: who of them had most, by name.
    def beside(rows)
      times = rows.group_by { |row| row["name"] }.transform_values { |some| some.sum { |row| row["ran_ms"] } }
      times.max_by(5) { |_, time| time }.to_h
    end

    # The clock counts the instructions of all CPUs. It goes on as well where all CPUs are idle: by that, the
    # instructions may be fewer. No more than the CPU that was idle least, in units of 10 ms.
    def instructions(result)
      plain = last_line(result, "plain")
      before, after = %w[before after].map { |name| idle(result.file(name)) }
      { instructions: plain["ms"] * 1e6 / plain["messages"],
        idle_ms_at_most: before.map { |cpu, time| after.fetch(cpu) - time }.min * 10, plain_ms: plain["ms"] }
    end

    # +stat+: lines of /proc/stat. Gives for each CPU how long it was idle.
    def idle(stat)
      stat.scan(/^(cpu\d+)((?: \d+)+)/).to_h { |cpu, times| [cpu, times.split.values_at(3, 4).sum(&:to_i)] }
    end

    # The medians over the runs, and the least and the greatest.
    def summary(samples)
      known = METRICS.map(&:key).select { |key| samples.all? { |sample| sample[key] } }
      values = known.to_h { |key| [key, samples.map { |sample| sample[key] }] }
      { **values.transform_values { |numbers| CowBench::Statistics.median(numbers) },
        ranges: values.transform_values(&:minmax) }
    end

    # Tables of the workloads of one CPU, then of those of several.
    def tables(rows)
      rows.partition { |row| row[:cpus] == 1 }.zip(["one CPU", "several CPUs"]).flat_map do |some, title|
        METRICS.filter_map { |metric| table(metric, some.select { |row| row[metric.key] }, title) }
      end
    end

    def table(metric, rows, title)
      return if rows.empty?

      policies = rows.map { |row| row[:policy] }.uniq
      lines = rows.group_by { |row| row[:workload] }.map do |name, some|
        [name, *policies.map { |policy| cell(metric, some.find { |row| row[:policy] == policy }) }]
      end
      CowBench::Table.new("#{title}: #{metric.title} (#{metric.unit})", ["", *policies], lines)
    end

    def cell(metric, row)
      return "-" unless row

      values = [row[metric.key], *row[:ranges][metric.key]]
      median, least, most = values.map { |value| format("%.#{metric.digits}f", value * metric.scale) }
      row[:samples].size > 1 ? "#{median} (#{least} to #{most})" : median
    end
  end
end

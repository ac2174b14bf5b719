# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class Sweep < Benchmark
    SUMMARY = "the second seed's program, with objects that allocate: long-lived strings, then 50,000,000 " \
              "floats that die at once; alone, and by several processes at once, with 100,000 strings and " \
              "10,000,000 floats each; and aobench"
    SYNTHETIC = true
    SPEED_ONLY = true
    BY_NAME = true
    metric :time, "run time", "s", :less, 2
    metric :gc_time, "GC time", "ms", :less, 0
    metric :sweep_time, "of it sweeping", "ms", :less, 0
    metric :peak, "peak resident memory", "MB", :less, 1
    metric :total, "processes at once, from the first one's start to the last one's end", "s", :less, 2
    metric :mean, "processes at once, mean time of one", "s", :less, 2
    LONG_LIVED = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000].freeze
    SHORT_LIVED = 50_000_000
    PROCESSES = (1..8).freeze
    # Of each of several processes.
    EACH = [100_000, 10_000_000].freeze
    PROCESS = /\A(\d+) process/.freeze
    STRINGS = /\A(\d+) strings/.freeze
    AOBENCH = "aobench"

    def self.charts(samples)
      [chart(samples, :time, STRINGS, "long-lived", "Run time (less is better)", "long-lived objects",
             log_x: true),
       chart(samples, :total, PROCESS, "processes-total", "Processes at once: all (less is better)",
             "processes"),
       chart(samples, :mean, PROCESS, "processes-mean", "Processes at once: one, mean (less is better)",
             "processes")]
    end

    # A line for each build, over the number in the cases' labels.
    def self.chart(samples, key, number, name, chart_title, x_title, log_x: false)
      lines = samples.group_by(&:build).map do |build, runs|
        same = runs.group_by { |run| run.case[number, 1] }.select { |x, _| x }
        points = same.map do |x, group|
          [x.to_i, Statistics.median(group.map { |run| run.outcome.values[key] })]
        end
        Chart::Line.new(build, nil, points.sort)
      end
      Chart::Lines.new(name: "#{title}-#{name}", title: chart_title, x_title: x_title, y_title: "time (s)",
                       lines: lines, log_x: log_x)
    end

    def cases
      cases = alone_cases + at_once_cases
      cases << Case.new(label: AOBENCH, arguments: [aobench], needs: 300) if aobench
      cases
    end

    def left_out
      "aobench is CRuby's: give --source DIR" unless aobench
    end

    def measure(build, kase)
      if kase.label == AOBENCH
        alone(Measured.run(build, "gc", *kase.arguments)) { |measured| measured.looks["end"].seconds }
      elsif (number = kase.label[PROCESS, 1])
        at_once(build, number.to_i, kase.arguments)
      else
        alone(Measured.run(build, "sweep", *kase.arguments)) { |measured| measured.result["seconds"] }
      end
    end

    private

    def alone_cases
      short_lived = quick? ? SHORT_LIVED / 50 : SHORT_LIVED
      (quick? ? LONG_LIVED.first(2) : LONG_LIVED).map do |number|
        Case.new(label: "#{number} strings", arguments: [number, short_lived], needs: 300 + number / 5_000)
      end
    end

    def at_once_cases
      (quick? ? [1, 2] : PROCESSES).map do |number|
        Case.new(label: "#{number} process#{"es" if number > 1}", arguments: EACH, needs: 300 + 100 * number)
      end
    end

    def aobench
      path = options.source && File.join(options.source, "benchmark/gc/aobench.rb")
      path if path && File.exist?(path)
    end

    def alone(measured)
      gc = measured.result["gc"]
      values = { time: yield(measured), gc_time: gc["time"], sweep_time: gc["sweeping_time"],
                 peak: mb(measured.peak) }.compact
      Outcome.new(values: values, raw: raw(measured))
    end

    def at_once(build, number, arguments)
      begun = Clock.now
      runs = side_by_side(number) { Measured.run(build, "sweep", *arguments) }
      runs.each { |run| raise run if run.is_a?(Exception) }
      values = { total: Clock.now - begun, mean: runs.sum { |run| run.result["seconds"] } / number }
      Outcome.new(values: values, raw: runs.map { |run| raw(run) })
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class ForkRequests < Benchmark
    SUMMARY = "children that serve requests: memory on the way, and throughput"
    SYNTHETIC = true
    metric :private, "private dirty memory of a worker", "MB", :less, 1
    metric :tree, "the whole server (sum of Pss)", "MB", :less, 1
    metric :throughput, "throughput", "requests/s", :more, 0
    metric :gc_time, "GC time of all workers", "ms", :less, 0
    MEGABYTES = 120
    WORKERS = 4

    def self.charts(samples)
      lines = samples.group_by { |sample| [sample.build, sample.case] }.map do |(build, kase), runs|
        Chart::Line.new(build, kase, points(runs.map { |run| run.outcome.values[:private] }))
      end
      [Chart::Lines.new(name: "#{title}-growth", title: "Private dirty memory of a worker (less is better)",
                        x_title: "requests a worker served", y_title: "private memory (MB)", lines: lines)]
    end

    # [[requests, median], ...] of runs, each { row => MB }.
    def self.points(runs)
      runs.first.keys.filter_map do |row|
        served = row[/after (\d+) requests/, 1]
        [served.to_i, Statistics.median(runs.map { |values| values[row] })] if served
      end
    end

    def cases
      (quick? ? [0, 1] : [0, 1, 3]).map do |number|
        Case.new(label: warmups(number), arguments: [MEGABYTES, number, WORKERS, *steps], needs: 700)
      end
    end

    def measure(build, kase)
      measured = Measured.run(build, "fork_requests", *kase.arguments)
      values = { private: {}, tree: {} }
      measured.looks.each do |point, look|
        row = "#{kase.label}, #{point}"
        values[:private][row] = mb(look.mean("Private_Dirty"))
        values[:tree][row] = mb(look.sum("Pss"))
      end
      result = measured.result
      values[:throughput] = result["requests"] / result["seconds"]
      values[:gc_time] = result["gc"]["time"]
      Outcome.new(values: values, raw: raw(measured))
    end

    private

    def steps
      quick? ? [0, 100, 500] : [0, 100, 500, 1_000, 2_000]
    end
  end
end

# frozen_string_literal: true

class ForkRequests < Benchmark
  SUMMARY = "children that serve requests: memory on the way, and throughput"
  SYNTHETIC = true
  METRICS = [
    Metric.new(key: :private, title: "private dirty memory of a worker", unit: "MB", better: :less, digits: 1),
    Metric.new(key: :tree, title: "the whole server (sum of Pss)", unit: "MB", better: :less, digits: 1),
    Metric.new(key: :throughput, title: "throughput", unit: "requests/s", better: :more, digits: 0),
    Metric.new(key: :gc_time, title: "GC time of all workers", unit: "ms", better: :less, digits: 0)
  ].freeze
  MEGABYTES = 120
  WORKERS = 4

  def self.charts(samples)
    lines = samples.group_by { |sample| [sample.build, sample.case] }.map do |(build, kase), runs|
      rows = runs.map { |run| run.outcome.values[:private] }
      points = rows.first.keys.filter_map do |row|
        served = row[/after (\d+) requests/, 1]
        [served.to_i, Statistics.median(rows.map { |values| values[row] })] if served
      end
      ["#{build}, #{kase}", points]
    end
    [Chart::Lines.new("#{title}-growth", "Private dirty memory of a worker (less is better)", "requests served", "MB", lines)]
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

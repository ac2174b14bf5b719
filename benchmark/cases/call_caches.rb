# frozen_string_literal: true

class CallCaches < Benchmark
  SUMMARY = "20,000 methods with 9 call sites each, warmed; a child collects once and calls them all again"
  SYNTHETIC = true
  METRICS = [
    Metric.new(key: :private, title: "private dirty memory of the child", unit: "MB", better: :less, digits: 2),
    Metric.new(key: :time, title: "time of calling them all after the collection", unit: "ms", better: :less, digits: 1)
  ].freeze

  def cases
    [Case.new(label: "one warmup", arguments: [20_000, 9, 1], needs: 400)]
  end

  def measure(build, kase)
    measured = Measured.run(build, "call_caches", *kase.arguments)
    steps = { "before" => "at the fork", "collected" => "after the collection", "called" => "after calling them" }
    values = measured.looks.to_h { |point, look| ["#{kase.label}, #{steps.fetch(point)}", mb(look.mean("Private_Dirty"))] }
    Outcome.new(values: { private: values, time: measured.result["seconds"] * 1000 }, raw: raw(measured))
  end
end

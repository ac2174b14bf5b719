# frozen_string_literal: true

class ForkGc < Benchmark
  SUMMARY = "collector dirt of one full GC in a fresh child"
  SYNTHETIC = true
  METRICS = [
    Metric.new(key: :dirt, title: "pages the collection made private", unit: "MB", better: :less, digits: 2),
    Metric.new(key: :private, title: "all private dirty pages after it", unit: "MB", better: :less, digits: 2),
    Metric.new(key: :share, title: "collector dirt as a share of the parent", unit: "%", better: :less, digits: 1),
    Metric.new(key: :time, title: "time of the collection", unit: "ms", better: :less, digits: 1)
  ].freeze

  def cases
    sizes = quick? ? [30] : [30, 120, 500]
    sizes.product([0, 1, 3]).map do |size, number|
      Case.new(label: "parent #{size} MB, #{warmups(number)}", arguments: [size, number], needs: size * 4)
    end
  end

  def measure(build, kase)
    measured = Measured.run(build, "fork_gc", *kase.arguments)
    before, after = measured.looks.values_at("before", "after")
    dirt = after.mean("Private_Dirty") - before.mean("Private_Dirty")
    Outcome.new(values: { dirt: mb(dirt), private: mb(after.mean("Private_Dirty")),
                          share: dirt * 100 / before.parent["Rss"], time: measured.result["seconds"] * 1000 },
                raw: raw(measured))
  end
end

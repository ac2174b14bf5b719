# frozen_string_literal: true

class Marking < Benchmark
  SUMMARY = "full collections of heaps in a cache and larger than one, in which objects refer to each other in one way or another"
  SYNTHETIC = true
  SPEED_ONLY = true
  BY_NAME = true
  METRICS = [Metric.new(key: :marking, title: "time of marking in a full collection", unit: "ms", better: :less, digits: 2, geometric: true)].freeze
  WHAT = ["objects in order", "objects at random", "structs at random", "64 lists", "closures", "records"].freeze
  # Of 2 to 7 slots each.
  OBJECTS = [10_000, 80_000, 640_000].freeze

  def cases
    (quick? ? [1_000] : OBJECTS).flat_map { |objects| WHAT.map { |what| Case.new(label: "#{what}, #{objects}", arguments: [what, objects], needs: 1500) } }
  end

  def measure(build, kase)
    measured = Measured.run(build, "marking", *kase.arguments)
    result = measured.result
    marking = result["gc"]["marking_time"] or raise Skip, "#{build.name} tells no marking time: it is older than 3.3"
    Outcome.new(values: { marking: marking.fdiv(result["times"]) }, raw: raw(measured))
  end
end

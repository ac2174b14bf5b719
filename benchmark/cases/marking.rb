# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class Marking < Benchmark
    SUMMARY = "full collections of heaps in a cache and larger than one, in which objects refer to each " \
              "other in one way or another"
    SYNTHETIC = true
    SPEED_ONLY = true
    BY_NAME = true
    metric :marking, "time of marking in a full collection", "ms", :less, 2, geometric: true
    WHAT = ["objects in order", "objects at random", "structs at random", "64 lists", "closures",
            "records"].freeze
    # Of 2 to 7 slots each.
    OBJECTS = [10_000, 80_000, 640_000].freeze

    def cases
      sizes = quick? ? [1_000] : OBJECTS
      sizes.product(WHAT).map do |objects, what|
        Case.new(label: "#{what}, #{objects}", arguments: [what, objects], needs: 1500)
      end
    end

    def measure(build, kase)
      measured = Measured.run(build, "marking", *kase.arguments)
      result = measured.result
      marking = result["gc"]["marking_time"]
      raise Skip, "#{build.name} measures no marking time: it is older than 3.3" unless marking

      Outcome.new(values: { marking: marking.fdiv(result["times"]) }, raw: raw(measured))
    end
  end
end

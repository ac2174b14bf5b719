# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class ParentSlots < Benchmark
    SUMMARY = "a parent that forks once and then makes nothing but temporaries; the mean over parents of " \
              "many sizes, as how many slots one has depends on where its size falls between two steps of " \
              "the heap"
    SYNTHETIC = true
    metric :slots, "slots of the parent", "thousands", :less, 0
    metric :resident, "resident memory of the parent", "MB", :less, 1
    metric :gc_time, "GC time of the parent after the fork", "ms", :less, 0
    # Arrays that the parent keeps, each with a string.
    SIZES = (60_000..400_000).step(20_000).to_a.freeze
    MADE = 60_000
    ROUNDS = 120

    def cases
      [Case.new(label: "mean of #{sizes.size} sizes", arguments: [MADE, quick? ? 5 : ROUNDS], needs: 300)]
    end

    def measure(build, kase)
      runs = sizes.to_h { |size| [size, Measured.run(build, "parent_slots", size, *kase.arguments)] }
      slots = runs.transform_values { |run| run.result["slots"] / 1000.0 }
      rows = { kase.label => mean(slots.values), **slots.transform_keys { |size| "#{size} arrays" } }
      resident = mb(mean(runs.values.map { |run| run.looks["end"].parent["Rss"] }))
      gc_time = mean(runs.values.map { |run| run.result["gc"]["time"] })
      Outcome.new(values: { slots: rows, resident: resident, gc_time: gc_time },
                  raw: runs.values.map { |run| raw(run) })
    end

    private

    def mean(figures) = figures.sum.fdiv(figures.size)

    def sizes = quick? ? SIZES.first(2) : SIZES
  end
end

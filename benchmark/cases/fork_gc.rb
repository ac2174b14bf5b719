# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class ForkGc < Benchmark
    SUMMARY = "collector dirt of one full GC in a fresh child"
    SYNTHETIC = true
    metric :dirt, "pages the collection made private", "MB", :less, 2
    metric :private, "all private dirty pages after it", "MB", :less, 2
    metric :share, "collector dirt as a share of the parent", "%", :less, 1
    metric :time, "time of the collection", "ms", :less, 1

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
      values = { dirt: mb(dirt), private: mb(after.mean("Private_Dirty")),
                 share: dirt * 100 / before.parent["Rss"], time: measured.result["seconds"] * 1000 }
      Outcome.new(values: values, raw: raw(measured))
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class CallCaches < Benchmark
    SUMMARY = "20,000 methods with 9 call sites each, warmed; a child collects once and calls them all again"
    SYNTHETIC = true
    metric :private, "private dirty memory of the child", "MB", :less, 2
    metric :time, "time of calling them all after the collection", "ms", :less, 1

    def cases
      [Case.new(label: "one warmup", arguments: [20_000, 9, 1], needs: 400)]
    end

    def measure(build, kase)
      measured = Measured.run(build, "call_caches", *kase.arguments)
      steps = { "before" => "at the fork", "collected" => "after the collection",
                "called" => "after calling them" }
      values = measured.looks.to_h do |point, look|
        ["#{kase.label}, #{steps.fetch(point)}", mb(look.mean("Private_Dirty"))]
      end
      Outcome.new(values: { private: values, time: measured.result["seconds"] * 1000 }, raw: raw(measured))
    end
  end
end

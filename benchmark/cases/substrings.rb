# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class Substrings < Benchmark
    SUMMARY = "parts of strings: the fourth seed's programs, and what parsers do"
    SYNTHETIC = true
    metric :time, "run time", "s", :less, 3
    metric :memory, "private memory that the program takes", "MB", :less, 1

    # The programs of workloads/substrings.rb, and how often each does what it says.
    TIMES = {
      "dup" => 100, "dup and change" => 100, "first 1 MB of 10" => 100, "last 1 MB of 10" => 100,
      "5 KB of 50, dropped" => 500_000, "100 bytes of 50 KB, dropped" => 5_000_000,
      "append 100 bytes, slice 5 KB" => 200_000, "1 KB of 1 MB each, kept" => 100,
      "100 KB each of inherited 20 MB, kept" => 200, "lines of 80 bytes, kept" => 500_000,
      "lines of 4 KB, kept" => 10_000, "HTTP head and 64 KB body" => 20_000, "CSV, 10 fields" => 100_000,
      "frames of 16 KB" => 2_000
    }.freeze

    def cases
      TIMES.map do |label, times|
        Case.new(label: label, arguments: [label, quick? ? [times / 100, 5].max : times], needs: 1200)
      end
    end

    # What is freed, jemalloc keeps for ten seconds. It would count as memory of strings that are kept.
    GIVES_BACK = { "MALLOC_CONF" => "dirty_decay_ms:0,muzzy_decay_ms:0" }.freeze

    def measure(build, kase)
      timed = Measured.run(build, "substrings", *kase.arguments)
      held = Measured.run(build.with("gives back", GIVES_BACK), "substrings", *kase.arguments)
      values = { time: timed.result["seconds"], memory: held.result["kb"] / 1024.0 }
      Outcome.new(values: values, raw: raw(timed).merge(memory: raw(held)))
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class HeapGrowth < Benchmark
    SUMMARY = "objects are made until the heap has so many GB, without a collection; then the process ends"
    SYNTHETIC = true
    SPEED_ONLY = true
    BY_NAME = true
    metric :first, "CPU time of an object in the first tenth", "ns", :less, 0
    metric :last, "CPU time of an object in the last tenth", "ns", :less, 0
    metric :ended, "from the last line of the program to the end of the process", "ms", :less, 0
    MEGABYTES = [1_024, 2_048, 4_096, 8_192, 12_288].freeze
    # Objects between two looks at the clock.
    STEP = 1_000_000
    # MB for each MB of slots: an array has 8 bytes for a slot of 40, and there is more.
    NEEDS = 1.4

    def cases
      (quick? ? [32] : MEGABYTES).map do |megabytes|
        Case.new(label: size(megabytes), arguments: [megabytes, quick? ? STEP / 20 : STEP],
                 needs: (megabytes * NEEDS).round + 100)
      end
    end

    def measure(build, kase)
      step = kase.arguments.last
      measured = Measured.run(build, "heap_growth", *kase.arguments, timeout: 1_800)
      seconds, ended = measured.result.values_at("seconds", "ended")
      tenth = (seconds.size / 10.0).ceil
      nanoseconds = ->(some) { some.sum * 1e9 / (some.size * step) }
      Outcome.new(values: { first: nanoseconds[seconds.first(tenth)], last: nanoseconds[seconds.last(tenth)],
                            ended: (measured.ended - ended) * 1_000 },
                  raw: raw(measured))
    end

    private

    def size(megabytes)
      megabytes < 1_024 ? "#{megabytes} MB" : "#{megabytes / 1_024} GB"
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class ForkExit < Benchmark
    SUMMARY = "what a fork costs the parent, and a child that calls exit at once"
    SYNTHETIC = true
    metric :end, "from the fork until the child is reaped", "ms", :less, 1
    metric :bytes, "pages that the child copied or fetched until it was gone", "MB", :less, 2
    metric :fork, "the parent in fork, not the first time", "ms", :less, 1
    metric :first, "what the first fork takes longer, in full collections", "collections", :less, 2,
           alone: true

    def cases
      sizes = quick? ? [30] : [120, 500]
      sizes.product(quick? ? [0] : [0, 1]).map do |size, number|
        Case.new(label: "parent #{size} MB, #{warmups(number)}", arguments: [size, number], needs: size * 3)
      end
    end

    def measure(build, kase)
      measured = Measured.run(build, "fork_exit", *kase.arguments, quick? ? 3 : 15)
      collection, first, usual, till_end, bytes =
        measured.result.values_at("collection", "first", "fork", "end", "bytes")
      # What a pristine fork takes longer the first time is noise; it may be below 0.
      Outcome.new(values: { end: till_end * 1000, bytes: bytes.fdiv(1024 * 1024), fork: usual * 1000,
                            first: [(first - usual) / collection, 0].max },
                  raw: raw(measured))
    end
  end
end

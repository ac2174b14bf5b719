# frozen_string_literal: true

class ForkExit < Benchmark
  SUMMARY = "what a fork costs the parent, and a child that calls exit at once"
  SYNTHETIC = true
  METRICS = [
    Metric.new(key: :end, title: "from the fork until the child is reaped", unit: "ms", better: :less, digits: 1),
    Metric.new(key: :bytes, title: "pages that the child copied or fetched until it was gone", unit: "MB", better: :less, digits: 2),
    Metric.new(key: :fork, title: "the parent in fork, not the first time", unit: "ms", better: :less, digits: 1),
    Metric.new(key: :first, title: "what the first fork takes longer, in full collections", unit: "collections", better: :less, digits: 2, alone: true)
  ].freeze

  def cases
    sizes = quick? ? [30] : [120, 500]
    sizes.product(quick? ? [0] : [0, 1]).map do |size, number|
      Case.new(label: "parent #{size} MB, #{warmups(number)}", arguments: [size, number], needs: size * 3)
    end
  end

  def measure(build, kase)
    measured = Measured.run(build, "fork_exit", *kase.arguments, quick? ? 3 : 15)
    collection, first, usual, till_end, bytes = measured.result.values_at("collection", "first", "fork", "end", "bytes")
    # What a pristine fork takes longer the first time is noise; it may be below 0.
    Outcome.new(values: { end: till_end * 1000, bytes: bytes.fdiv(1024 * 1024), fork: usual * 1000,
                          first: [(first - usual) / collection, 0].max },
                raw: raw(measured))
  end
end

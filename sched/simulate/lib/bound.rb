# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Scheduling
  # The longest time that a thread can be in a queue, for one queue in the order of virtual time from which a
  # CPU may take what is at most B later than the head. README.md derives it.
  module Bound

    # { weight => ns } for all of +weights+.
    def self.table(weights, cpus:, slice:, bonus: 0)
      sum = weights.sum
      weights.uniq.to_h do |weight|
        # How much later than the clock it may be, what may be run before it, how far others are behind.
        spread = Rational(slice * 100, weight) + bonus + (slice + bonus)
        work = spread * (sum - weight) / 100 + (weights.size - 1) * slice
        [weight, (work / cpus + slice).ceil + weights.size]
      end
    end
  end
end

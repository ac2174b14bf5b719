# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Scheduling
  # The longest time that a thread can be in a queue, where there is one in the order of virtual time, from
  # which a CPU may take what is later than the head by the margin at most. README.md derives it.
  module Bound
    # { weight => ns } for all of +weights+; +margin+, +lag+ and +lead+ are those of a policy.
    def self.table(weights, cpus:, slice:, lag:, margin: 0, lead: 0)
      sum = weights.sum
      weights.uniq.to_h do |weight|
        # Virtual time from that of the one who is farthest behind to the last that may go before this thread.
        spread = lag + lead + Rational(slice * 100, weight) + margin
        work = spread * (sum - weight) / 100 + (weights.size - 1) * slice
        # Virtual times are rounded up to whole ns.
        [weight, (work / cpus + slice).ceil + weights.size]
      end
    end
  end
end

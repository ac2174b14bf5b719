# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# The second seed's program: long-lived strings, then floats that die at once. Its 0.5 + 0.7
# is an immediate today; this sum is out of their range.
require_relative "workload"

long_lived, short_lived = ARGV.map(&:to_i)

before = GC.stat
begun = Workload.now
kept = Array.new(long_lived, &:to_s)
short_lived.times { 1e300 + 2e300 }
seconds = Workload.now - begun
gc = Workload.gc_delta(before)
Workload.at(Workload.point("end"))
Workload.result(seconds: seconds, gc: gc, kept: kept.size)

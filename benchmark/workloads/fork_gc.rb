# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# One full collection in a fresh child of a parent of a given size.
require_relative "workload"
require_relative "parent"

megabytes, warmups = ARGV.map(&:to_i)
before = Workload.point("before")
after = Workload.point("after")
kept = Parent.boot(megabytes)
Workload.warm_up(warmups)

Workload.child do
  stat = GC.stat
  Workload.at(before)
  started = Workload.now
  GC.start
  seconds = Workload.now - started
  Workload.at(after)
  Workload.result(seconds: seconds, live_slots: GC.stat(:heap_live_slots), gc: Workload.gc_delta(stat))
end
kept.size # still needed

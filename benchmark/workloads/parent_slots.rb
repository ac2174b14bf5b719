# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A parent that forks once and then makes arrays of strings, which die a round later.
require_relative "workload"

kept_objects, made, rounds = ARGV.map(&:to_i)

kept = Array.new(kept_objects) { |i| [i, "string #{i}"] }
Workload.child {}
before = GC.stat
rounds.times { Array.new(made) { |i| [i.to_s] } }
stat = GC.stat
Workload.at(Workload.point("end"))
# Of all heap pages: what a seal keeps closed is none of the available ones.
Workload.result(slots: stat[:heap_available_slots] + stat.fetch(:closed_slots, 0),
                gc: Workload.gc_delta(before, stat), kept: kept.size)

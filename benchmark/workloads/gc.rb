# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Runs one of upstream's own programs as it is, where so many objects, of several
# sizes, live already.
require_relative "workload"

program, objects = ARGV.shift(2)
Workload::BALLAST = Array.new(objects.to_i / 4) { |i| [i, "x" * 50, "y" * 100, Object.new] }
before = GC.stat
load program
gc = Workload.gc_delta(before)
Workload.at(Workload.point("end"))
Workload.result(gc: gc)

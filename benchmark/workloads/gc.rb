# frozen_string_literal: true

# Runs one of upstream's own programs as it is.
require_relative "workload"

before = GC.stat
load ARGV.shift
gc = Workload.gc_delta(before)
Workload.at(Workload.point("end"))
Workload.result(gc: gc)

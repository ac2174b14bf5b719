# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Makes objects, so many at a time, until they fill so many MB of slots. Gives the CPU time of each such step,
# and the time of its own last line: from there the observer measures how long the process takes to end.
# Nothing is collected, so the heap only gets pages, and gives them back at the end.
require_relative "workload"

megabytes, step = ARGV.map(&:to_i)
GC.disable
cpu = -> { Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }
kept = []
seconds = Array.new(megabytes * (1 << 20) / 40 / step) do
  before = cpu.call
  kept << Array.new(step) { Object.new }
  cpu.call - before
end
pages = GC.stat(:heap_allocated_pages)
Workload.at(Workload.point("full"))
Workload.result(seconds: seconds, pages: pages, ended: Workload.now)

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Makes objects until so many MB of slots are full and gives the CPU time of each million, then when it ends
# by itself. Nothing is collected: what is measured is a heap that gets pages, and at the end gives them back.
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

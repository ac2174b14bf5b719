# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Programs for the policy of the heap's size: a steady one; one that builds up much and drops it; one that
# does so again and again, as the seed's several processes, in a cgroup.
require_relative "workload"

def texts(number)
  Array.new(number) { |i| "text number #{i} of many" * 2 }
end

def cpu
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

# Objects that die at once, until so many seconds have passed.
def serve(seconds)
  till = Workload.now + seconds
  count = 0
  while Workload.now < till
    5_000.times { |i| "request #{i}".upcase }
    count += 1
    sleep 0.002
  end
  count
end

def join(members)
  File.write(members, "0")
end

# Of each heap: slots without an object, and objects made so far. After a full collection only.
def heaps
  GC.stat_heap.values.map do |heap|
    made, freed = heap.values_at(:total_allocated_objects, :total_freed_objects)
    [heap[:heap_eden_slots] - (made - freed), made]
  end
end

# Keeps so many objects, and makes others. Says how long collections took, and how long they were expected to:
# the seed's T = N / (H - L) * (Wm * L + Ws * H), of the heap that fills first, with the cost of a collection
# that GC.stat tells.
def steady(kept, garbage)
  kept = texts(kept)
  # All of one length, so that each heap has the same part of them all the time: the program is a steady one.
  work = -> { garbage.times { |i| "garbage #{100_000_000 + i}" } }
  work.call
  GC.start
  free = heaps
  before = GC.stat
  begun = cpu
  work.call
  taken = (cpu - begun) * 1000
  gc = Workload.gc_delta(before)
  figures = { gc: gc, measured: gc[:time] / (taken - gc[:time]), kept: kept.size }
  if before.key?(:minor_gc_cost)
    times = free.zip(heaps).map { |(slots, made), (_, now)| slots.zero? ? 0 : (now - made).fdiv(slots) }.max
    figures[:expected] = times * before[:minor_gc_cost] / 1000 / gc[:time]
  end
  Workload.result(figures)
end

def drop(members, number, seconds)
  join(members)
  base, full = %w[base full].map { |name| Workload.point(name) }
  serve(1)
  Workload.at(base)
  built = texts(number)
  serve(1)
  built.clear
  Workload.at(full)
  Workload.result(served: serve(seconds), gc: GC.stat.slice(:time, :release_count, :released_bytes))
end

def waves(members, number, waves, start)
  join(members)
  served = 0
  before = GC.stat
  begun = cpu
  srand(start)
  sleep start * 0.5
  waves.times do
    built = texts(number)
    served += serve(0.5)
    built.clear
    served += serve(2)
  end
  Workload.result(served: served, gc: Workload.gc_delta(before), cpu: cpu - begun)
end

mode, *arguments = ARGV
case mode
when "steady" then steady(*arguments.map(&:to_i))
when "drop" then drop(arguments.shift, *arguments.map(&:to_i))
when "waves" then waves(arguments.shift, *arguments.map(&:to_i))
else raise ArgumentError, "no such program: #{mode}"
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What a fork costs a big parent, and what a child costs that ends at once.
require_relative "workload"
require_relative "parent"

megabytes, warmups, forks = ARGV.map(&:to_i)
PAGE = 4096

def seconds
  started = Workload.now
  yield
  Workload.now - started
end

# Page faults of children that were waited for: each copied or fetched a page.
def faults
  File.read("/proc/self/stat").rpartition(")").last.split[8].to_i
end

def middle(values)
  values.sort[values.size / 2]
end

kept = Parent.boot(megabytes)
Workload.warm_up(warmups)
GC.start
collection = middle(Array.new(3) { seconds { GC.start } })

# Seconds that the parent spends in fork, seconds from the fork to the child's end, bytes.
turn = lambda do
  before = faults
  child = nil
  inside = seconds { child = fork { exit } }
  rest = seconds { Process.wait(child) }
  raise "the child: #{$?}" unless $?.success?

  [inside, inside + rest, (faults - before) * PAGE]
end
first, = turn.call
turns = Array.new(forks) { turn.call }
Workload.result(collection: collection, first: first, fork: middle(turns.map(&:first)),
                end: middle(turns.map { |turn| turn[1] }),
                bytes: middle(turns.map(&:last)))
kept.size # still needed

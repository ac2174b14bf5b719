# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A heap is made, and collected in full for a while.
require_relative "workload"

what, objects = ARGV[0], ARGV[1].to_i
SECONDS = 0.5

Pair = Struct.new(:left, :right)

class Node
  attr_writer :next

  def initialize(value)
    @value = value
    @next = nil
  end
end

random = Random.new(1)
kept = case what
       when "objects in order" then Array.new(objects) { |i| Node.new("node #{i}") }
       when "objects at random" then Array.new(objects) { |i| Node.new("node #{i}") }.shuffle(random: random)
       when "structs at random"
         all = Array.new(objects) { Pair.new }
         all.each { |pair| pair.left, pair.right = all[random.rand(objects)], all[random.rand(objects)] }
         all.sample([objects / 1000, 1].max, random: random)
       when "64 lists"
         all = Array.new(objects) { |i| Node.new(i) }
         all.each_with_index { |node, i| node.next = all[i + 64] }
         all.first(64)
       when "closures" then Array.new(objects) { |i| "node #{i}".then { |name| -> { -> { name } }.call } }
       when "records" then Array.new(objects) do |i|
                             { "id" => i, "name" => "node #{i}", "tags" => ["tag #{i}"],
                               "at" => { "x" => 1.5 * i } }
                           end
       end
4.times { GC.start }

before = GC.stat
started = Workload.now
times = 0
while Workload.now - started < SECONDS
  GC.start
  times += 1
end
Workload.result(gc: Workload.gc_delta(before), times: times, slots: before[:heap_live_slots], kept: kept.size)

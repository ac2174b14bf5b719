# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What callgrind counts: a heap is made, then the same is done to it +times+ times. Two
# runs that differ in +times+ differ by nothing else. It does not talk with the observer.
what, objects, times = ARGV[0], *ARGV[1, 2].map(&:to_i)

Pair = Struct.new(:left, :right)

class Item
  def initialize(number)
    @number = number
    @name = "item #{number}"
    @next = nil
  end
end

def pairs(number, order)
  all = Array.new(number) { Pair.new }
  order.each_with_index { |at, i| all[i].left = all[at] }
  all.each_with_index { |pair, i| pair.right = all[(i + 1) % number] }
end

random = Random.new(1)
work = -> { GC.start }
kept = case what
       when "mark, in order" then pairs(objects, 0...objects)
       when "mark, at random" then pairs(objects, (0...objects).to_a.shuffle(random: random))
       when "mark, strings in a hash"
         text = "a value that is not embedded in its slot at all, for it is long"
         (0...objects).to_h { |i| ["key #{i}", "#{text} #{i}"] }
       when "mark, objects" then Array.new(objects) { |i| Item.new(i) }
       when "mark, arrays" then Array.new(objects) { |i| [i, "item #{i}", nil] }
       when "mark, procs" then Array.new(objects) { |i| "item #{i}".then { |name| proc { name } } }
       when "allocate and sweep"
         work = -> { objects.times { Object.new } }
         []
       end
3.times { GC.start }
times.times { work.call }
kept.size # still needed

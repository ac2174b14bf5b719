# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Fuzz
  # shadow: what the heap should hold, as numbers outside of the heap, in a mapping of its own. What a bug of
  # the collector does to objects it does not do to these words. A forked child has its own copy.
  class Shadow
    SLOTS = 96
    PLACES = 8
    # Words of a slot: the kind of its holder (0: none), its serial number, its object id (0: not asked for),
    # the number of its finalizer (0: none), then the numbers of its values.
    KIND, SERIAL, ID, FINALIZER, FIRST = 0, 1, 2, 3, 4
    WORDS = 12
    FINALIZERS = 60_000
    # The table of methods (calls.rb).
    METHODS = 64

    def initialize
      @words = IO::Buffer.new(SLOTS * WORDS * 8, IO::Buffer::MAPPED)
      @run = IO::Buffer.new(FINALIZERS, IO::Buffer::MAPPED)
      @methods = IO::Buffer.new(METHODS * 8, IO::Buffer::MAPPED)
      @serial = IO::Buffer.new(4096, IO::Buffer::MAPPED)
    end

    def word(slot, index) = @words.get_value(:S64, (slot * WORDS + index) * 8)
    def set(slot, index, value) = @words.set_value(:S64, (slot * WORDS + index) * 8, value)
    def value(slot, place) = word(slot, FIRST + place)
    def set_value(slot, place, number) = set(slot, FIRST + place, number)
    def clear(slot) = WORDS.times { |index| set(slot, index, 0) }
    def kind(slot) = word(slot, KIND)
    def filled = (0...SLOTS).reject { |slot| kind(slot).zero? }

    def values(slot) = Array.new(PLACES) { |place| value(slot, place) }

    # A number that nothing had before, of one of two counters.
    def next_number(counter)
      number = @serial.get_value(:S64, counter * 8) + 1
      @serial.set_value(:S64, counter * 8, number)
      number
    end

    # How often a finalizer has run.
    def runs(finalizer) = @run.get_value(:U8, finalizer)
    def note_run(finalizer) = @run.set_value(:U8, finalizer, runs(finalizer) + 1)

    def method(index) = @methods.get_value(:S64, index * 8)
    def set_method(index, number) = @methods.set_value(:S64, index * 8, number)
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Scheduling
  # A binary heap of Integers, the least on top.
  class Heap
    def initialize
      @keys = []
    end

    def size
      @keys.size
    end

    # Nil where it is empty.
    def top
      @keys[0]
    end

    # In no order.
    def each(&block)
      @keys.each(&block)
    end

    def push(key)
      keys = @keys
      place = keys.size
      while place.positive?
        above = (place - 1) >> 1
        other = keys[above]
        break if other <= key

        keys[place] = other
        place = above
      end
      keys[place] = key
    end

    # Takes the least out; nil where there is none.
    def pop
      keys = @keys
      least = keys[0]
      key = keys.pop
      sink(key) unless keys.empty?
      least
    end

    # Takes all out, in order.
    def clear
      @keys.sort.tap { @keys.clear }
    end

    private

    # Puts +key+ in the place of the top, and down as far as it belongs.
    def sink(key)
      keys = @keys
      size = keys.size
      place = 0
      while (below = 2 * place + 1) < size
        other = keys[below]
        if below + 1 < size && keys[below + 1] < other
          below += 1
          other = keys[below]
        end
        break if key <= other

        keys[place] = other
        place = below
      end
      keys[place] = key
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../processes/clock"

module CowBench
  # What runs now, for a person who waits: one line that changes on a terminal,
  # a line each elsewhere.
  class Progress
    def initialize(out = $stderr)
      @out = out
      @started = Clock.now
    end

    # A round of +total+ runs begins.
    def round(number, total)
      @round = number
      @total = total
      @done = 0
    end

    def start(what)
      @done += 1
      line = format("[round %d, %d of %d, %s] %s", @round, @done, @total, elapsed, what)
      @out.tty? ? @out.print("\r\e[K", line) : @out.puts(line)
      @open = true
    end

    # Something that must stay to be read.
    def say(line)
      finish
      @out.puts(line)
    end

    def finish
      @out.print("\r\e[K") if @open && @out.tty?
      @open = false
    end

    def elapsed
      Clock.minutes(Clock.now - @started)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "open3"
require "tmpdir"

module Fuzz
  # minimize: finds a short list of operations with which a seed still fails, by leaving out ever smaller
  # parts. What depends on addresses or on time may fail in some runs only: a list counts as failing if one of
  # +tries+ runs fails.
  class Minimizer
    # Seconds that a run may take.
    LIMIT = 120

    def initialize(command, env: {}, tries: 2, seconds: 600)
      @command = command
      @env = env
      @tries = tries
      @deadline = now + seconds
    end

    # The shortest list of those found, as text for heap.rb; nil if nothing fails.
    def run(seed, operations)
      numbers = (0...operations).to_a
      return unless fails?(seed, operations, numbers)

      parts = 2
      while numbers.size > 1 && now < @deadline
        size = (numbers.size.to_f / parts).ceil
        shorter = numbers.each_slice(size).lazy.map { |part| numbers - part }
                         .find { |list| now < @deadline && fails?(seed, operations, list) }
        if shorter
          numbers = shorter
          parts = [parts - 1, 2].max
        elsif size == 1
          break
        else
          parts = [parts * 2, numbers.size].min
        end
        warn "minimize: #{numbers.size} operations"
      end
      ranges(numbers)
    end

    def fails?(seed, operations, numbers)
      @tries.times.any? { !passes?(seed, operations, numbers) }
    end

    # Also where what failed is another thing: that is seen in the end.
    def passes?(seed, operations, numbers)
      pid = spawn(@env, *@command, seed.to_s, operations.to_s, File::NULL, ranges(numbers),
                  pgroup: true, %i[out err] => File::NULL)
      waiter = Process.detach(pid)
      ended = waiter.join(LIMIT)
      begin
        Process.kill(:KILL, -pid)
      rescue Errno::ESRCH
        nil
      end
      ended && waiter.value.success?
    end

    def ranges(numbers)
      runs = numbers.slice_when { |a, b| b != a + 1 }
      runs.map { |run| run.size > 1 ? "#{run.first}-#{run.last}" : run.first }.join(",")
    end

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end

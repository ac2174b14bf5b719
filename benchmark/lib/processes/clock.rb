# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  module Clock
    # Seconds of the monotonic clock.
    def self.now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # Calls the block every +pause+ seconds until it gives something true, and gives that;
    # nil after +seconds+.
    def self.wait_until(seconds, pause: 0.05)
      deadline = now + seconds
      until (found = yield)
        return if now > deadline

        sleep pause
      end
      found
    end

    # 75.3 as "1:15".
    def self.minutes(seconds)
      format("%d:%02d", *seconds.to_i.divmod(60))
    end
  end
end

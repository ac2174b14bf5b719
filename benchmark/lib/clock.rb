# frozen_string_literal: true

module Clock
  # Seconds that only go forward.
  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Loaded by RUBYOPT into all processes of a server that is put under pressure: each forked one notes twice a
# second, in the directory GC_TIMES, how long its collections took and how long it ran (CPU time), in seconds.
module GCTime
  PAUSE = 0.5

  # +before+: what the parent had collected, which a child inherits, in ns.
  def self.note(before)
    ran = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    path = File.join(ENV.fetch("GC_TIMES"), Process.pid.to_s)
    File.write("#{path}.new", "#{(GC.total_time - before) / 1e9} #{ran}\n")
    File.rename("#{path}.new", path)
  end

  def _fork
    child = super
    return child unless child.zero?

    before = GC.total_time
    Thread.new do
      loop do
        GCTime.note(before)
        sleep PAUSE
      end
    end
    child
  end
end
Process.singleton_class.prepend(GCTime)

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Loaded by RUBYOPT into all processes of a measured server: says in its log how long the first
# fork of each process took, from the call to its return in the parent. What the ruby does
# before a fork (CowRuby's seal) is part of it.
module ForkTime
  def _fork
    return super if @fork_time_of == Process.pid

    @fork_time_of = Process.pid
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    child = super
    return child if child.zero?

    seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
    warn "first fork of #{@fork_time_of}: #{(seconds * 1000).round(2)} ms"
    child
  end
end
Process.singleton_class.prepend(ForkTime)

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: ruby sidekiq_swarm.rb PROCESSES [arguments of sidekiq]
# Runs Sidekiq as its swarm does, which is not free: a parent loads the application and forks processes, each
# of them a whole Sidekiq. A child that ends by itself is replaced.
require "sidekiq/cli"
require_relative "before_fork"

count = Integer(ARGV.shift)
sidekiq = Sidekiq::CLI.instance
sidekiq.parse(ARGV)
sidekiq.send(:boot_application)
# The swarm's program is known by its name (lib/cowruby/rehearsal/auto.rb).
$PROGRAM_NAME = "sidekiqswarm"
prepare_for_fork
# When each child was started.
children = {}
ends = nil
tell = lambda do |child|
  Process.kill(ends, child)
rescue Errno::ESRCH
  nil # it has ended
end
start = lambda do
  child = fork do
    %w[TERM INT].each { |signal| trap(signal, "DEFAULT") }
    sidekiq.run(boot_app: false, warmup: false)
  end
  children[child] = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  # The signal may have come when this child was not known yet.
  tell.call(child) if ends
end
%w[TERM INT].each do |signal|
  trap(signal) do
    ends = signal
    children.each_key(&tell)
  end
end
count.times { start.call unless ends }
until children.empty?
  started = children.delete(Process.wait) or next # what the application has started
  # One that cannot start is not tried again and again without a pause.
  sleep 1 if Process.clock_gettime(Process::CLOCK_MONOTONIC) - started < 1 && !ends
  start.call unless ends
end

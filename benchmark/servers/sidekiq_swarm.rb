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
children = []
ends = false
start = lambda do
  children << fork do
    %w[TERM INT].each { |signal| trap(signal, "DEFAULT") }
    sidekiq.run(boot_app: false, warmup: false)
  end
end
%w[TERM INT].each do |signal|
  trap(signal) do
    ends = true
    children.each { |child| Process.kill(signal, child) }
  end
end
count.times { start.call }
until children.empty?
  children.delete(Process.wait)
  start.call unless ends
end

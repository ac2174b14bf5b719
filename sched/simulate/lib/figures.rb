# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "fairness"

module Scheduling
  # Counts of a run from a moment on, and what is reported of them.
  class Figures
    attr_reader :switches, :space_switches, :migrations, :dispatches, :hand_overs

    def initialize
      reset
    end

    # -- the simulation tells what happens

    def started(waited, migrated)
      @dispatches += 1
      @migrations += 1 if migrated
      @waits << waited unless waited.zero?
    end

    # +spaces+: whether the CPU had another address space.
    def switched(spaces)
      @switches += 1
      @space_switches += 1 if spaces
    end

    def handed_over
      @hand_overs += 1
    end

    # Forgets what was before.
    def start(simulation)
      reset
      @from = simulation.now
      @before = simulation.tasks.map { |task| simulation.cpu_time(task) }
      # Nil for those that can not run now.
      @blocked_before = simulation.tasks.map { |task| task.blocks unless task.away }
      @busy_before = busy(simulation)
    end

    # Gives the figures.
    def finish(simulation, beside_queue)
      time = simulation.now - @from
      tasks = simulation.tasks
      used = tasks.each_with_index.map { |task, i| simulation.cpu_time(task) - @before[i] }
      hungry = tasks.each_with_index.map { |task, i| task.blocks == @blocked_before[i] }
      { dispatches: @dispatches, switches: @switches, address_space_switches: @space_switches,
        migrations: @migrations, hand_overs: @hand_overs,
        busy: (busy(simulation) - @busy_before).fdiv(time * simulation.cpus.size),
        idle_beside_queue_ns: beside_queue, **waits(simulation.waiting),
        bound_ms: simulation.bound && simulation.bound / 1e6,
        **Fairness.of(tasks, used, hungry, simulation.cpus.size * time, time) }
    end

    private

    def reset
      @switches = @space_switches = @migrations = @dispatches = @hand_overs = 0
      @waits = []
    end

    def busy(simulation)
      simulation.tasks.sum { |task| simulation.cpu_time(task) }
    end

    # +still+: for how long those have waited that wait at the end; of all waits only the longest counts them.
    def waits(still)
      sorted = @waits.sort
      mean = @dispatches.zero? ? 0.0 : sorted.sum / 1e6 / @dispatches
      { longest_wait_ms: [0, *sorted.last, *still].max / 1e6, mean_wait_ms: mean,
        p99_wait_ms: percentile(sorted, 0.99) / 1e6 }
    end

    # By the nearest rank, of all dispatches: those without a wait come first.
    def percentile(sorted, part)
      rank = (@dispatches * part).ceil - (@dispatches - sorted.size)
      rank.positive? ? sorted[rank - 1] : 0
    end
  end
end

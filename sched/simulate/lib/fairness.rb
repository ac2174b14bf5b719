# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Scheduling
  # Whether CPU time was given by weights.
  module Fairness
    # +used+: CPU time of each of +tasks+ in +time+, in which there were +capacity+ ns of all CPUs; +hungry+:
    # whether it wanted to run all of the time.
    #
    # jain: Jain's index of processes of one kind, which want the same; the least of all kinds. hungry_least
    # and _most: CPUs that a process had on average whose threads are all hungry; fair_share_least and _most:
    # the same by what is fair, where all threads are hungry, because only then it is known what that is.
    # Nil where there are none.
    def self.of(tasks, used, hungry, capacity, time)
      spaces = tasks.each_index.reject { |i| tasks[i].space.zero? }.group_by { |i| tasks[i].space }.values
      of_hungry = spaces.select { |places| places.all? { |i| hungry[i] } }
      had = of_hungry.map { |places| places.sum { |i| used[i] } }
      fair = shares(tasks.map(&:weight), capacity, time) if hungry.all?
      parts = fair ? of_hungry.zip(had).map { |places, own| own / places.sum { |i| fair[i] } } : []
      { jain: jain_of_kinds(tasks, used, spaces), hungry_least: had.min&.fdiv(time),
        hungry_most: had.max&.fdiv(time), fair_share_least: parts.min, fair_share_most: parts.max }
    end

    def self.jain_of_kinds(tasks, used, spaces)
      kinds = spaces.group_by { |places| tasks[places.first].entry.kind }.values
      kinds.map do |processes|
        jain(processes.map { |places| places.sum { |i| used[i] }.fdiv(places.sum { |i| tasks[i].weight }) })
      end.min
    end

    # 1 where all are equal, 1 / n where one has all.
    def self.jain(numbers)
      squares = numbers.sum { |number| number * number }
      squares.zero? ? 1.0 : (numbers.sum**2).fdiv(numbers.size * squares)
    end

    # The fair share of threads that all want to run for all of +time+: by weight, but no more than one CPU,
    # and what the heavy ones cannot have goes to the others.
    def self.shares(weights, capacity, time)
      left = capacity.to_f
      weight = weights.sum
      shares = []
      weights.each_index.sort_by { |i| -weights[i] }.each do |i|
        shares[i] = [time, left * weights[i] / weight].min
        left -= shares[i]
        weight -= weights[i]
      end
      shares
    end
  end
end

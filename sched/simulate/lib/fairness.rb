# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Scheduling
  # Whether CPU time was given by weights.
  module Fairness
    # +used+: CPU time of each of +tasks+ in +time+, in which there were +capacity+ ns of all CPUs; +hungry+:
    # whether it wanted to run all of the time. jain: Jain's index of processes of one kind, which want the
    # same; the least of all kinds. fair_share_least and _most: of processes that have nothing but hungry
    # threads, the CPU time by their fair share; nil where there are none.
    def self.of(tasks, used, hungry, capacity, time)
      fair = shares(tasks.map(&:weight), used, hungry, capacity, time)
      spaces = tasks.each_index.reject { |i| tasks[i].space.zero? }.group_by { |i| tasks[i].space }.values
      parts = spaces.select { |places| places.all? { |i| hungry[i] } }
                    .map { |places| places.sum { |i| used[i] }.fdiv(places.sum { |i| fair[i] }) }
      { jain: jain_of_kinds(tasks, used, spaces), fair_share_least: parts.min, fair_share_most: parts.max }
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

    # The fair share of each: by weight, but no more than it wants; what it does not want goes to the others.
    # A hungry thread wants one CPU all the time, another what it has used.
    def self.shares(weights, used, hungry, capacity, time)
      wants = used.each_index.map { |i| hungry[i] ? time : used[i] }
      left = [capacity, wants.sum].min.to_f
      weight = weights.sum
      shares = []
      wants.each_index.sort_by { |i| wants[i].fdiv(weights[i]) }.each do |i|
        shares[i] = [wants[i], left * weights[i] / weight].min
        left -= shares[i]
        weight -= weights[i]
      end
      shares
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  module Statistics
    # The ratio of two builds, taken pair by pair: a machine's bad minute hits
    # both runs of a pair.
    Ratio = Struct.new(:median, :least, :most, :pairs)

    def self.median(numbers)
      return if numbers.empty?

      sorted = numbers.sort
      middle = sorted.size / 2
      sorted.size.odd? ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2.0
    end

    # Of numbers above 0.
    def self.geometric_mean(numbers)
      Math.exp(numbers.sum { |number| Math.log(number) } / numbers.size) unless numbers.empty?
    end

    # +base+ and +ours+ are hashes from run to number. Pairs that lack one side,
    # or have nothing to divide by, are left out; nil when none is left.
    def self.ratio(base, ours)
      ratios = base.filter_map do |run, number|
        ours[run].fdiv(number) if ours[run] && number && !number.zero?
      end
      Ratio.new(median(ratios), ratios.min, ratios.max, ratios.size) unless ratios.empty?
    end
  end
end

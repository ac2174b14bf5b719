# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  module Statistics
    # The ratio of two builds, taken pair by pair: a machine's bad minute hits
    # both runs of a pair.
    Ratio = Struct.new(:median, :least, :most, :pairs)

    # A straight line through points, by least squares: how much it rises for 1 on the x axis, the standard
    # error of that, what the points have in the mean, and from where to where on the x axis they go.
    Line = Struct.new(:slope, :error, :mean, :width) do
      # What it rises from the first point to the last, as a share of the mean.
      def rise
        slope * width / mean
      end
    end
    # A line through fewer points says nothing.
    FEWEST = 8
    # What is taken for the correlation of neighbours at most: beyond, the error would be infinite.
    MOST_ALIKE = 0.98

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

    # The Line of [x, y]s that are in order and equally far from each other; nil where they are too few. What
    # is measured one after the other is alike, so that many points hold less news than as many independent
    # ones: the error is widened by the correlation of each point's distance from the line with its
    # neighbour's, as for an autoregressive process of the first order.
    def self.line(points)
      return if points.size < FEWEST

      xs, ys = points.transpose
      x_mean, y_mean = [xs, ys].map { |numbers| numbers.sum.fdiv(numbers.size) }
      squares = xs.sum { |x| (x - x_mean)**2 }
      slope = points.sum { |x, y| (x - x_mean) * (y - y_mean) } / squares
      distances = points.map { |x, y| y - y_mean - slope * (x - x_mean) }
      variance = distances.sum { |distance| distance**2 } / (points.size - 2)
      Line.new(slope, Math.sqrt(variance / squares * widening(distances)), y_mean, xs.last - xs.first)
    end

    # Of a variance.
    def self.widening(distances)
      squares = distances.sum { |distance| distance**2 }
      return 1 unless squares.positive?

      alike = distances.each_cons(2).sum { |one, next_one| one * next_one } / squares
      alike = alike.clamp(0, MOST_ALIKE)
      (1 + alike) / (1 - alike)
    end
    private_class_method :widening

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

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/measure/statistics")

class TestStatistics < Minitest::Test
  include BenchmarkTest

  def test_median
    assert_nil Statistics.median([])
    assert_equal 7, Statistics.median([7])
    assert_equal 2, Statistics.median([9, 1, 2])
    assert_equal 2.5, Statistics.median([3, 9, 1, 2])
  end

  def test_geometric_mean
    assert_nil Statistics.geometric_mean([])
    assert_in_delta 0.7, Statistics.geometric_mean([0.7]), 1e-12
    assert_in_delta 1.0, Statistics.geometric_mean([0.25, 4, 1]), 1e-12
  end

  # In the second pair the machine is ten times slower, which changes both values of the pair alike. The
  # median of the pairs' ratios does not notice that; a ratio of two medians may.
  def test_ratio_is_taken_pair_by_pair
    ratio = Statistics.ratio({ 1 => 10, 2 => 100, 3 => 10 }, { 1 => 5, 2 => 50, 3 => 6 })
    assert_equal [0.5, 0.5, 0.6, 3], ratio.to_a
  end

  # y = 2 x with 1 more and 1 less in turn: neighbours are not alike, so nothing is widened.
  def test_line
    line = Statistics.line((0...10).map { |x| [x, 2 * x + (x.even? ? 1 : -1)] })
    assert_in_delta 2 - 5 / 82.5, line.slope, 1e-12
    squares = 10 - 25 / 82.5
    assert_in_delta Math.sqrt(squares / 8 / 82.5), line.error, 1e-12
    assert_equal [9.0, 9], [line.mean, line.width]
    assert_in_delta line.slope, line.rise, 1e-12
  end

  def test_line_through_points_on_it
    line = Statistics.line((0...8).map { |x| [x, 5 - x] })
    assert_in_delta(-1, line.slope, 1e-12)
    assert_in_delta 0, line.error, 1e-6
  end

  def test_too_few_points_for_a_line
    assert_nil Statistics.line((0...7).map { |x| [x, x] })
    assert_nil Statistics.line([])
  end

  # The same distances, once all of one kind behind each other.
  def test_the_error_of_a_line_is_wider_where_neighbours_are_alike
    turns, runs = [1, -1, 1, -1], [1, 1, -1, -1]
    errors = [turns, runs].map do |signs|
      Statistics.line((0...40).map { |x| [x, signs[x % 4]] }).error
    end
    assert_operator errors.last, :>, errors.first
    slow = Statistics.line((0...40).map { |x| [x, Math.sin(x / 3.0)] })
    assert_operator slow.error, :>, 2 * errors.first / Math.sqrt(2)
  end

  def test_ratio_leaves_out_broken_pairs
    assert_equal [2.0, 2.0, 2.0, 1],
                 Statistics.ratio({ 1 => 0, 2 => 3, 4 => 1 }, { 1 => 4, 2 => 6, 3 => 9 }).to_a
    assert_nil Statistics.ratio({ 1 => 0 }, { 1 => 1 })
    assert_nil Statistics.ratio({}, {})
  end
end

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

  def test_ratio_leaves_out_broken_pairs
    assert_equal [2.0, 2.0, 2.0, 1],
                 Statistics.ratio({ 1 => 0, 2 => 3, 4 => 1 }, { 1 => 4, 2 => 6, 3 => 9 }).to_a
    assert_nil Statistics.ratio({ 1 => 0 }, { 1 => 1 })
    assert_nil Statistics.ratio({}, {})
  end
end

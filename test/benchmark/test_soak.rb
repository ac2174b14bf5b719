# frozen_string_literal: true

require_relative "helper"
BenchmarkTest.load("lib/soak")

class TestSoak < Minitest::Test
  def soak(sizes, quiet: sizes.size, **other)
    Soak.new(nil, nil, 0).tap do |soak|
      sizes.each_with_index do |size, i|
        soak.rounds << Soak::Round.new(seconds: i, event: i < quiet ? nil : "kill a worker", requests: 10, errors: 0, excused: 0, private: size, **other)
      end
    end
  end

  def test_memory_that_levels_off
    assert_in_delta 0.0, soak([10.0, 20, 25, *[30.0] * 40]).growth, 0.05
    assert_predicate soak([10.0, 20, 25, *[30.0] * 40]), :level?
  end

  def test_memory_that_grows
    grows = soak((1..40).map { |i| 10.0 * i })
    refute_predicate grows, :level?
    assert_operator grows.growth, :>, 0.3
  end

  def test_rounds_from_the_first_event_on_do_not_count
    assert_in_delta 0.0, soak([*[30.0] * 30, *[90.0] * 30], quiet: 30).growth
  end

  def test_too_short_to_judge
    assert_nil soak([10.0] * 5).growth
    assert_predicate soak([10.0] * 5), :level?
  end

  def test_errors_of_a_killed_worker_are_excused_and_no_others
    assert_equal 0, soak([1.0] * 3, errors: 4, excused: 4).errors
    assert_equal 6, soak([1.0] * 3, errors: 6, excused: 4).errors
  end
end

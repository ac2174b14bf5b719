# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "bigdecimal"
require "bigdecimal/util"
require "bigdecimal/math"

class TestBigDecimal < GemTest
  extension(/bigdecimal\.so\z/)

  work(:arithmetic) do
    a = BigDecimal("12345678901234567890.123456789")
    b = BigDecimal("-0.00000000000000000007")
    [a + b, a - b, a * b, a.div(b, 40), a % 7, a.sqrt(30), a**5, a.frac, a.fix, b.exponent,
     a.precs_like].map(&:to_s)
  end

  work(:rounding) do
    BigDecimal.save_rounding_mode do
      %i[up down half_up half_down half_even ceiling floor].map do |mode|
        BigDecimal.mode(BigDecimal::ROUND_MODE, mode)
        %w[2.5 -2.5 2.25 -1.05].map { |text| BigDecimal(text).round(1).to_s + BigDecimal(text).round.to_s }
      end
    end
  end

  work(:text) do
    texts = ["0", "-0", "NaN", "Infinity", "1e-400", "9" * 200, "0.#{"0" * 50}1"]
    values = texts.map { |text| BigDecimal(text) }
    values.map { |v| [v.to_s, v.to_s("5F"), v.inspect, v.hash == v.dup.hash, v.sign] }
  end

  work(:conversion) do
    ["1.25".to_d, 3.to_d, 0.1.to_d(5), (1r / 3).to_d(20), BigDecimal("1.5").to_r,
     BigDecimal("1e20").to_i].map(&:to_s)
  end

  work(:marshal) { Marshal.load(Marshal.dump([BigDecimal("3.14159"), BigDecimal("-1e-30")])).map(&:to_s) }

  work(:pi) { BigMath.PI(60).round(50).to_s }

  def test_pi
    assert_equal "0.314159265358979323846264338327950288419716939937511e1", BigMath.PI(60).round(50).to_s
  end

  def test_errors
    assert_raises(ArgumentError) { BigDecimal("x1") }
    assert_raises(TypeError) { BigDecimal(nil) }
    assert_raises(ZeroDivisionError) { BigDecimal("1").div(0) }
    assert_raises(FloatDomainError) { BigDecimal("NaN").to_i }
  end

  def test_modes_belong_to_their_thread
    BigDecimal.save_rounding_mode do
      BigDecimal.mode(BigDecimal::ROUND_MODE, :up)
      default = Thread.new { BigDecimal.mode(BigDecimal::ROUND_MODE) }.value
      assert_equal BigDecimal::ROUND_HALF_UP, default
    end
  end

  def test_many_live_and_die
    values = Array.new(50_000) { |i| BigDecimal("#{i}.5") }
    GC.start
    assert_equal BigDecimal("1250000000"), values.sum
  end
end

class BigDecimal
  # The sizes that every version of the gem can tell.
  def precs_like = [precision, scale, n_significant_digits].join(",")
end

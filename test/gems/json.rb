# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "json"
# Version 3 has no additions.
require "json/add/core" if JSON::VERSION < "3"

class TestJson < GemTest
  extension(%r{json/ext/(parser|generator)\.so\z})

  DATA = { "name" => "日本語 \u{1F600}", "list" => [1, -2.5, 1e30, true, false, nil, "a\"\\\n\u0001"],
           "deep" => { "a" => { "b" => [[], {}] } }, "big" => 10**30, "long" => "x" * 500 }.freeze

  work(:round_trip) { JSON.parse(JSON.generate(DATA)) }
  work(:pretty) do
    [JSON.pretty_generate(DATA), JSON.generate(DATA, indent: "\t", space: " ", ascii_only: true),
     JSON.generate(DATA, script_safe: true)]
  end
  work(:symbols) { JSON.parse(JSON.generate(DATA), symbolize_names: true, freeze: true) }
  work(:decimals) { JSON.parse("[1.1, 2e3]", decimal_class: Rational).map(&:to_s) }
  if JSON::VERSION < "3"
    work(:additions) do
      JSON.parse(JSON.generate([1..3, 2r, :sym, Time.at(0)]), create_additions: true).map(&:to_s)
    end
  end
  work(:large) { JSON.parse(JSON.generate(Array.new(80) { |i| { "id" => i, "key#{i}" => "v#{i}" } })).size }

  def test_round_trip_is_exact = assert_equal(DATA, JSON.parse(JSON.generate(DATA)))

  def test_errors
    ["", "[1,", "{\"a\":}", "nul", "[1]x", "\"\\u12\"", "[" * 200].each do |text|
      assert_raises(JSON::ParserError, text) { JSON.parse(text) }
    end
    assert_raises(JSON::GeneratorError) { JSON.generate([Float::NAN]) }
    assert_raises(JSON::NestingError) { JSON.generate((1..200).inject([]) { |inner,| [inner] }) }
  end

  def test_encodings
    assert_equal ["é"], JSON.parse("[\"é\"]".encode("UTF-16LE"))
    assert_equal Encoding::UTF_8, JSON.generate(["é"]).encoding
    assert_raises(JSON::GeneratorError) { JSON.generate(["\xff"]) }
  end

  def test_objects_that_generate_themselves
    klass = Struct.new(:a) { def to_json(*arguments) = { "s" => a }.to_json(*arguments) }
    expected = "[{\"s\":1},{\"s\":[2]}]"
    assert_equal expected, JSON.generate([klass.new(1), klass.new([2])])
    in_child { stressed { assert_equal expected, JSON.generate([klass.new(1), klass.new([2])]) } }
  end

  def test_keys_are_shared_and_survive
    hashes = JSON.parse(JSON.generate([{ "the_key" => 1 }] * 2_000))
    GC.start
    move
    assert_equal(["the_key"], hashes.map { |h| h.keys.first }.uniq)
    assert hashes.first.keys.first.frozen?
  end
end

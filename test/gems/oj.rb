# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "oj"
require "stringio"

class TestOj < GemTest
  extension(%r{oj/oj\.so\z})

  DATA = { "a" => [1, -2.5, nil, true, "日本\n"], "b" => { "c" => [[], {}] }, "big" => 10**25,
           "long" => "x" * 2_000 }.freeze

  class Thing
    attr_accessor :x, :y

    def initialize(x = 1, y = [2])
      @x = x
      @y = y
    end

    def to_hash = { x: x, y: y }
    def ==(other) = other.is_a?(Thing) && [x, y] == [other.x, other.y]
  end

  class Events < Oj::ScHandler
    def hash_start = {}
    def array_start = []
    def hash_set(hash, key, value) = hash[key] = value
    def array_append(array, value) = array << value
    def add_value(value) = @value = value
    attr_reader :value
  end

  %i[strict null compat rails custom wab].each do |mode|
    work(:"#{mode}_mode") do
      data = mode == :wab ? { a: [1, nil, "x"] } : DATA
      text = Oj.dump(data, mode: mode, indent: 1)
      [text, Oj.load(text, mode: mode, symbol_keys: mode == :wab)]
    end
  end

  work(:objects) do
    text = Oj.dump([Thing.new("s", { "k" => Thing.new }), :sym, 1..2], mode: :object)
    Oj.load(text, mode: :object).first.inspect.gsub(/0x\h+/, "")
  end

  work(:circular) do
    array = [1]
    array << array
    Oj.dump(array, mode: :object, circular: true)
  end

  work(:events) do
    handler = Events.new
    Oj.sc_parse(handler, Oj.dump(DATA))
    handler.value
  end

  work(:documents) do
    Oj::Doc.open(Oj.dump(DATA)) do |doc|
      [doc.fetch("/a/1"), doc.size, doc.where?, doc.fetch("/b/c/2").inspect, doc.type("/big")]
    end
  end

  work(:parser) do
    parser = Oj::Parser.new(:usual)
    parser.symbol_keys = true
    3.times.map { parser.parse(Oj.dump(DATA)) }
  end

  work(:writers) do
    writer = Oj::StringWriter.new(mode: :compat)
    writer.push_object
    20.times { |i| writer.push_value({ "i" => i, "s" => "t" * i }, "k#{i}") }
    writer.push_array("list")
    writer.push_value(1)
    writer.pop_all
    Oj.load(writer.to_s)
  end

  work(:streams) do
    [Oj.load(StringIO.new("[1,2]\n{\"a\":3}")) { |_| nil }.inspect,
     Oj.to_stream(io = StringIO.new, DATA, mode: :compat).nil?, io.string]
  end

  def test_round_trip_is_exact
    assert_equal DATA.merge("big" => 10**25), Oj.load(Oj.dump(DATA, mode: :strict), mode: :strict)
  end

  def test_errors
    ["[1,", "{\"a\" 1}", "[1}", "nul", "\"abc"].each do |text|
      assert_raises(Oj::ParseError, EncodingError, text) { Oj.load(text, mode: :strict) }
    end
    assert_raises(TypeError) { Oj.dump(Object.new, mode: :strict) }
  end

  def test_objects_survive_moving
    things = Oj.load(Oj.dump(Array.new(500) { |i| Thing.new(i, ["v#{i}"]) }, mode: :object), mode: :object)
    move
    assert_equal(Array.new(500) { |i| Thing.new(i, ["v#{i}"]) }, things)
  end
end

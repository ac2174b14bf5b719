# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "msgpack"
require "stringio"

class TestMsgpack < GemTest
  extension(%r{msgpack/msgpack\.so\z})

  DATA = [nil, true, 1, -1, 2**63, -2**63, 1.5, "é", "b".b * 300, :sym.to_s, [[]],
          { "a" => { "b" => [1, 2] } }, "z" * 70_000].freeze
  Point = Struct.new(:x, :y)

  work(:round_trip) { MessagePack.unpack(MessagePack.pack(DATA)) }

  work(:extension_types) do
    factory = MessagePack::Factory.new
    factory.register_type(1, Point, packer: ->(p) { p.to_a.pack("l>l>") },
                                    unpacker: ->(s) { Point.new(*s.unpack("l>l>")) })
    factory.register_type(2, Symbol)
    factory.load(factory.dump([Point.new(1, -2), :a, { b: Point.new(3, 4) }])).inspect
  end

  work(:recursive_types) do
    factory = MessagePack::Factory.new
    factory.register_type(1, Point, recursive: true, packer: ->(p, packer) { packer.write(p.to_a) },
                                    unpacker: ->(unpacker) { Point.new(*unpacker.read) })
    factory.load(factory.dump(Point.new(Point.new(1, 2), [Point.new("x", nil)]))).inspect
  end

  work(:streams) do
    packer = MessagePack::Packer.new
    20.times { |i| packer.write_map_header(1).write("k#{i}").write_array_header(2).write(i).write("v" * i) }
    bytes = packer.to_s
    unpacker = MessagePack::Unpacker.new(symbolize_keys: true, freeze: true)
    bytes.bytes.each_slice(7).flat_map do |part|
      all = []
      unpacker.feed_each(part.pack("C*")) { |o| all << o }
      all
    end
  end

  work(:pool) do
    factory = MessagePack::Factory.new
    factory.register_type(0, Symbol)
    pool = factory.pool(2, freeze: true)
    Array.new(20) { |i| pool.load(pool.dump([:"s#{i % 3}", i])) }
  end

  work(:files) do
    io = StringIO.new("".b)
    MessagePack.pack(DATA, io)
    io.rewind
    MessagePack::Unpacker.new(io).each.to_a
  end

  work(:time) do
    bytes = MessagePack::Timestamp.to_msgpack_ext(1, 500)
    [MessagePack::Timestamp.from_msgpack_ext(bytes).nsec, MessagePack::Timestamp.new(2**33, 1).sec]
  end

  def test_round_trip_is_exact = assert_equal(DATA, MessagePack.unpack(MessagePack.pack(DATA)))

  def test_errors
    assert_raises(EOFError) { MessagePack.unpack("\x93\x01".b) }
    assert_raises(MessagePack::MalformedFormatError) { MessagePack.unpack("\xc1".b) }
    assert_raises(MessagePack::UnknownExtTypeError) { MessagePack.unpack("\xd4\x05\x01".b) }
    assert_raises(NoMethodError) { MessagePack.pack(Object.new) }
    assert_raises(RangeError) { MessagePack.pack(2**64) }
  end

  def test_a_factory_works_after_an_error_in_a_packer
    factory = MessagePack::Factory.new
    factory.register_type(1, Point, packer: ->(_) { raise "no" }, unpacker: ->(_) {})
    100.times { assert_raises(RuntimeError) { factory.dump([1, Point.new]) } }
    GC.start
    assert_equal [1], factory.load(factory.dump([1]))
  end

  def test_buffers_outlive_collections
    bytes = (0..2_000).map { |i| "v#{i}" }.to_msgpack
    unpacker = MessagePack::Unpacker.new
    found = []
    unpacker.feed_each(bytes[0, 4_000]) { |object| found << object }
    assert_empty found
    move
    unpacker.feed_each(bytes[4_000..]) { |object| found << object }
    assert_equal([(0..2_000).map { |i| "v#{i}" }], found)
  end
end

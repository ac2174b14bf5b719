# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "google/protobuf"
require "google/protobuf/descriptor_pb"
require "google/protobuf/timestamp_pb"
require "google/protobuf/struct_pb"
require "google/protobuf/any_pb"
require "google/protobuf/well_known_types"

class TestProtobuf < GemTest
  extension(/protobuf_c\.so\z/)

  # The file descriptor of our messages, built of the gem's descriptor messages.
  def self.schema
    label = { optional: :LABEL_OPTIONAL, repeated: :LABEL_REPEATED }
    field = lambda do |name, number, type, kind = :optional, **more|
      Google::Protobuf::FieldDescriptorProto.new(name: name, number: number, type: :"TYPE_#{type}",
                                                 label: label.fetch(kind), **more)
    end
    entry = Google::Protobuf::DescriptorProto.new(
      name: "CountsEntry", field: [field.("key", 1, :STRING), field.("value", 2, :INT64)],
      options: Google::Protobuf::MessageOptions.new(map_entry: true)
    )
    node = Google::Protobuf::DescriptorProto.new(
      name: "Node", nested_type: [entry],
      oneof_decl: [Google::Protobuf::OneofDescriptorProto.new(name: "choice")],
      field: [field.("name", 1, :STRING), field.("data", 2, :BYTES), field.("number", 3, :SINT64),
              field.("ratio", 4, :DOUBLE), field.("children", 5, :MESSAGE, :repeated, type_name: ".cow.Node"),
              field.("tags", 6, :STRING, :repeated),
              field.("counts", 7, :MESSAGE, :repeated, type_name: ".cow.Node.CountsEntry"),
              field.("color", 8, :ENUM, type_name: ".cow.Color"),
              field.("left", 9, :STRING, oneof_index: 0), field.("right", 10, :UINT32, oneof_index: 0),
              field.("ids", 11, :FIXED32, :repeated)]
    )
    colors = %w[NONE RED BLUE].each_with_index.map do |name, i|
      Google::Protobuf::EnumValueDescriptorProto.new(name: name, number: i)
    end
    color = Google::Protobuf::EnumDescriptorProto.new(name: "Color", value: colors)
    Google::Protobuf::FileDescriptorProto.new(name: "cow.proto", package: "cow", syntax: "proto3",
                                              message_type: [node], enum_type: [color])
  end

  Google::Protobuf::DescriptorPool.generated_pool.add_serialized_file(schema.to_proto)
  Node = Google::Protobuf::DescriptorPool.generated_pool.lookup("cow.Node").msgclass

  def node(depth = 3)
    Node.new(name: "näme #{depth}", data: "\xff\0".b, number: -(2**40) + depth, ratio: 0.5,
             tags: %w[a b] * depth, counts: { "x" => depth, "y" => -1 }, color: :RED, right: 7,
             ids: (1..10).to_a, children: depth.zero? ? [] : [node(depth - 1), node(depth - 1)])
  end

  work(:round_trip) { Node.decode(Node.encode(node)).to_h }
  work(:json) { Node.decode_json(Node.encode_json(node)).to_h }
  work(:copies) do
    [node.dup == node, Google::Protobuf.deep_copy(node).children[0].to_h, node.hash == node.hash,
     node.inspect]
  end

  work(:repeated_fields) do
    message = node
    message.tags.push("c").concat(%w[d e]).replace(%w[x y z])
    message.ids << 4_000_000_000
    [message.tags.map(&:upcase), (message.tags + ["w"]).to_a, message.ids.first(2),
     message.children.map(&:name), message.tags.index("y")]
  end

  work(:maps) do
    counts = node.counts
    100.times { |i| counts["k#{i}"] = i }
    counts.delete("k5")
    [counts.size, counts["k7"], counts.has_key?("k5"), counts.to_h.sort.first(3), counts.keys.size]
  end

  work(:oneofs) do
    message = node
    states = [message.choice.to_s, message.right]
    message.left = "l"
    states.push(message.choice.to_s, message.has_left?, message.has_right?)
    message.clear_left
    states << message.choice.inspect
  end

  work(:well_known_types) do
    time = Google::Protobuf::Timestamp.new(seconds: 5, nanos: 6)
    any = Google::Protobuf::Any.pack(time)
    struct = Google::Protobuf::Struct.decode_json("{\"a\": [1, null, {\"b\": true}]}")
    [any.unpack(Google::Protobuf::Timestamp).nanos, any.type_url,
     Google::Protobuf::Struct.encode_json(struct)]
  end

  def test_errors
    assert_raises(Google::Protobuf::ParseError) { Node.decode("\x0a\xff".b) }
    assert_raises(Google::Protobuf::ParseError) { Node.decode_json("{\"nmae\": 1}") }
    assert_raises(Google::Protobuf::TypeError) { Node.new(name: 1) }
    assert_raises(RangeError) { Node.new(right: 2**32) }
    assert_raises(ArgumentError) { Node.new(nonsense: 1) }
    assert_raises(FrozenError) { node.freeze.name = "x" }
    assert_raises(Encoding::UndefinedConversionError, Encoding::InvalidByteSequenceError) do
      Node.new(name: "\xff".b)
    end
  end

  # The gem finds the wrapper of a message again through a cache of weak references.
  def test_wrappers_are_the_same_while_they_live
    message = node
    child = message.children[0]
    move
    assert_same child, message.children[0]
    child.name = "changed"
    GC.start
    assert_equal "changed", message.children[0].name
    in_child { GC.start; move; assert_same child, message.children[0] }
  end

  def test_parts_outlive_their_parents
    parts = Array.new(200) { node(2).children[1].children }
    GC.start
    move
    assert_equal(["näme 0"], parts.flat_map { |list| list.map(&:name) }.uniq)
  end

  def test_shared_by_threads
    message = node.freeze
    threads = Array.new(4) { Thread.new { Array.new(200) { message.children[0].children[1].name } } }
    names = threads.flat_map(&:value)
    assert_equal ["näme 1"], names.uniq
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "nio"
require "socket"

class TestNio4r < GemTest
  extension(/nio4r_ext\.so\z/)

  work(:pipes) do
    selector = NIO::Selector.new
    pipes = Array.new(5) { IO.pipe }
    monitors = pipes.each_with_index.map do |(reader, _), i|
      selector.register(reader, :r).tap { |m| m.value = "m#{i}" }
    end
    pipes.values_at(1, 3).each { |_, writer| writer << "x" }
    ready = selector.select(1).map(&:value).sort
    counts = [ready, selector.registered?(pipes[0][0]), monitors.map { |m| m.readiness.inspect }]
    monitors.each(&:close)
    selector.close
    pipes.flatten.each(&:close)
    counts
  end

  work(:byte_buffers) do
    buffer = NIO::ByteBuffer.new(64)
    buffer << "hello " << "wörld"
    buffer.flip
    first = buffer.get(5)
    buffer.mark
    rest = buffer.get
    buffer.reset
    [first, rest, buffer.remaining, buffer.compact.position, buffer.limit, buffer.capacity]
  end

  work(:sockets) do
    left, right = UNIXSocket.pair
    selector = NIO::Selector.new
    monitor = selector.register(left, :rw)
    right.write("ping")
    states = [selector.select(1).map { |m| [m.readable?, m.writable?] }, monitor.interests]
    monitor.interests = :r
    left.read_nonblock(4)
    states << selector.select(0).to_a.size
    selector.close
    [left, right].each(&:close)
    states
  end

  def test_errors
    selector = NIO::Selector.new
    reader, writer = IO.pipe
    assert_raises(ArgumentError) { selector.register(reader, :nonsense) }
    monitor = selector.register(reader, :r)
    assert_raises(ArgumentError) { selector.register(reader, :r) }
    monitor.close
    assert_predicate monitor, :closed?
    selector.close
    assert_raises(IOError) { selector.select(0) }
    assert_raises(NIO::ByteBuffer::OverflowError) { NIO::ByteBuffer.new(1) << "ab" }
    assert_raises(NIO::ByteBuffer::UnderflowError) { NIO::ByteBuffer.new(1).flip.get(1) }
    [reader, writer].each(&:close)
  end

  def test_monitors_survive_moving
    selector = NIO::Selector.new
    pipes = Array.new(50) { IO.pipe }
    pipes.each_with_index { |(reader, _), i| selector.register(reader, :r).value = "value #{i}" }
    move
    pipes.each { |_, writer| writer << "x" }
    assert_equal Array.new(50) { |i| "value #{i}" }.sort, selector.select(1).map(&:value).sort
    selector.close
  ensure
    pipes&.flatten&.each(&:close)
  end

  def test_wakeup_from_another_thread
    selector = NIO::Selector.new
    waiter = Thread.new { selector.select(10) }
    Thread.pass until waiter.stop?
    selector.wakeup
    assert waiter.join(10), "wakeup did not end the select of the other thread"
    selector.close
  end

  def test_a_child_makes_a_selector_of_its_own
    parent = NIO::Selector.new
    in_child do
      reader, writer = IO.pipe
      selector = NIO::Selector.new
      selector.register(reader, :r)
      writer << "x"
      assert_equal 1, selector.select(5).size
      GC.start
    end
    parent.close
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "ffi"

class TestFFI < GemTest
  extension(/ffi_c\.so\z/)

  # Functions of the C library, of every shape.
  module C
    extend FFI::Library
    ffi_lib FFI::Library::LIBC
    callback :compare, %i[pointer pointer], :int
    attach_function :strlen, [:string], :size_t
    attach_function :qsort, %i[pointer size_t size_t compare], :void
    attach_function :abs, [:int], :int
    attach_function :snprintf, %i[pointer size_t string varargs], :int
    attach_function :getpid, [], :int
    attach_function :close, [:int], :int
    attach_function :usleep, [:uint], :int, blocking: true
    attach_function :div, %i[int int], (Class.new(FFI::Struct) { layout :quot, :int, :rem, :int }).by_value
  end

  class Inner < FFI::Struct
    layout :a, :int16, :b, [:uint8, 3]
  end

  class Outer < FFI::Struct
    layout :inner, Inner, :pointer, :pointer, :double, :double, :kind, FFI::Enum.new([:one, 1, :two, 2])
  end

  class Freed < FFI::AutoPointer
    @count = 0
    class << self
      attr_accessor :count
    end
    def self.release(_pointer) = self.count += 1
  end

  work(:calls) do
    result = C.div(17, 5)
    buffer = FFI::MemoryPointer.new(:char, 64)
    length = C.snprintf(buffer, 64, "%d %s %.2f", :int, 42, :string, "é", :double, 1.5)
    [C.strlen("hello"), C.abs(-3), result[:quot], result[:rem], length,
     buffer.read_string.force_encoding("UTF-8")]
  end

  work(:callbacks) do
    pointer = FFI::MemoryPointer.new(:int, 20).write_array_of_int((1..20).map { |i| (i * 7) % 23 })
    C.qsort(pointer, 20, 4, ->(a, b) { ["#{a.read_int}".to_i, b.read_int].reduce(:<=>) })
    pointer.read_array_of_int(20)
  end

  work(:structs) do
    outer = Outer.new
    outer[:inner][:a] = -7
    outer[:inner][:b][2] = 255
    outer[:double] = 2.5
    outer[:kind] = :two
    text = FFI::MemoryPointer.from_string("text")
    outer[:pointer] = text
    [outer[:inner][:a], outer[:inner][:b].to_a, outer[:double], outer[:kind], outer[:pointer].read_string,
     Outer.size, Outer.offset_of(:double)]
  end

  work(:buffers) do
    pointer = FFI::MemoryPointer.new(:int64, 4)
    pointer.put_array_of_int64(0, [1, -1, 2**40, 0])
    slice = pointer + 8
    buffer = FFI::Buffer.new(:uint16, 3).put_array_of_uint16(0, [1, 2, 65_535])
    [pointer.get_array_of_int64(0, 4), slice.read_int64, slice.size, buffer.get_array_of_uint16(0, 3),
     pointer.get_bytes(16, 8)]
  end

  work(:functions) do
    add = FFI::Function.new(:int, %i[int int]) { |a, b| a + b }
    FFI::Function.new(:int, %i[int int], FFI::Pointer.new(add.address)).call(20, 22)
  end

  def test_errors
    assert_raises(FFI::NotFoundError) do
      Module.new do
        extend FFI::Library
        ffi_lib FFI::Library::LIBC
        attach_function :no_such_function_here, [], :int
      end
    end
    assert_raises(LoadError) { Module.new { extend FFI::Library; ffi_lib "no_such_library" } }
    assert_raises(IndexError) { FFI::MemoryPointer.new(:int).get_int(8) }
    assert_raises(FFI::NullPointerError) { FFI::Pointer::NULL.read_int }
    assert_raises(TypeError) { C.strlen(1) }
    C.close(-1)
    assert_equal Errno::EBADF::Errno, FFI.errno
  end

  def test_memory_is_released_once
    Freed.count = 0
    1_000.times { Freed.new(FFI::Pointer.new(1)) }
    3.times { GC.start }
    released = Freed.count
    assert_operator released, :>, 900, "pointers that were released, of 1,000"
    in_child { GC.start; raise "released again" if Freed.count > 1_000 }
  end

  def test_a_callback_survives_moving
    doubled = FFI::Function.new(:int, [:int]) { |i| i * 2 }
    caller = FFI::Function.new(:int, [:int], FFI::Pointer.new(doubled.address))
    move
    assert_equal 42, caller.call(21)
    in_child { GC.start; move; assert_equal 42, caller.call(21) }
  end

  def test_blocking_calls_let_others_run
    count = 0
    sleeper = Thread.new { C.usleep(50_000) }
    count += 1 while sleeper.alive?
    assert_operator count, :>, 0, "turns of this thread during the call"
  end

  def test_a_child_has_its_own_process_number = in_child { assert_equal Process.pid, C.getpid }
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# In which order objects are freed and visited. CRuby promises none, but within a page it meets the newest
# object first, and C extensions rely on it: what keeps an address within another object's data is made after
# that one, and has to be freed before it. These tests pass on pristine, too.
class TestOrder < Minitest::Test
  include CowTest

  # Pages are filled one after the other, so of so many objects some pairs stand in two pages.
  COUNT = 400
  MOST = COUNT / 20

  # Ruby source for scripts: named makes an object that prints its name when it is freed, by the C library,
  # as no Ruby can be run then. fill takes the room that is left in pages from the start of the program.
  NAMED = <<~RUBY
    require "fiddle"
    COUNT = #{COUNT}
    PUTS = Fiddle::Handle::DEFAULT["puts"]
    def named(name)
      bytes = "\#{name}\\0"
      memory = Fiddle.malloc(bytes.bytesize)
      Fiddle::Pointer.new(memory, bytes.bytesize)[0, bytes.bytesize] = bytes
      Fiddle::Pointer.new(memory, bytes.bytesize, PUTS)
    end
    def fill = $filled = Array.new(5_000) { named("filled") }
    def names = Array.new(COUNT) { |i| named("object \#{i}") }
    GC.start
    GC.disable
  RUBY

  # The numbers in +out+ go down, or up, but where one page follows another.
  def assert_order(out, direction)
    numbers = out.scan(/^object (\d+)$/).map { |number,| number.to_i }
    assert_equal COUNT, numbers.size, out
    wrong = numbers.each_cons(2).reject { |one, next_one| next_one == one + direction }
    assert_operator wrong.size, :<=, MOST, "not followed by the next one: #{wrong.first(5)}"
  end

  def test_the_newest_is_freed_first_at_the_end
    assert_order(run_ruby("#{NAMED}fill; $kept = names"), -1)
  end

  # Ruby source: goes on in a child, whose parent says nothing.
  CHILD = <<~'RUBY'
    $many = Array.new(100_000) { "" }
    if (pid = fork)
      Process.wait(pid)
      exit!($?.exitstatus)
    end
  RUBY

  def test_the_newest_is_freed_first_at_the_end_of_a_child
    assert_order(run_ruby("#{NAMED}#{CHILD}fill; $kept = names"), -1)
    assert_order(run_ruby("#{NAMED}fill; $kept = names\n#{CHILD}"), -1)
  end

  def test_the_newest_is_freed_first_by_a_collection
    out = run_ruby(<<~RUBY)
      #{NAMED}fill
      names
      [0].each { named("filled") }
      GC.enable
      GC.start
      Process.exit!(0) unless Fiddle::Function.new(Fiddle::Handle::DEFAULT["fflush"], [Fiddle::TYPE_VOIDP],
                                                   Fiddle::TYPE_INT).call(nil) != 0
    RUBY
    assert_order(out, -1)
  end

  def test_finalizers_run_in_the_order_in_which_they_were_made
    out = run_ruby(<<~RUBY)
      COUNT = #{COUNT}
      def finalizer(i) = proc { puts "object \#{i}" }
      GC.start
      GC.disable
      $filled = Array.new(5_000) { Object.new }
      Array.new(COUNT) { |i| Object.new.tap { |object| ObjectSpace.define_finalizer(object, finalizer(i)) } }
      [0].each { Object.new }
      GC.enable
      GC.start
    RUBY
    assert_order(out, 1)
  end

  def test_each_object_begins_with_the_newest_of_a_page
    out = run_ruby(<<~RUBY)
      Named = Struct.new(:name)
      GC.start
      GC.disable
      $filled = Array.new(5_000) { Object.new }
      $kept = Array.new(#{COUNT}) { |i| Named.new(i) }
      ObjectSpace.each_object(Named) { |object| puts "object \#{object.name}" }
    RUBY
    assert_order(out, -1)
  end
end

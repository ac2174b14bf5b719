# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# In which order objects are freed and visited. CRuby promises none, but within a page it meets the newest
# object first, and C extensions rely on it: what keeps an address within another object's data is made after
# that one, and has to be freed before it. These tests pass on pristine, too; that of arenas skips there.
class TestOrder < Minitest::Test
  include CowTest

  # A few of them may be kept by what an earlier call left on the machine stack.
  COUNT = 400
  STRAY = 3

  # Ruby source for scripts: named makes an object that prints its name when it is freed, by the C library,
  # as no Ruby can be run then. fill takes the room that is left in pages from the start of the program.
  NAMED = <<~RUBY
    require "fiddle"
    PUTS = Fiddle::Handle::DEFAULT["puts"]
    def named(name)
      bytes = "\#{name}\\0"
      memory = Fiddle.malloc(bytes.bytesize)
      Fiddle::Pointer.new(memory, bytes.bytesize)[0, bytes.bytesize] = bytes
      Fiddle::Pointer.new(memory, bytes.bytesize, PUTS)
    end
    def fill = ($filled ||= []).concat(Array.new(5_000) { named("filled") })
    def names(numbers = 0...#{COUNT}) = numbers.map { |i| named("object \#{i}") }
    def clear(depth) = depth.zero? ? nil : clear(depth - 1)
    GC.start
    GC.disable
  RUBY

  # The numbers in +out+ go down, or up, but at most +most+ times, where one page follows another. Slots are
  # taken by words of a bitmap: there are more of these.
  def assert_order(out, direction, most:, missing: 0)
    numbers = out.scan(/^object (\d+)$/).map { |number,| number.to_i }
    assert_operator numbers.size, :>=, COUNT - missing, out.lines.grep_v(/^filled/).last(5).join
    assert_equal numbers.uniq, numbers
    wrong = numbers.each_cons(2).reject { |one, next_one| next_one == one + direction }
    assert_operator wrong.size, :<=, most, "not followed by the next one: #{wrong.first(5)}"
    numbers
  end

  def assert_newest_first(out)
    numbers = assert_order(out, -1, most: 0)
    assert_equal [COUNT - 1, 0], numbers.values_at(0, -1)
  end

  def test_the_newest_is_freed_first_at_the_end
    assert_newest_first(run_ruby("#{NAMED}fill; $kept = names"))
  end

  # Ruby source: goes on in a child of a sealed process, which itself says nothing.
  CHILD = <<~'RUBY'
    $many = Array.new(100_000) { "" }
    GC.enable
    GC.start
    if (pid = fork)
      Process.wait(pid)
      exit!($?.exitstatus)
    end
    GC.disable
    sealed = GC.stat[:sealed_slots]
    raise "nothing is sealed" if sealed&.zero?
  RUBY

  def test_the_newest_is_freed_first_at_the_end_of_a_child
    assert_newest_first(run_ruby("#{NAMED}#{CHILD}fill; $kept = names"))
    assert_newest_first(run_ruby("#{NAMED}fill; $kept = names\n#{CHILD}"))
  end

  # Under a limit of address space arenas are smaller, but each begins at a multiple of 128 MB. Where a
  # further one lies is by chance.
  def test_the_newest_is_freed_first_in_several_arenas
    skip "this ruby has no arenas" unless GC.stat[:arenas]&.positive?
    skip "AddressSanitizer needs the address space" if ASAN
    script = <<~RUBY
      #{NAMED}
      $many, $kept = [], []
      [0, 150, 300, #{COUNT}].each_cons(2).with_index(1) do |(from, to), arenas|
        $many << Array.new(20_000) { Object.new } until GC.stat(:arenas) >= arenas || $many.size == 500
        fill
        $kept.concat(names(from...to))
      end
      places = $kept.map { |object| Fiddle.dlwrap(object) }
      puts "arenas: \#{GC.stat(:arenas)}, with names: \#{places.map { |place| place >> 27 }.uniq.size}"
    RUBY
    2.times do
      out, status = run_command("sh", "-c", "ulimit -v 800000; exec \"$0\" \"$@\"",
                                RUBY, "--disable-gems", "-e", script)
      assert_predicate status, :success?, out
      assert_includes out, "arenas: 3, with names: 3"
      assert_newest_first(out)
    end
  end

  def test_the_newest_is_freed_first_by_a_collection
    out = run_ruby(<<~RUBY)
      #{NAMED}fill
      Thread.new { names.clear; 100.times { named("filled") } }.join
      clear(100)
      GC.enable
      GC.start
      flush = Fiddle::Handle::DEFAULT["fflush"]
      Fiddle::Function.new(flush, [Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT).call(nil)
      exit!(true)
    RUBY
    assert_order(out, -1, most: 6, missing: STRAY)
  end

  def test_finalizers_run_in_the_order_in_which_they_were_made
    out = run_ruby(<<~RUBY)
      def finalizer(i) = proc { puts "object \#{i}" }
      def clear(depth) = depth.zero? ? nil : clear(depth - 1)
      GC.start
      GC.disable
      $filled = Array.new(5_000) { Object.new }
      Thread.new do
        list = Array.new(#{COUNT}) do |i|
          Object.new.tap { |object| ObjectSpace.define_finalizer(object, finalizer(i)) }
        end
        list.clear
        100.times { Object.new }
      end.join
      clear(100)
      GC.enable
      GC.start
      $stdout.flush
      exit!(true)
    RUBY
    assert_order(out, 1, most: 10, missing: STRAY)
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
    assert_order(out, -1, most: 3)
  end
end

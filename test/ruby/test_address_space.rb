# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# A process has only so many bytes of address space, and so many mappings in it.
class TestAddressSpace < Minitest::Test
  include CowTest

  # Takes all mappings that the kernel grants a process (vm.max_map_count) but +left+: each OS page
  # of one reservation gets other rights than its neighbours.
  FEW_MAPPINGS = <<~'RUBY'
    require "fiddle"

    module Mappings
      integer, pointer = Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP
      PROTECT = Fiddle::Function.new(Fiddle.dlopen(nil)["mprotect"], [pointer, Fiddle::TYPE_SIZE_T, integer], integer)
      MAP = Fiddle::Function.new(Fiddle.dlopen(nil)["mmap"], [pointer, Fiddle::TYPE_SIZE_T, integer, integer, integer, Fiddle::TYPE_LONG], pointer)
      PAGES = 400_000
      NONE, READ = 0, 1
      PRIVATE, ANONYMOUS, NORESERVE = 2, 0x20, 0x4000

      def self.leave(left)
        start = MAP.call(0, PAGES * 4096, NONE, PRIVATE | ANONYMOUS | NORESERVE, -1, 0).to_i
        split = []
        (1...PAGES).step(2) do |page|
          break unless PROTECT.call(start + page * 4096, 4096, READ) == 0
          split << start + page * 4096
        end
        raise "no end of mappings" if split.size == PAGES / 2
        split.pop(left / 2).each { |address| PROTECT.call(address, 4096, NONE) }
      end
    end
  RUBY

  # Objects of several sizes, of which half has died, on thousands of heap pages: on one more, on
  # another less, so that they are emptied in any order.
  HALF_A_HEAP = IN_CHILD + <<~'RUBY'
    Thing = Struct.new(:number, :name, :more)
    def half_a_heap
      random = Random.new(1)
      share = nil
      things = Array.new(300_000) { |i| Thing.new(i, "thing #{i}" * (i % 9 + 1), [i] * (i % 7)) }
      things.each_index { |i| share = random.rand if i % 100 == 0; things[i] = nil if random.rand < share }
    end

    def sound(things)
      GC.verify_internal_consistency
      things.each_with_index do |thing, i|
        next unless thing
        raise "#{i}: #{thing}" unless thing.number == i && thing.name == "thing #{i}" * (i % 9 + 1) && thing.more == [i] * (i % 7)
      end
    end
  RUBY

  # Each page from which objects moved was a mapping of its own, and one mapping too many the end
  # of the process (3 of 3 runs of 2222f26).
  def test_compaction_needs_no_mappings
    needs_compaction
    skip "mappings are Linux's" unless File.readable?("/proc/self/maps")

    out = run_ruby(FEW_MAPPINGS + HALF_A_HEAP + <<~'RUBY', timeout: 300, env: { "RUBY_GC_SEAL" => "off" })
      things = half_a_heap
      GC.start # pages are sorted by what is free in them
      Mappings.leave(100)
      in_child { GC.compact; sound(things) }
      GC.compact
      puts GC.latest_compact_info[:moved].values.sum
      sound(things)
      more = half_a_heap
      GC.start
      in_child { Process.warmup; sound(more) }
      Process.warmup
      sound(more)
      GC.verify_internal_consistency
      GC.verify_compaction_references(toward: :empty, expand_heap: false)
      GC.auto_compact = true
      GC.start
      GC.verify_internal_consistency
    RUBY
    assert_operator Integer(out), :>, 50_000, "objects moved"
  end

  # Nothing that frees an object comes upon one that has moved: all is swept before. What has
  # died here asks others when it is freed: classes their parents, names of symbols a table.
  def test_what_is_freed_in_a_compaction_reads_others
    needs_compaction

    run_ruby(HALF_A_HEAP + <<~'RUBY')
      3.times do |round|
        things = half_a_heap
        parents = Array.new(1_000) { Class.new }
        children = parents.flat_map { |parent| Array.new(4) { Class.new(parent) { include Module.new } } }
        names = Array.new(20_000) { |i| "a name of a symbol #{round} #{i}" }
        symbols = names.map(&:to_sym)
        kept = symbols.select.with_index { |_, i| i % 3 == 0 }
        strings = names.map { |name| -"fstring of #{name}" }
        strings.select!.with_index { |_, i| i % 3 == 0 }
        families = children.select.with_index { |_, i| i % 4 == 1 }
        children = symbols = names = nil
        GC.auto_compact = round == 2
        round == 1 ? Process.warmup : GC.compact
        sound(things)
        raise "subclasses" unless parents.each_with_index.all? { |parent, i| parent.subclasses.include?(families[i]) }
        raise "symbols" unless kept.each_with_index.all? { |symbol, i| symbol.equal?("a name of a symbol #{round} #{i * 3}".to_sym) }
        raise "strings" unless strings.each_with_index.all? { |string, i| string.equal?(-"fstring of a name of a symbol #{round} #{i * 3}") }
      end
    RUBY
  end

  HOLD = File.join(__dir__, "hold_arrays.rb")

  # Bytes that are mapped at first, and thousands of arrays, of a process that may have +bytes+.
  def held(bytes, limit: :rlimit_as)
    out = run_ruby_status("exec(#{RUBY.dump}, ARGV[0], #{limit}: #{bytes})", HOLD).first
    start, dots = out.match(/^(\d+) (\.*)/)&.captures
    assert start, "it did not start with #{bytes} bytes: #{out}"
    [Integer(start) * 1024, dots.size]
  end

  # Pristine takes 41 bytes of the limit for an array, of 40; of more we would hold less than 0.9.
  # Some MB are malloc's, now and then more. With 140 MB 239,000 were held before, and pristine
  # holds 1,505,000 (doc/arenas.md).
  def test_a_limit_of_address_space_is_used_up
    skip "malloc takes more at a time" if %w[alignoff binary linear].include?(LOCATOR)
    skip "the limit is Linux's" unless File.readable?("/proc/self/status")
    skip "AddressSanitizer needs terabytes of addresses" if ASAN
    skip "assertions take memory" if ASSERTIONS

    [100, 120, 140, 160, 200, 300].each do |megabytes|
      start, thousands = held(megabytes * 1_000_000)
      assert_operator thousands * 1_000 * 45 + 10_000_000, :>=, megabytes * 1_000_000 - start, "of #{megabytes} MB, #{start} at first"
    end
  end

  # The same where only what may be written to is limited.
  def test_a_limit_of_data_is_used_up
    skip "the limit is Linux's" unless File.readable?("/proc/self/status")
    skip "AddressSanitizer needs more" if ASAN

    _, thousands = held(100_000_000, limit: :rlimit_data)
    assert_operator thousands, :>, 200
  end

  # Where an arena stands is as random as a multiple of its size can be: of the bits above it each is
  # set in some processes, and not in others. 13 bits were before, of the 20 that there are.
  def test_addresses_are_random
    skip "only arenas are placed" unless %w[arena header].include?(LOCATOR)
    skip "the kernel places nothing at random" unless Integer(File.read("/proc/sys/kernel/randomize_va_space"), exception: false).to_i > 0
    skip "AddressSanitizer has most addresses" if ASAN

    script = "require 'objspace'; puts ObjectSpace.dump(Object.new)[/0x(\\h+)/, 1]"
    places = Array.new(40) { Integer(run_ruby(script, options: ["--disable-gems"]), 16) >> 27 }
    assert_operator places.uniq.size, :>, 38
    assert_equal (0..19).to_a, (0..19).select { |bit| (1...40).cover?(places.sum { |place| place[bit] }) }
  end

  # A debugger asks the kernel for the same addresses each time.
  def test_addresses_are_the_same_where_that_is_asked_for
    skip "only arenas are placed" unless %w[arena header].include?(LOCATOR)
    skip "no setarch" unless system("setarch", "-R", "true", err: File::NULL)
    skip "AddressSanitizer has addresses of its own" if ASAN

    script = "require 'objspace'; puts ObjectSpace.dump(Object.new)[/0x(\\h+)/, 1]"
    command = "exec('setarch', '-R', #{RUBY.dump}, '--disable-gems', '-e', ARGV[0])"
    assert_equal 1, Array.new(3) { Integer(run_ruby(command, script), 16) >> 27 }.uniq.size
  end
end

# frozen_string_literal: true

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
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Compaction visits all references in the heap. It may write a reference only if the object has moved: in a
# forked child the kernel copies the OS page even if the store does not change the value.
class TestMoved < Minitest::Test
  include CowTest

  def surroundings = CALM

  def setup
    needs_compaction
    skip "the kernel has no smaps_rollup" unless File.readable?("/proc/self/smaps_rollup")
  end

  # A parent fills its heap, so that compaction finds no slot to which it could move an object. Its children
  # print how much memory a block of code made private.
  FULL_HEAP = PRIVATE_DIRTY + <<~'RUBY'
    KEPT = []
    PART = "x".freeze

    def free_slots
      GC.stat_heap.transform_values { |heap|
        heap[:heap_eden_slots] - heap[:total_allocated_objects] + heap[:total_freed_objects]
      }
    end

    # Fills the slots of each size with strings that need slots of this size.
    def fill_heap
      GC.disable
      extra = GC::INTERNAL_CONSTANTS.fetch(:RVALUE_OVERHEAD, 0) + 26
      sizes = GC.stat_heap.transform_values { |heap| heap[:slot_size] - extra }
      2.times {
        free_slots.each { |heap, free| (free - 100).times { KEPT << PART * sizes[heap] } }
      }
      GC.enable
    end

    def settle_heap
      3.times { GC.start }
      GC.compact
      4.times { GC.start; fill_heap }
    end

    def moved = GC.latest_compact_info[:moved].values.sum

    # Gives the KB that +work+ makes private and the number of objects that it moves. A collection before that
    # makes the metadata private, so that they are not counted.
    def child_dirt(work, settled: true)
      reader, writer = IO.pipe
      pid = fork {
        (GC.start; fill_heap) if settled
        before = private_dirty
        work.call
        after = private_dirty
        writer.puts "#{after - before} #{moved}"
        writer.flush
        exit!(0)
      }
      writer.close
      answer = reader.read.split.map(&:to_i)
      Process.wait(pid)
      raise "child: #{$?.inspect}" unless $?.success?
      answer
    end

    COMPACT = -> { GC.compact }
    AUTO_COMPACT = -> { GC.auto_compact = true; GC.start; GC.auto_compact = false }

    # Prints for both ways to compact: the KB made private, the number of objects moved, the KB of the heap.
    def report
      settle_heap
      pages = GC.stat(:heap_allocated_pages) * 64
      [COMPACT, AUTO_COMPACT].each { |work| puts "#{child_dirt(work).join(" ")} #{pages}" }
    end
  RUBY

  # Objects whose references rb_gc_mark_and_move and the collector itself update: iseqs and their operands,
  # method entries, lexical scopes, declared references.
  CODE = <<~'RUBY'
    source = +""
    2500.times { |i|
      source << "class K#{i}; X = :x#{i}\n" \
        "def m#{i}(a = 'o#{i}', k: [], &b) = [a, X, k, 's#{i}'].each_entry { |x| b&.call(x, '#{i}') }\n" \
        "alias n#{i} m#{i}; end\n"
    }
    eval(source)
    EACH = Array.new(20_000) { |i| [i].each_with_index }
  RUBY

  # Objects whose references rb_gc_update_reference updates: generic instance variables, data with dcompact
  # functions, environments, call caches.
  DATA = <<~'RUBY'
    IVARS = Array.new(30_000) { |i| s = "generic #{i}"; s.instance_variable_set(:@a, [i]); s }
    PROCS = Array.new(10_000) { |i| proc { i } }
    PLACES = Array.new(2_000) { caller_locations(0) }
    CHAINS = Array.new(10_000) { |i| [i].each + [i] }
    MAP = ObjectSpace::WeakMap.new
    IVARS.each { |s| MAP[s] = s }
    LAZY = Array.new(10_000) { |i| [i].lazy.map { i } }
    NAMES = Array.new(5_000) { |i| NameError.new("name", :"n#{i % 10}", receiver: IVARS[i]) }
  RUBY

  # The data of compiled code: blocks of code, each with its iseq and the method entries that it relies on,
  # and stubs for code that has not run yet.
  COMPILED = <<~'RUBY'
    source = +""
    tests = Array.new(12) { |n| "a = a.succ if a % #{n + 2} == 0; b << a unless a.odd?" }.join("; ")
    900.times { |i| source << "def j#{i}(a, b = []) = (#{tests}; b)\n" }
    eval(source)
    METHODS = Array.new(900) { |i| method("j#{i}") }
    2.times { |n| METHODS.each { |m| m.call(n * 1000 + 7) } }
  RUBY

  # Objects of every class that holds references, and questions about them.
  WITNESSES = "require #{File.expand_path("moved_witnesses.rb", __dir__).dump}\n"

  # Moves every object that can move, in the parent and in a child, and asks the questions again.
  MOVE_ALL = <<~'RUBY'
    3.times { GC.verify_compaction_references(toward: :empty, expand_heap: true); ask }
    GC.compact
    ask
    pid = fork {
      ask(ALIVE_IN_CHILD)
      GC.verify_compaction_references(toward: :empty, expand_heap: true)
      ask(ALIVE_IN_CHILD)
      exit!(0)
    }
    Process.wait(pid)
    raise "child: #{$?.inspect}" unless $?.success?
    puts "moved #{GC.latest_compact_info[:moved].values.sum}"
  RUBY

  def test_compacting_a_full_heap_leaves_code_shared
    assert_little_dirt(run_ruby(FULL_HEAP + CODE + "report"))
  end

  def test_compacting_a_full_heap_leaves_data_shared
    assert_little_dirt(run_ruby(FULL_HEAP + DATA + "report"))
  end

  # Each major GC marks the blocks of compiled code as well.
  def test_gc_leaves_compiled_code_shared
    skip "no YJIT in this build" unless defined?(RubyVM::YJIT)

    out = run_ruby(FULL_HEAP + COMPILED + <<~'RUBY', options: ["--yjit", "--yjit-call-threshold=2"])
      settle_heap
      puts child_dirt(-> { GC.start; GC.compact }, settled: false).first
      puts RubyVM::YJIT.runtime_stats[:yjit_alloc_size] / 1024
    RUBY
    dirt, metadata = out.split.map(&:to_i)
    p out if ENV["COW_SHOW"]
    assert_operator metadata, :>, 8000, "KB of YJIT's data"
    assert_operator dirt, :<, metadata / 8, "KB made private, of #{metadata} KB of YJIT's data"
  end

  # Free slots are gathered on the last pages. A compaction that filled the slots which the compaction before
  # it emptied would move as many objects again, each time.
  def test_compacting_again_moves_little
    moved, live = run_ruby(FULL_HEAP + DATA + <<~'RUBY').split.map(&:to_i)
      KEPT.replace(Array.new(60_000) { "hole" })
      2.times { GC.start }
      KEPT.select!.with_index { |_, i| i.odd? }
      4.times { GC.start; GC.compact }
      puts moved, GC.stat(:heap_live_slots)
    RUBY
    assert_operator moved, :<, live / 50, "objects moved, of #{live} live ones"
  end

  def test_references_follow_when_objects_move
    out = run_ruby(WITNESSES + MOVE_ALL, timeout: 300)
    assert_match(/^moved [1-9]/, out, "no object has moved")
  end

  def test_references_follow_with_several_ractors
    out = run_ruby(WITNESSES + MOVE_ALL, "ractors", timeout: 300)
    assert_match(/^moved [1-9]/, out, "no object has moved")
  end

  def test_references_follow_in_compiled_code
    skip "no YJIT in this build" unless defined?(RubyVM::YJIT)

    out = run_ruby(WITNESSES + "5.times { ask }\n" + MOVE_ALL, timeout: 300,
                   options: ["--yjit", "--yjit-call-threshold=2"])
    assert_match(/^moved [1-9]/, out, "no object has moved")
  end

  # With assertions all witnesses take minutes, so a third of them is asked, at random by the seed.
  def test_references_follow_under_auto_compaction_and_stress
    run_ruby(WITNESSES + <<~'RUBY', ASSERTIONS ? 3 : 1, rand(3), timeout: 900)
      part, turn = ARGV.map(&:to_i)
      GC.auto_compact = true
      (WITNESSES.keys - [:coverage]).each_with_index { |name, i|
        next unless i % part == turn % part

        GC.stress = true
        ask([name])
        GC.stress = false
      }
      ask
    RUBY
  end

  private

  # Less than a quarter of the heap's size. A compaction that stored every reference would write at least as
  # much as the heap's size, in heap pages and in malloc's memory.
  def assert_little_dirt(report)
    report.lines.each do |line|
      dirt, moved, heap = line.split.map(&:to_i)
      p line if ENV["COW_SHOW"]
      assert_operator moved, :<, 5000, "the heap was not full: #{report}"
      assert_operator dirt, :<, heap / 4, "KB made private; objects moved and KB of the heap: #{report}"
    end
  end
end

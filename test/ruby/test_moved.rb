# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Compaction goes over every reference of the heap. It may write only those
# whose object moved: a store of the value that stands there already copies
# the OS page of a forked child just the same.
class TestMoved < Minitest::Test
  include CowTest

  def setup
    needs_compaction
    skip "no smaps_rollup" unless File.readable?("/proc/self/smaps_rollup")
  end

  # A parent whose heap is full, so that compaction finds no slot to move an
  # object into, and children that say what a block of theirs made private.
  FULL_HEAP = PRIVATE_DIRTY + <<~'RUBY'
    KEPT = []
    PART = "x".freeze

    def free_slots
      GC.stat_heap.transform_values { |heap|
        heap[:heap_eden_slots] - heap[:total_allocated_objects] + heap[:total_freed_objects]
      }
    end

    # Fills every size of slot with strings that fit just there.
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

    # The KB that +work+ makes private and how many objects it moved. A plain
    # GC before that takes the page metadata out of the figure.
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

    # Prints dirt in KB, objects moved and the size of the heap in KB.
    def report
      settle_heap
      pages = GC.stat(:heap_allocated_pages) * 64
      [COMPACT, AUTO_COMPACT].each { |work| puts "#{child_dirt(work).join(" ")} #{pages}" }
    end
  RUBY

  # What rb_gc_mark_and_move and the collector itself follow: iseqs and their
  # operands, method entries, lexical scopes, declared references.
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

  # What is followed through rb_gc_update_reference: generic instance
  # variables, dcompact functions, environments, call caches.
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

  # What compiled code keeps: blocks of code, each with its iseq and the
  # method entries that it relies on, and stubs for what did not run yet.
  COMPILED = <<~'RUBY'
    source = +""
    tests = Array.new(12) { |n| "a = a.succ if a % #{n + 2} == 0; b << a unless a.odd?" }.join("; ")
    400.times { |i| source << "def j#{i}(a, b = []) = (#{tests}; b)\n" }
    eval(source)
    METHODS = Array.new(400) { |i| method("j#{i}") }
    2.times { |n| METHODS.each { |m| m.call(n * 1000 + 7) } }
  RUBY

  # Objects of every class that owns a reference, and questions about them.
  WITNESSES = "require #{File.expand_path("moved_witnesses.rb", __dir__).dump}\n"

  # Moves every object that may move, here and in a child, and asks again.
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

  # Marking goes over the JIT's blocks too, at every major GC.
  def test_gc_leaves_compiled_code_shared
    skip "no YJIT" unless defined?(RubyVM::YJIT)

    out = run_ruby(FULL_HEAP + COMPILED + <<~'RUBY', options: ["--yjit", "--yjit-call-threshold=2"])
      settle_heap
      puts child_dirt(-> { GC.start; GC.compact }, settled: false).first
      puts RubyVM::YJIT.runtime_stats[:yjit_alloc_size] / 1024
    RUBY
    dirt, metadata = out.split.map(&:to_i)
    p out if ENV["COW_SHOW"]
    assert_operator metadata, :>, 8000
    assert_operator dirt, :<, metadata / 8, "KB of #{metadata} KB"
  end

  # Free slots belong together on the last pages; to fill those that the last
  # compaction made would move as many objects again, each time.
  def test_compacting_again_moves_little
    moved, live = run_ruby(FULL_HEAP + DATA + <<~'RUBY').split.map(&:to_i)
      KEPT.replace(Array.new(60_000) { "hole" })
      2.times { GC.start }
      KEPT.select!.with_index { |_, i| i.odd? }
      4.times { GC.start; GC.compact }
      puts moved, GC.stat(:heap_live_slots)
    RUBY
    assert_operator moved, :<, live / 50, "of #{live} live objects"
  end

  def test_references_follow_when_objects_move
    out = run_ruby(WITNESSES + MOVE_ALL, timeout: 300)
    assert_match(/^moved [1-9]/, out)
  end

  def test_references_follow_with_several_ractors
    out = run_ruby(WITNESSES + MOVE_ALL, "ractors", timeout: 300)
    assert_match(/^moved [1-9]/, out)
  end

  def test_references_follow_in_compiled_code
    skip "no YJIT" unless defined?(RubyVM::YJIT)

    out = run_ruby(WITNESSES + "5.times { ask }\n" + MOVE_ALL, timeout: 300,
                   options: ["--yjit", "--yjit-call-threshold=2"])
    assert_match(/^moved [1-9]/, out)
  end

  def test_references_follow_under_auto_compaction_and_stress
    run_ruby(WITNESSES + <<~'RUBY', timeout: 900)
      GC.auto_compact = true
      (WITNESSES.keys - [:coverage]).each { |name|
        GC.stress = true
        ask([name])
        GC.stress = false
      }
      ask
    RUBY
  end

  private

  # A quarter of the heap. What stores every reference writes as much as the
  # heap and more, in its pages and in those of malloc.
  def assert_little_dirt(report)
    report.lines.each do |line|
      dirt, moved, heap = line.split.map(&:to_i)
      p line if ENV["COW_SHOW"]
      assert_operator moved, :<, 5000, "the heap was not full: #{report}"
      assert_operator dirt, :<, heap / 4, "dirt, objects moved, heap: #{report}"
    end
  end
end

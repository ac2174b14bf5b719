# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Process.warmup prepares a heap for children that share it. It must leave nothing that the first
# collection of a child would free. By how much the heap may grow follows from the objects that
# survive, and not from what the boot once needed.
class TestWarmup < Minitest::Test
  include CowTest

  def surroundings = CALM

  def setup
    needs_compaction
  end

  # Ruby source for scripts. boot leaves symbols that nothing refers to in all parts of the heap. In
  # an ordinary collection they die, and their names only in the next one. freed gives how many
  # objects a collection frees.
  BOOT = <<~'RUBY'
    SYMBOLS = 20_000
    def boot
      symbols = []
      kept = Array.new(SYMBOLS * 10) do |i|
        symbols << "symbol of the boot #{i}".to_sym if i % 10 == 0
        "kept #{i}"
      end
      symbols.clear
      kept.each_slice(100).to_a # a flat array of all would fill the mark stack
    end

    def freed
      before = GC.stat(:total_freed_objects)
      GC.start
      GC.stat(:total_freed_objects) - before
    end
  RUBY

  def test_leaves_nothing_to_sweep
    out = run_ruby(BOOT + <<~'RUBY')
      kept = boot
      Process.warmup
      puts freed
      kept.size
    RUBY
    assert_operator out.to_i, :<, 1_000, "objects that the collection after Process.warmup freed"
  end

  def test_leaves_children_nothing_to_sweep
    skip "no smaps_rollup" unless File.readable?("/proc/self/smaps_rollup")
    out = run_ruby(BOOT + PRIVATE_DIRTY + <<~'RUBY')
      kept = boot
      Process.warmup
      heap = GC.stat(:heap_eden_pages) * GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE] / 1024
      fork do
        before = private_dirty
        GC.start
        puts "#{private_dirty - before} #{heap}"
      end
      Process.wait
      kept.size
    RUBY
    dirt, heap = out.split.map(&:to_i)
    assert_operator dirt, :<, heap / 8, "KB that a child's first collection copied, of #{heap}"
  end

  def test_leaves_no_forwarding_address
    out = run_ruby(BOOT + <<~'RUBY')
      kept = boot
      kept.each { |part| part.reject!.with_index { |_, i| i % 3 == 0 } }
      Process.warmup
      puts ObjectSpace.count_objects.fetch(:T_MOVED, 0)
    RUBY
    assert_equal 0, out.to_i, "slots that hold only the new address of a moved object"
  end

  # A second collection that frees nothing would be lost time at every boot.
  def test_collects_once_where_nothing_died
    out = run_ruby(<<~'RUBY')
      4.times { GC.start }
      before = GC.stat
      Process.warmup
      puts GC.stat(:major_gc_count) - before[:major_gc_count]
    RUBY
    assert_equal 1, out.to_i, "full collections"
  end

  def test_ends_where_every_collection_leaves_garbage
    out = run_ruby(<<~'RUBY')
      $runs = 0
      def waste
        2_000.times { |i| "waste #{$runs} #{i}".to_sym }
        ObjectSpace.define_finalizer(Object.new, proc { $runs += 1; waste if $runs < 1_000 })
      end
      waste
      majors = GC.stat(:major_gc_count)
      Process.warmup
      puts GC.stat(:major_gc_count) - majors
      $stdout.flush
      exit!(0)
    RUBY
    assert_includes 1..8, out.to_i, "full collections"
  end

  # Ruby source for scripts. allowance prints by how many slots the heap may grow, and how many it has.
  ALLOWANCE = ALL_SLOTS + <<~'RUBY'
    def allowance
      puts [GC.stat(:heap_allocatable_slots), all_slots].join(" ")
    end
  RUBY

  def test_allowance_forgets_the_boot
    out = run_ruby(ALLOWANCE + <<~'RUBY')
      boot = Array.new(1_000_000) { Object.new }
      boot.clear
      Process.warmup
      allowance
    RUBY
    allowed, available = out.split.map(&:to_i)
    assert_operator available, :<, 500_000, "slots after the warmup"
    # The model allows at most two thirds of what is kept, and of 1 MB, and a page of each heap.
    assert_operator allowed * 40, :<=, 3_000_000, "bytes by which the heap may grow; the boot had 40,000,000"
  end

  # The same objects survive, however many others the boot has made.
  def test_allowance_depends_on_what_survived
    lean, rich = [0, 1_500_000].map do |waste|
      run_ruby(ALLOWANCE + <<~'RUBY', waste).split.first.to_i
        kept = Array.new(200_000) { Object.new }
        waste = Array.new(ARGV[0].to_i) { Object.new }
        waste.clear
        Process.warmup
        allowance
        kept.size
      RUBY
    end
    assert_operator rich, :<, lean + 100_000, "slots by which the heap may grow after a wasteful boot"
  end

  def test_allowance_lets_a_full_heap_grow
    out = run_ruby(ALLOWANCE + <<~'RUBY')
      kept = Array.new(500_000) { Object.new }
      Process.warmup
      allowance
      kept.size
    RUBY
    allowed, available = out.split.map(&:to_i)
    assert_operator allowed, :>, available / 5, "slots by which the heap may grow, of #{available}"
  end

  def test_allowance_follows_the_ratios
    small, big = [%w[0.05 0.07 0.10], %w[0.20 0.60 0.80]].map do |min, goal, max|
      env = { "RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO" => min, "RUBY_GC_HEAP_FREE_SLOTS_GOAL_RATIO" => goal,
              "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO" => max }
      run_ruby(ALLOWANCE + <<~'RUBY', env: env).split.map(&:to_i)
        kept = Array.new(500_000) { Object.new }
        Process.warmup
        allowance
        kept.size
      RUBY
    end
    assert_operator small[0], :<, small[1] / 8, "slots by which the heap may grow, with low ratios"
    assert_operator big[0], :>, big[1] / 2, "slots by which the heap may grow, with high ratios"
  end

  # Ruby source for scripts that look whether a heap is sound after a warmup, in any process.
  SOUND = BOOT + IN_CHILD + <<~'RUBY'
    class Node
      attr_reader :name, :next_one, :extra
      def initialize(name, next_one)
        @name = name
        @next_one = next_one
      end

      def grow
        @a = @b = @c = @d = @e = nil
        @extra = [@name, { @name => @next_one&.name }]
      end
    end

    def web(size = 5_000)
      (1...size).inject([Node.new("node 0", nil)]) { |nodes, i|
        Object.new if i.odd?
        nodes << Node.new("node #{i}", nodes.last)
      }.each(&:grow)
    end

    def sound(nodes, compact: false)
      GC.verify_internal_consistency
      if compact
        GC.compact
        GC.verify_compaction_references(toward: :empty, expand_heap: true)
      end
      nodes.each_with_index do |node, i|
        raise "node #{i} is #{node.name}" unless node.name == "node #{i}"
        extra = [node.name, { node.name => node.next_one&.name }]
        raise "node #{i} has #{node.extra} in place of #{extra}" unless node.extra == extra
      end
      found = ObjectSpace.each_object(Node) do |node|
        raise "a node is #{node.name}" unless node.name.start_with?("node ")
      end
      raise "#{found} nodes of #{nodes.size}" unless found == nodes.size
      GC.start
      GC.verify_internal_consistency
    end

  RUBY

  def test_heap_is_sound_afterwards
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      3.times do
        Process.warmup
        sound(nodes)
        in_child { sound(nodes, compact: true) }
        boot
      end
      sound(nodes, compact: true)
    RUBY
  end

  def test_in_a_child_and_its_child
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      Process.warmup
      in_child do
        boot
        Process.warmup
        sound(nodes)
        in_child { Process.warmup; sound(nodes, compact: true) }
      end
      sound(nodes)
    RUBY
  end

  def test_under_stress
    run_ruby(SOUND + <<~'RUBY', timeout: 300)
      nodes = web(300)
      GC.stress = true
      Process.warmup
      in_child { GC.stress = false; sound(nodes, compact: true) }
      GC.stress = false
      sound(nodes, compact: true)
    RUBY
  end

  def test_during_incremental_marking_and_lazy_sweep
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      [{ immediate_mark: false }, { immediate_sweep: false }].each do |how|
        garbage = boot
        garbage.clear
        GC.start(**how)
        Process.warmup
        sound(nodes)
      end
    RUBY
  end

  # A compacting collection must also come to its end where all pages are sealed, so that it has
  # nothing to sweep. 9ca8644, built with assertions, aborted here in each of 6 runs.
  def test_compacting_where_all_is_sealed
    run_ruby(IN_CHILD + <<~'RUBY', timeout: 300)
      kept = Array.new(70_000) { |i| [i] }
      GC.auto_compact = true
      collect = lambda do
        3.times { Process.warmup; 2.times { GC.start } }
        GC.start(immediate_mark: false, immediate_sweep: false)
        GC.start
        GC.verify_internal_consistency
        raise GC.latest_gc_info.inspect unless GC.latest_gc_info(:state) == :none
      end
      in_child { collect.call; in_child(&collect) }
      collect.call
      raise "an array has lost its value" unless kept.each_with_index.all? { |(value), i| value == i }
    RUBY
  end

  def test_in_a_thread_and_with_the_collector_off
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      Thread.new { Process.warmup }.join
      sound(nodes)
      GC.disable
      boot
      Process.warmup
      raise "Process.warmup has switched the collector on" unless GC.disable
      GC.enable
      sound(nodes)
    RUBY
  end

  def test_finalizers_and_weak_references
    run_ruby(SOUND + <<~'RUBY')
      nodes = web(1_000)
      runs = 0
      count = proc { runs += 1; "made by a finalizer".dup }
      2_000.times { ObjectSpace.define_finalizer("finalized".dup, count) }
      weak = ObjectSpace::WeakMap.new
      nodes.each { |node| weak[node] = node.name }
      ids = nodes.map(&:object_id)
      2_000.times { weak[Object.new] = Object.new }
      Process.warmup
      raise "#{runs} finalizers ran, of 2,000" unless runs > 1_900
      raise "the WeakMap lost an entry" unless nodes.all? { |node| weak[node].equal?(node.name) }
      raise "ids have changed" unless nodes.map(&:object_id) == ids
      sound(nodes, compact: true)
    RUBY
  end
end

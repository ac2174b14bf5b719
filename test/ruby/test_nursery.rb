# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# A forked child keeps as many free slots as suits the objects of its own (gc/nursery_policy.h). Whether its
# heap is sound: test_nursery_heap.rb.
class TestNursery < Minitest::Test
  include CowTest

  def surroundings = CALM

  LEAST = 12_288 # COW_NURSERY_LEAST_SLOTS

  # Ruby source for scripts. big fills a heap with 1,000,000 live objects.
  PARENT = IN_CHILD + ALL_SLOTS + <<~'RUBY'
    def big(size = 1_000_000)
      kept = Array.new(size) { Object.new }
      GC.start
      kept
    end

    # Number of slots that the process may still fill without a collection.
    def room(stat = GC.stat)
      stat[:heap_free_slots] + stat[:heap_allocatable_slots]
    end

    # Makes objects and keeps none. Gives by how many slots the heap grew, and how many minor and
    # full collections were made.
    def serve(objects = 2_000_000)
      slots, before = all_slots, GC.stat
      objects.times { Object.new }
      after = GC.stat
      [all_slots - slots,
       after[:minor_gc_count] - before[:minor_gc_count], after[:major_gc_count] - before[:major_gc_count]]
    end
  RUBY

  OFF = { "RUBY_GC_FORK_NURSERY" => "0" }.freeze
  # Without a seal only children follow the nursery's rule; a parent that has sealed its heap
  # follows it as well (test_seal.rb).
  OPEN = { "RUBY_GC_SEAL" => "off" }.freeze

  def test_child_does_not_grow_by_what_it_inherited
    script = PARENT + "kept = big\nin_child { puts serve.join(' ') }\nkept.size"
    grown, minor, major = numbers(run_ruby(script))
    grown_upstream, = numbers(run_ruby(script, env: OFF))
    assert_operator grown, :<=, LEAST * 4, "slots"
    assert_operator grown * 2, :<, grown_upstream, "slots, twice; by upstream's rule #{grown_upstream}"
    # It pays with minor collections, but not with too many, and hardly with full ones.
    assert_operator minor, :<=, 2_000_000 / LEAST + 3, "minor collections"
    assert_operator major, :<=, 1, "full collections"
  end

  def test_child_after_warmup
    script = PARENT + "kept = big\nProcess.warmup\nin_child { puts room; puts serve.join(' ') }\nkept.size"
    room, grown, minor, major = numbers(run_ruby(script))
    assert_operator room, :<=, LEAST * 6, "slots that a child may fill before its first collection"
    assert_operator grown, :<=, LEAST * 4, "slots by which the heap grew"
    assert_operator minor, :<=, 2_000_000 / LEAST + 3, "minor collections"
    assert_operator major, :<=, 1, "full collections"
  end

  # Its objects need slots of a size that the parent hardly used.
  def test_child_that_makes_other_objects
    out = run_ruby(PARENT + <<~'RUBY')
      kept = big
      in_child do
        before = GC.stat
        200_000.times { |i| [i] * 60 } # slots of 640 bytes
        puts GC.stat(:minor_gc_count) - before[:minor_gc_count]
        puts GC.stat(:major_gc_count) - before[:major_gc_count]
      end
      kept.size
    RUBY
    minor, major = numbers(out)
    assert_operator minor, :<=, 100, "minor collections for 200,000 objects"
    assert_operator major, :<=, 3, "full collections for 200,000 objects"
  end

  # A slot of 640 bytes is as large as 16 of the smallest. If a child kept as many free ones of
  # them, and put as many aside for incremental marking, they would be most of its memory.
  def test_heaps_that_a_child_hardly_uses
    grown, collections = numbers(run_ruby(PARENT + <<~'RUBY'))
      kept = big, Array.new(2_000) { [0] * 75 }
      in_child do
        pages, count = GC.stat_heap(4, :heap_eden_pages), GC.count
        500_000.times { |i| i % 50_000 == 0 ? Array.new(70) : Object.new }
        puts GC.stat_heap(4, :heap_eden_pages) - pages, GC.count - count
      end
      kept.size
    RUBY
    assert_operator collections, :>=, 5, "collections: with fewer the test would show nothing"
    assert_operator grown, :<=, 2, "pages of slots of 640 bytes that were added for 10 objects"
  end

  def test_parent_is_not_changed
    script = PARENT + <<~'RUBY'
      kept = big
      # Gives the parent free slots for the few objects that it makes before the comparison, so that
      # these add no page.
      small = ->(key) { GC.stat_heap(0, key) }
      free = -> { small[:heap_eden_slots] - small[:total_allocated_objects] + small[:total_freed_objects] }
      Object.new until free.call > 250
      before = [all_slots, GC.stat(:heap_allocatable_slots)]
      in_child {}
      puts [all_slots, GC.stat(:heap_allocatable_slots)] == before ? 1 : 0
      puts serve(1_000_000).first
      kept.size
    RUBY
    same, grown = numbers(run_ruby(script, env: OPEN))
    assert_equal 1, same, "1 if a fork changes neither the slots of the parent nor its allowance"
    assert_operator grown, :>, LEAST * 4, "slots by which the parent grew: upstream's rule gives more"
  end

  def test_child_of_a_small_parent_is_sized_by_upstreams_rule
    out = run_ruby(PARENT + <<~'RUBY')
      GC.start
      puts GC.stat(:heap_allocatable_slots)
      in_child { puts GC.stat(:heap_allocatable_slots) }
    RUBY
    parent, child = numbers(out)
    assert_equal parent, child, "slots by which the child may grow, and the parent"
  end

  # When most objects are the child's own it is sized by upstream's rule, and makes not many more
  # collections than without a nursery.
  def test_child_that_grows
    objects = ASSERTIONS ? 900_000 : 3_000_000
    script = PARENT + <<~'RUBY'
      made = Integer(ARGV[0])
      kept = big(made / 6)
      in_child do
        before = GC.count
        own = []
        made.times { |i| own << Object.new; Object.new }
        collections = GC.count - before
        GC.start
        allocated, count = GC.stat(:total_allocated_objects), GC.count
        Object.new until GC.count >= count + 4
        puts collections, (GC.stat(:total_allocated_objects) - allocated) / 4 * 100 / all_slots
        own.size
      end
      kept.size
    RUBY
    # How big the parent's heap is at the fork, and with it the child's floor, shall not hang on the speed of
    # its collections.
    fixed = { "RUBY_GC_TARGET_TIME" => "0" }
    # Nor on where in a step of growth it ends: with RubyGems it is in the middle of one.
    gems = %w[--enable-gems]
    collections, room = numbers(run_ruby(script, objects, env: OPEN.merge(fixed), options: gems))
    collections_upstream, = numbers(run_ruby(script, objects, env: OFF.merge(fixed), options: gems))
    # It starts with far fewer free slots, 12,288, so it makes more minor collections until its
    # heap has grown; with each step the heap grows by two thirds.
    assert_operator collections, :<=, collections_upstream * 2 + 14, "collections"
    # An average of four rounds: the number of free slots after one collection says little.
    assert_operator room, :>=, 20, "percent of the slots are filled between two collections"
  end

  # A child makes no full collection for what it keeps before it has grown by a quarter of what it
  # inherited (COW_NURSERY_INHERITED_PER_GROWTH).
  def test_growth_without_a_full_collection
    script = PARENT + <<~'RUBY'
      kept = big(500_000)
      4.times { GC.start } # makes all old, because growing old is another reason for a full collection
      in_child do
        before = GC.stat(:major_gc_count)
        own = []
        majors = [40_000, 1_000_000].map do |more|
          more.times { |i| own << Object.new; Object.new }
          GC.stat(:major_gc_count) - before
        end
        puts majors
        own.size
      end
      kept.size
    RUBY
    some, many = numbers(run_ruby(script, env: OPEN))
    assert_equal 0, some, "full collections while the child keeps 40,000 objects"
    assert_operator many, :>, 0, "full collections when it keeps 1,040,000"
  end

  # When inherited objects die in a child, it uses their slots.
  def test_inherited_objects_that_die
    out = run_ruby(PARENT + <<~'RUBY')
      kept = big
      in_child do
        kept.clear
        GC.start
        grown, minor, major = serve
        puts grown, minor, major
      end
    RUBY
    grown, minor, major = numbers(out)
    assert_operator grown, :<=, 0, "slots by which the heap grew"
    assert_operator minor, :<=, 6, "minor collections"
    assert_operator major, :<=, 1, "full collections"
  end

  # Prints by how many slots a parent may grow, and its child.
  ROOMS = PARENT + <<~'RUBY'
    kept = big(500_000) # so few that the floor follows from the setting, not from the inherited slots
    Process.warmup # allows the heap to grow
    puts GC.stat(:heap_allocatable_slots)
    in_child { puts GC.stat(:heap_allocatable_slots) }
    kept.size
  RUBY

  def test_allowance_is_cut_at_the_fork
    parent, child = numbers(run_ruby(ROOMS, env: OPEN))
    assert_operator parent, :>, LEAST * 4, "slots by which the parent may grow"
    assert_operator child, :<=, LEAST * 4, "slots by which the child may grow"
  end

  # Where a user sets one of upstream's variables, a child is sized by upstream's rule.
  def test_settings_of_the_user_win
    [{ "RUBY_GC_HEAP_FREE_SLOTS" => "5000" },
     { "RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO" => "0.21" },
     { "RUBY_GC_HEAP_FREE_SLOTS_GOAL_RATIO" => "0.41" },
     { "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO" => "0.66" },
     { "RUBY_GC_HEAP_FREE_SLOTS" => "5000", "RUBY_GC_FORK_NURSERY" => "1" },
     OFF].each do |env|
      parent, child = numbers(run_ruby(ROOMS, env: OPEN.merge(env)))
      assert_equal parent, child, env.inspect
    end
  end

  # It governs the boot, and careful users set it.
  def test_init_slots_leave_the_nursery_on
    [0, 4].each do |heap|
      parent, child = numbers(run_ruby(ROOMS, env: OPEN.merge("RUBY_GC_HEAP_#{heap}_INIT_SLOTS" => "400000")))
      assert_operator parent, :>, 0, "slots by which the parent may grow"
      assert_operator child, :<=, LEAST * 4, "slots by which the child may grow"
    end
  end

  def test_least_slots
    few, many = %w[5000 100k].map do |least|
      numbers(run_ruby(ROOMS, env: { "RUBY_GC_FORK_NURSERY_SLOTS" => least })).last
    end
    unset = { "RUBY_GC_FORK_NURSERY" => "1", "RUBY_GC_FORK_NURSERY_SLOTS" => "" }
    default = numbers(run_ruby(ROOMS, env: unset)).last
    assert_operator few, :<, default, "slots by which a child may grow: 5,000 and no setting"
    assert_operator default, :<, many, "slots by which a child may grow: no setting and 100,000"
    # A number so high that upstream's rule holds.
    parent, child = numbers(run_ruby(ROOMS, env: { "RUBY_GC_FORK_NURSERY_SLOTS" => "900000000000000000" }))
    assert_equal parent, child, "slots by which the child may grow, and the parent"
  end

  def test_bad_settings_are_named_and_ignored
    { "RUBY_GC_FORK_NURSERY" => %w[2 yes -1 00 1x],
      "RUBY_GC_FORK_NURSERY_SLOTS" => %w[0 -1 many 1x 9999999999999g] }.each do |name, values|
      values.each do |value|
        env = { name => value }
        out, status = run_ruby_status("", env: env)
        assert status.success?, "#{name}=#{value} ended the process: #{out}"
        assert_match(/warning: #{name}=#{Regexp.escape(value)} is ignored: it must be/, out)
        assert_equal 1, out.lines.size, out
        assert_empty run_ruby_status("", env: env, options: ["-W0"]).first
      end
    end
    bad = { "RUBY_GC_FORK_NURSERY" => "off", "RUBY_GC_FORK_NURSERY_SLOTS" => "none" }
    parent, child = numbers(run_ruby(ROOMS, env: OPEN.merge(bad), options: ["-W0"]))
    assert_operator child, :<, parent, "slots by which a child may grow when both settings are ignored"
  end

  # For a grandchild all objects of its parent are inherited, those that the parent made included.
  def test_child_of_a_child_that_has_grown
    out = run_ruby(PARENT + <<~'RUBY', env: OPEN)
      kept = big(300_000)
      in_child do
        own = big(1_500_000)
        Process.warmup
        puts GC.stat(:heap_allocatable_slots)
        in_child { puts GC.stat(:heap_allocatable_slots); puts serve.first }
        own.size
      end
      kept.size
    RUBY
    parent, child, grown = numbers(out)
    assert_operator parent, :>, LEAST * 4, "slots by which the child may grow"
    assert_operator child, :<=, LEAST * 4, "slots by which the grandchild may grow"
    assert_operator grown, :<=, LEAST * 4, "slots by which the grandchild grew"
  end
end

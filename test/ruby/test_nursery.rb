# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# A forked child sizes its free slots by what it has of its own (gc/nursery_policy.h).
class TestNursery < Minitest::Test
  include CowTest

  LEAST = 12_288 # COW_NURSERY_LEAST_SLOTS

  # A parent of some 1,000,000 live slots, full at the fork, and what its
  # children say.
  PARENT = IN_CHILD + ALL_SLOTS + <<~'RUBY'
    def big(size = 1_000_000)
      kept = Array.new(size) { Object.new }
      GC.start
      kept
    end

    # Slots that the heap may still fill without a collection.
    def room(stat = GC.stat)
      stat[:heap_free_slots] + stat[:heap_allocatable_slots]
    end

    # Serves, and keeps nothing; tells by how many slots the heap grew and how
    # often it collected.
    def serve(objects = 2_000_000)
      slots, before = all_slots, GC.stat
      objects.times { Object.new }
      after = GC.stat
      [all_slots - slots,
       after[:minor_gc_count] - before[:minor_gc_count], after[:major_gc_count] - before[:major_gc_count]]
    end
  RUBY

  OFF = { "RUBY_GC_FORK_NURSERY" => "0" }.freeze
  # The nursery's rule by itself: a parent that has sealed its heap follows it, too
  # (test_seal).
  OPEN = { "RUBY_GC_SEAL" => "off" }.freeze

  def test_child_does_not_grow_by_what_it_inherited
    script = PARENT + "kept = big\nin_child { puts serve.join(' ') }\nkept.size"
    grown, minor, major = numbers(run_ruby(script))
    grown_upstream, = numbers(run_ruby(script, env: OFF))
    assert_operator grown, :<=, LEAST * 4, "slots"
    assert_operator grown * 2, :<, grown_upstream
    # but it does not collect all the time either, and never the whole heap
    assert_operator minor, :<=, 2_000_000 / LEAST + 3
    assert_operator major, :<=, 1
  end

  def test_child_after_warmup
    script = PARENT + "kept = big\nProcess.warmup\nin_child { puts room; puts serve.join(' ') }\nkept.size"
    room, grown, minor, major = numbers(run_ruby(script))
    assert_operator room, :<=, LEAST * 6
    assert_operator grown, :<=, LEAST * 4
    assert_operator minor, :<=, 2_000_000 / LEAST + 3
    assert_operator major, :<=, 1
  end

  # Objects of a kind that the parent hardly had.
  def test_child_that_makes_other_objects
    out = run_ruby(PARENT + <<~'RUBY')
      kept = big
      in_child do
        before = GC.stat
        200_000.times { |i| [i] * 60 } # slots of 640 bytes
        puts GC.stat(:minor_gc_count) - before[:minor_gc_count], GC.stat(:major_gc_count) - before[:major_gc_count]
      end
      kept.size
    RUBY
    minor, major = numbers(out)
    assert_operator minor, :<=, 100
    assert_operator major, :<=, 3
  end

  # Free slots of a size that a child hardly uses, and a store of them for incremental
  # marking, would be most of its memory: a page holds a hundred.
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
    assert_operator collections, :>=, 5
    assert_operator grown, :<=, 2, "pages of slots of 640 bytes, for 10 objects"
  end

  def test_parent_is_not_changed
    script = PARENT + <<~'RUBY'
      kept = big
      # What the parent itself allocates until the end fits its pages, wherever the last one ends.
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
    assert_equal 1, same
    assert_operator grown, :>, LEAST * 4
  end

  def test_child_of_a_small_parent_is_sized_as_ever
    out = run_ruby(PARENT + <<~'RUBY')
      GC.start
      puts GC.stat(:heap_allocatable_slots)
      in_child { puts GC.stat(:heap_allocatable_slots) }
    RUBY
    parent, child = numbers(out)
    assert_equal parent, child
  end

  # Its own objects come to dominate: upstream's rule, and not many more collections.
  def test_child_that_grows
    script = PARENT + <<~'RUBY'
      kept = big(500_000)
      in_child do
        before = GC.count
        own = []
        3_000_000.times { |i| own << Object.new; Object.new }
        collections = GC.count - before
        GC.start
        made, count = GC.stat(:total_allocated_objects), GC.count
        Object.new until GC.count >= count + 4
        puts collections, (GC.stat(:total_allocated_objects) - made) / 4 * 100 / all_slots
        own.size
      end
      kept.size
    RUBY
    collections, room = numbers(run_ruby(script, env: OPEN))
    collections_upstream, = numbers(run_ruby(script, env: OFF))
    # It starts from a far smaller heap, of 12,288 free slots: each step takes it two thirds
    # further at the price of some minor collections.
    assert_operator collections, :<=, collections_upstream * 2 + 14
    # What is free just after a collection depends on where in its round GC.start came.
    assert_operator room, :>=, 20, "percent of the slots are filled between two collections"
  end

  # What a child keeps is no reason to mark all that it inherited, before that is a
  # quarter of it.
  def test_growth_without_a_full_collection
    script = PARENT + <<~'RUBY'
      kept = big(500_000)
      4.times { GC.start } # all are old: that is another reason for a full collection
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
    assert_equal 0, some
    assert_operator many, :>, 0
  end

  # When the parent's objects die in the child, their slots are the child's.
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
    assert_operator grown, :<=, 0
    assert_operator minor, :<=, 6
    assert_operator major, :<=, 1
  end

  ROOMS = PARENT + <<~'RUBY'
    kept = big(500_000) # few enough for the least to be more than what was inherited asks for
    Process.warmup # which allows the heap to grow
    puts GC.stat(:heap_allocatable_slots)
    in_child { puts GC.stat(:heap_allocatable_slots) }
    kept.size
  RUBY

  def test_allowance_is_cut_at_the_fork
    parent, child = numbers(run_ruby(ROOMS, env: OPEN))
    assert_operator parent, :>, LEAST * 4
    assert_operator child, :<=, LEAST * 4
  end

  def test_settings_of_the_user_win
    [{ "RUBY_GC_HEAP_FREE_SLOTS" => "5000" },
     { "RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO" => "0.21" },
     { "RUBY_GC_HEAP_FREE_SLOTS_GOAL_RATIO" => "0.41" },
     { "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO" => "0.66" },
     { "RUBY_GC_HEAP_0_INIT_SLOTS" => "10001" },
     { "RUBY_GC_HEAP_4_INIT_SLOTS" => "10001" },
     { "RUBY_GC_HEAP_0_INIT_SLOTS" => "10001", "RUBY_GC_FORK_NURSERY" => "1" },
     OFF].each do |env|
      parent, child = numbers(run_ruby(ROOMS, env: OPEN.merge(env)))
      assert_equal parent, child, env.inspect
    end
  end

  def test_least_slots
    few, many = %w[5000 100k].map { |least| numbers(run_ruby(ROOMS, env: { "RUBY_GC_FORK_NURSERY_SLOTS" => least })).last }
    default = numbers(run_ruby(ROOMS, env: { "RUBY_GC_FORK_NURSERY" => "1", "RUBY_GC_FORK_NURSERY_SLOTS" => "" })).last
    assert_operator few, :<, default
    assert_operator default, :<, many
    # as good as no limit
    parent, child = numbers(run_ruby(ROOMS, env: { "RUBY_GC_FORK_NURSERY_SLOTS" => "900000000000000000" }))
    assert_equal parent, child
  end

  def test_bad_settings_are_named_and_ignored
    { "RUBY_GC_FORK_NURSERY" => %w[2 yes -1 00 1x],
      "RUBY_GC_FORK_NURSERY_SLOTS" => %w[0 -1 many 1x 9999999999999g] }.each do |name, values|
      values.each do |value|
        env = { name => value }
        out, status = run_ruby_status("", env: env)
        assert status.success?
        assert_match(/warning: #{name}=#{Regexp.escape(value)} is ignored: it must be/, out)
        assert_equal 1, out.lines.size, out
        assert_empty run_ruby_status("", env: env, options: ["-W0"]).first
      end
    end
    bad = { "RUBY_GC_FORK_NURSERY" => "off", "RUBY_GC_FORK_NURSERY_SLOTS" => "none" }
    parent, child = numbers(run_ruby(ROOMS, env: OPEN.merge(bad), options: ["-W0"]))
    assert_operator child, :<, parent
  end

  # What must hold of a heap in any child.
  SOUND = PARENT + <<~'RUBY'
    Node = Struct.new(:name, :others)

    def web(size = 100_000)
      nodes = Array.new(size) { |i| Node.new("node #{i}", []) }
      nodes.each_with_index { |node, i| node.others << nodes[i - 1] << nodes[i / 2] }
    end

    def sound(nodes)
      GC.verify_internal_consistency
      nodes.each_with_index do |node, i|
        raise "node #{i}" unless node.name == "node #{i}" && node.others[0].equal?(nodes[i - 1]) && node.others[1].equal?(nodes[i / 2])
      end
    end

    # Requests that keep a little, and a heap that is sound after them.
    def work(nodes, requests = 300)
      own = []
      requests.times do |i|
        own << (0...200).map { |k| "object #{k} of #{i}" }.values_at(0, 100)
        nodes[i].others << own.last if i % 10 == 0
        own.shift(10) if own.size > 100
      end
      GC.start
      sound(nodes)
      raise "own" unless own.last == ["object 0 of #{requests - 1}", "object 100 of #{requests - 1}"]
    end
  RUBY

  def test_fork_of_a_fork
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      in_child do
        work(nodes)
        in_child do
          work(nodes)
          in_child { work(nodes) }
        end
        work(nodes)
      end
      work(nodes)
    RUBY
  end

  # What a grandchild inherits is all that its parent had.
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
    assert_operator parent, :>, LEAST * 4
    assert_operator child, :<=, LEAST * 4
    assert_operator grown, :<=, LEAST * 4
  end

  def test_fork_with_nothing_allocated
    run_ruby(SOUND + "nodes = web\nin_child { GC.start; sound(nodes) }\nin_child {}\nin_child { GC.disable; sound(nodes) }")
  end

  def test_fork_during_lazy_sweep_and_incremental_marking
    out = run_ruby(SOUND + <<~'RUBY')
      nodes = web
      { sweeping: { immediate_sweep: false }, marking: { immediate_mark: false, immediate_sweep: false } }.each do |state, how|
        200_000.times { Object.new }
        GC.start(**how)
        puts GC.latest_gc_info(:state) == state
        in_child { work(nodes) }
        work(nodes)
      end
    RUBY
    assert_equal %w[true true], out.split
  end

  def test_fork_in_a_thread_and_among_objects
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      others = Array.new(3) { Thread.new { loop { Object.new; Thread.pass } } }
      Thread.new { in_child { work(nodes) } }.join
      others.each(&:kill).each(&:join)
      first = true
      ObjectSpace.each_object(Node) do
        in_child { work(nodes) } if first
        first = false
      end
      work(nodes)
    RUBY
  end

  def test_fork_with_ractors
    # Ractors that allocate at once count their objects without a lock
    # (total_allocated_objects++ in newobj_alloc): 3.4.5 loses thousands, and the
    # verifier stops at that. So it is called where one Ractor allocates at a time.
    { 1 => "", 2 => "def GC.verify_internal_consistency = nil" }.each do |count, unverified|
      run_ruby(SOUND + <<~RUBY, options: ["-W0"])
        nodes = web
        # a pause, until the main one waits
        ractors = Array.new(#{count}) { Ractor.new { sleep 0.2; 50_000.times { |i| "ractor \#{i}" }; Ractor.yield(:ready); Ractor.receive } }
        ractors.each(&:take)
        #{unverified}
        in_child { work(nodes) }
        ractors.each { |ractor| ractor.send(nil); ractor.take }
        work(nodes)
      RUBY
    end
  end

  def test_under_stress
    run_ruby(SOUND + <<~'RUBY', timeout: 300)
      nodes = web
      GC.stress = true
      pid = fork do
        "a string".dup
        fork { [1, "two"].map(&:to_s); exit!(0) }
        exit!(Process.wait2.last.exitstatus)
      end
      status = Process.wait2(pid).last
      GC.stress = false
      raise status.inspect unless status.success?
      in_child { GC.stress = true; 3.times { |i| "child #{i}" }; GC.stress = false; work(nodes, 20) }
      work(nodes)
    RUBY
  end

  def test_only_minor_collections_allowed
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      GC.config(rgengc_allow_full_mark: false)
      in_child { work(nodes) }
      work(nodes)
    RUBY
  end

  def test_compaction_and_warmup_in_a_child
    needs_compaction
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      in_child do
        work(nodes)
        GC.compact
        work(nodes)
        Process.warmup
        in_child { GC.auto_compact = true; work(nodes) }
        work(nodes)
      end
    RUBY
  end

  def test_daemon
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      reader, writer = IO.pipe
      in_child do
        reader.close
        Process.daemon(true, true)
        work(nodes)
        writer.write("sound")
      end
      writer.close
      raise "daemon" unless reader.read == "sound"
    RUBY
  end
end

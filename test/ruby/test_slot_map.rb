# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# A bit in the collector's metadata says whether a slot is free, and nothing in the slot does
# (gc/slot_map.h). Nobody may take for an object what a dead one has left in its slot.
class TestSlotMap < Minitest::Test
  include CowTest

  def surroundings = CALM

  CHECK = IN_CHILD + PRIVATE_DIRTY + OS_PAGES + <<~'RUBY'
    def check(what, found, expected)
      raise "#{what}: #{found.inspect} in place of #{expected.inspect}" unless found == expected
    end

    def verify = GC.verify_internal_consistency

    # The KB of this process that are in memory.
    def resident = File.read("/proc/self/status")[/^VmRSS:\s+(\d+)/, 1].to_i

    # The KB by which the process grows in the block. A leak shows in each run, but malloc's heap
    # grows at times without one. So this runs the block until growth is below +bound+, 10 times at
    # most. $grown has what each run has grown by.
    def growth(bound)
      $grown = []
      10.times do
        before = resident
        yield
        $grown << resident - before
        break if $grown.last < bound
      end
      $grown.last
    end

    class Witness; end

    # Objects in slots of all sizes, +count+ of each kind.
    def objects(count = 500)
      Array.new(count) do |i|
        [Witness.new, i.to_s, "x" * 60, "x" * 130, "x" * 300, "x" * 600,
         [i, i, i], { i => i }, i.to_s.to_sym, 2**70 + i]
      end
    end

    # Lets +count+ objects of each kind die, and gives as many that live in the same pages.
    def leave(count = 500)
      made = objects(count * 2)
      made.each_with_index { |list, i| list.clear if i.even? }
      made
    end
  RUBY

  def run_map(script, *args, **options)
    run_ruby(CHECK + script, *args, **options)
  end

  # When a third of all objects has died in a child, it still shares their OS pages with its parent.
  # (If all of them died, their pages would be opened, and the child would make objects there.)
  def test_objects_that_die_are_not_written
    skip "under AddressSanitizer the sweep visits dead objects" if ASAN
    skip "mark bits are in the objects" if LOCATOR == "header"
    skip "the kernel does not say who maps a page" unless File.readable?("/proc/self/pagemap")

    out = run_map(<<~'RUBY')
      long = "l" * 600
      kept = Array.new(20_000) do |i|
        [i * 1e300 + 1e305, "s#{i}".dup, [i, i], { i => i }, Witness.new, Rational(i, 7), "#{i} #{long}"]
      end
      Process.warmup
      # OS pages with several of these objects. What they own outside their slots is not among them.
      pages = os_pages(kept.flatten(1))
      in_child do
        puts pages.size
        puts count_pages(pages, ALONE)
        live = GC.stat(:heap_live_slots)
        kept.select!.with_index { |_, i| i % 3 > 0 }
        3.times { GC.start }
        now = GC.stat(:heap_live_slots)
        live - now > 40_000 or raise "#{live} live objects before, #{now} now"
        puts count_pages(pages, ALONE)
      end
      kept.size
    RUBY
    pages, before, after = numbers(out)
    assert_operator pages, :>, 1_000, "OS pages with objects"
    # The program itself writes call caches and the array that holds all (5 pages). Pristine writes
    # all pages.
    assert_operator after - before, :<=, pages / 100,
                    "OS pages written in the child, of #{pages}; #{before} of them were before"
  end

  # Objects that die are not read either: a full collection does without an OS page that is full of
  # them and must not be accessed.
  def test_objects_that_die_are_not_read
    skip "assertions read objects" if ASSERTIONS
    skip "the sweep reports each dead object to AddressSanitizer" if ASAN
    skip "objects are read to find their bits" unless %w[arena binary linear].include?(LOCATOR)

    run_map(OS_PAGE_ACCESS + <<~'RUBY')
      float = 1e305
      floats = Array.new(40_000) { float = float.next_float } # side by side, as nothing else is made
      page = os_page_of(floats)
      2.times { GC.start }
      live = GC.stat(:heap_live_slots)
      floats.clear
      check(:protected, protect(page, 0), 0)
      GC.start
      check(:open, protect(page, 3), 0)
      now = GC.stat(:heap_live_slots)
      live - now > 39_000 or raise "#{live} live objects before, #{now} now"
      objects(5_000)
      verify
    RUBY
  end

  # An object may own memory only some time after it is made. The memory is freed when the object
  # dies. In a build with assertions the sweep names an object whose cleanup bit nobody has set.
  def test_what_dies_gives_back_what_it_owned
    skip "AddressSanitizer keeps freed memory for a while" if ASAN

    out = run_map(<<~'RUBY')
      class Many
        def initialize(count) = count.times { |i| instance_variable_set(:"@v#{i}", i) }
      end
      Long = Struct.new(*("a".."z").map(&:to_sym), *("aa".."bz").map(&:to_sym), *("ca".."dz").map(&:to_sym))
      Two = Struct.new(:a, :b)
      Named = Class.new(String)
      bytes = "b" * 2_000
      wide = (1..250).to_a
      pairs = wide.to_h { |i| [i, i] }
      20.times { |i| Class.new(Many).new(3) } # shapes
      makers = {
        "appended to": -> { +"" << bytes },
        "replaced": -> { (+"x").replace(bytes + "c") },
        "cleared and filled": -> { (+"").clear.concat(bytes, "d") },
        "inserted": -> { (+"xy").insert(1, bytes) },
        "substituted": -> { (+"xy").sub!("x") { bytes + "e" } },
        "encoded": -> { (+"\u3042" * 8).encode!("UTF-32BE") << bytes.encode("UTF-32BE") },
        "translated": -> { (+"aaa").tr!("a", "\u3042") << bytes },
        "read": lambda do
          File.open("/proc/self/maps") { |file| file.read(2_000, +"") }
        end,
        "shared": -> { a = bytes + "f"; b = a[1..]; b << "g"; [a, b] },
        "constant and appended to": -> { [].inspect << bytes }, # its bytes are constants of the program
        "constant, replaced": -> { {}.inspect.replace(bytes + "h") },
        "constant, read into": -> { File.open("/proc/self/maps") { |file| file.read(2_000, [].to_s) } },
        "constant, copied": lambda do
          a = {}.inspect; b = a.dup; c = a[0..]; [b << bytes, a << bytes, c << bytes]
        end,
        "shared and written to": lambda do
          a = bytes + "i"; b = a.dup; b.setbyte(0, 1); c = a[1..]; c.upcase!; [a, b, c]
        end,
        "interned": -> { -("interned " + rand.to_s + bytes) },
        "short and interned": -> { -("i" + rand.to_s) },
        "symbol": -> { (bytes + rand.to_s).to_sym },
        "array that grows": -> { [].push(*wide) },
        "array in parts": -> { wide.each_slice(100).to_a.inject([]) { |sum, part| sum.concat(part) } },
        "array replaced": -> { [1].replace(wide + [2]) },
        "array unshifted": -> { list = [1]; 200.times { |i| list.unshift(i) }; list },
        "array shifted": -> { list = wide.dup; list.shift(50); list << 1; list.shift; list },
        "array that shared and is written to": -> { list = wide[1..]; list[0] = 0; list },
        "array that shared its own elements": -> { list = wide + [0]; list.shift(20); list.push(1, 2) },
        "array of others' elements, copied": -> { list = [1].replace(wide); list.map! { |i| i + 1 } },
        "array that shared, cleared and filled": -> { wide.first(200).clear.concat(wide, [1]) },
        "array that shared, sorted": -> { wide.last(200).sort_by! { |i| -i } },
        "sorted": -> { [3, 1].push(*wide).sort!.reverse!.uniq!.to_a },
        "hash that grows": -> { pairs.each_with_object({}) { |(key, value), hash| hash[key] = value } },
        "hash by identity": -> { {}.compare_by_identity.update(pairs) },
        "hash replaced": -> { { 1 => 2 }.replace(pairs) },
        "hash copied": -> { pairs.merge(0 => 0).dup },
        "object": -> { Many.new(80) },
        "object copied": -> { Many.new(40).clone },
        "object of too many shapes": lambda do
          Object.new.tap { |object| 60.times { |i| object.instance_variable_set(:"@v#{rand(10_000)}", i) } }
        end,
        "string with variables": lambda do
          Named.new("n").tap { |string| 30.times { |i| string.instance_variable_set(:"@v#{i}", i) } }
        end,
        "array with variables": lambda do
          [1].tap { |list| 30.times { |i| list.instance_variable_set(:"@v#{i}", i) } }.clone
        end,
        "structure": -> { Long.new(*wide.first(70)) },
        "structure with variables": lambda do
          Two.new(1, 2).tap { |two| two.instance_variable_set(:@v, bytes) }.dup
        end,
        "with an id": -> { "id".dup.object_id },
        "finalized": lambda do
          Object.new.tap { |object| ObjectSpace.define_finalizer(object, Kernel.method(:Integer)) }
        end,
        "big integers": -> { 3**4_000 + 1 },
        "matched": -> { bytes.match(/(b)(b)(b)(b)/).to_a.join },
        "made by Marshal": -> { Marshal.load(Marshal.dump([bytes, wide, pairs])) },
        "singleton": -> { "single".dup.tap { |string| def string.x = 1 } },
        "block": -> { local = bytes.size; proc { local } },
        "split": -> { bytes.unpack("C*").pack("C*").scan(/b{100}/) },
      }
      makers.each do |name, maker|
        300.times { maker.call }
        grown = growth(1_200) do
          4.times do
            1_000.times { maker.call }
            GC.start
          end
        end
        puts "#{name.to_s.tr(" ", "_")} #{grown} #{$grown.join(",")}"
      end
      verify
    RUBY
    out.lines.map(&:split).each do |name, grown, runs|
      # 4,000 objects own 500 bytes to 8 KB each. A leak of them all would be 2 MB and more.
      assert_operator Integer(grown), :<, 1_200, "KB lost: #{name}, in all runs: #{runs}"
    end
  end

  # Moving an object to another Ractor copies its words. The copy then owns the memory.
  def test_what_was_moved_to_a_ractor_gives_back_what_it_owned
    skip "AddressSanitizer keeps freed memory for a while" if ASAN

    out = run_map(<<~'RUBY')
      Warning[:experimental] = false
      ractor = Ractor.new { loop { Ractor.yield(Ractor.receive.size) } }
      round = lambda do
        2_000.times do |i|
          ractor.send("b" * (10_000 + i), move: true)
          ractor.take
          ractor.send(Array.new(1_000 + i), move: true)
          ractor.take
        end
        3.times { GC.start }
        verify
      end
      3.times { round.call }
      puts growth(50_000) { 3.times { round.call } }
    RUBY
    assert_operator numbers(out).first, :<, 50_000, "KB by which the process grew; 162,000 were moved"
  end

  def test_dead_objects_are_not_walked
    run_map(<<~'RUBY')
      require "objspace"
      kept = leave
      GC.start
      check(:each_object, ObjectSpace.each_object(Witness).count, 500)
      check(:none, ObjectSpace.each_object(Witness).to_a.map(&:class).uniq, [Witness])
      check(:size, ObjectSpace.count_objects_size.values.all? { |size| size >= 0 }, true)
      ObjectSpace.dump_all(output: :file).tap(&:rewind).each_line do |line|
        line.include?('"type":') or raise "no type in #{line}"
      end
      ObjectSpace.memsize_of_all
      kept.size
    RUBY
  end

  # An extension walks the heap by rb_objspace_each_objects and reads the headers of the slots that
  # it gets. An object that dies during the walk must not look alive.
  def test_an_extension_that_walks_the_heap
    skip "under AddressSanitizer nobody may read a free slot, with pristine as well" if ASAN

    run_map(<<~'RUBY')
      require "fiddle"
      kept = leave(300)
      GC.start
      live = GC.stat(:heap_live_slots)
      seen = pages = 0
      types = [Fiddle::TYPE_UINTPTR_T, Fiddle::TYPE_UINTPTR_T, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_VOIDP]
      walk = Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_INT, types) do |from, to, size, _|
        pages += 1
        if pages % 20 == 0
          kept.pop(10)
          GC.start
        end
        (from...to).step(size) do |slot|
          type = Fiddle::Pointer.new(slot)[0, 8].unpack1("Q") & 0x1f
          [0, 0x1d].include?(type) or seen += 1 # T_NONE, T_ZOMBIE
          (1..0x1e) === type or type == 0 or raise "#{type.to_s(16)} at #{slot.to_s(16)}"
        end
        0
      end
      Fiddle::Function.new(Fiddle.dlopen(nil)["rb_objspace_each_objects"],
                           [Fiddle::TYPE_VOIDP, Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOID).call(walk, 0)
      pages > 50 or raise "#{pages} ranges of slots, expected more than 50"
      # During the walk the callback makes objects and lets others die.
      (live * 0.7..live * 1.6) === seen or raise "#{live} lived, #{seen} were seen"
      verify
    RUBY
  end

  # Addresses of dead objects in registers and on the stack do no harm in a collection.
  def test_an_extension_that_keeps_addresses_of_dead_objects
    run_map(<<~'RUBY')
      require "fiddle"
      require "objspace"
      address = ->(object) { ObjectSpace.dump(object)[/0x(\h+)/, 1].to_i(16) }
      made = objects(200)
      stale = made.flat_map { |list| list.first(8).map(&address) }
      made = nil
      3.times { GC.start }
      gc = Fiddle::Function.new(Fiddle.dlopen(nil)["rb_gc"], [Fiddle::TYPE_UINTPTR_T] * 16, Fiddle::TYPE_VOID)
      stale.each_slice(16).first(60).each { |some| gc.call(*some, *[0] * (16 - some.size)) }
      verify
      objects(500)
      stale.each_slice(16).first(20).each { |some| gc.call(*some, *[0] * (16 - some.size)) }
      verify
    RUBY
  end

  # As an extension does that does not mark what it keeps: the object dies, and is put into an array then.
  # When that has become old, the process ends before another object is made in the slot, which would be taken
  # for an old one.
  def test_an_object_that_comes_back_after_its_death
    skip "ends earlier, with another message" if ASSERTIONS || ASAN || LOCATOR == "header"
    out, status = run_ruby_status(<<~'RUBY')
      require "fiddle"
      Process.setrlimit(:CORE, 0)
      live = []
      addresses = Array.new(20_000) { live << Object.new; Fiddle.dlwrap(Object.new) }
      GC.start
      kept = addresses[10_000, 50].map { |address| Fiddle.dlunwrap(address) }
      5.times { GC.start }
      made = Array.new(100_000) { Object.new }
      puts kept.size, made.size
    RUBY
    refute_predicate status, :success?, out
    assert_match(/\[BUG\] heap page \S+, \.mark_bits of the free slot \S+: expected 0, found 1/, out)
  end

  # Every slot is counted once.
  def test_counts
    run_map(<<~'RUBY')
      kept = leave
      GC.stat # makes its symbols
      3.times do
        GC.start
        counts = ObjectSpace.count_objects
        check(:sum, counts.sum { |key, count| key == :TOTAL ? 0 : count }, counts[:TOTAL])
        check(:total, counts[:TOTAL], GC.stat(:heap_available_slots))
        live = counts[:TOTAL] - counts[:FREE]
        (live - GC.stat(:heap_live_slots)).abs < 100 or raise "#{live} live by count_objects; #{GC.stat}"
        free = GC.stat(:heap_free_slots)
        (counts[:FREE] - free).abs < 100 or raise "#{free} free slots by GC.stat; #{counts}"
      end
      kept.size
    RUBY
  end

  # A walk of the heap does not give an object that has died since it began, as with pristine.
  def test_collections_while_the_heap_is_walked
    run_map(<<~'RUBY')
      kept = leave(2_000)
      seen = 0
      ObjectSpace.each_object do |object|
        seen += 1
        object.class # must not crash
        next unless seen % 5_000 == 0
        kept.pop(100)
        GC.start(full_mark: seen % 10_000 == 0)
        objects(10)
      end
      verify
      ObjectSpace.each_object(Witness) { |witness| GC.start if rand(100) == 0; witness.instance_variables }
      # Walks that end before they have seen all objects.
      ObjectSpace.each_object { |object| break }
      begin
        ObjectSpace.each_object { |object| raise "left" }
      rescue RuntimeError
      end
      GC.start
      verify
    RUBY
  end

  def test_ids_of_dead_objects
    run_map(<<~'RUBY')
      ids = Array.new(2_000) { Object.new.object_id }
      kept = Array.new(2_000) { Object.new }
      kept_ids = kept.map(&:object_id)
      10.times { Object.new; GC.start }
      gone = ids.count do |id|
        ObjectSpace._id2ref(id)
        false
      rescue RangeError
        true
      end
      gone > 1_900 or raise "#{gone} of 2,000 are gone"
      check(:kept, kept_ids.map { |id| ObjectSpace._id2ref(id) }, kept)
    RUBY
  end

  def test_finalizers_and_weak_maps
    run_map(<<~'RUBY')
      ended = []
      note = ->(id) { ended << id; "made while finalizing" * 9 }
      map = ObjectSpace::WeakMap.new
      keys = ObjectSpace::WeakKeyMap.new
      ids = Array.new(1_000) do |i|
        object = Object.new
        ObjectSpace.define_finalizer(object, note)
        map[object] = i.to_s
        keys[object] = i
        object.object_id
      end
      5.times { objects(50); GC.start }
      ended.size > 900 or raise "#{ended.size} of 1,000 have ended"
      check(:once, ended.uniq.size, ended.size)
      check(:known, ended - ids, [])
      map.size < 100 or raise "#{map.size} entries are left in the WeakMap, expected less than 100"
      verify
      objects(2_000)
      verify
    RUBY
  end

  def test_stress_and_compaction
    run_map(<<~'RUBY', timeout: 300)
      kept = leave(20)
      GC.stress = true
      made = objects(3)
      GC.stress = false
      verify
      if GC.respond_to?(:compact)
        3.times do
          kept.each_slice(3) { |first, *| first.clear }
          GC.compact
          verify
          kept.concat(objects(200))
        end
        GC.verify_compaction_references(toward: :empty, expand_heap: true)
        verify
      end
      check(:made, made.map { |list| list[1] }, %w[0 1 2])
    RUBY
  end

  def test_children
    run_map(<<~'RUBY')
      kept = leave(5_000)
      Process.warmup
      in_child do
        kept.each_slice(2) { |first, *| first.clear }
        GC.start
        verify
        objects(1_000)
        in_child do
          kept.clear
          4.times { GC.start }
          verify
          objects(2_000)
          check(:witnesses, ObjectSpace.each_object(Witness).count >= 2_000, true)
          verify
        end
        GC.start
        verify
      end
      kept.each { |list| list.size }
      verify
    RUBY
  end

  # Each Ractor claims slots. Those that it has not used are free again when it has ended.
  def test_ractors
    run_map(<<~'RUBY', options: ["-W0"])
      ractors = Array.new(4) do |n|
        Ractor.new(n) do |n|
          list = []
          30_000.times { |i| list << "#{n} #{i}" << [i]; list = list.last(500) if i % 1_000 == 0 }
          list.last
        end
      end
      check(:last, ractors.map(&:take), [[29_999]] * 4)
      ractors = nil
      GC.start
      verify
      counts = ObjectSpace.count_objects
      free = GC.stat(:heap_free_slots)
      (counts[:FREE] - free).abs < 500 or raise "#{free} free slots by GC.stat; #{counts}"
    RUBY
  end

  # Allocates, frees, promotes, compacts, forks and walks at random, and verifies the heap.
  # COW_FUZZ_SECONDS: for how long (default: 10).
  def test_fuzz
    seconds = Integer(ENV["COW_FUZZ_SECONDS"] || 10)
    run_map(<<~'RUBY', seconds, rand(2**32), timeout: seconds + 120)
      seconds, seed = ARGV.map(&:to_i)
      random = Random.new(seed)
      kept = []
      steps = [
        -> { kept << objects(random.rand(1..400)) },
        -> { kept << leave(random.rand(1..200)) },
        -> { kept.delete_at(random.rand(kept.size + 1)) },
        -> { kept.shuffle!(random: random).pop(kept.size / 2) },
        -> { kept.sample(random: random)&.each { |list| list.delete_at(random.rand(10)) } },
        lambda do
          kept.sample(random: random)&.each do |list|
            list[1].instance_variable_set(:@kept, random.rand(9).to_s) if list[1].is_a?(String)
          end
        end,
        -> { kept.sample(random: random)&.each { |list| list << list[1].to_s[0, 20] * 40 } },
        -> { GC.start(full_mark: random.rand(2) == 0, immediate_sweep: random.rand(2) == 0) },
        -> { GC.respond_to?(:compact) && random.rand(4) == 0 && GC.compact },
        -> { GC.auto_compact = random.rand(2) == 0 if GC.respond_to?(:compact) },
        lambda do
          ObjectSpace.each_object(Array) do |list|
            random.rand(2_000) == 0 && kept << [[list.size.to_s, "of a walk"]]
          end
        end,
        -> { ObjectSpace.count_objects },
        lambda do
          kept.sample(random: random)&.each do |list|
            ObjectSpace.define_finalizer(list[0], proc { random.rand(3) }) if list[0].is_a?(Witness)
          end
        end,
        -> { GC.stress = true; objects(1); GC.stress = false },
        -> { in_child { 5.times { steps[random.rand(14)].call }; verify } },
        -> { verify },
      ]
      ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      count = 0
      begin
        while Process.clock_gettime(Process::CLOCK_MONOTONIC) < ends
          steps[random.rand(steps.size)].call
          kept.shift while kept.size > 40
          count += 1
        end
        verify
      rescue Exception
        warn "seed #{seed}, step #{count}"
        raise
      end
    RUBY
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/memory/census")
BenchmarkTest.load("lib/memory/faults")
BenchmarkTest.load("lib/memory/lost_pages")
BenchmarkTest.load("lib/servers/yjit_map")
require "json"

class TestPages < Minitest::Test
  include BenchmarkTest

  # Runs +script+ on the measured ruby. It prints a line when it is ready and then waits; gives the block its
  # process number and that line.
  def at_rest(script)
    Open3.popen3(RUBY, "-e", "$stdout.sync = true\n#{script}") do |input, output, errors, thread|
      line = output.gets
      flunk errors.read unless line
      yield thread.pid, line.chomp
      input.close
    end
  end

  def space_of(pid)
    AddressSpace.new(pid)
  rescue AddressSpace::Unreadable => e
    skip e.message
  end

  def test_a_census
    census = Census.new([[0x1000, 64, "outer"], [0x1010, 8, "inner"], [0x2000, 16, "other"]])
    kinds = [0xfff, 0x1000, 0x100f, 0x1010, 0x1017, 0x1018, 0x103f, 0x1040, 0x2008, 0x2010].map do |address|
      census.kind_of(address)
    end
    assert_equal [nil, "outer", "outer", "inner", "inner", "outer", "outer", nil, "other", nil], kinds
    assert_equal %w[outer inner], census.kinds_in(0x1008, 0x100)
    assert_equal [], census.kinds_in(0x3000, 0x1000)
  end

  def test_files_that_are_no_census
    Dir.mktmpdir do |directory|
      file = File.join(directory, "census")
      error = assert_raises(Census::Unreadable) { Census.load(file) }
      assert_includes error.message, "No such file"
      File.write(file, "7f31 a0 T_CLASS\n7f31 cut of")
      assert_equal "T_CLASS", Census.new([[0x7f31, 0xa0, "T_CLASS"]]).kind_of(0x7f31)
      error = assert_raises(Census::Unreadable) { Census.load(file) }
      assert_includes error.message, "#{file}, line 2: not of a census"
    end
  end

  # The words that a child changes in a piece of memory that its parent has named.
  def test_words_are_attributed_to_structures
    script = <<~'RUBY'
      inherited = "x" * (1 << 20)
      address = [inherited].pack("p").unpack1("Q")
      child = fork do
        (0...inherited.bytesize).step(4096) { |at| inherited.setbyte(at, 121) }
        $stdin.sysread(3)
      end
      puts [child, address].join(" ")
      Process.wait(child)
    RUBY
    at_rest(script) do |master, line|
      worker, address = line.split.map(&:to_i)
      space_of(master).close
      Timeout.timeout(60) { Thread.pass until File.read("/proc/#{worker}/syscall").match?(/\A0 0x0 /) }
      structures = LostPages.new(master, worker, nil, Census.new([[address, 1 << 20, "text"]])).structures
      found = structures.find { |(_, name), _| name == "text" }&.last
      assert_in_delta 1.0, found["on pages of"], 0.1
      assert_in_delta 256 * 8 / 1024.0 / 1024, found["changed words"], 0.001
    end
  end

  # A server that reforks ends workers at any time.
  def test_a_process_that_has_ended
    pid = spawn("sleep", "60")
    space = space_of(pid)
    Process.kill(:KILL, pid)
    Process.wait(pid)
    error = assert_raises(AddressSpace::Unreadable) do
      space.mappings.each { |mapping| space.each_page(mapping) {} }
    end
    assert_equal "process #{pid} has ended", error.message
  end

  def test_maps
    mappings = AddressSpace.parse(<<~MAPS)
      1000-3000 rw-p 00000000 00:00 0
      3000-4000 r-xp 00000000 fe:00 77                         /a b.so
      5000-6000 rw-s 00000000 00:00 0                          /dev/zero
      7000-8000 rw-p 00000000 00:00 0                          [heap]
      9000-a000 r--p 00000000 00:00 0                          [vvar]
    MAPS
    expected = [[0x1000, 0x3000, "", false], [0x3000, 0x4000, "/a b.so", true],
                [0x7000, 0x8000, "[heap]", false]]
    assert_equal expected,
                 mappings.map { |mapping| [mapping.first, mapping.last, mapping.name, mapping.file] }
  end

  # In place of an AddressSpace whose memory cannot be read.
  Space = Struct.new(:mappings) do
    def each_page(_) = nil
    def words(*) = nil
    def mapping_of(_) = nil
  end

  # Kernels that keep the names which Ruby gives its memory.
  def test_names_of_memory
    { "[anon:Ruby:GC:heap pages]" => "GC pages", "[anon:Ruby:GC:metadata]" => "GC metadata",
      "[anon:Ruby:GC:default:heap_page_body_allocate]" => "GC pages", "[heap]" => "malloc",
      "[anon:Ruby:rjit_reserve_addr_space]" => "JIT code", "[anon:Ruby:YJIT data]" => "YJIT data",
      "[anon:Ruby:fiber_pool_allocate_memory]" => "stacks",
      "[anon:something]" => "anonymous other" }.each do |name, kind|
      mapping = AddressSpace::Mapping.new(0x1000, 0x2000, "rw-p", name, false)
      assert_equal kind, PageKinds.new(Space.new([mapping])).of(0x1000, mapping), name
    end
  end

  # A process can write what it likes where an arena would begin.
  def test_words_that_only_look_like_those_of_an_arena
    sound = [131_072, 4_096, 8_192, 16_384, 64, 64, 16_384, 8_192, 8_192]
    odd = [[8, 1 << 33], [8, 1 << 62], [7, 1 << 40], [6, 1 << 20], [2, 1 << 62], [5, 1 << 62], [0, 1 << 62]]
    start = PageKinds::ARENA
    mapping = AddressSpace::Mapping.new(start, start + 65_536, "rw-p", "", false)
    odd = odd.map { |index, value| sound.dup.tap { |words| words[index] = value } }
    numbers = [sound, *odd].map do |words|
      space = Space.new([mapping])
      space.define_singleton_method(:mapping_of) { |_| mapping }
      space.define_singleton_method(:each_page) { |_, &block| block.call(mapping.first, 0) }
      space.define_singleton_method(:words) do |_, count|
        count == PageKinds::ARENA_WORDS ? [PageKinds::ARENA_SIGN, *words] : [0] * count
      end
      PageKinds.new(space).arenas.size
    end
    assert_equal [1, *[0] * odd.size], numbers
  end

  def test_a_size_that_no_structure_has
    space = space_of(Process.pid)
    assert_nil space.read(space.mappings.first.first, 1 << 62)
  ensure
    space&.close
  end

  ALLOCATING = <<~'RUBY'
    require "objspace"
    kept = Array.new(50_000) { |i| ["s#{i}", i % 3 == 0 ? "x" * 300 : [i]] }
  RUBY
  SAYING = <<~'RUBY'
    file = ObjectSpace.dump_all(output: :file)
    # The dump also lists shapes, which are no objects.
    addresses = File.foreach(file.path).filter_map do |line|
      line[/"address":"0x(\h+)"/, 1]&.to_i(16) unless line.include?('"SHAPE"')
    end
    size = GC::INTERNAL_CONSTANTS.fetch(:HEAP_PAGE_SIZE, 16_384)
    allocated = GC.stat(:heap_allocated_pages) * size / 4_096
    puts [$$, allocated, *addresses.map { |address| address & -4096 }.uniq].join(" ")
    gets
  RUBY

  # Each object that ObjectSpace lists is in an OS page that is recognised as the collector's. Gives the block
  # the OS pages that the collector has allocated and the number of recognised ones, which may be a few more:
  # the script makes objects after it has counted.
  def assert_recognised(script)
    at_rest(script) do |_, line|
      pid, allocated, *pages = line.split.map(&:to_i)
      space = space_of(pid)
      kinds = PageKinds.new(space)
      assert_operator pages.size, :>, 500, "OS pages with objects"
      missed = pages.reject { |page| kinds.of(page, space.mapping_of(page)) == "GC pages" }
      assert_equal 0, missed.size, "OS pages with objects that are not recognised"
      yield allocated, kinds.gc_page_count
    end
  end

  def test_gc_pages_are_recognised_from_outside
    assert_recognised(ALLOCATING + SAYING) do |allocated, found|
      assert_in_delta allocated, found, allocated / 20
    end
  end

  # The child's own heap pages and those of its parent may be in different mappings. OS pages that the parent
  # has freed and the child has not touched since are not in memory.
  def test_gc_pages_of_a_child_are_recognised_from_outside
    child = "Process.wait(fork do\nmore = Array.new(200_000) { Object.new }\n#{SAYING}end)"
    assert_recognised(ALLOCATING + child) do |allocated, found|
      assert_operator found, :<=, allocated * 21 / 20
    end
  end

  def test_lost_and_own_pages_and_who_wrote
    script = <<~'RUBY'
      inherited = "x" * (8 << 20)
      ready, say = IO.pipe
      child = fork do
        (0...inherited.bytesize).step(4096) { |at| inherited.setbyte(at, 121) if at < 4 << 20 }
        own = "y" * (6 << 20)
        say.puts
        ready.close
        $stdin.sysread(3)
      end
      puts child
      Process.wait(child)
    RUBY
    at_rest(script) do |master, worker|
      space_of(master).close
      # The child is ready when it waits in read(2), which the kernel shows.
      Timeout.timeout(60) do
        Thread.pass until File.read("/proc/#{worker}/syscall").match?(/\A0 0x0 /)
      end
      tally = LostPages.new(master, worker.to_i).to_h["malloc"]
      assert_in_delta 4.0, tally["lost"], 1.0
      assert_operator tally["own"], :>, 5.9
      assert_in_delta 4.0, tally["lost for at most 4 words"], 1.0
      assert_in_delta 8 / 1024.0, tally["changed words"], 0.3
    end
  end

  def test_perf_lines
    writers = Faults.parse(<<~TEXT)
          7f06ba5f3b70 _start     7f06ba5f3b70 gc_mark (/usr/bin/ruby)
          7f06ba5f3008 [unknown]     7f06ba5f47ad rb_str_new
          564c03f91610 [unknown]     564c03983150 yjit::core::Type<A, B>::insert (/usr/bin/ruby)
          7f06ba5f4b70 [unknown]     7f06ba5f3b70 [unknown] (/usr/lib/libz.so.2)
          7f06ba5f5b70 [unknown]     7f06ba5f3b70 [unknown] (//anon)
    TEXT
    assert_equal({ 0x7f06ba5f3000 => "gc_mark", 0x564c03f91000 => "yjit::core::Type<A, B>::insert",
                   0x7f06ba5f4000 => "a function of libz.so.2", 0x7f06ba5f5000 => "[unknown]" }, writers)
  end

  def test_tables_of_a_yjit_map
    maps = [{ "blocks" => [3_000_000, 0], "inline_code" => [1_000_000, 0] },
            { "blocks" => [4_500_000, 3_000_000], "inline_code" => [1_250_000, 1_000_000] }]
    maps.map! { |map| map.transform_values { |all, old| { "bytes" => all, "inherited_bytes" => old } } }
    stops = %w[master worker].zip(maps).map do |name, map|
      { "name" => name, "private_kb" => 2_000, "cpu" => 1.5, "stats" => { "yjit_alloc_size" => 3_000_000 },
        "map" => map }
    end
    stops.last["pages"] = { "malloc" => { "shared" => 1.0, "lost" => 2.0, "own" => 3.0 } }
    structures = YJITMap.allocate.send(:structures, stops).to_text
    assert_match(/^blocks +3\.00 +0\.00 +4\.50 +3\.00$/, structures)
    assert_match(/^all data +3\.00 +0\.00 +4\.50 +3\.00$/, structures, "without code")
    assert_match(/^master +2\.0 +1\.50 +3\.00$/, YJITMap.allocate.send(:summary, stops).to_text)
    assert_match(/^malloc +1\.00 +2\.00 +3\.00$/, YJITMap.allocate.send(:pages, stops.last(1)).to_text)
  end

  # Stands in for Faults: what is done with it, in its order.
  class Recorded
    def self.log = @log ||= []
    def initialize(pid, _) = self.class.log << pid
    def finish = self.class.log << :finish
    def self.first_writers(_) = log << :read && { 0x1000 => "gc_mark" }
  end

  # A worker whose pages are looked at, by functions that are known only if there was a record.
  Looked = Struct.new(:first_writers) do
    def to_h = { "JIT code" => { "shared" => 1.0, "lost" => 2.0, "own" => 3.0 } }
    def writers = { ["YJIT data", "link"] => 2.5, ["malloc", "free"] => 2.0, ["JIT code", "patch"] => 0.5 }
    def own_writers = { ["VM words", "iseq_setup"] => 0.25 }
  end

  def replaced(**classes)
    old = classes.keys.to_h { |name| [name, CowBench.const_get(name)] }
    swap = lambda do |all|
      all.each { |name, to| CowBench.send(:remove_const, name) && CowBench.const_set(name, to) }
    end
    swap.call(classes)
    yield
  ensure
    swap.call(old)
  end

  # The map of a worker that stops where +stops+ say, in a master of the number 1.
  def yjit_map(stops)
    map = YJITMap.allocate
    map.instance_variable_set(:@last, stops.last)
    map.instance_variable_set(:@lost, [])
    looked = Class.new { define_singleton_method(:new) { |_, _, writers = nil| Looked.new(writers) } }
    replaced(LostPages: looked) do
      shown = [[1, nil], *[0, *stops].map { |count| [2, count] }].select do |pid, served|
        map.send(:look, { "name" => "stop", "pid" => pid, "served" => served }, 1, "perf.data")
      end
      assert_equal [nil, *stops], shown.map(&:last), "the stops that are shown"
    end
    map
  end

  # From before the first request to each stop.
  def test_who_wrote_the_pages_of_yjit
    map = replaced(Faults: Recorded) { yjit_map([10, 20]) }
    assert_equal [2, :finish, :read, 2, :finish, :read], Recorded.log
    lost, own = map.send(:writers).map(&:to_text)
    assert_match(/^link +YJIT data +2\.50 +2\.50\npatch +JIT code +0\.50 +0\.50$/, lost)
    refute_includes lost, "malloc"
    assert_match(/^iseq_setup +VM words +0\.25 +0\.25$/, own)
    assert_nil map.no_faults
  end

  def test_a_map_of_yjit_where_nobody_can_record
    refused = Class.new { define_singleton_method(:new) { |*| raise Faults::Impossible, "perf is not here" } }
    refused.const_set(:Impossible, Faults::Impossible)
    map = replaced(Faults: refused) { yjit_map([10, 20]) }
    assert_empty map.send(:writers)
    assert_equal "perf is not here", map.no_faults
  end

  def test_a_long_table_of_writers
    writers = Array.new(45) { |i| [["malloc", "f#{i}"], 1.0] }.to_h
    assert_match(/^f39 +malloc +1\.00\n\(5 more\) +5\.00$/, WritersTable.of("Who", writers).to_text)
    assert_nil WritersTable.of("Who", {})
  end

  def test_a_table_of_writers_at_some_stops
    stops = [{ %w[malloc a] => 1.0 }, { %w[malloc b] => 2.5, %w[malloc a] => 2.0 }]
    assert_match(/^function +kind +one +two\n-.*\nb +malloc +0\.00 +2\.50\na +malloc +1\.00 +2\.00$/,
                 WritersTable.of_stops("Who", %w[one two], stops).to_text)
    assert_nil WritersTable.of_stops("Who", [], [])
  end

  def test_stops_that_do_not_grow
    _, errors, status = command("pages", "yjit", RUBY, "--stops", "5,3")
    refute_predicate status, :success?
    assert_includes errors, "--stops wants numbers that grow"
  end

  def test_try
    out, errors, status = command("pages", "try", RUBY, "--requests", "1000", "--json")
    skip errors if errors.match?(/may not read process/)
    assert_predicate status, :success?, errors
    result = JSON.parse(out)
    assert_equal PageKinds::ALL, result["pages"].keys
    assert_operator result["pages"]["GC pages"]["shared"], :>, 20, result["pages"].to_s
    return if errors.match?(/who wrote first cannot be said/)

    lost = result["pages"].values.sum { |page| page["lost"] }
    assert_in_delta lost, result["first_writers"].sum { |writer| writer["mb"] }, 0.1
    # Who writes while a worker starts, before the recording, is unknown, and after that it loses hardly a
    # page any more. It makes pages of its own, and of nearly all of these the writer is known. How many
    # depends on when it collects first, and so on the machine: 3.0 MB were seen, and 1.0.
    own = result["pages"].values.sum { |page| page["own"] }
    assert_operator own, :>, 0.2, result["pages"].to_s
    known = result["first_writers_of_own_pages"].reject { |writer| writer["function"] == "unknown" }
    assert_operator known.sum { |writer| writer["mb"] }, :>, own / 2, known.to_s
    shared = result["pages"].values.sum { |page| page["shared"] }
    assert_operator lost, :<, 0.05 * shared, result["pages"].to_s
  end
end

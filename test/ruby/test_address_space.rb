# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# The kernel limits the address space of a process and the number of its mappings.
class TestAddressSpace < Minitest::Test
  include CowTest

  # Ruby source for scripts: Mappings.leave(left) uses up the mappings that the kernel allows a process
  # (vm.max_map_count), except +left+ of them. Each OS page of a reservation gets other rights than its
  # neighbours, so that each is a mapping of its own.
  FEW_MAPPINGS = <<~'RUBY'
    require "fiddle"

    module Mappings
      integer, pointer = Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP
      size = Fiddle::TYPE_SIZE_T
      PROTECT = Fiddle::Function.new(Fiddle.dlopen(nil)["mprotect"], [pointer, size, integer], integer)
      MAP = Fiddle::Function.new(Fiddle.dlopen(nil)["mmap"],
                                 [pointer, size, integer, integer, integer, Fiddle::TYPE_LONG], pointer)
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
        raise "the kernel sets no limit to mappings" if split.size == PAGES / 2
        split.pop(left / 2).each { |address| PROTECT.call(address, 4096, NONE) }
      end
    end
  RUBY

  # Ruby source for scripts. half_a_heap makes objects of several sizes on thousands of heap pages. Half of
  # them die: more on one page, fewer on another, so that pages become empty in no particular order.
  # sound(things) checks those that live.
  THINGS = ASSERTIONS ? 100_000 : 300_000
  HALF_A_HEAP = IN_CHILD + "THINGS = #{THINGS}\n" + <<~'RUBY'
    Thing = Struct.new(:number, :name, :more)
    def half_a_heap
      random = Random.new(1)
      share = nil
      things = Array.new(THINGS) { |i| Thing.new(i, "thing #{i}" * (i % 9 + 1), [i] * (i % 7)) }
      things.each_index do |i|
        share = random.rand if i % 100 == 0
        things[i] = nil if random.rand < share
      end
    end

    def sound(things)
      GC.verify_internal_consistency
      things.each_with_index do |thing, i|
        next unless thing
        expected = [i, "thing #{i}" * (i % 9 + 1), [i] * (i % 7)]
        raise "#{i}: #{thing}" unless [thing.number, thing.name, thing.more] == expected
      end
    end
  RUBY

  # On 2222f26 each page from which objects had moved was a mapping of its own. When no mappings were left the
  # process ended (3 of 3 runs).
  def test_compaction_needs_no_mappings
    needs_compaction
    skip "only Linux lists mappings" unless File.readable?("/proc/self/maps")

    out = run_ruby(FEW_MAPPINGS + HALF_A_HEAP + <<~'RUBY', timeout: 300, env: { "RUBY_GC_SEAL" => "off" })
      things = half_a_heap
      GC.start # sorts the pages by their free slots
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
    assert_operator Integer(out), :>, THINGS / 6, "objects moved"
  end

  # All pages are swept before the first object moves, so that code which frees an object reads none that has
  # moved. The objects that die here read others when they are freed: classes read their superclasses, and the
  # names of symbols a table.
  def test_objects_that_are_freed_in_a_compaction_read_others
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
        found = parents.each_with_index.all? { |parent, i| parent.subclasses.include?(families[i]) }
        raise "a subclass that lives is missing" unless found
        name = ->(i) { "a name of a symbol #{round} #{i * 3}" }
        same = kept.each_with_index.all? { |symbol, i| symbol.equal?(name[i].to_sym) }
        raise "a symbol that lives is another one now" unless same
        same = strings.each_with_index.all? { |string, i| string.equal?(-"fstring of #{name[i]}") }
        raise "a string that lives is another one now" unless same
      end
    RUBY
  end

  COUNTS = <<~'C'
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    #include <sys/mman.h>

    static int calls;

    int madvise(void *address, size_t size, int advice)
    {
        int (*call)(void *, size_t, int) = dlsym(RTLD_NEXT, "madvise");

        calls++;
        return call(address, size, advice);
    }

    __attribute__((destructor)) static void tell(void) { fprintf(stderr, "%d calls of madvise\n", calls); }
  C

  # A process that ends gives whole arenas back, and a heap that shrinks neighbouring pages in one call. A
  # million objects stand on some 2,400 pages of 16 KB. Sweeping sets three aside at a time, so few are
  # neighbours.
  def test_memory_goes_back_in_few_calls
    skip "heap pages are malloc's" unless LOCATOR == "arena"
    skip "AddressSanitizer gives memory back itself" if ASAN

    pages = 40_000_000 / GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE]
    make = "GC.disable; KEPT = Array.new(1_000_000) { Object.new }; "
    shrink = "KEPT.clear; GC.enable; Process.warmup; p GC.stat(:total_freed_pages) > #{pages * 4 / 5}"
    preloading(COUNTS) do |env|
      calls = ->(out) { Integer(out[/(\d+) calls of madvise/, 1]) }
      [{}, { "RUBY_FREE_AT_EXIT" => "1" }].each do |setting|
        assert_operator calls[run_ruby(make, env: env.merge(setting))], :<, pages / 4, setting.inspect
      end
      out = run_ruby(make + shrink, env: env)
      assert_match(/^true$/, out)
      assert_operator calls[out], :<, pages / 2
    end
  end

  HOLD = File.join(__dir__, "hold_arrays.rb")

  # Gives two numbers of a process with a limit of +bytes+: the bytes of the limit that it has used at first,
  # and the thousands of arrays that it could hold.
  def held(bytes, limit: :rlimit_as)
    out = run_ruby_status("exec(#{RUBY.dump}, ARGV[0], #{limit}: #{bytes})", HOLD).first
    mapped, data, dots = out.match(/^(\d+) (\d+) (\.*)/)&.captures
    assert mapped, "it did not start with #{bytes} bytes: #{out}"
    [Integer(limit == :rlimit_as ? mapped : data) * 1024, dots.size]
  end

  # Pristine CRuby takes 41 bytes of the limit for an array of 40 bytes. If ours took more than 45 it would
  # hold less than 0.9 of pristine's arrays. The 10 MB are for malloc, which takes some MB, now and then more.
  # With 140 MB pristine holds 1,436,000 arrays (benchmark/cases/address_space.rb); ours once held 239,000.
  def test_a_limit_of_address_space_is_used_up
    skip "malloc takes more at a time" if %w[alignoff binary linear].include?(LOCATOR)
    skip "only Linux has this limit" unless File.readable?("/proc/self/status")
    skip "AddressSanitizer needs terabytes of addresses" if ASAN
    skip "assertions take memory" if ASSERTIONS

    [100, 120, 140, 160, 200, 300].each do |megabytes|
      start, thousands = held(megabytes * 1_000_000)
      assert_operator thousands * 1_000 * 45 + 10_000_000, :>=, megabytes * 1_000_000 - start,
                      "bytes of arrays, with a limit of #{megabytes} MB, #{start} bytes of it used at first"
    end
  end

  # The same with a limit of memory that may be written to. Assertions and the words of pages that are not
  # aligned take 50 to 53 bytes for an array. A start takes 69 to 85 MB of the limit, in pristine CRuby too:
  # mostly stacks, and what jemalloc maps at once, which differs by 6 MB from start to start.
  def test_a_limit_of_data_is_used_up
    skip "only Linux has this limit" unless File.readable?("/proc/self/status")
    skip "AddressSanitizer needs more" if ASAN

    start, thousands = held(200_000_000, limit: :rlimit_data)
    each = ASSERTIONS || %w[alignoff binary linear].include?(LOCATOR) ? 55 : 45
    assert_operator thousands * 1_000 * each + 10_000_000, :>=, 200_000_000 - start,
                    "bytes of arrays, with a limit of 200 MB, #{start} bytes of it used at first"
  end

  # The address of an arena is as random as a multiple of its size can be: each of the 20 bits above that size
  # is set in some processes and clear in others. Once only 13 of the bits differed.
  def test_addresses_are_random
    skip "only arenas get addresses of ours" unless %w[arena header].include?(LOCATOR)
    random = Integer(File.read("/proc/sys/kernel/randomize_va_space"), exception: false).to_i > 0
    skip "the kernel does not choose addresses at random" unless random
    skip "AddressSanitizer uses most addresses" if ASAN

    script = "require 'objspace'; puts ObjectSpace.dump(Object.new)[/0x(\\h+)/, 1]"
    places = Array.new(40) { Integer(run_ruby(script), 16) >> 27 }
    assert_operator places.uniq.size, :>, 38, "different addresses of arenas, in 40 processes"
    differing = (0..19).select { |bit| (1...40).cover?(places.sum { |place| place[bit] }) }
    assert_equal (0..19).to_a, differing, "bits that differ between processes"
  end

  # A debugger asks the kernel for the same addresses in each run, as setarch -R does.
  def test_addresses_are_the_same_where_that_is_asked_for
    skip "only arenas get addresses of ours" unless %w[arena header].include?(LOCATOR)
    skip "setarch is not installed" unless system("setarch", "-R", "true", err: File::NULL)
    skip "AddressSanitizer has addresses of its own" if ASAN

    script = "require 'objspace'; puts ObjectSpace.dump(Object.new)[/0x(\\h+)/, 1]"
    command = "exec('setarch', '-R', #{RUBY.dump}, '--disable-gems', '-e', ARGV[0])"
    places = Array.new(3) { Integer(run_ruby(command, script), 16) >> 27 }
    assert_equal 1, places.uniq.size, "different addresses of arenas, in 3 processes"
  end
end

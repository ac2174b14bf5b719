# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "etc"
require "tmpdir"
require_relative "../helper"

# Where heap pages come from, and how the bits of their objects are found (gc/locate_bits.h).
class TestLocate < Minitest::Test
  include CowTest

  # Ruby source for scripts. exercise makes objects of all sizes, lets some of them grow old and
  # others die, writes to them, and forks.
  EXERCISE = IN_CHILD + <<~'RUBY'
    Item = Struct.new(:value, :more)
    def exercise(rounds = 3)
      kept = []
      rounds.times do |round|
        20_000.times do |i|
          object = [Item.new(i), "s" * (i % 700), [i] * (i % 90),
                    { i => round }, Object.new, 2.0**i % 1e300][i % 6]
          kept[i % 5_000 + round * 1_000] = object
        end
        kept.each { |object| object.value = [round] if Item === object }
        GC.start(full_mark: round.odd?)
      end
      GC.verify_internal_consistency
      in_child do
        kept.each_with_index { |object, i| kept[i] = object.dup if i % 7 == 0 }
        GC.start
        GC.verify_internal_consistency
      end
      GC.start
      whole = kept.grep(Item).all? { |item| item.value.is_a?(Array) || item.value.is_a?(Integer) }
      raise "an Item has lost its value" unless whole
      GC.verify_internal_consistency
      ObjectSpace.each_object(Item).count
    end
  RUBY

  def locator
    run_ruby("puts GC::INTERNAL_CONSTANTS[:MARK_LOCATOR]").strip
  end

  # Runs the script in a process that may map only +bytes+ of memory.
  def limited(script, bytes)
    run_ruby("exec(#{RUBY.dump}, '-e', ARGV[0], rlimit_as: #{bytes})", script)
  end

  def stat(limit: nil, env: {})
    script = "puts %i[arenas alignoff_pages reserved_bytes committed_bytes metadata_bytes " \
             "denied_reservations heap_allocated_pages].map { |key| GC.stat(key) }"
    text = limit ? limited(script, limit) : run_ruby(script, env: env)
    text.split.map { |word| Integer(word) }
  end

  def test_counts_of_the_locator
    assert_includes %w[arena alignoff binary linear header], locator
    arenas, alignoff, reserved, committed, metadata, denied, pages = stat
    size = Integer(run_ruby("puts GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE]"))
    case locator
    when "arena", "header"
      assert_operator arenas, :>=, 1, "arenas"
      assert_equal 0, alignoff, "pages of malloc's"
      assert_equal 0, denied, "reservations that the system denied"
      assert_equal arenas * (128 << 20), reserved, "reserved bytes"
    else
      assert_equal 0, arenas, "arenas"
      assert_equal locator == "alignoff" ? pages : 0, alignoff, "pages of malloc's"
      assert_equal pages * size, reserved, "reserved bytes"
    end
    assert_operator committed, :<=, reserved, "committed bytes"
    assert_operator pages * size, :<=, committed, "bytes of heap pages, of those committed"
    assert_operator metadata, :>, 0, "bytes of metadata"
  end

  def test_objects_that_live_and_die
    assert_operator Integer(run_ruby(EXERCISE + "puts exercise")), :>, 0
  end

  def test_objects_that_live_and_die_under_stress
    run_ruby(EXERCISE + <<~'RUBY')
      GC.stress = true
      kept = Array.new(50) { |i| [Object.new, "x" * (i * 13), [i]] }
      in_child { kept.map(&:dup) }
      GC.stress = false
      exercise(2)
    RUBY
  end

  # Where the address space of a process is limited its arenas are smaller, so that they fit
  # (COW_ARENA_SHARE).
  def test_little_address_space
    skip "only arenas are reserved" unless locator == "arena"
    skip "AddressSanitizer needs terabytes of addresses" if ASAN

    _, _, whole = stat
    arenas, alignoff, reserved = stat(limit: 400_000_000)
    assert_operator arenas, :>=, 1, "arenas"
    assert_equal 0, alignoff, "pages of malloc's"
    assert_operator reserved, :<, whole, "reserved bytes"
    assert_operator Integer(limited(EXERCISE + "puts exercise", 600_000_000)), :>, 0
  end

  # A process that reaches a limit later gets a NoMemoryError. If the collector itself needs the
  # memory, the process ends with a message, as with pristine.
  def test_no_memory_left
    out, status = run_ruby_status(<<~'RUBY')
      used = File.read("/proc/self/status")[/^VmSize:\s+(\d+)/, 1].to_i
      Process.setrlimit(:AS, (used + 30_000) * 1024)
      kept = nil # a list, so that no big array must be reallocated at the end
      begin
        loop { kept = [kept, Object.new, Object.new] }
      rescue NoMemoryError
        kept = nil
        GC.start
        puts "told"
      end
    RUBY
    assert_includes ["told", "[FATAL] failed to allocate memory"], out.strip
    assert_equal out.strip == "told", status.success?, status.inspect
  end

  # If the system denies reservations, malloc gives the memory of heap pages. A library that is
  # loaded first plays such a system.
  def test_a_system_without_reservations
    skip "only arenas are reserved" unless locator == "arena"

    source = <<~'C'
      #define _GNU_SOURCE
      #include <dlfcn.h>
      #include <errno.h>
      #include <sys/mman.h>
      void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
      {
          static void *(*real)(void *, size_t, int, int, int, off_t);
          if (!real) real = dlsym(RTLD_NEXT, "mmap");
          if (protection == PROT_NONE && flags & MAP_NORESERVE) {
              errno = ENOMEM;
              return MAP_FAILED;
          }
          return real(address, size, protection, flags, file, offset);
      }
    C
    preloading(source) do |env|
      env = env.merge("RUBYOPT" => "--disable-jit")
      arenas, alignoff, _, _, _, denied, pages = stat(env: env)
      assert_equal 0, arenas, "arenas"
      assert_equal pages, alignoff, "pages of malloc's"
      assert_operator denied, :>, 0, "reservations that the system denied"
      assert_operator Integer(run_ruby(EXERCISE + "puts exercise", env: env)), :>, 0
      compact = "begin; GC.compact; rescue NotImplementedError => e; puts e.class; end"
      assert_equal "NotImplementedError", run_ruby(compact, env: env).strip
    end
  end
end

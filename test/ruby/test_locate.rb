# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "etc"
require "tmpdir"
require_relative "../helper"

# Where heap pages come from, and how their bits are found (gc/locate_bits.h).
class TestLocate < Minitest::Test
  include CowTest

  # Objects of all sizes that live and die, promoted, written to, forked.
  EXERCISE = IN_CHILD + <<~'RUBY'
    Item = Struct.new(:value, :more)
    def exercise(rounds = 3)
      kept = []
      rounds.times do |round|
        20_000.times do |i|
          object = [Item.new(i), "s" * (i % 700), [i] * (i % 90), { i => round }, Object.new, 2.0**i % 1e300][i % 6]
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
      raise "lost" unless kept.grep(Item).all? { |item| item.value.is_a?(Array) || item.value.is_a?(Integer) }
      GC.verify_internal_consistency
      ObjectSpace.each_object(Item).count
    end
  RUBY

  def locator
    run_ruby("puts GC::INTERNAL_CONSTANTS[:MARK_LOCATOR]").strip
  end

  # Runs the script in a process that may map so many bytes.
  def limited(script, bytes)
    run_ruby("exec(#{RUBY.dump}, '-e', ARGV[0], rlimit_as: #{bytes})", script)
  end

  def stat(limit: nil, env: {})
    script = "puts %i[arenas alignoff_pages reserved_bytes committed_bytes metadata_bytes denied_reservations heap_allocated_pages].map { |key| GC.stat(key) }"
    text = limit ? limited(script, limit) : run_ruby(script, env: env)
    text.split.map { |word| Integer(word) }
  end

  def test_it_says_what_it_is
    assert_includes %w[arena alignoff binary linear header], locator
    arenas, alignoff, reserved, committed, metadata, denied, pages = stat
    size = Integer(run_ruby("puts GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE]"))
    case locator
    when "arena", "header"
      assert_operator arenas, :>=, 1
      assert_equal 0, alignoff
      assert_equal 0, denied
      assert_equal arenas * (128 << 20), reserved
    else
      assert_equal 0, arenas
      assert_equal locator == "alignoff" ? pages : 0, alignoff
      assert_equal pages * size, reserved
    end
    assert_operator committed, :<=, reserved
    assert_operator pages * size, :<=, committed
    assert_operator metadata, :>, 0
  end

  def test_a_heap_that_lives
    assert_operator Integer(run_ruby(EXERCISE + "puts exercise")), :>, 0
  end

  def test_a_heap_that_lives_under_stress
    run_ruby(EXERCISE + <<~'RUBY')
      GC.stress = true
      kept = Array.new(50) { |i| [Object.new, "x" * (i * 13), [i]] }
      in_child { kept.map(&:dup) }
      GC.stress = false
      exercise(2)
    RUBY
  end

  # Address space that is limited: arenas are smaller, and no more is asked for than is
  # there.
  def test_little_address_space
    skip "only arenas are reserved" unless locator == "arena"
    skip "AddressSanitizer needs terabytes of addresses" if ASAN

    _, _, whole = stat
    arenas, alignoff, reserved = stat(limit: 400_000_000)
    assert_operator arenas, :>=, 1
    assert_equal 0, alignoff
    assert_operator reserved, :<, whole
    assert_operator Integer(limited(EXERCISE + "puts exercise", 600_000_000)), :>, 0
  end

  # Where the limit comes later, it is a NoMemoryError, or the message with which pristine
  # ends, too, where the memory that is missing was the collector's own.
  def test_no_memory_left
    out, = run_ruby_status(<<~'RUBY')
      used = File.read("/proc/self/status")[/^VmSize:\s+(\d+)/, 1].to_i
      Process.setrlimit(:AS, (used + 30_000) * 1024)
      kept = nil # a list: its end is not met by the reallocation of a big array
      begin
        loop { kept = [kept, Object.new, Object.new] }
      rescue NoMemoryError
        kept = nil
        GC.start
        puts "told"
      end
    RUBY
    assert_includes ["told", "[FATAL] failed to allocate memory"], out.strip
  end

  # A system that reserves nothing: the heap is malloc's.
  def test_a_system_without_reservations
    skip "only arenas are reserved" unless locator == "arena"

    Dir.mktmpdir do |directory|
      shim = File.join(directory, "shim.so")
      File.write(File.join(directory, "shim.c"), <<~'C')
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
      built = system("cc", "-shared", "-fPIC", "-o", shim, File.join(directory, "shim.c"), "-ldl", err: File::NULL)
      skip "no C compiler" unless built

      env = { "LD_PRELOAD" => shim, "RUBYOPT" => "--disable-jit", "ASAN_OPTIONS" => "verify_asan_link_order=0" }
      arenas, alignoff, _, _, _, denied, pages = stat(env: env)
      assert_equal 0, arenas
      assert_equal pages, alignoff
      assert_operator denied, :>, 0
      assert_operator Integer(run_ruby(EXERCISE + "puts exercise", env: env)), :>, 0
      assert_equal "NotImplementedError", run_ruby("begin; GC.compact; rescue NotImplementedError => e; puts e.class; end", env: env).strip
    end
  end
end

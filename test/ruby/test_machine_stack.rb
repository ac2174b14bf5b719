# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Where the machine stack ends while C code calls deeply, SystemStackError is raised.
class TestMachineStack < Minitest::Test
  include CowTest

  # Ruby source for scripts. ends? { } says whether the stack of a fiber ends in the block; $at_guard then
  # counts the stacks, with SMALL, of which the page before the guard page was written to, and the others.
  # +more+ hashes around +depth+ arrays move the frames a little.
  DEEP = <<~'RUBY'
    STACKS = 256 * 1024..320 * 1024
    def at_guard
      areas = File.readlines("/proc/self/maps").map do |line|
        range, access, = line.split
        [*range.split("-").map(&:hex), access]
      end
      stacks = areas.each_cons(2).filter_map do |(_, guard_to, guard), (from, to, access)|
        from if guard == "---p" && guard_to == from && access == "rw-p" && STACKS.cover?(to - from)
      end
      File.open("/proc/self/mem", "rb") do |memory|
        stacks.partition { |from| memory.pread(4096, from).match?(/[^\0]/n) }.map(&:size)
      end
    end
    def ends?
      Fiber.new do
        yield
        false
      rescue SystemStackError
        $at_guard = at_guard
        true
      end.resume
    end
    def nested(depth, more)
      arrays = depth.times.inject([1]) { |inner, _| [inner] }
      more.times.inject(arrays) { |inner, _| { 1 => inner } }
    end
    def dumped(depth, more) = "\x04\b" + "{\x06i\x06" * more + "[\x06" * depth + "i\x06"
  RUBY

  # The smallest stack of a fiber, so that each level may collect.
  SMALL = { "RUBY_FIBER_MACHINE_STACK_SIZE" => "131072" }.freeze

  # What recurses in C: what is made before, and the call.
  RECURSIONS = {
    inspect: ["object = nested(5_000, more)", "object.inspect"],
    equality: ["object, other = nested(5_000, more), nested(5_000, more)", "object == other"],
    order: ["object, other = nested(5_000, 0), nested(5_000, 0)", "object <=> other"],
    hash: ["object = nested(5_000, more)", "object.hash"],
    join: ["object = nested(5_000, 0)", "object.join"],
    dump: ["object = nested(5_000, more)", "Marshal.dump(object)"],
    load: ["dump = dumped(5_000, more)", "Marshal.load(dump)"]
  }.freeze

  # They end before the guard page: where the collector comes to it, the process ends.
  RECURSIONS.each do |name, (made, call)|
    define_method(:"test_#{name}_that_collects_at_each_level") do
      skip "no /proc" unless File.readable?("/proc/self/maps")
      out = run_ruby(DEEP + <<~RUBY, env: SMALL)
        3.times do |more|
          #{made}
          ended = ends? do
            GC.stress = true
            #{call}
          ensure
            GC.stress = false
          end
          puts "ended: \#{ended}, at the guard page: %d of some: %p" % [$at_guard[0], $at_guard.sum > 0]
        end
        GC.verify_internal_consistency
      RUBY
      assert_equal "ended: true, at the guard page: 0 of some: true\n" * 3, out
    end
  end

  # A library whose mmap of an arena comes to the guard page of the stack, each time it is told to.
  DEEP_MMAP = <<~'C'
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    static int deeper(int n) {
        volatile char room[1024];
        room[n % 1024] = 1;
        return deeper(n + 1) + room[0];
    }
    void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset) {
        void *(*real)(void *, size_t, int, int, int, off_t);
        *(void **)&real = dlsym(RTLD_NEXT, "mmap");
        if (length >= 100 << 20 && getenv("DEEP_MMAP")) {
            unsetenv("DEEP_MMAP");
            deeper(0);
        }
        return real(at, length, protection, flags, file, offset);
    }
  C

  # An allocation holds the lock of the heap when the stack ends in it. Without the fix of the VM lock such a
  # process hung, and took no signal.
  def test_stack_that_ends_while_an_arena_is_mapped
    skip "only there CRuby knows the guard page of a fiber" unless RUBY_PLATFORM.match?(/x86_64|i\d86/)
    preloading(DEEP_MMAP) do |env|
      assert_equal "true\ntrue\n", run_ruby(DEEP + <<~'RUBY', env: env, timeout: 30)
        GC.disable
        kept = []
        2.times do
          ENV["DEEP_MMAP"] = "1"
          puts ends? { 1_000_000.times { kept << "x" * 600 } }
          kept << "x" * 600
        end
        GC.enable
        GC.start
        GC.verify_internal_consistency
      RUBY
    end
  end
end

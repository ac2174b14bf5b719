# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# AddressSanitizer knows which slots are free and which heap pages are not allocated (gc/poison.h), so it
# reports code that reads a dead object. Valgrind knows of heap pages only.
class TestPoison < Minitest::Test
  include CowTest

  # Ruby source for scripts: makes objects in slots of a size that nothing else in the scripts uses, and reads
  # at their addresses.
  READER = IN_CHILD + <<~'RUBY'
    require "fiddle"
    READ = Fiddle::Function.new(Fiddle::Handle::DEFAULT["rb_hash_size_num"], [Fiddle::TYPE_LONG],
                                Fiddle::TYPE_LONG)

    def make(count) = Array.new(count) { Array.new(70, 1) }
    def addresses(objects) = objects.map { |object| Fiddle.dlwrap(object) }
    # Reads as a C function would that has kept an address.
    def read(addresses) = addresses.each { |address| READ.call(address) }
    def poisoned(addresses)
      asan = Fiddle::Handle::DEFAULT["__asan_address_is_poisoned"]
      asan = Fiddle::Function.new(asan, [Fiddle::TYPE_LONG], Fiddle::TYPE_INT)
      addresses.count { |address| asan.call(address) != 0 }
    end
    def poisoned?(addresses) = poisoned(addresses) >= addresses.size * 9 / 10
  RUBY

  def needs_asan
    skip "no AddressSanitizer in this build" unless ASAN
  end

  # AddressSanitizer reports a read at the addresses that are the last value of +script+. They are those of
  # objects of which nearly all are dead.
  def assert_caught(script)
    needs_asan
    script = READER + "dead = begin\n#{script}\nend\n"
    run_ruby(script + 'raise "only #{poisoned(dead)} of #{dead.size} are poisoned" unless poisoned?(dead)')
    out, status = run_ruby_status("#{script}read(dead)\nputs :unseen")
    refute status.success?, "expected AddressSanitizer to end the process, found #{out}"
    refute_includes out, "unseen", "the read was not reported"
    assert_match(/ERROR: AddressSanitizer: use-after-poison/, out)
    assert_match(/^READ of size/, out)
  end

  # What Valgrind says of the script in the ordinary build, of its children too; and what the script says.
  def under_valgrind(script, *options)
    skip "AddressSanitizer and Valgrind cannot be used together" if ASAN
    header = Dir[File.expand_path("../.ext/include/*/ruby/config.h", File.dirname(RUBY))].first
    known = header && File.read(header).match?(/^#define HAVE_VALGRIND_MEMCHECK_H 1/)
    skip "CRuby was configured without Valgrind's header" unless known
    skip "Valgrind is not installed" unless system("valgrind", "--version", out: File::NULL, err: File::NULL)

    run_command("valgrind", "-q", "--trace-children=yes", *options, RUBY, "--disable-gems", "-e", script,
                timeout: 600).first
  end

  # Ruby source for scripts: mixed makes objects of which every tenth lives, so that their pages stay in their
  # heap, and gives the addresses of the others.
  MIXED = <<~'RUBY'
    def mixed
      objects = make(2_000)
      $kept = objects.each_slice(10).map(&:first)
      addresses(objects) - addresses($kept)
    end
  RUBY

  def test_a_dead_object
    assert_caught(MIXED + <<~'RUBY')
      dead = mixed
      GC.start
      dead
    RUBY
  end

  def test_a_dead_object_after_more_collections
    assert_caught(MIXED + <<~'RUBY')
      dead = mixed
      4.times { |i| GC.start(full_mark: i.even?) }
      dead
    RUBY
  end

  FREED_PAGES = <<~'RUBY'
    before = GC.stat(:total_freed_pages)
    dead = addresses(make(50_000))
    3.times { GC.start }
    raise "no heap page was freed" unless GC.stat(:total_freed_pages) > before
    dead
  RUBY

  def test_a_dead_object_in_a_freed_page
    assert_caught(FREED_PAGES)
  end

  # Valgrind does not know which slots of an allocated page are free.
  def test_a_dead_object_in_a_freed_page_under_valgrind
    script = READER + "dead = begin\n#{FREED_PAGES}\nend\nread(dead.each_slice(50).map(&:first))\n"
    out = under_valgrind(script, "--undef-value-errors=no")
    assert_match(/Invalid read of size/, out)
    refute_match(/Invalid write/, out)
  end

  # The links of their free lists were written before the blocks were poisoned.
  def test_freed_words_of_the_vm_are_known_to_valgrind
    out = under_valgrind(<<~'RUBY')
      reuse = lambda do
        3.times do
          200.times { |i| eval("proc { |a| a.foo#{i}; Mutex.new.synchronize { a } }") }
          GC.start
        end
      end
      reuse.call
      Process.wait(fork(&reuse))
      puts "ended: #{$?.exitstatus}"
    RUBY
    assert_match(/^ended: 0$/, out)
    refute_match(/ at 0x\h+: \w*vm_words/, out)
  end

  def test_a_dead_object_in_a_sealed_page
    assert_caught(MIXED + <<~'RUBY')
      objects = make(2_000)
      $kept = objects.each_slice(5).map(&:first)
      dead = addresses(objects) - addresses($kept)
      Process.warmup
      fork_and_wait = ->(&block) { pid = fork(&block) and Process.wait(pid) }
      fork_and_wait.call { exit!(0) }
      objects = nil
      2.times { GC.start }
      dead
    RUBY
  end

  def test_a_dead_object_in_a_child
    assert_caught(MIXED + <<~'RUBY')
      objects = make(2_000)
      $kept = objects.each_slice(10).map(&:first)
      dead = addresses(objects) - addresses($kept)
      if (pid = fork)
        Process.wait(pid)
        exit!($?.exitstatus)
      end
      objects = nil
      GC.start
      dead
    RUBY
  end

  def test_the_old_address_of_an_object_that_has_moved
    needs_asan
    needs_compaction
    assert_caught(MIXED + <<~'RUBY')
      mixed
      GC.start
      before = addresses($kept)
      GC.compact
      GC.start
      before - addresses($kept)
    RUBY
  end

  def test_live_objects_are_not_poisoned
    needs_asan
    run_ruby(READER + MIXED + <<~'RUBY')
      mixed
      check = -> { raise "a live object is poisoned" unless poisoned(addresses($kept)).zero? }
      3.times { GC.start; check.call }
      GC.compact if GC.respond_to?(:compact)
      check.call
      Process.warmup
      in_child { 3.times { GC.start; check.call } }
    RUBY
  end
end

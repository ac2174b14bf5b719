# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# AddressSanitizer knows which slots are free, and which heap pages are nobody's
# (gc/poison.h): who reads a dead object is told of. Valgrind knows the latter.
class TestPoison < Minitest::Test
  include CowTest

  # The objects are in slots of a size that nothing else here asks for.
  READER = IN_CHILD + <<~'RUBY'
    require "fiddle"
    READ = Fiddle::Function.new(Fiddle::Handle::DEFAULT["rb_hash_size_num"], [Fiddle::TYPE_LONG], Fiddle::TYPE_LONG)

    def make(count) = Array.new(count) { Array.new(70, 1) }
    def addresses(objects) = objects.map { |object| Fiddle.dlwrap(object) }
    # As a C function that has kept an address would.
    def read(addresses) = addresses.each { |address| READ.call(address) }
    def poisoned(addresses)
      asan = Fiddle::Function.new(Fiddle::Handle::DEFAULT["__asan_address_is_poisoned"], [Fiddle::TYPE_LONG], Fiddle::TYPE_INT)
      addresses.count { |address| asan.call(address) != 0 }
    end
    def poisoned?(addresses) = poisoned(addresses) >= addresses.size * 9 / 10
  RUBY

  def needs_asan
    skip "no AddressSanitizer in this build" unless ASAN
  end

  # The script's last value are the addresses of objects of which nearly all are dead.
  def assert_caught(script)
    needs_asan
    run_ruby(READER + "dead = begin\n#{script}\nend\n" + 'raise "#{poisoned(dead)} of #{dead.size} are poisoned" unless poisoned?(dead)')
    out, status = run_ruby_status(READER + "dead = begin\n#{script}\nend\nread(dead)\nputs :unseen")
    refute status.success?, out
    refute_includes out, "unseen"
    assert_match(/ERROR: AddressSanitizer: use-after-poison/, out)
    assert_match(/^READ of size/, out)
  end

  # Every tenth lives, so that their pages stay what they are.
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

  def test_after_more_collections
    assert_caught(MIXED + <<~'RUBY')
      dead = mixed
      4.times { |i| GC.start(full_mark: i.even?) }
      dead
    RUBY
  end

  GIVEN_BACK = <<~'RUBY'
    before = GC.stat(:total_freed_pages)
    dead = addresses(make(50_000))
    3.times { GC.start }
    raise "no page was given back" unless GC.stat(:total_freed_pages) > before
    dead
  RUBY

  def test_in_a_page_that_was_given_back
    assert_caught(GIVEN_BACK)
  end

  # Of single slots Valgrind knows only whether what stands there was written.
  def test_in_a_page_that_was_given_back_under_valgrind
    skip "two tools that know all memory cannot be combined" if ASAN
    header = Dir[File.expand_path("../.ext/include/*/ruby/config.h", File.dirname(RUBY))].first
    skip "CRuby was configured without Valgrind's header" unless header && File.read(header).match?(/^#define HAVE_VALGRIND_MEMCHECK_H 1/)
    skip "no Valgrind" unless system("valgrind", "--version", out: File::NULL, err: File::NULL)

    script = READER + "dead = begin\n#{GIVEN_BACK}\nend\nread(dead.each_slice(50).map(&:first))\n"
    out, = Open3.capture2e("valgrind", "-q", "--trace-children=yes", "--undef-value-errors=no", RUBY, "--disable-gems", "-e", script)
    assert_match(/Invalid read of size/, out)
    refute_match(/Invalid write/, out)
  end

  def test_of_a_sealed_page
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

  def test_in_a_child
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

  def test_where_an_object_has_moved_from
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

  def test_what_lives_may_be_read
    needs_asan
    run_ruby(READER + MIXED + <<~'RUBY')
      mixed
      check = -> { raise "poisoned" unless poisoned(addresses($kept)).zero? }
      3.times { GC.start; check.call }
      GC.compact if GC.respond_to?(:compact)
      check.call
      Process.warmup
      in_child { 3.times { GC.start; check.call } }
    RUBY
  end
end

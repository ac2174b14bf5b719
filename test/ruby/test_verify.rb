# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# GC.verify_internal_consistency finds what is wrong: hundreds of tests rest on it. Each script flips a bit of
# the collector's and expects a report.
class TestVerify < Minitest::Test
  include CowTest
  BITS = <<~'RUBY'
    require "fiddle"
    require "objspace"
    ARENA = 128 << 20
    SLOT = GC::INTERNAL_CONSTANTS.values_at(:BASE_SLOT_SIZE, :RVALUE_OVERHEAD).sum
    KINDS = %i[mark uncollectible marking remembered wb_unprotected pinned age_low age_high leaf allocated
               cleanup]

    # Changes the bit of an object in the bitmap of a kind, at the head of its arena (struct cow_arena).
    def flip(object, kind)
      address = ObjectSpace.dump(object)[/"address":"(0x\h+)"/, 1].hex
      arena = address / ARENA * ARENA
      sign, _, _, _, allocated, _, size, page_size = Fiddle::Pointer.new(arena)[0, 64].unpack("a8Q7")
      raise "no arena" unless sign == "CowArena"

      page = (address - arena) / page_size
      bitmap = (KINDS.index(kind) - KINDS.index(:allocated)) * (ARENA / page_size) + page
      slot = address % page_size / SLOT
      word = Fiddle::Pointer.new(arena + allocated + bitmap * size + slot / 64 * 8)
      word[0, 8] = [word[0, 8].unpack1("Q") ^ 1 << slot % 64].pack("Q")
    end

    def verify = GC.verify_internal_consistency
    $stdout.sync = true
    GC.disable
  RUBY

  # What +script+ prints before it ends in [BUG].
  def found(script)
    skip "heap pages have no arena" if GC.stat(:arenas).zero?
    out, status = run_ruby_status("#{BITS}#{script}", options: ["-W0"])
    refute status.success?, out
    assert_match(/\[BUG\]/, out)
    refute_match(/\[BUG\] Segmentation fault/, out)
    out
  end

  def test_an_object_that_owns_something_and_has_no_cleanup_bit
    out = found('text = "owns " * 1_000; verify; puts "sound"; flip(text, :cleanup); verify')
    assert_match(/sound.*heap_page \S+, \.cleanup_bits: expected a bit of an object that owns/m, out)
  end

  def test_a_page_that_does_not_know_that_it_remembers
    out = found(<<~'RUBY')
      all = Array.new(5_000) { |i| "text #{i}" }
      verify
      puts "sound"
      flip(all[2_500], :remembered)
      verify
    RUBY
    assert_match(/sound.*\.flags\.has_remembered_objects: expected 1/m, out)
  end

  def test_bits_of_a_free_slot
    out = found(<<~'RUBY')
      text = Array.new(5_000) { |i| "text #{i}" }[2_500]
      GC.enable
      GC.start
      GC.disable
      verify
      puts "sound"
      flip(text, :allocated)
      verify
    RUBY
    assert_match(/sound.*(expected bits of allocated slots only|found internal inconsistency)/m, out)
  end

  def test_a_leaf_that_refers_to_something
    out = found("list = [Object.new]; verify; puts 'sound'; flip(list, :leaf); verify")
    assert_match(/leaf bit of .*: expected an old object with 0 references, found young and 2/, out)
  end

  def test_an_object_of_a_sealed_page_that_may_be_collected
    out = found(<<~'RUBY')
      kept = Array.new(100_000) { Object.new }
      GC.enable
      Process.warmup
      GC.disable
      raise "not sealed" if GC.stat(:sealed_slots).zero?
      verify
      puts "sound"
      flip(kept[50_000], :uncollectible)
      verify
    RUBY
    assert_match(/sound.*heap_page \S+, sealed: expected marked and uncollectible objects/m, out)
  end
end

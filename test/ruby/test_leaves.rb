# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# The collector knows which old objects refer to nothing, and does not read these leaves in a full
# marking (COW_BITMAP_LEAF in gc/vocabulary.h). A reference that is written into one must not be lost.
class TestLeaves < Minitest::Test
  include CowTest

  # Ruby source for scripts. leaves(n) gives strings, long and short, that are old and leaves.
  LEAVES = IN_CHILD + COLLECT + <<~'RUBY'
    def leaves(count = 2_000)
      made = Array.new(count) { |i| i % 3 == 0 ? "long #{i} " * 40 : "s#{i}".dup }
      5.times { GC.start }
      GC.verify_internal_consistency
      made
    end

    def check(what, found, expected)
      raise "#{what}: #{found.inspect} in place of #{expected.inspect}" unless found == expected
    end
  RUBY

  def run_leaves(script, **options)
    run_ruby(LEAVES + script, **options)
  end

  def test_instance_variables
    run_leaves(<<~'RUBY')
      strings = leaves
      strings.each_with_index { |string, i| string.instance_variable_set(:@more, "more #{i}") }
      collect
      strings.each_with_index { |string, i| check(:more, string.instance_variable_get(:@more), "more #{i}") }
    RUBY
  end

  # The leaf gets a reference to an old object, which only a full collection would free.
  def test_references_to_what_is_old
    run_leaves(<<~'RUBY')
      strings = leaves(500)
      values = leaves(500).map { |string| [string] }
      5.times { GC.start }
      strings.each_with_index { |string, i| string.instance_variable_set(:@old, values[i]) }
      values = nil
      collect
      strings.each_with_index do |string, i|
        check(:old, string.instance_variable_get(:@old), [i % 3 == 0 ? "long #{i} " * 40 : "s#{i}"])
      end
    RUBY
  end

  # A long string and its copies share their bytes, which a third object owns. All refer to it.
  def test_shared_bytes
    run_leaves(<<~'RUBY')
      strings = leaves
      copies = strings.map { |string| [string.dup, string[5..], string.dup.freeze] }
      collect
      copies = copies.map { |all| all.first.dup }
      collect
      strings.zip(copies).each_with_index do |pair, i|
        check(:bytes, pair, [i % 3 == 0 ? "long #{i} " * 40 : "s#{i}"] * 2)
      end
    RUBY
  end

  # A leaf gets another class: a singleton class, or one that nothing else refers to.
  def test_classes
    run_leaves(<<~'RUBY')
      strings = leaves(600)
      strings.each_with_index do |string, i|
        if i.even?
          string.define_singleton_method(:number) { "n#{i}" }
        else
          string.extend(Module.new { define_method(:number) { "n#{i}" } })
        end
      end
      collect
      strings.each_with_index { |string, i| check(:number, string.number, "n#{i}") }
      kind = Class.new(String) { def number = "sub" }
      others = Array.new(600) { |i| kind.new("o#{i}") }
      kind = nil
      4.times { collect }
      others.each_with_index { |string, i| check(:other, [string, string.number], ["o#{i}", "sub"]) }
    RUBY
  end

  # An object in the slot of a dead leaf is no leaf.
  def test_slots_of_dead_leaves
    run_leaves(<<~'RUBY')
      3.times do
        leaves(20_000)
        GC.start
        arrays = Array.new(20_000) { |i| ["a#{i}", "b#{i}"] }
        5.times { GC.start }
        arrays.each_with_index { |array, i| array[0] = "c#{i}" }
        collect
        arrays.each_with_index { |array, i| check(:array, array, ["c#{i}", "b#{i}"]) }
      end
    RUBY
  end

  def test_written_while_marking_goes_on
    run_leaves(<<~'RUBY')
      strings = leaves
      rest = Array.new(50_000) { |i| [i.to_s] }
      3.times do |round|
        GC.start(full_mark: true, immediate_mark: false, immediate_sweep: false)
        strings.each_with_index do |string, i|
          string.instance_variable_set(:@more, [round, i])
          string.dup[3..]
          rest[i] = [string]
        end
        GC.start(full_mark: false)
        strings.each_with_index { |string, i| check(:more, string.instance_variable_get(:@more), [round, i]) }
      end
      collect
    RUBY
  end

  # Strings that went to another Ractor have another class.
  def test_leaves_that_are_sent
    run_leaves(<<~'RUBY')
      strings = leaves(1_000)
      5.times { GC.start }
      ractor = Ractor.new { Array.new(1_000) { Ractor.receive.size } }
      strings.each { |string| ractor.send(string, move: true) }
      GC.verify_internal_consistency
      collect
      ractor.take
    RUBY
  end

  def test_moved_leaves
    needs_compaction
    run_leaves(<<~'RUBY')
      strings = Array.new(8) { leaves }.each_with_index.filter_map { |some, i| some if i.odd? }.flatten
      GC.compact
      GC.verify_internal_consistency
      strings.each_with_index { |string, i| string.instance_variable_set(:@more, "m#{i}") if i.even? }
      GC.compact
      collect
      strings.each_with_index do |string, i|
        check(:more, string.instance_variable_get(:@more), i.even? ? "m#{i}" : nil)
      end
    RUBY
  end

  # Parent and child write to inherited leaves, the child also to its own.
  def test_fork
    run_leaves(BALLAST + <<~'RUBY')
      strings = leaves
      Process.warmup
      in_child do
        sealed!
        own = leaves
        (strings + own).each_with_index { |string, i| string.instance_variable_set(:@more, "c#{i}") }
        intact = lambda do
          (strings + own).each_with_index do |string, i|
            check(:more, string.instance_variable_get(:@more), "c#{i}")
          end
        end
        # Only the leaves refer to these values. A minor collection marks no inherited object by itself.
        3.times do |round|
          GC.start(full_mark: false)
          Array.new(20_000) { |i| "x#{round} #{i}" }
        end
        intact.call
        GC.verify_internal_consistency
        collect
        intact.call
      end
      strings.each_with_index { |string, i| string.instance_variable_set(:@more, "p#{i}") }
      collect
      in_child do
        collect
        strings.each_with_index { |string, i| check(:more, string.instance_variable_get(:@more), "p#{i}") }
      end
    RUBY
  end

  # A collection does not store code ranges, because a C function may be writing the bytes.
  def test_code_ranges
    run_leaves(<<~'RUBY')
      bytes = ["plain", "\u00e9t\u00e9", "\xff\xfe broken", "", "x" * 900, "\u3042" * 300]
      names = %w[UTF-8 US-ASCII BINARY EUC-JP Shift_JIS UTF-16LE UTF-32BE ISO-2022-JP UTF-7]
      encodings = names.map { |name| Encoding.find(name) }
      make = -> { bytes.product(encodings).map { |text, encoding| text.b.force_encoding(encoding) } }
      strings = make.call
      require "objspace"
      # setbyte makes the code range unknown.
      written = Array.new(100) { |i| ("x" * i + "yz").tap { |string| string.setbyte(0, 97) } }
      ranges = -> { written.map { |string| ObjectSpace.dump(string)[/"coderange":"(\w+)"/, 1] } }
      check(:unknown, ranges.call, ["unknown"] * 100)
      6.times { GC.start }
      check(:unknown, ranges.call, ["unknown"] * 100)
      in_child do
        strings.each { |string| string.setbyte(0, 0x81) unless string.empty? }
        strings.each { |string| string.valid_encoding? }
      end
      fresh = make.call
      strings.zip(fresh) do |old, new|
        check(old.inspect, [old.valid_encoding?, old.ascii_only?, old],
              [new.valid_encoding?, new.ascii_only?, new])
      end
      # A copy with another encoding does not keep the code range of the first string.
      changed = strings.map { |string| string.dup.force_encoding("UTF-8") }
      changed.zip(fresh) do |string, new|
        check(string.inspect, string.valid_encoding?, new.b.force_encoding("UTF-8").valid_encoding?)
      end
      GC.verify_internal_consistency
    RUBY
  end

  # Marking walks a hash by rb_st_each_entry, which must see all entries but those that are deleted.
  def test_hashes
    run_leaves(<<~'RUBY')
      plain = Hash.new { |_, key| "none #{key}" }
      identity = {}.compare_by_identity
      keys = Array.new(5_000) { |i| "key #{i}".dup }
      keys.each_with_index { |key, i| plain[[i]] = identity[key] = ["value #{i}"] }
      5_000.times { |i| i % 3 == 0 and (plain.delete([i]); identity.delete(keys[i])) }
      kept = keys.each_with_index.reject { |_, i| i % 3 == 0 }.map(&:first)
      keys = nil
      collect
      check(:size, [plain.size, identity.size], [kept.size] * 2)
      left = 5_000.times.reject { |i| i % 3 == 0 }
      left.zip(kept) do |i, key|
        check(:value, [plain[[i]], identity[key], key], [["value #{i}"], ["value #{i}"], "key #{i}"])
      end
      check(:default, plain[0], "none 0")
      left.each { |i| plain.delete([i]) }
      collect
      check(:empty, plain, {})
    RUBY
  end

  # A word of the bitmap of leaves may have bits of objects of several Ractors.
  def test_ractors
    run_leaves(<<~'RUBY', options: %w[-W0])
      ractors = Array.new(4) do
        Ractor.new do
          Array.new(20) do
            strings = Array.new(300) { |i| "r#{i}" }
            4.times { GC.start }
            strings.each_with_index { |string, i| string.instance_variable_set(:@more, "m#{i}") }
            GC.start
            strings.each_with_index.all? { |string, i| string.instance_variable_get(:@more) == "m#{i}" }
          end.all?
        end
      end
      check(:ractors, ractors.map(&:take), [true] * 4)
      collect
    RUBY
  end

  def test_under_stress
    run_leaves(<<~'RUBY')
      strings = leaves(60)
      GC.stress = true
      strings.each_with_index do |string, i|
        string.instance_variable_set(:@more, "m#{i}")
        string.dup[4..]
        def string.number = 7
      end
      GC.stress = false
      collect
      strings.each_with_index do |string, i|
        check(:more, [string.instance_variable_get(:@more), string.number], ["m#{i}", 7])
      end
    RUBY
  end

  # In the middle of an incremental marking leaves are marked, and their class may not be yet.
  def test_leaves_are_verified_in_the_middle_of_marking
    run_leaves(<<~'RUBY')
      strings = Array.new(2_000) { |i| "string #{i}" }
      4.times { GC.start }
      20.times do |i|
        GC.start(immediate_mark: false, immediate_sweep: false)
        GC.verify_internal_consistency
        strings << i.to_s
      end
    RUBY
  end

  # A full collection does without an OS page that is full of leaves and must not be accessed.
  def test_full_marking_does_not_read_leaves
    skip "assertions read objects" if ASSERTIONS
    skip "objects are read to find their mark bits" unless %w[arena binary linear].include?(LOCATOR)

    run_leaves(OS_PAGE_ACCESS + <<~'RUBY')
      strings = ("string," * 20_000).split(",") # nothing else is made between them
      5.times { GC.start }
      page = os_page_of(strings)
      3.times { GC.start }
      check(:protected, protect(page, 0), 0)
      GC.start
      check(:open, protect(page, 3), 0)
      GC.verify_internal_consistency
    RUBY
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "tmpdir"
require_relative "../helper"

# What is done with heap pages in which nothing lives any more (gc/sweep_modes.h, RUBY_GC_SWEEP).
class TestSweep < Minitest::Test
  include CowTest

  MODES = %w[keep discard visit-all].freeze

  def run_sweep(mode, script, env: {})
    run_ruby(IN_CHILD + OS_PAGES + script, env: env.merge("RUBY_GC_SWEEP" => mode))
  end

  def test_unknown_modes_are_said_to_be_ignored
    out, status = run_ruby_status("p 1", env: { "RUBY_GC_SWEEP" => "often" })
    assert status.success?
    assert_match(/RUBY_GC_SWEEP=often is ignored: it must be keep, discard or visit-all/, out)
    assert_match(/^1$/, out)
    (MODES + %w[proposed normalsweep]).each { |mode| assert_equal "1\n", run_sweep(mode, "p 1") }
  end

  # At the end only what owns something is looked at: what a program leaves open is written,
  # wherever it stands among what owns nothing.
  def test_what_is_left_open_at_the_end
    script = <<~'RUBY'
      leave = lambda do |name|
        $left = Array.new(300) { |i| [i.to_s, i * 1e300, (File.open(name, "a") if i % 3 == 0), Object.new, { i => i }] }
        GC.start
        $left.each_with_index { |left, i| left[2]&.write("#{i} ") }
        $left += Array.new(100) { |i| ["x" * 400, File.open(name, "a").tap { |file| file.write("#{300 + i * 3} ") }, Mutex.new, i.to_s.to_sym] }
      end
      Process.wait(fork { leave.call(ARGV[1]) })
      raise $?.inspect unless $?.success?
      leave.call(ARGV[0])
    RUBY
    [{}, { "RUBY_FREE_AT_EXIT" => "1" }, { "RUBY_GC_SWEEP" => "visit-all" }, { "RUBY_GC_SWEEP" => "discard" }].each do |env|
      Dir.mktmpdir do |directory|
        names = %w[parent child].map { |name| File.join(directory, name) }
        run_ruby(script, *names, env: env)
        names.each { |name| assert_equal Array.new(200) { |i| i * 3 }, File.read(name).split.map(&:to_i).sort, "#{env} #{name}" }
      end
    end
  end

  # All the heap's uses, in each mode: allocation under stress, compaction, children, walks,
  # finalizers, more Ractors than one.
  def test_all_modes_keep_what_lives
    MODES.each do |mode|
      out = run_sweep(mode, <<~'RUBY')
        make = ->(n) { Array.new(n) { |i| [i.to_s, i * 1e300, "x" * 100, [i] * 30, { i => i.to_s }, Object.new] } }
        check = lambda do |list|
          list.each_with_index { |(text, float, _, array, hash), i| raise "#{i}" unless text == i.to_s && float == i * 1e300 && array == [i] * 30 && hash == { i => i.to_s } }
          GC.verify_internal_consistency
        end
        kept = make.(2_000)
        finalized = 0
        1_000.times { ObjectSpace.define_finalizer(Object.new, proc { finalized += 1 }) }
        work = lambda do
          4.times do
            make.(10_000)
            GC.start
            check.(kept)
          end
          GC.stress = true
          some = make.(20)
          GC.stress = false
          check.(some)
          GC.compact if GC.respond_to?(:compact)
          check.(kept)
          raise "walk" unless ObjectSpace.each_object(String).count > 4_000
        end
        work.call
        in_child(&work)
        Warning[:experimental] = false
        Array.new(3) { Ractor.new { 30_000.times.sum { |i| i.to_s.size + [i].size } } }.each(&:take)
        work.call
        p finalized > 900
      RUBY
      assert_equal "true\n", out, mode
    end
  end

  # Memory that is given to the system is no longer there; pages that are kept are.
  def test_discard_gives_free_pages_to_the_system
    skip "heap pages are malloc's" unless GC.stat(:arenas).to_i > 0
    skip "the kernel does not tell here what is in memory" unless File.readable?("/proc/self/pagemap")

    left = %w[keep discard].to_h do |mode|
      out = run_sweep(mode, <<~'RUBY', env: { "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO" => "1.0" })
        made = Array.new(100_000) { |i| 1e305 + i * 1e300 }
        pages = os_pages(made)
        puts pages.size, count_pages(pages, PRESENT)
        made = nil
        3.times { GC.start }
        puts count_pages(pages, PRESENT)
        made = Array.new(100_000) { |i| 1e305 + i * 1e300 }
        made.each_with_index { |float, i| raise unless float == 1e305 + i * 1e300 }
        GC.verify_internal_consistency
      RUBY
      pages, before, after = numbers(out)
      assert_operator pages, :>, 900
      assert_equal pages, before
      [mode, after.fdiv(pages)]
    end
    assert_operator left["keep"], :>, 0.9
    assert_operator left["discard"], :<, 0.1
  end

  # Where each slot is visited a child's collection writes what has died.
  def test_visiting_all_slots_writes_the_dead
    skip "marks stand in the objects" if LOCATOR == "header"
    skip "the kernel does not tell here who maps a page" unless File.readable?("/proc/self/pagemap")

    out = run_sweep("visit-all", <<~'RUBY')
      kept = Array.new(100_000) { |i| 1e305 + i * 1e300 }
      Process.warmup
      pages = os_pages(kept)
      in_child do
        kept.select!.with_index { |_, i| i % 3 > 0 }
        3.times { GC.start }
        puts pages.size, count_pages(pages, ALONE)
      end
    RUBY
    pages, written = numbers(out)
    assert_operator written, :>, pages * 0.9
  end

  # Each collection is a full one, and what is free stands in the pool of the next marking. With 0 and
  # 0.5 each start without gems ended with "cannot create a new page" on 6926173.
  def test_a_heap_whose_free_slots_are_pooled
    %w[0 0.5 0.9].product([[], ["--disable-gems"]]) do |factor, options|
      out = run_ruby(<<~'RUBY', env: { "RUBY_GC_HEAP_OLDOBJECT_LIMIT_FACTOR" => factor }, options: options)
        kept = Array.new(100_000) { |i| [i] }
        GC.start
        kept << Array.new(200_000) { [1] }
        GC.verify_internal_consistency
        puts kept.size
      RUBY
      assert_equal [100_001], numbers(out)
    end
  end
end

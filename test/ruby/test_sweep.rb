# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "tmpdir"
require_relative "../helper"

# The ways to sweep dead objects and empty heap pages (gc/sweep_modes.h, RUBY_GC_SWEEP).
class TestSweep < Minitest::Test
  include CowTest

  def surroundings = CALM

  MODES = %w[keep discard visit-all].freeze

  def run_sweep(mode, script, env: {})
    run_ruby(IN_CHILD + OS_PAGES + script, env: env.merge("RUBY_GC_SWEEP" => mode))
  end

  def test_a_warning_says_that_an_unknown_mode_is_ignored
    out, status = run_ruby_status("p 1", env: { "RUBY_GC_SWEEP" => "often" })
    assert status.success?, out
    assert_match(/RUBY_GC_SWEEP=often is ignored: it must be keep, discard or visit-all/, out)
    assert_match(/^1$/, out)
    (MODES + %w[proposed normalsweep]).each { |mode| assert_equal "1\n", run_sweep(mode, "p 1"), mode }
  end

  # A process that ends visits only objects that need a cleanup. It writes the buffers of files that the
  # program has left open, wherever they lie among objects that need none.
  def test_files_that_are_left_open_at_the_end
    script = <<~'RUBY'
      leave = lambda do |name|
        $left = Array.new(300) do |i|
          [i.to_s, i * 1e300, (File.open(name, "a") if i % 3 == 0), Object.new, { i => i }]
        end
        GC.start
        $left.each_with_index { |left, i| left[2]&.write("#{i} ") }
        $left += Array.new(100) do |i|
          file = File.open(name, "a")
          file.write("#{300 + i * 3} ")
          ["x" * 400, file, Mutex.new, i.to_s.to_sym]
        end
      end
      Process.wait(fork { leave.call(ARGV[1]) })
      raise $?.inspect unless $?.success?
      leave.call(ARGV[0])
    RUBY
    [{}, { "RUBY_FREE_AT_EXIT" => "1" }, { "RUBY_GC_SWEEP" => "visit-all" },
     { "RUBY_GC_SWEEP" => "discard" }].each do |env|
      Dir.mktmpdir do |directory|
        names = %w[parent child].map { |name| File.join(directory, name) }
        run_ruby(script, *names, env: env)
        names.each do |name|
          expected = Array.new(200) { |i| i * 3 }
          assert_equal expected, File.read(name).split.map(&:to_i).sort, "#{env} #{name}"
        end
      end
    end
  end

  # Each mode with all uses of the heap: allocation under stress, compaction, children, walks, finalizers,
  # several Ractors.
  def test_all_modes_keep_live_objects
    MODES.each do |mode|
      out = run_sweep(mode, "DROPPED, STRESSED = #{ASSERTIONS ? "3_000, 5" : "10_000, 20"}\n" + <<~'RUBY')
        make = lambda do |n|
          Array.new(n) { |i| [i.to_s, i * 1e300, "x" * 100, [i] * 30, { i => i.to_s }, Object.new] }
        end
        check = lambda do |list|
          list.each_with_index do |(text, float, _, array, hash), i|
            right = text == i.to_s && float == i * 1e300 && array == [i] * 30 && hash == { i => i.to_s }
            raise "object #{i} has changed" unless right
          end
          GC.verify_internal_consistency
        end
        kept = make.(2_000)
        # Once there were other Ractors, a walk finds only what they can share.
        shared = Array.new(5_000) { |i| "shared #{i}".freeze }
        finalized = 0
        1_000.times { ObjectSpace.define_finalizer(Object.new, proc { finalized += 1 }) }
        work = lambda do
          4.times do
            make.(DROPPED)
            GC.start
            check.(kept)
          end
          GC.stress = true
          some = make.(STRESSED)
          GC.stress = false
          check.(some)
          GC.compact if GC.respond_to?(:compact)
          check.(kept)
          found = ObjectSpace.each_object(String).count
          raise "a walk found only #{found} strings" unless found > 4_000
        end
        work.call
        in_child(&work)
        Warning[:experimental] = false
        Array.new(3) { Ractor.new { 30_000.times.sum { |i| i.to_s.size + [i].size } } }.each(&:take)
        work.call
        p finalized > 900 && shared.size == 5_000
      RUBY
      assert_equal "true\n", out, mode
    end
  end

  # The memory of empty pages is no longer there with discard, and still there with keep.
  def test_discard_gives_the_memory_of_empty_pages_back
    skip "heap pages are malloc's" unless GC.stat(:arenas).to_i > 0
    skip "the kernel does not say which OS pages are in memory" unless File.readable?("/proc/self/pagemap")

    left = %w[keep discard].to_h do |mode|
      out = run_sweep(mode, <<~'RUBY', env: { "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO" => "1.0" })
        made = Array.new(100_000) { |i| 1e305 + i * 1e300 }
        pages = os_pages(made)
        puts pages.size, count_pages(pages, PRESENT)
        made = nil
        3.times { GC.start }
        puts count_pages(pages, PRESENT)
        made = Array.new(100_000) { |i| 1e305 + i * 1e300 }
        made.each_with_index { |float, i| raise "float #{i} is #{float}" unless float == 1e305 + i * 1e300 }
        GC.verify_internal_consistency
      RUBY
      pages, before, after = numbers(out)
      assert_operator pages, :>, 900, "OS pages of the objects"
      assert_equal pages, before, "OS pages that are in memory while the objects live"
      [mode, after.fdiv(pages)]
    end
    assert_operator left["keep"], :>, 0.9, "share of the OS pages that stays in memory with keep"
    assert_operator left["discard"], :<, 0.1, "share of the OS pages that stays in memory with discard"
  end

  # Where each slot is visited a child that collects writes the dead objects.
  def test_visiting_all_slots_writes_dead_objects
    skip "mark bits are in the objects" if LOCATOR == "header"
    skip "the kernel does not say which OS pages are shared" unless File.readable?("/proc/self/pagemap")

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
    assert_operator written, :>, pages * 0.9, "OS pages that the child has written, of #{pages}"
  end

  # With such a factor each collection is a full one, and free slots are pooled for the next marking. On
  # 6926173 ruby without gems ended at each start with "cannot create a new page" if the factor was 0 or 0.5.
  def test_a_heap_whose_free_slots_are_pooled
    %w[0 0.5 0.9].product([[], ["--enable-gems"]]) do |factor, options|
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

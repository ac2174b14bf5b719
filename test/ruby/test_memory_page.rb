# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require_relative "recorded_proc"
require_relative "../../lib/cowruby/memory/html"
require "minitest/mock"

# The page that cowruby-memory --html writes, and the map of a heap in it.
class TestMemoryPage < Minitest::Test
  include CowTest
  Memory = CowRuby::Memory

  # A master with strings, most of which die before the fork, and a worker that changes some of them and makes
  # others. Each prints what its own GC.stat says, and waits.
  SERVER = <<~'RUBY'
    $all = Array.new(200_000) { |i| "inherited #{i}" * 2 }
    $all.select!.with_index { |_, i| i % 10 < 3 }
    Process.warmup
    reader, writer = IO.pipe
    worker = fork do
      $all.first(2_000).each { |text| text << "!" }
      own = Array.new(100_000) { |i| "own #{i}" * 2 }
      GC.start
      stat = GC.stat
      slots = stat.values_at(:heap_available_slots, :closed_slots).compact.sum
      seal = stat.fetch(:sealed_slots, 0).positive?
      writer.puts [$$, stat[:heap_allocated_pages], stat[:heap_live_slots], slots, seal].join(" ")
      sleep
    end
    puts $$, reader.gets
    $stdout.flush
    $stdin.read
    Process.kill(:KILL, worker)
    Process.wait(worker)
  RUBY

  # Yields the master's number and the worker's line.
  def with_server
    running_ruby(SERVER) { |master, line| yield master, line.split }
  end

  def running_ruby(script)
    IO.popen([RUBY, "--disable-gems", "-e", script], "r+") do |pipe|
      yield Integer(pipe.gets), pipe.gets
    ensure
      pipe.close_write
    end
  end

  def heap_map(master, worker)
    Memory::HeapMap.new(master, worker)
  rescue Memory::AddressSpace::Unreadable => e
    skip e.message
  end

  def test_the_map_of_a_real_heap
    skip "heap pages of malloc's are not recognised" if %w[alignoff binary linear].include?(LOCATOR)
    with_server do |master, (worker, allocated, live, slots, sealed)|
      map = heap_map(master, Integer(worker))
      assert_in_delta Integer(allocated), map.pages.size, Integer(allocated) / 50
      assert_in_delta Integer(slots), map.pages.sum(&:slots), Integer(slots) / 50
      assert_in_delta Integer(live), map.pages.sum(&:used), Integer(slots) / 10
      assert_includes 0.0..1.0, map.fragmentation
      assert_equal map.pages.map(&:address).sort.uniq, map.pages.map(&:address)
      states = map.pages.map(&:state).tally
      assert_operator states.fetch("lost"), :>=, 2, states.inspect
      assert_operator states.fetch("own"), :>=, 100_000 * 40 / map.pages.first.size, states.inspect
      next unless LOCATOR

      assert_operator states.fetch("shared", 0), :>, 10, states.inspect
      assert_equal map.pages.size, map.arenas.sum(&:used)
      if sealed == "true"
        assert_operator map.pages.count(&:sealed), :>, 10
        assert_empty(map.pages.select { |page| page.sealed && page.state == "own" })
      end
    end
  end

  # What the page is made from, in place of real processes.
  Compared = Struct.new(:tallies, :pages, :arenas) do
    def contents? = true

    def fragmentation = 0.25
  end

  def compared(states = %w[shared shared lost own])
    kinds = Memory::PageKinds::ALL.to_h { |kind| [kind, Memory::LostPages::Tally.new(5, 2, 3)] }
    pages = states.each_with_index.map do |state, i|
      Memory::HeapMap::Page.new(i << 14, 1 << 14, 40, 400, 100 * i, i == 1, state)
    end
    pages << Memory::HeapMap::Page.new(9 << 14, 1 << 14, 0, 0, 0, false, "absent")
    Compared.new(kinds, pages, [Memory::HeapMap::Arena.new(1 << 27, 8192, 400, 300)])
  end

  def html(found = compared)
    @asked = []
    compare = lambda do |*asked|
      @asked << asked
      found || raise(Memory::AddressSpace::Unreadable, "may not read process #{asked[1]}")
    end
    Memory::Html.new(@target, compare: compare)
  end

  def report_of(proc)
    Memory::Observer.new(100, procfs: proc.procfs).look
  end

  # Nobody may be able to put markup into the page by a process's title, and it asks nothing of a network.
  def test_titles_are_text
    RecordedProc.with do |proc|
      proc.puma
      proc.add(101, 100, "puma: <script>alert(1)</script> & \"x\"")
      page = html.page(report_of(proc))
      refute_match(/<script/i, page)
      assert_includes page, "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;x&quot;"
      refute_match(%r{https?:|src=|url\(|@import}, page)
      assert_match(/\A<!DOCTYPE html>\n<html lang="en">/, page)
      assert_includes page, "One look has been made"
    end
  end

  def test_bars_and_maps
    RecordedProc.with do |proc|
      page = html.page(report_of(proc.puma))
      # Only one of them is looked into in particular.
      assert_equal [[100, 101, true], [100, 102, false]], @asked
      assert_equal 3, page.scan('class="process"').size
      assert_equal 5, page.scan(/<i class="striped" style="width:\d/).size / 2
      Memory::HtmlCharts::STATES.each_value { |colour| assert_includes page, %(<path fill="#{colour}") }
      assert_includes page, "5 heap pages of 16 KB"
      assert_includes page, "25 % is free"
      cells = [4, 1600, "38 %", 2, 1, 1, 1].map { |cell| "<td>#{cell}</td>" }.join
      assert_includes page, "<tr><th>40 bytes</th>#{cells}</tr>"
      assert_includes page, "none: empty"
      assert_includes page, "300 of 8192 pages used"
      assert_includes page, "Process 101 at "
    end
  end

  # Details stay while others are new: the worker may have gone.
  def test_a_worker_that_has_ended
    RecordedProc.with do |proc|
      made = html
      now = 1000.0
      Memory.stub(:now, -> { now += 0.1 }) do
        refute_includes made.page(report_of(proc.puma)), "has ended since"
        proc.remove(101)
        assert_includes made.page(report_of(proc)), "Process 101 at "
        assert_includes made.page(report_of(proc)), "it has ended since"
        assert_equal 2, @asked.size
      end
    end
  end

  def test_the_worker_that_is_asked_for
    RecordedProc.with do |proc|
      @target = 101
      html.page(report_of(proc.puma(20)))
      assert_equal [100, 101, true], @asked.first
      assert_equal Memory::Html::MOST_WORKERS, @asked.size
    end
  end

  def test_memory_that_may_not_be_read
    RecordedProc.with do |proc|
      page = html(nil).page(report_of(proc.puma))
      assert_includes page, "Note: may not read process 10"
      assert_includes page, "There is no worker that was forked and may be read"
    end
  end

  # The lines over time end with their values; of many looks the older ones are thinned out.
  def test_looks_over_time
    RecordedProc.with do |proc|
      proc.puma
      html = self.html
      now = 1000.0
      Memory.stub(:now, -> { now += 30 }) { 700.times { html.page(report_of(proc)) } }
      page = Memory.stub(:now, -> { now += 30 }) { html.page(report_of(proc)) }
      assert_equal 3, page.scan("<polyline").size
      points = page[/<polyline points="([^"]+)"/, 1].split
      assert_includes 300..600, points.size
      assert_equal "0.0", points.first.split(",").first
      assert_equal "1000.0", points.last.split(",").first
      assert_match(/>server 0\.6 MB</, page)
    end
  end

  def test_a_server_that_has_not_forked
    RecordedProc.with do |proc|
      page = html.page(report_of(proc.puma(0)))
      assert_includes page, "There is no worker that was forked and may be read"
    end
  end

  # Names stand apart, also where lines end at one place.
  def test_names_of_lines_do_not_cover_each_other
    charts = Object.new.extend(Memory::HtmlCharts)
    html = charts.send(:names, [["a", [1.0]], ["b", [1.0]], ["c", [0.99]]], 1.0)
    tops = html.scan(/top:(-?[\d.]+)em/).flatten.map(&:to_f).sort
    tops.each_cons(2) { |above, below| assert_operator below - above, :>=, 1.39 }
  end

  # A map joins neighbours of one colour, and not over the end of a row.
  def test_a_map_of_cells
    charts = Object.new.extend(Memory::HtmlCharts)
    html = charts.send(:cell_map, ["#000"] * 18 + ["#fff"] * 2, "pages")
    assert_includes html, %(<path fill="#000" d="M0 0h16v1h-16zM0 1h2v1h-2z"/>)
    assert_includes html, %(<path fill="#fff" d="M2 1h2v1h-2z"/>)
    assert_includes html, %(viewBox="0 0 16 2")
  end
end

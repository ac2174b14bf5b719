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
  MB = 1 << 20

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
      seal = stat.values_at(:sealed_slots).first.to_i.positive?
      writer.puts [$$, stat[:heap_allocated_pages], stat[:heap_live_slots], stat[:heap_available_slots], seal].join(" ")
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
    with_server do |master, (worker, allocated, live, available, sealed)|
      map = heap_map(master, Integer(worker))
      assert_in_delta Integer(allocated), map.pages.size, 2
      assert_in_delta Integer(available), map.pages.sum(&:slots), Integer(available) / 50
      assert_in_delta 1 - Integer(live).fdiv(Integer(available)), map.fragmentation, 0.05
      assert_equal map.pages.map(&:address).sort.uniq, map.pages.map(&:address)
      states = map.pages.map(&:state).tally
      assert_operator states.fetch("lost"), :>=, 2, states.inspect
      assert_operator states.fetch("own"), :>=, 100_000 / 20 * 40 / map.pages.first.size, states.inspect
      assert_operator states.fetch("shared", 0), :>, 10, states.inspect if LOCATOR
      next unless LOCATOR

      if sealed == "true"
        assert_operator map.pages.count(&:sealed), :>, 10
        assert_empty(map.pages.select { |page| page.sealed && page.state == "own" })
      end
      assert_equal map.pages.size, map.arenas.sum(&:used) if LOCATOR == "arena"
    end
  end

  def report_of(proc)
    Memory::Observer.new(100, procfs: proc.procfs).look
  end

  # Nobody may be able to put markup into the page by a process's title, and it asks nothing of a network.
  def test_titles_are_text
    RecordedProc.with do |proc|
      proc.puma
      proc.add(101, 100, "puma: <script>alert(1)</script> & \"x\"")
      page = Memory::Html.new.page(report_of(proc))
      refute_match(/<script/i, page)
      assert_includes page, "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;x&quot;"
      refute_match(%r{https?:|src=|url\(|@import}, page)
      assert_match(/\A<!DOCTYPE html>\n<html lang="en">/, page)
      assert_includes page, "One look has been made"
    end
  end

  # The lines over time end with their values; of many looks the older ones are thinned out.
  def test_looks_over_time
    RecordedProc.with do |proc|
      proc.puma
      html = Memory::Html.new
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
      page = Memory::Html.new.page(report_of(proc.puma(0)))
      assert_includes page, "There is no worker that was forked and may be read"
    end
  end

  # Names stand apart, also where lines end at one place.
  def test_names_of_lines_do_not_cover_each_other
    charts = Object.new.extend(Memory::HtmlCharts)
    html = charts.send(:names, [["#000", "a", [1.0]], ["#000", "b", [1.0]], ["#000", "c", [0.99]]], 1.0)
    tops = html.scan(/top:(-?[\d.]+)em/).flatten.map(&:to_f).sort
    tops.each_cons(2) { |above, below| assert_operator below - above, :>=, 1.39 }
  end

  # A map joins neighbours of one colour, and not over the end of a row.
  def test_a_map_of_cells
    charts = Object.new.extend(Memory::HtmlCharts)
    columns = Memory::HtmlCharts::COLUMNS
    html = charts.send(:cell_map, ["#000"] * (columns + 2) + [nil, "#fff"], "pages")
    assert_includes html, %(<path fill="#000" d="M0 0h#{columns}v1h-#{columns}zM0 1h2v1h-2z"/>)
    assert_includes html, %(<path fill="#fff" d="M3 1h1v1h-1z"/>)
    assert_includes html, %(viewBox="0 0 #{columns} 2")
  end
end

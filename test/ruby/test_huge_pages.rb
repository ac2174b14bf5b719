# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../helper"

# Transparent huge pages: the kernel must not make 2 MB of a few pages that a worker has written, or copy
# 2 MB for one word.
class TestHugePages < Minitest::Test
  include CowTest

  SETTINGS = "/sys/kernel/mm/transparent_hugepage"
  # khugepaged looks at everything, hardly with a pause.
  HURRY = { "enabled" => "always", "khugepaged/defrag" => "1", "khugepaged/scan_sleep_millisecs" => "10",
            "khugepaged/alloc_sleep_millisecs" => "10", "khugepaged/pages_to_scan" => "100000" }.freeze
  MINUTES = ENV["COWRUBY_HUGE_PAGES_MINUTES"]
  KINDS = ["VM words", *("GC pages" if LOCATOR == "arena")].freeze

  def setup
    skip "this kernel has no transparent huge pages" unless File.directory?(SETTINGS)
    skip "the kernel describes AddressSanitizer's terabytes for too long" if ASAN
  end

  # A parent with a heap to share, and four workers that run its code and make objects of their own.
  # Every 10 seconds it prints of itself and of each the KB, and those in huge pages, by kind of page.
  PROGRAM = EACH_MAPPING + <<~'RUBY'
    require "json"
    seconds = Float(ARGV[0])
    # CRuby asks for none in its process (PR_SET_THP_DISABLE). Without that: as in a program that
    # embeds Ruby, or where a sandbox denies the call.
    syscall(RUBY_PLATFORM.start_with?("x86_64") ? 157 : 167, 41, 0, 0, 0, 0)

    KEPT = Array.new(400_000) { |i| "string #{i}" }
    2_000.times do |i|
      eval "class C#{i % 500}; def m#{i}(x) = [x, to_s.size, KEPT[#{i}]].max_by(&:to_s); end"
    end
    def work(i) = Object.const_get(:"C#{i % 500}").new.public_send(:"m#{i}", i)
    Process.warmup
    workers = Array.new(4) do
      fork do
        ring = []
        (0..).each do |i|
          work(i % 2_000)
          ring[i % 20_000] = "own #{i}" * 4
          sleep 0.01 if i % 500 == 0
          GC.start if i % 1_000_000 == 999_999
        end
      end
    end
    at_exit { workers.each { |pid| Process.kill(:KILL, pid) rescue nil } if Process.pid == $$ }

    def sample(pid)
      sums = Hash.new { |hash, kind| hash[kind] = Hash.new(0) }
      each_mapping(pid) do |kind, text|
        text.scan(/^(Private_Dirty|AnonHugePages|Rss): +(\d+)/) { |field, kb| sums[kind][field] += kb.to_i }
      end
      sums
    end

    begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    while (now = Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun) < seconds
      sleep [10, seconds / 4].min
      puts JSON.generate([Process.pid, *workers].map { |pid| sample(pid) })
    end
    exit
  RUBY

  # Also shows that the test sees what it looks for: malloc's memory is in huge pages.
  def test_workers_have_no_huge_pages_however_long_they_run
    skip "changes settings of the machine: make check-huge-pages, as root" unless MINUTES
    seconds = Float(MINUTES) * 60
    out = in_a_hurry { run_ruby(PROGRAM, seconds, env: PLACE, options: ["-W0"], timeout: seconds + 60) }

    samples = out.lines.flat_map { |line| JSON.parse(line) }
    assert_operator samples.size, :>=, 4 * 5
    assert_operator samples.sum { |sample| sample["malloc"]["AnonHugePages"] }, :>, 0, "of malloc's memory"
    samples.each do |sample|
      KINDS.each do |kind|
        assert_operator sample.fetch(kind)["Rss"], :>, 0, kind
        assert_equal 0, sample.fetch(kind)["AnonHugePages"], "KB of #{kind} in huge pages"
      end
    end
  end

  # The flag "nh" of each mapping, which it keeps in its children.
  def test_regions_are_marked
    out = run_ruby(EACH_MAPPING + <<~'RUBY', env: PLACE)
      child = fork { sleep }
      each_mapping(child) do |kind, text|
        puts "#{kind}: #{text[/^VmFlags:.*/].split.include?("nh")}" if text[/^Rss: +(\d+)/, 1] != "0"
      end
      Process.kill(:KILL, child)
    RUBY
    marked = out.lines.map { |line| line.chomp.split(": ") }.group_by(&:first)
    KINDS.each { |kind| assert_equal ["true"], marked.fetch(kind).map(&:last).uniq, kind }
  end

  private

  # Yields with the machine's settings as in HURRY.
  def in_a_hurry
    before = HURRY.keys.to_h { |name| [name, setting(name)] }
    HURRY.each { |name, value| File.write("#{SETTINGS}/#{name}", value) }
    yield
  ensure
    before&.each { |name, value| File.write("#{SETTINGS}/#{name}", value) }
  end

  # Of "always [madvise] never" the one in brackets.
  def setting(name)
    text = File.read("#{SETTINGS}/#{name}")
    text[/\[(\w+)\]/, 1] || text.strip
  end
end

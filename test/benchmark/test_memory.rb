# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/memory/memory")
BenchmarkTest.load("lib/processes/process_table")

class TestMemory < Minitest::Test
  include BenchmarkTest

  ROLLUP = <<~TEXT
    561000000000-7ffd00000000 ---p 00000000 00:00 0                          [rollup]
    Rss:                1200 kB
    Pss:                 700 kB
    Pss_Dirty:           500 kB
    Shared_Clean:        400 kB
    Shared_Dirty:        100 kB
    Private_Clean:       200 kB
    Private_Dirty:       500 kB
    AnonHugePages:         0 kB
    Swap:                  0 kB
    SwapPss:               0 kB
  TEXT

  # The name that CRuby gives its heap pages.
  HEAP_PAGES = "[anon:Ruby:GC:default:heap_page_body_allocate]"

  SMAPS = <<~TEXT
    55d000000000-55d000001000 r-xp 00000000 00:00 0
    Rss:                   4 kB
    Private_Dirty:         4 kB
    VmFlags: rd ex mr mw me ac sd
    55d000001000-55d000002000 rw-p 00000000 00:00 0                          [heap]
    Rss:                   8 kB
    Private_Dirty:         8 kB
    7f0000000000-7f0000001000 rw-p 00000000 00:00 0
    Rss:                  16 kB
    7f0000001000-7f0000002000 rw-p 00000000 00:00 0
    Rss:                  32 kB
    7f0000003000-7f0000004000 r--p 00000000 fe:00 1234                       /usr/lib/a b.so (deleted)
    Rss:                  64 kB
    Shared_Clean:         64 kB
    7f0000005000-7f0000006000 rw-p 00000000 00:00 0                          #{HEAP_PAGES}
    Rss:                 128 kB
  TEXT

  def test_rollup_gives_the_named_fields_only
    expected = { "Rss" => 1200, "Pss" => 700, "Shared_Clean" => 400, "Shared_Dirty" => 100,
                 "Private_Clean" => 200, "Private_Dirty" => 500, "AnonHugePages" => 0,
                 "Swap" => 0, "SwapPss" => 0 }
    assert_equal expected, Memory.parse_rollup(ROLLUP)
  end

  def test_smaps_are_summed_by_name_without_zeros
    expected = { "anonymous, executable" => { "Rss" => 4, "Private_Dirty" => 4 },
                 "[heap]" => { "Rss" => 8, "Private_Dirty" => 8 }, "anonymous" => { "Rss" => 48 },
                 "/usr/lib/a b.so (deleted)" => { "Rss" => 64, "Shared_Clean" => 64 },
                 HEAP_PAGES => { "Rss" => 128 } }
    assert_equal expected, Memory.parse_smaps(SMAPS)
  end

  def test_sample_of_a_real_process_adds_up
    sample = Memory.sample(Process.pid)
    parts = sample.values_at("Private_Dirty", "Private_Clean", "Shared_Dirty", "Shared_Clean").sum
    assert_equal sample["Rss"], parts
    # The process goes on between the reads of the two files.
    assert_in_delta sample["Rss"], sample["mappings"].values.sum { |fields| fields.fetch("Rss", 0) }, 4_096
  end

  def test_tree_finds_children_of_children_whatever_their_names
    out, inn = IO.pipe
    hold, let_go = IO.pipe
    child = fork do
      let_go.close
      Process.setproctitle("a) b (c")
      fork do
        inn.puts Process.pid
        hold.read
      end
      hold.read
    end
    grandchild = out.gets.to_i
    assert_equal [child, grandchild], ProcessTable.tree(child)
    assert_includes ProcessTable.tree(Process.pid), grandchild
  ensure
    [out, inn, hold, let_go].each(&:close)
    Process.wait(child)
  end

  def test_tree_leaves_out_processes_that_have_ended
    child = fork { exit!(0) }
    Process.wait(child)
    refute_includes ProcessTable.tree(Process.pid), child
  end
end

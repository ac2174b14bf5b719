# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require_relative "../../tool/lib"
require_relative "../../benchmark/lib/processes/process_table"

# tool/lib.rb: how commands are run, and ended.
class TestLib < Minitest::Test
  # Prints the number of a grandchild, and waits with it.
  WAITS = ["sh", "-c", "echo ran; sleep 600 & echo $!; wait"].freeze

  def setup
    @log = File.join(Dir.mktmpdir("cow-lib"), "sub/log")
  end

  def teardown = FileUtils.rm_rf(File.dirname(@log, 2))

  # The grandchild that the log names is gone, or dead and not yet reaped.
  def assert_grandchild_ended
    pid = File.read(@log)[/^\d+$/]
    Timeout.timeout(60) { Thread.pass while CowBench::ProcessTable.alive?(pid) }
  end

  def test_output_and_status
    script = "echo out; echo err >&2; echo $COW_X; exit 3"
    output, status = run_logged(@log, "sh", "-c", script, env: { "COW_X" => "x" })
    assert_equal ["out\nerr\nx\n", 3], [output, status.exitstatus]
    assert_equal output, File.read(@log)
  end

  def test_what_takes_too_long_is_killed_with_all_it_started
    output, status = run_logged(@log, *WAITS, limit: 1)
    refute status.success?
    assert_match(/\Aran\n\d+\n\n\S+: killed after 1 s\n\z/, output)
    assert_grandchild_ended
  end

  def test_what_it_leaves_behind_is_killed
    _, status = run_logged(@log, "sh", "-c", "sleep 600 & echo $!")
    assert_predicate status, :success?
    assert_grandchild_ended
  end

  def test_an_exception_ends_it
    runner = Thread.new { run_logged(@log, *WAITS) }
    runner.report_on_exception = false
    Timeout.timeout(60) { Thread.pass until File.exist?(@log) && File.read(@log).match?(/^\d+$/) }
    runner.raise(Interrupt)
    assert_raises(Interrupt) { runner.join }
    assert_grandchild_ended
  end

  def test_kinds_of_builds
    assert_equal %w[cow stock profile debug strict asan ubsan arena alignoff binary linear header], builds
  end
end

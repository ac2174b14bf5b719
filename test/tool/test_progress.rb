# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestProgress < Minitest::Test
  include ToolTest

  def test_keeps_the_whole_output_and_tells_steps
    _, err, status = tool("progress", "#{@dir}/log", "work", "--", "sh", "-c",
                          "echo compiling a; echo compiling b >&2; echo other")
    assert status.success?
    assert_equal ["compiling a", "compiling b", "other"], File.readlines("#{@dir}/log", chomp: true).drop(1)
    assert_match(/work: done, 2 steps$/, err)
  end

  def test_a_failure_shows_the_end_of_the_log_and_its_place
    _, err, status = tool("progress", "#{@dir}/log", "work", "--", "sh", "-c", "echo the reason; exit 3")
    assert_equal 3, status.exitstatus
    assert_match(%r{work: FAILED \(3\); the full log is #{@dir}/log}, err)
    assert_match(/^    the reason$/, err)
  end

  def test_a_missing_command_and_a_log_that_cannot_be_written
    _, err, status = tool("progress", "#{@dir}/log", "work", "--", "/none/such")
    refute status.success?
    assert_match(%r{error: work: .*/none/such}, err)
    _, err, status = tool("progress", "/proc/none/log", "work", "--", "true")
    refute status.success?
    assert_match(/the log cannot be written/, err)
  end

  def test_append
    2.times { tool("progress", "--append", "#{@dir}/log", "work", "--", "echo", "x") }
    assert_equal 2, File.readlines("#{@dir}/log").grep("x\n").size
  end
end

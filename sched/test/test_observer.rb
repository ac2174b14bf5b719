# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# What is counted by process, whoever schedules.
class TestObserver < Minitest::Test
  include InGuest

  # More processes than there are rows: those that have ended make room, and count by their names.
  def test_processes_that_have_ended_make_room
    result = guest(<<~SHELL)
      start many --observe
      i=0
      while [ $i -lt 9000 ]; do (:); i=$((i+1)); done
      spin 100 1 >/out/spin
      finish
    SHELL
    report = result.json("many.json")
    rows = report["processes"]
    assert_operator rows.sum { |row| row["processes"] }, :>=, 9000
    gone = rows.select { |row| row["pid"].zero? }
    assert_includes gone.map { |row| row["name"] }, "sh"
    refute_includes gone.map { |row| row["name"] }, "others"
    spin = printed(result, "spin")["processes"].first
    row = rows.find { |one| one["pid"] == spin["pid"] }
    assert_operator row["ran_ms"], :>=, spin["threads"].first
    %w[switches address_space_switches waits].each do |key|
      assert_equal report["all"][key], rows.sum { |one| one[key] }, key
    end
  end

  # After exec a process has its program's name. It was started under another one.
  def test_names_after_exec
    result = guest(<<~SHELL)
      start names --observe
      sh -c 'usleep 100000; exec spin 100 1' >/out/spin
      finish
    SHELL
    names = result.json("names.json")["processes"].map { |row| row["name"] }
    assert_includes names, "spin"
    parent = result.json("names.json")["processes"].select { |row| row["name"] == "spin" }
    assert_equal 2, parent.size, "spin and its child"
  end

  # One that computes has used its millisecond of the second, and waits for the next one when the counts are
  # made: it had no such wait before.
  def test_a_wait_that_has_not_ended_is_the_longest_one
    result = guest(<<~SHELL)
      mkdir /sys/fs/cgroup/little
      echo "1000 1000000" >/sys/fs/cgroup/little/cpu.max
      start open --observe
      spin 600000 1,cgroup=/sys/fs/cgroup/little >/dev/null &
      usleep 800000
      finish
    SHELL
    longest = result.json("open.json")["processes"].select { |row| row["name"] == "spin" }
                    .map { |row| row["longest_wait_ms"] }.max
    assert_operator longest, :>=, 300, "ms of a wait that had not ended"
  end
end

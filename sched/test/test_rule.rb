# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# The rule itself, its bound, and what it brings, on one CPU whose clock counts instructions.
class TestRule < Minitest::Test
  include InGuest

  # With --verify the scheduler compares each of its decisions with the rule, from the queues alone. Programs
  # that call execve get another address space while they run; threads that yield let others go first.
  def test_each_decision_is_the_rules
    bonuses = [0, 1, 5, 20, 50]
    result = guest(<<~SHELL)
      for bonus in #{bonuses.join(" ")}; do
        start bonus$bonus --verify --bonus $bonus --slice 1 --credit 2 || exit 1
        for i in 1 2 3 4; do
          sh -c 'i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; exec spin 100 2' >/dev/null &
        done
        chatroom 8 1 8 12 && spin 300 3 2 1,nice=5 1,rest=1/3 1,rest=2/1 2,yield >/dev/null || exit 1
        finish
      done
    SHELL
    bonuses.each do |bonus|
      made = result.json("bonus#{bonus}.json")["decisions"]
      assert_operator made["verified"], :>, 500, "bonus #{bonus}: too few decisions to judge"
      assert_equal 0, made["wrong"], "bonus #{bonus}: #{made}"
      assert_operator made["lead_ms"], :<=, bonus, "bonus #{bonus}: a thread led by more than that"
      # The credit, or the bonus and a slice.
      assert_operator made["lag_ms"], :<=, [2, bonus + 1].max, "bonus #{bonus}: a thread was further behind"
      assert_equal 0, made["crowded"]
      assert_operator made["by_bound"], :>, 0, "bonus #{bonus}: its bound was never met" if bonus < 50
    end
    assert_equal 0, result.json("bonus0.json")["decisions"]["by_rule"]
    assert_operator result.json("bonus5.json")["decisions"]["by_rule"], :>, 100
  end

  # Two threads that do nothing else take turns, thousands of times in 0.3 s; at the end of slices, 80 times.
  def test_who_yields_lets_others_go_first
    result = guest(<<~SHELL)
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy $option && spin 300 1,yield 1,yield >/out/$policy.spin && finish || exit 1
      done
    SHELL
    %w[rule no-rule].each do |policy|
      pids = printed(result, "#{policy}.spin")["processes"].map { |process| process["pid"] }
      rows = result.json("#{policy}.json")["processes"].select { |row| pids.include?(row["pid"]) }
      assert_equal 2, rows.size
      rows.each { |row| assert_operator row["switches"], :>, 500, "#{policy}: #{row}" }
    end
  end

  # The bar of issue 31.
  def test_chatroom_switches_address_spaces_a_seventh_as_often
    result = guest(<<~SHELL)
      start default --observe && chatroom 8 1 20 10 && finish &&
      start scx --no-rule && chatroom 8 1 20 10 && finish &&
      start rule && chatroom 8 1 20 10 && finish || exit 1
      mkdir /sys/fs/cgroup/service && start service || exit 1
      (sh -c 'echo $PPID' >/sys/fs/cgroup/service/cgroup.procs; chatroom 8 1 20 10) && finish
    SHELL
    switches = %w[default scx rule service].to_h do |name|
      rows = result.json("#{name}.json")["processes"].select { |row| row["name"] == "chatroom" }
      assert_operator rows.size, :>=, 8
      [name, rows.sum { |row| row["address_space_switches"] }]
    end
    assert_operator switches["rule"] * 7, :<=, switches["default"], switches
    assert_operator switches["rule"], :<, switches["scx"], switches
    # The bonus is worth the same where all threads are in one cgroup.
    assert_operator switches["service"] * 7, :<=, switches["default"], switches
  end
end

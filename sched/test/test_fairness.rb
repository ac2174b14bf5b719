# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# Shares, weights and waits, on one CPU whose clock counts instructions.
class TestFairness < Minitest::Test
  include InGuest

  # What the kernel makes of nice 0, 5 and -5, in hundredths of nice 0's.
  WEIGHTS = { 0 => 100, 5 => 33, -5 => 305 }.freeze

  def assert_shares(wanted, report, message)
    total = used(report).sum
    shares = used(report).map { |time| time / total }
    wanted = wanted.map { |weight| weight.fdiv(wanted.sum) }
    shares.zip(wanted) do |share, want|
      assert_in_delta 1, share / want, 0.02, "#{message}: #{shares}, wanted #{wanted}"
    end
    total
  end

  # A share is met but for a slice and the bonus for each thread: slices are short here, and runs long.
  def test_shares_and_weights
    result = guest(<<~SHELL)
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy --slice 2 $option || exit 1
        spin 3000 5 1 1 >/out/$policy.threads || exit 1
        spin 6000 1 2,nice=5 1,nice=-5 >/out/$policy.nice || exit 1
        mkdir -p /sys/fs/cgroup/a /sys/fs/cgroup/b/c /sys/fs/cgroup/b/d
        echo +cpu >/sys/fs/cgroup/b/cgroup.subtree_control
        echo 300 >/sys/fs/cgroup/a/cpu.weight
        echo 50 >/sys/fs/cgroup/b/d/cpu.weight
        spin 12000 1,cgroup=/sys/fs/cgroup/a 4,cgroup=/sys/fs/cgroup/b/c 2,cgroup=/sys/fs/cgroup/b/d 1 \
          >/out/$policy.cgroups || exit 1
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      report = printed(result, "#{policy}.threads")
      total = assert_shares([5, 1, 1], report, "#{policy}, threads")
      assert_in_delta 3000, total, 60, "#{policy}: the CPU was idle"
      report["processes"].each do |process|
        process["threads"].each { |time| assert_in_delta 1, time / (total / 7), 0.02, "#{policy}: a thread" }
      end
      weights = [WEIGHTS[0], 2 * WEIGHTS[5], WEIGHTS[-5]]
      assert_shares(weights, printed(result, "#{policy}.nice"), "#{policy}, nice")
      # a: 300; b: 100, of which c has 100 of 150 and d 50; the last is in the root itself, with 100.
      weights = [300, 100 * 2 / 3r, 100 / 3r, 100]
      assert_shares(weights, printed(result, "#{policy}.cgroups"), "#{policy}, cgroups")
    end
  end

  # ms between ticks of the guest's kernel: a slice ends at the first tick after it.
  TICK = 4

  # The bound, of sched/README.md: for each other thread that may run, here all of one weight, three bonuses,
  # the credit, and two slices with their ticks. By so much two threads can be apart, too.
  def test_no_thread_waits_longer_than_the_bound
    threads = 24
    result = guest(<<~SHELL)
      for bonus in 0 5 20; do
        start bonus$bonus --bonus $bonus --slice 3 --credit 5 || exit 1
        spin 3000 #{threads} 1 1,rest=1/2 4,rest=0.2/0.1 >/out/spin$bonus || exit 1
        finish
      done
    SHELL
    [0, 5, 20].each do |bonus|
      pids = printed(result, "spin#{bonus}")["processes"].map { |process| process["pid"] }
      rows = result.json("bonus#{bonus}.json")["processes"].select { |row| pids.include?(row["pid"]) }
      apart = (3 * bonus) + 5 + (2 * (3 + TICK))
      bound = apart * (threads + 6)
      rows.each { |row| assert_operator row["longest_wait_ms"], :<=, bound, "bonus #{bonus}: #{row}" }
      spin = used(printed(result, "spin#{bonus}"))
      assert_in_delta spin[0] / threads, spin[1], apart, "bonus #{bonus}: ms of the lone thread"
    end
  end

  # Processes that compute beside 320 threads that talk get what they get without the rule, neither less nor
  # more. In 3 s that is some fifty ms for each thread, so a slice is a seventh of it.
  def test_a_lone_process_beside_a_chatroom
    result = guest(<<~SHELL)
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy $option || exit 1
        while :; do chatroom 8 1 20 10 >/dev/null; done &
        talk=$!
        usleep 200000
        spin 3000 1 3 >/out/$policy.spin || exit 1
        kill $talk
        killall chatroom
        finish
      done
    SHELL
    with, without = %w[rule no-rule].map { |policy| used(printed(result, "#{policy}.spin")).sum }
    assert_in_delta 1, with / without, 0.2, "ms of 3,000: #{with} with the rule, #{without} without"
  end
end

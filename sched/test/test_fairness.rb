# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# Shares, weights and waits, on one CPU whose clock counts instructions.
class TestFairness < Minitest::Test
  include InGuest

  # What the kernel makes of nice values; of 1,024.
  WEIGHTS = { 0 => 1024, 5 => 335, -5 => 3121, 10 => 110, 19 => 15 }.freeze

  GROUPS = <<~'SHELL'
    groups=/sys/fs/cgroup
    a=$groups/a b=$groups/b
    mkdir -p $a $b/c $b/d
    echo +cpu >$b/cgroup.subtree_control
    # in_group DIRECTORY COMMAND... in the place of this shell.
    in_group() { sh -c 'echo $PPID' >$1/cgroup.procs; shift; exec "$@"; }
  SHELL

  def assert_shares(wanted, report, message, within: 0.02)
    total = used(report).sum
    shares = used(report).map { |time| time / total }
    wanted = wanted.map { |weight| weight.fdiv(wanted.sum) }
    shares.zip(wanted) do |share, want|
      assert_in_delta 1, share / want, within, "#{message}: #{shares}, wanted #{wanted}"
    end
    total
  end

  # A share is met but for a slice and the bonus for each thread: slices are short here, and runs long.
  def test_shares_and_weights
    result = guest(<<~SHELL)
      #{GROUPS}
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy --slice 2 $option || exit 1
        spin 5000 5 1 1 >/out/$policy.threads || exit 1
        spin 6000 1 2,nice=5 1,nice=-5 >/out/$policy.nice || exit 1
        spin 6000 1,nice=10 1,nice=19 >/out/$policy.small || exit 1
        echo 300 >$a/cpu.weight
        echo 50 >$b/d/cpu.weight
        spin 12000 1,cgroup=$a 4,cgroup=$b/c 2,cgroup=$b/d 1 >/out/$policy.cgroups || exit 1
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      report = printed(result, "#{policy}.threads")
      total = assert_shares([5, 1, 1], report, "#{policy}, threads")
      assert_in_delta 5000, total, 100, "#{policy}: the CPU was idle"
      report["processes"].each do |process|
        process["threads"].each { |time| assert_in_delta 1, time / (total / 7), 0.02, "#{policy}: a thread" }
      end
      weights = [WEIGHTS[0], 2 * WEIGHTS[5], WEIGHTS[-5]]
      assert_shares(weights, printed(result, "#{policy}.nice"), "#{policy}, nice")
      assert_shares([WEIGHTS[10], WEIGHTS[19]], printed(result, "#{policy}.small"),
                    "#{policy}, nice 10 and 19", within: 0.05)
      # a: 300; b: 100, of which c has 100 of 150 and d 50; the last is in the root itself, with 100.
      weights = [300, 100 * 2 / 3r, 100 / 3r, 100]
      assert_shares(weights, printed(result, "#{policy}.cgroups"), "#{policy}, cgroups")
    end
  end

  # Groups four levels deep, with weights at each. And at the last level that counts (DEPTH of policy.h), 300
  # beside 100, in which there are two groups that do not count, with 300 and 100.
  def test_deep_groups
    last = 15 # of 16 levels; the root is level 0
    result = guest(<<~SHELL)
      #{GROUPS}
      # nest DIRECTORY NAME...: one in the other; `at` is the last.
      nest() {
        at=$1; shift
        for part; do
          echo +cpu >$at/cgroup.subtree_control
          at=$at/$part
          mkdir -p $at
        done
      }
      nest $b c d e; nest $b c d f; nest $b c g; nest $b h
      echo 300 >$b/cpu.weight
      echo 200 >$b/c/cpu.weight
      echo 300 >$b/c/d/e/cpu.weight
      echo 50 >$b/c/g/cpu.weight
      nest $groups $(seq 1 #{last - 1}); deep=$at
      nest $deep three; nest $deep one x; nest $deep one y
      echo 300 >$deep/three/cpu.weight; echo 300 >$deep/one/x/cpu.weight
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy --slice 2 $option || exit 1
        spin 12000 1,cgroup=$a 2,cgroup=$b/c/d/e 1,cgroup=$b/c/d/f 1,cgroup=$b/c/g 3,cgroup=$b/h 1 \
          >/out/$policy.levels || exit 1
        spin 6000 1,cgroup=$deep/three 1,cgroup=$deep/one/x 1,cgroup=$deep/one/y >/out/$policy.deep || exit 1
        finish
      done
    SHELL
    b = 300 / 500r # beside a and the root's own thread, of 100 each
    c, h = [200, 100].map { |weight| b * weight / 300 }
    d, g = [100, 50].map { |weight| c * weight / 150 }
    e, f = [300, 100].map { |weight| d * weight / 400 }
    %w[rule no-rule].each do |policy|
      assert_shares([1 / 5r, e, f, g, h, 1 / 5r], printed(result, "#{policy}.levels"), "#{policy}, four deep")
      assert_shares([6, 1, 1], printed(result, "#{policy}.deep"), "#{policy}, the deepest")
    end
  end

  # A real-time thread has no virtual time that its child could begin with, and what it has computed is not
  # the child's.
  def test_children_of_a_real_time_thread
    result = guest(<<~SHELL)
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy $option || exit 1
        spin 3000 1 1,fifo 2,fifo >/out/$policy.spin || exit 1
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      assert_shares([1, 1, 2], printed(result, "#{policy}.spin"), policy)
    end
  end

  # A group's share is the same, whether one of its threads computes, or ten take turns and nine sleep, in one
  # group or in two within it, or one short process comes after the other.
  def test_a_group_whose_threads_sleep_gets_no_more_than_its_share
    result = guest(<<~SHELL)
      #{GROUPS}
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy $option || exit 1
        spin 3000 10,hand=1,cgroup=$b/c 1,cgroup=$a >/out/$policy.hand || exit 1
        spin 3000 10,hand=1,cgroup=$b/c 10,hand=0.3,cgroup=$b/d 2,cgroup=$a >/out/$policy.both || exit 1
        in_group $b/c sh -c \
          'while :; do sh -c "i=0; while [ \\$i -lt 3000 ]; do i=\\$((i+1)); done"; done' & forks=$!
        spin 3000 1,cgroup=$a >/out/$policy.forks || exit 1
        kill $forks; wait $forks 2>/dev/null
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      assert_shares([1, 1], printed(result, "#{policy}.hand"), "#{policy}, ten that hand on beside one")
      assert_shares([1, 1, 2], printed(result, "#{policy}.both"), "#{policy}, two such in one group",
                    within: 0.03)
      beside = used(printed(result, "#{policy}.forks")).sum
      assert_in_delta 1500, beside, 45, "#{policy}: ms of 3,000 beside a group that forks"
    end
  end

  # Nobody gets more by new processes: one short program after the other has the share of one that computes.
  def test_short_processes_are_not_had_for_nothing
    result = guest(<<~SHELL)
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy $option || exit 1
        sh -c 'while :; do sh -c "i=0; while [ \\$i -lt 3000 ]; do i=\\$((i+1)); done"; done' & forks=$!
        spin 3000 1 >/out/$policy.forks || exit 1
        kill $forks; wait $forks 2>/dev/null
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      assert_operator used(printed(result, "#{policy}.forks")).sum, :>, 1_350, "#{policy}: ms of 3,000"
    end
  end

  # A shell beside two that compute starts programs of nice 19, and some in a cgroup with cpu.idle. After a ms
  # they are ahead of the others by a tenth of a second or more. The shell does not wait for that then.
  def test_children_of_little_weight_do_not_hold_up_their_parent
    result = guest(<<~SHELL)
      #{GROUPS}
      echo 1 >$a/cpu.idle
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy $option || exit 1
        spin 60000 2 >/dev/null 2>&1 & busy=$!
        usleep 500000
        sh -c 'echo $$ >/out/'$policy.shell'; for i in 1 2 3; do
            sh -c "renice -n 19 -p \\$\\$ >/dev/null; i=0; while [ \\$i -lt 200 ]; do i=\\$((i+1)); done"
            sh -c "echo \\$\\$ >'$a'/cgroup.procs; i=0; while [ \\$i -lt 200 ]; do i=\\$((i+1)); done"
          done'
        killall spin; wait $busy 2>/dev/null
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      pid = result.file("#{policy}.shell").to_i
      row = result.json("#{policy}.json")["processes"].find { |one| one["pid"] == pid }
      # Twice the carry, which it may be ahead by then, and what each of the two may be behind, and a slice.
      assert_operator row["longest_wait_ms"], :<=, 2 * ((2 * (5 + 5)) + 5 + 5 + (2 * (5 + TICK))), policy
      assert_operator row["waits"], :>=, 6, policy
    end
  end

  # cpu.weight, cpu.idle, nice and the cgroup change while threads wait and run, and groups end; then the sums
  # are right.
  def test_changes_and_ends_of_groups_leave_no_trace
    result = guest(<<~SHELL)
      #{GROUPS}
      start changes --slice 2 || exit 1
      spin 3000 3,cgroup=$a 2,cgroup=$b/c 2,rest=1/1,cgroup=$b/d 4,hand=1 >/dev/null & busy=$!
      usleep 500000
      turn=0
      while kill -0 $busy 2>/dev/null; do
        turn=$((turn + 1))
        mkdir -p $groups/e$turn/f
        echo $((turn % 7 * 90 + 1)) >$a/cpu.weight
        echo $((turn % 5 * 60 + 1)) >$b/cpu.weight
        echo $((turn % 2)) >$b/cpu.idle
        for pid in $(pidof spin); do
          echo $pid >$groups/e$turn/f/cgroup.procs
          renice -n $((turn % 20)) -p $pid
          break
        done 2>/dev/null
        usleep 20000
        for pid in $(cat $groups/e$turn/f/cgroup.procs); do echo $pid >$a/cgroup.procs; done 2>/dev/null
        rmdir $groups/e$turn/f $groups/e$turn
      done
      wait $busy
      echo turns $turn
      echo 0 >$b/cpu.idle
      echo 100 >$a/cpu.weight; echo 100 >$b/cpu.weight
      mkdir $groups/e $groups/e/f || exit 1
      spin 6000 1,cgroup=$a 2,cgroup=$b/c 1,cgroup=$groups/e/f 1 >/out/after || exit 1
      spin 6000 1,cgroup=$b/c 1,cgroup=$b/d 1,nice=5 >/out/within || exit 1
      echo 1 >$b/cpu.idle
      spin 1000 1,cgroup=$a 1,cgroup=$b/c >/out/idle || exit 1
      finish
    SHELL
    assert_operator result.stdout[/turns (\d+)/, 1].to_i, :>, 20
    assert_shares([1, 1, 1, 1], printed(result, "after"), "a, b, e and the root's one")
    assert_shares([50, 50, 32.7], printed(result, "within"), "c and d in b, and one of nice 5")
    assert_operator used(printed(result, "idle"))[1], :<, 30, "ms of 1,000 for a group with cpu.idle"
  end

  # ms between ticks of the guest's kernel: a slice ends at the first tick after it.
  TICK = 4

  # The bound, of sched/README.md: for each other thread that may run, here all of nice 0. Two threads can be
  # apart by so much, too. The one of nice 5 waits the longer, as its own slice is longer in virtual time.
  def test_no_thread_waits_longer_than_the_bound
    threads = 24
    slice = 3 + TICK
    result = guest(<<~SHELL)
      for bonus in 0 5 20; do
        start bonus$bonus --bonus $bonus --slice 3 --credit 5 || exit 1
        spin 3000 #{threads} 1 1,rest=1/2 4,rest=0.2/0.1 1,nice=5 >/out/spin$bonus || exit 1
        finish
      done
    SHELL
    [0, 5, 20].each do |bonus|
      processes = printed(result, "spin#{bonus}")["processes"]
      counted = result.json("bonus#{bonus}.json")
      apart = (2 * bonus) + [bonus, 5].min + 5 + slice
      processes.each do |process|
        row = counted["processes"].find { |one| one["pid"] == process["pid"] }
        own = process["nice"].zero? ? 0 : slice * (WEIGHTS[0].fdiv(WEIGHTS[process["nice"]]) - 1)
        bound = (apart + own + slice) * (threads + 7)
        assert_operator row["longest_wait_ms"], :<=, bound, "bonus #{bonus}: #{row}"
      end
      assert_operator counted["decisions"]["lag_ms"], :<=, [5, bonus + slice].max, "bonus #{bonus}"
      spin = used(printed(result, "spin#{bonus}"))
      assert_in_delta spin[0] / threads, spin[1], apart + slice, "bonus #{bonus}: ms of the lone thread"
    end
  end

  # nice 19 beside 16 that compute: by virtual time alone it would wait for ten seconds, and one with cpu.idle
  # for a minute.
  def test_no_thread_waits_until_the_watchdog
    result = guest(<<~SHELL)
      #{GROUPS}
      echo 1 >$a/cpu.idle
      for policy in rule no-rule; do
        [ $policy = rule ] && option= || option=--no-rule
        start $policy --watchdog 2 $option || exit 1
        spin 5000 1,nice=19 16 1,cgroup=$a >/out/$policy.spin || exit 1
        finish
      done
    SHELL
    %w[rule no-rule].each do |policy|
      counted = result.json("#{policy}.json")
      assert_operator counted["decisions"]["hastened"], :>, 4, policy
      # Half of the watchdog's time and an eighth of that, until it is found; then the other one that was.
      pids = printed(result, "#{policy}.spin")["processes"].map { |process| process["pid"] }
      rows = counted["processes"].select { |row| pids.include?(row["pid"]) }
      longest = rows.map { |row| row["longest_wait_ms"] }.max
      assert_operator longest, :<=, 1125 + (3 * (5 + TICK)), "#{policy}: #{rows}"
      shares = used(printed(result, "#{policy}.spin"))
      assert_operator shares[0], :>, 10, "#{policy}: ms of nice 19"
      assert_operator shares[2], :>, 10, "#{policy}: ms of cpu.idle"
    end
  end

  # ms that may be apart from the fair share. While 320 threads are runnable beside a group, in another one of
  # the same weight, a bonus and a slice of virtual time are worth up to 400 ms of CPU time to one of its four
  # threads, and the credit up to 800 to the other group. 84 and 171 were seen.
  THREAD_APART = 150
  GROUP_APART = 300

  # One process of a thread and one of three compute in a group; in another one are chatrooms, one after the
  # other, whose threads are hundreds for a moment.
  def test_a_group_that_computes_beside_one_of_short_chatrooms
    result = guest(<<~SHELL)
      #{GROUPS}
      start short || exit 1
      { sh -c 'echo $PPID' >$b/cgroup.procs; while :; do chatroom 8 1 20 20 >/dev/null; done; } & talk=$!
      usleep 200000
      spin 8000 1,cgroup=$a 3,cgroup=$a >/out/spin || exit 1
      kill $talk
      killall chatroom
      finish
    SHELL
    times = printed(result, "spin")["processes"].flat_map { |process| process["threads"] }
    assert_in_delta 4_000, times.sum, GROUP_APART, "ms of 8,000 for the group that computes: #{times}"
    mean = times.sum / 4
    times.each { |time| assert_in_delta mean, time, THREAD_APART, "ms of each of four threads: #{times}" }
  end

  # Processes that compute beside a chatroom get what they get without the rule, neither less nor more. With a
  # bonus of 20 ms each may be behind the others by that, and by the credit and a slice.
  def test_a_lone_process_beside_a_chatroom
    result = guest(<<~SHELL)
      for policy in rule no-rule rule-20; do
        case $policy in rule) option= ;; rule-20) option="--bonus 20" ;; *) option=--$policy ;; esac
        start $policy $option || exit 1
        chatroom 4 1 4 1000000 >/dev/null & talk=$!
        usleep 500000
        spin 4000 1 3 >/out/$policy.spin || exit 1
        kill $talk
        killall chatroom
        wait $talk 2>/dev/null
        finish
      done
    SHELL
    with, without, with20 = %w[rule no-rule rule-20].map do |policy|
      used(printed(result, "#{policy}.spin")).sum
    end
    assert_in_delta 1, with / without, 0.03, "ms of 4,000: #{with} with the rule, #{without} without"
    assert_in_delta without / 4, with20 / 4, 20 + 5 + 5 + TICK, "ms a thread, with a bonus of 20 ms"
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# Several CPUs, with and without processor aggregation. All share one thread of the emulator by turns, so that
# a CPU may stand still for some ten ms of the guest's time.
class TestProcessors < Minitest::Test
  include InGuest

  POLICIES = %w[homes shared no-rule].freeze
  START = <<~'SHELL'
    begin() { case $1 in shared) start shared ;; *) start $1 --$1 ;; esac; }
    idle() { awk '/^cpu / { print $5 }' /proc/stat; }
  SHELL

  # Each of the values is the wanted one but for a part.
  def assert_near(wanted, values, within, message)
    message += ": #{values}, wanted #{wanted}"
    values.each { |value| assert_in_delta 1, value / wanted, within, message }
  end

  def threads(result, name) = printed(result, name)["processes"].map { |process| process["threads"] }

  def test_no_cpu_idles_beside_a_queue_and_shares_are_fair
    result = guest(<<~SHELL, cpus: 2)
      #{START}
      for policy in #{POLICIES.join(" ")}; do
        begin $policy || exit 1
        before=$(idle); spin 2000 4 >/out/$policy.one; echo $(($(idle) - before)) >/out/$policy.idle
        spin 3000 1 1 1 >/out/$policy.three
        spin 8000 1 8 >/out/$policy.uneven
        spin 3000 1,cpu=0 1,cpu=0 1 >/out/$policy.pinned
        spin 8000 1,cpu=0 1,cpu=0,nice=5 1 >/out/$policy.nice
        spin 1000 8,rest=0.3/0.3 8,rest=0.5/0.2 1 >/out/$policy.mixed || exit 1
        chatroom 4 1 10 20 || exit 1
        finish
      done
    SHELL
    POLICIES.each do |policy|
      # Of 2 s on 2 CPUs; a tenth is for the start and the end of the processes, outside of the 2 s.
      idle = result.file("#{policy}.idle").to_i
      assert_operator idle, :<=, 100, "#{policy}: hundredths of a second that CPUs idled beside four threads"
      three = threads(result, "#{policy}.three").flatten
      assert_near(three.sum / 3, three, 0.05, "#{policy}, three")
      uneven = threads(result, "#{policy}.uneven").flatten
      assert_near(uneven.sum / 9, uneven, 0.06, "#{policy}, one beside eight")
      pinned = threads(result, "#{policy}.pinned").flatten
      assert_near(pinned.first(2).sum / 2, pinned.first(2), 0.05, "#{policy}, two on one CPU")
      assert_operator pinned[2], :>, pinned[0] * 1.8, "#{policy}: the third has a CPU alone, #{pinned}"
      heavy, light = threads(result, "#{policy}.nice").flatten
      assert_in_delta 1, heavy / light / (1024.0 / 335), 0.08, "#{policy}: two of unequal weight on one CPU"
      mixed = threads(result, "#{policy}.mixed").flatten
      assert_near(mixed.sum / 17, mixed, 0.15, "#{policy}, with some that rest")
    end
    homes = result.json("homes.json")["decisions"]
    assert_operator homes["taken"] + homes["spilled"], :>, 0, homes
  end

  # Processes that compute beside two whose threads hand on. By each CPU's own head as the time that is now,
  # they would get a fifth more with homes. They had 1.0 to 3.4 % less in three runs, one of them 4.4;
  # why is not known.
  def test_shares_beside_threads_that_hand_on
    result = guest(<<~SHELL, cpus: 4)
      #{START}
      for policy in homes no-rule; do
        begin $policy || exit 1
        spin 6000 1 1 1 1 8,hand=0.2 8,hand=0.2 >/out/$policy.hand || exit 1
        finish
      done
    SHELL
    homes, plain = %w[homes no-rule].map { |policy| threads(result, "#{policy}.hand").first(4).flatten }
    assert_near(plain.sum / 4, homes, 0.06, "homes, beside threads that hand on")
  end

  # The shell sleeps for 4 s and wakes on an idle CPU, where it could run on until it had made up for that.
  def test_a_long_sleep_earns_no_more_on_an_idle_cpu
    result = guest(<<~SHELL, cpus: 2)
      #{START}
      ran() { read -r ns rest </proc/$sleeper/schedstat; echo $ns; }
      for policy in #{POLICIES.join(" ")}; do
        begin $policy || exit 1
        spin 8000 1,cpu=0 >/dev/null & busy=$!
        sh -c 'sleep 4; while :; do :; done' & sleeper=$!
        sleep 5
        spin 2500 3 >/out/$policy.spin & spin=$!
        usleep 700000
        before=$(ran); usleep 1500000; echo $(($(ran) - before)) >/out/$policy.sleeper
        wait $spin
        kill $sleeper
        wait $busy
        finish
      done
    SHELL
    POLICIES.each do |policy|
      # Two fifths of 1.5 s, but for what the emulator makes of it.
      ms = result.file("#{policy}.sleeper").to_i / 1e6
      assert_in_delta 600, ms, 90, "#{policy}: ms of 1,500 for one of five on two CPUs"
      spin = threads(result, "#{policy}.spin").flatten
      assert_near(spin.sum / 3, spin, 0.08, "#{policy}, the other three")
    end
  end

  def test_groups_on_several_cpus
    result = guest(<<~SHELL, cpus: 2)
      #{START}
      a=/sys/fs/cgroup/a b=/sys/fs/cgroup/b
      mkdir $a $b
      for policy in #{POLICIES.join(" ")}; do
        begin $policy || exit 1
        spin 3000 2,cgroup=$a 6,cgroup=$b >/out/$policy.equal || exit 1
        echo 300 >$a/cpu.weight
        spin 4000 6,cgroup=$a 2,cgroup=$b >/out/$policy.three || exit 1
        echo 100 >$a/cpu.weight
        spin 3000 4,hand=1,cgroup=$a 4,hand=1,cgroup=$a 4,cgroup=$b >/out/$policy.hand || exit 1
        finish
      done
    SHELL
    POLICIES.each do |policy|
      a, b = used(printed(result, "#{policy}.equal"))
      assert_in_delta 1, a / b, 0.05, "#{policy}, equal weights"
      a, b = used(printed(result, "#{policy}.three"))
      assert_in_delta 3, a / b, 0.2, "#{policy}, 300 beside 100"
      one, two, b = used(printed(result, "#{policy}.hand"))
      assert_in_delta 1, (one + two) / b, 0.06, "#{policy}, threads that hand on"
    end
  end

  # A cpuset of two CPUs of three: its threads use both, and the others are not pushed aside.
  def test_threads_that_may_run_on_some_cpus
    result = guest(<<~SHELL, cpus: 3)
      #{START}
      for policy in #{POLICIES.join(" ")}; do
        begin $policy || exit 1
        before=$(idle)
        spin 2000 2,cpu=0-1 2,cpu=0-1 1 >/out/$policy.some || exit 1
        echo $(($(idle) - before)) >/out/$policy.idle
        finish
      done
    SHELL
    POLICIES.each do |policy|
      *some, lone = threads(result, "#{policy}.some").flatten
      assert_near(1000, some, 0.15, "#{policy}: four on two CPUs")
      assert_operator lone, :>, 1700, "#{policy}: the fifth has a CPU alone"
      assert_operator result.file("#{policy}.idle").to_i, :<=, 150, "#{policy}: hundredths of a second idle"
    end
  end

  # Threads that are sent from CPU to CPU while they wait, run and sleep: none is lost, and the others have
  # their shares. Those that are sent have theirs roughly, with homes the more so.
  def test_threads_that_are_sent_to_other_cpus
    result = guest(<<~SHELL, cpus: 2)
      #{START}
      for policy in #{POLICIES.join(" ")}; do
        begin $policy || exit 1
        before=$(idle)
        spin 4000 3,hop=2 3 3 >/out/$policy.hop || exit 1
        echo $(($(idle) - before)) >/out/$policy.idle
        spin 1000 4,hop=1,rest=1/1 4,hop=1 2,rest=0.3/0.3 >/out/$policy.mixed || exit 1
        spin 500 2 >/out/$policy.after || exit 1
        finish
      done
    SHELL
    POLICIES.each do |policy|
      hops = printed(result, "#{policy}.hop")["processes"].first["hops"]
      assert_operator hops, :>, 100, policy
      hop = threads(result, "#{policy}.hop").flatten
      assert_near(hop.sum / 9, hop.first(3), policy == "homes" ? 0.3 : 0.12, "#{policy}, that are sent")
      assert_near(hop.sum / 9, hop.drop(3), 0.08, "#{policy}, beside three that are sent")
      idle = result.file("#{policy}.idle").to_i
      assert_operator idle, :<=, 100, "#{policy}: hundredths of a second that CPUs idled beside nine threads"
      mixed = threads(result, "#{policy}.mixed").flatten
      assert_operator mixed.min, :>, 50, "#{policy}: ms of 1,000 of each of ten on two CPUs, #{mixed}"
      assert_near(500, threads(result, "#{policy}.after").flatten, 0.08, "#{policy}, a thread for each CPU")
    end
  end

  # The second of three CPUs is off when the scheduler is attached, and comes later. Masks name it before.
  # What else runs in the guest has 2 to 5 % of the CPUs, so shares are of what the six had.
  def test_a_cpu_that_is_off_at_first
    result = guest(<<~SHELL, cpus: 3, expected: HOTPLUG)
      #{START}
      for policy in #{POLICIES.join(" ")}; do
        echo 0 >/sys/devices/system/cpu/cpu1/online
        begin $policy || exit 1
        before=$(idle)
        spin 2000 4 1,cpu=0-1 1,cpu=0-2 >/out/$policy.two || exit 1
        echo $(($(idle) - before)) >/out/$policy.idle
        echo 1 >/sys/devices/system/cpu/cpu1/online; anew 1
        spin 2000 4 1,cpu=1 1,cpu=0-2 >/out/$policy.three || exit 1
        finish
      done
    SHELL
    assert_equal ["1 enabled"] * 3, result.stdout.lines(chomp: true).grep(/enabled/)
    POLICIES.each do |policy|
      assert_equal 2, result.json("#{policy}.json")["attachments"], policy
      two, three = %w[two three].map { |name| threads(result, "#{policy}.#{name}").flatten }
      assert_operator two.sum, :>, 4000 * 0.93, "#{policy}: ms of the six on two CPUs"
      assert_near(two.sum / 6, two, 0.1, "#{policy}, six on two CPUs")
      idle = result.file("#{policy}.idle").to_i
      assert_operator idle, :<=, 100, "#{policy}: hundredths of a second that CPUs idled beside six threads"
      assert_operator three.sum, :>, 6000 * 0.93, "#{policy}: ms of the six on three CPUs"
      assert_near(three.sum / 6, three, 0.1, "#{policy}, six on three CPUs")
    end
  end
end

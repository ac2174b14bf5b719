# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# However the loader ends, the kernel's own scheduler is back and the guest works on; and it says in clear
# words why it cannot begin.
class TestEnds < Minitest::Test
  include InGuest

  # Of the kernel's scx_exit_kind: that of an ending by SysRq, and by the watchdog.
  KINDS = { "sysrq" => 67, "stall" => 1026 }.freeze

  def test_ends
    # What the watchdog says, with a trace of where it was called.
    expected = /disabled \((runnable task stall|disabled by sysrq-S)\)|cow_aggregate: .* failed to run/
    result = guest(<<~SHELL, expected: expected)
      spin 600000 2 1 >/dev/null 2>&1 &
      start term; usleep 100000; finish; echo "term $(stopped)"
      start kill; kill -9 $loader; wait $loader 2>/dev/null; echo "kill $(stopped)"
      start seconds --seconds 0.2; wait $loader; echo "seconds: status $?"; echo "seconds $(stopped)"
      start busy
      aggregate; echo "second: status $?"
      usleep 100000; finish; stopped >/dev/null
      timeout 30 aggregate --stall --watchdog 1 --json /out/stall.json; echo "stall: status $?"
      echo "stall $(stopped)"
      start sysrq; echo S >/proc/sysrq-trigger; wait $loader; echo "sysrq: status $?"; echo "sysrq $(stopped)"
      cat /out/sysrq.txt >&2
      start again; usleep 100000; finish; echo "again $(stopped)"
      killall spin
    SHELL
    words = result.stdout
    %w[term kill seconds stall sysrq again].each { |name| assert_includes words, "#{name} disabled" }
    %w[term seconds again].each { |name| assert_includes words, "#{name}: status 0" }
    %w[second stall sysrq].each { |name| assert_includes words, "#{name}: status 1" }
    assert_match(/another scheduler \(cow_aggregate.*\) is attached/, result.stderr)
    assert_match(/the kernel ended the scheduler and is back with its own: .*stall/, result.stderr)
    assert_match(/the kernel ended the scheduler and is back with its own: .*[Ss]ys[Rr]q/, result.stderr)
    KINDS.each { |name, kind| assert_equal kind, result.json("#{name}.json")["ending"]["kind"], name }
  end

  def test_refusals
    result = guest(<<~SHELL, files: { "/old.btf" => btf_without_new_functions })
      try() { echo "$1:"; shift; timeout 5 "$@"; echo "status $?"; }
      try nobody su -s /bin/sh nobody -c aggregate
      mount -t tmpfs none /sys/kernel/btf
      try btf aggregate
      umount /sys/kernel/btf
      mount --bind /old.btf /sys/kernel/btf/vmlinux
      try old aggregate
      umount /sys/kernel/btf/vmlinux
      mount -t tmpfs none /sys/kernel
      try kernel aggregate
      umount /sys/kernel
      echo 0-299 >/cpus
      mount --bind /cpus /sys/devices/system/cpu/online
      try cpus aggregate --no-statistics
      echo 0-1 >/cpus
      try verify aggregate --no-statistics --verify
      umount /sys/devices/system/cpu/online
      try json aggregate --seconds 0.1 --json /nowhere/file
      try argument aggregate --bonus x
      try range aggregate --watchdog 31
      try whole aggregate --cycles 1.5
      try unknown aggregate something
      try both aggregate --homes --no-rule
      try idle aggregate --observe --bonus 3
    SHELL
    words = result.stderr
    assert_includes words, "run it as root, or with CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON"
    assert_match(/has no BTF .*CONFIG_DEBUG_INFO_BTF/, words)
    assert_match(/the sched_ext of this kernel \(.*\) is too old: .*scx_bpf_dsq_peek, which .* 6.19/, words)
    assert_match(/has no sched_ext; take one .*CONFIG_SCHED_CLASS_EXT/, words)
    assert_match(/a CPU with the number 299, and 255 is the highest; build with another CPUS/, words)
    assert_includes words, "--verify compares decisions on one CPU only, and this machine has more"
    assert_includes words, "/nowhere/file cannot be written: No such file"
    assert_includes words, "--bonus takes a number from 0 to 10000, not 'x'"
    assert_includes words, "--watchdog takes a number from 0.1 to 30, not '31'"
    assert_includes words, "--cycles takes a whole number from 1 to 1000000, not '1.5'"
    assert_includes words, "unknown argument 'something'"
    assert_includes words, "--homes has no effect beside --no-rule"
    assert_includes words, "--bonus has no effect beside --observe"
    refute_match(/libbpf/, words)
    assert_equal ([1] * 7) + ([2] * 6), result.stdout.scan(/status (\d)/).flatten.map(&:to_i)
  end

  # The observer's own types: BTF that a kernel could have, without the functions of 6.19.
  def btf_without_new_functions
    tool = %w[llvm-objcopy-19 llvm-objcopy objcopy].find { |name| system("command -v #{name} >/dev/null") }
    skip "no objcopy here" unless tool
    path = "#{Guest::BUILD}/old.btf"
    system(tool, "-O", "binary", "--only-section=.BTF", "--set-section-flags", ".BTF=alloc",
           "#{Guest::BUILD}/bin/observe.bpf.o", path) or flunk "#{tool} failed"
    path
  end

  # What the scheduler does not honour, and a bonus that the watchdog may end. cpu.idle it does honour.
  def test_warnings
    result = guest(<<~SHELL)
      mkdir -p /sys/fs/cgroup/a/b /sys/fs/cgroup/c
      start nothing; usleep 100000; finish; stopped >/dev/null
      echo +cpu >/sys/fs/cgroup/a/cgroup.subtree_control
      echo "5000 10000" >/sys/fs/cgroup/a/cpu.max
      echo "5000 10000" >/sys/fs/cgroup/a/b/cpu.max
      echo 1 >/sys/fs/cgroup/c/cpu.idle
      start limits --bonus 3000 --watchdog 10 --homes; usleep 100000; finish
    SHELL
    refute_includes result.file("nothing.txt"), "warning"
    words = result.file("limits.txt")
    assert_match %r{warning: /sys/fs/cgroup/a/(b/)?cpu.max has no effect .* \(and so in other .*\)$}, words
    refute_includes words, "cpu.idle"
    assert_match(/warning: with a bonus of 3000 ms a thread may wait 6040 ms for each other one/, words)
    assert_includes words, "warning: --homes has no effect on one CPU"
    refute result.json("limits.json")["homes"]
  end

  # A CPU that goes ends each scheduler; ours is attached again with the CPUs that are there.
  def test_cpus_that_go_and_come
    result = guest(<<~SHELL, cpus: 2, icount: false, expected: HOTPLUG)
      start hotplug --homes || exit 1
      echo 0 >/sys/devices/system/cpu/cpu1/online; anew 1
      spin 200 2 1 >/out/one || exit 1
      echo 1 >/sys/devices/system/cpu/cpu1/online; anew 2
      spin 200 2 1,cpu=1 1,cpu=0 >/out/two || exit 1
      finish
    SHELL
    assert_match(/^1 enabled\n2 enabled$/, result.stdout, result.file("hotplug.txt"))
    report = result.json("hotplug.json")
    assert_equal 3, report["attachments"]
    %w[one two].each do |name|
      used(printed(result, name)).each { |time| assert_operator time, :>, 0, "#{name}: ms of a process" }
    end
  end

  # This machine's own kernel, where it has no sched_ext.
  def test_on_this_kernel
    skip "this machine's kernel has sched_ext" if File.exist?("/sys/kernel/sched_ext")
    output, status = Open3.capture2e("#{Guest::BUILD}/bin/aggregate")
    assert_equal 1, status.exitstatus
    assert_match(/\Aaggregate: error: this kernel \(.*\) has no sched_ext; .*\n\z/, output)
  end

  # Twice so many. The torture is CYCLES=500.
  def test_attached_and_killed_again_and_again
    cycles = Integer(ENV["CYCLES"] || 40)
    result = guest(<<~SHELL, cpus: 2, icount: false, seconds: 300 + (cycles * 4))
      while :; do chatroom 4 1 8 20 >/dev/null || echo failed >>/out/failed; done &
      spin 60000000 2 1,rest=1/1 >/dev/null &
      aggregate --no-statistics --cycles #{cycles} || exit 1
      aggregate --no-statistics --homes --cycles #{cycles} || exit 1
      chatroom 2 1 8 10
      [ ! -f /out/failed ]
    SHELL
    killed = result.stdout.scan(/^cycles #{cycles}: killed while attached (\d+)/).flatten.map(&:to_i)
    assert_equal 2, killed.size, result.stdout
    killed.each { |times| assert_operator times, :>=, cycles * 2 / 3, result.stdout }
  end

  # The loader under --cycles ends when it is told to, and its child with it, also when it is killed itself.
  def test_cycles_can_be_ended
    result = guest(<<~SHELL)
      aggregate --no-statistics --cycles 1000000 >/out/cycles.txt 2>&1 &
      loader=$!
      becomes enabled
      kill $loader; wait $loader; echo "ended: status $?"; stopped
      aggregate --no-statistics --cycles 1000000 >/out/killed.txt 2>&1 &
      loader=$!
      becomes enabled
      kill -9 $loader; wait $loader; stopped
      pidof aggregate
      cat /out/cycles.txt
    SHELL
    assert_match(/ended: status 0\ndisabled\n/, result.stdout)
    assert_match(/disabled\ncycles \d+: killed while attached \d+/, result.stdout)
  end
end

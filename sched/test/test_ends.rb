# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# However the loader ends, the kernel's own scheduler is back and the guest works on; and it says in clear
# words why it cannot begin.
class TestEnds < Minitest::Test
  include InGuest

  def test_ends
    @complaints = true # the watchdog's own
    result = guest(<<~SHELL)
      spin 600000 2 1 >/dev/null 2>&1 &
      start term; finish; echo "term $(stopped)"
      start kill; kill -9 $loader; wait $loader 2>/dev/null; echo "kill $(stopped)"
      start seconds --seconds 0.2; wait $loader; echo "seconds: status $?"; echo "seconds $(stopped)"
      start busy
      aggregate; echo "second: status $?"
      finish; stopped >/dev/null
      timeout 30 aggregate --stall --watchdog 1; echo "stall: status $?"; echo "stall $(stopped)"
      start sysrq; echo S >/proc/sysrq-trigger; wait $loader; echo "sysrq: status $?"; echo "sysrq $(stopped)"
      cat /out/sysrq.txt >&2
      start again; finish; echo "again $(stopped)"
      killall spin
    SHELL
    words = result.stdout
    %w[term kill seconds stall sysrq again].each { |name| assert_includes words, "#{name} disabled" }
    %w[term seconds again].each { |name| assert_includes words, "#{name}: status 0" }
    %w[second stall sysrq].each { |name| assert_includes words, "#{name}: status 1" }
    assert_match(/another scheduler \(cow_aggregate.*\) is attached/, result.stderr)
    assert_match(/the kernel ended the scheduler and is back with its own: .*stall/, result.stderr)
    assert_match(/the kernel ended the scheduler and is back with its own: .*[Ss]ys[Rr]q/, result.stderr)
  end

  def test_refusals
    result = guest(<<~SHELL)
      try() { echo "$1:"; shift; timeout 5 "$@"; echo "status $?"; }
      try nobody su -s /bin/sh nobody -c aggregate
      mount -t tmpfs none /sys/kernel/btf
      try btf aggregate
      umount /sys/kernel/btf
      mount -t tmpfs none /sys/kernel
      try kernel aggregate
      umount /sys/kernel
      try json aggregate --seconds 0.1 --json /nowhere/file
      try argument aggregate --bonus x
      try range aggregate --watchdog 31
      try unknown aggregate something
      try both aggregate --homes --no-rule
    SHELL
    words = result.stderr
    assert_includes words, "run it as root, or with CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON"
    assert_match(/has no BTF .*CONFIG_DEBUG_INFO_BTF/, words)
    assert_match(/has no sched_ext; take one .*CONFIG_SCHED_CLASS_EXT/, words)
    assert_includes words, "/nowhere/file cannot be written: No such file"
    assert_includes words, "--bonus takes a number from 0 to 10000, not 'x'"
    assert_includes words, "--watchdog takes a number from 0.1 to 30, not '31'"
    assert_includes words, "unknown argument 'something'"
    assert_includes words, "--homes is a part of the rule"
    assert_equal [1, 1, 1, 1, 2, 2, 2, 2], result.stdout.scan(/status (\d)/).flatten.map(&:to_i)
  end

  # This machine's own kernel, where it has no sched_ext.
  def test_on_this_kernel
    skip "this machine's kernel has sched_ext" if File.exist?("/sys/kernel/sched_ext")
    output, status = Open3.capture2e("#{Guest::BUILD}/bin/aggregate")
    assert_equal 1, status.exitstatus
    assert_match(/\Aaggregate: error: this kernel \(.*\) has no sched_ext; .*\n\z/, output)
  end

  # Twice so many. The figure of sched/README.md is of CYCLES=150 several times.
  def test_attached_and_killed_again_and_again
    cycles = Integer(ENV["CYCLES"] || 40)
    result = guest(<<~SHELL, cpus: 2, icount: false, seconds: 60 + (cycles * 3 / 2))
      while :; do chatroom 4 1 8 20 >/dev/null || echo failed >>/out/failed; done &
      spin 6000000 2 1,rest=1/1 >/dev/null &
      aggregate --no-statistics --cycles #{cycles} || exit 1
      aggregate --no-statistics --homes --cycles #{cycles} || exit 1
      chatroom 2 1 8 10
      [ ! -f /out/failed ]
    SHELL
    assert_equal 2, result.stdout.scan("cycles #{cycles}: killed while attached").size, result.stdout
  end
end

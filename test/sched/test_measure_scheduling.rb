# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "fileutils"
require "json"
require "open3"
require "rbconfig"
require "tmpdir"
require_relative "../../sched/vm/measure_command"

# sched/measure without a guest: what it asks of one, and what it makes of what comes back.
class TestMeasureScheduling < Minitest::Test
  PROGRAM = File.expand_path("../../sched/measure", __dir__)
  CHATROOM = CowSched::WORKLOADS["chatroom-8"]
  STAT = { "before" => "cpu0 5 0 5 100 7 0\ncpu1 5 0 5 300 0 0\n",
           "after" => "cpu0 9 0 9 103 9 0\ncpu1 9 0 9 330 0 0\n" }.freeze

  # What a guest leaves: files by their names, and a result for them.
  def result(files)
    Dir.mktmpdir do |directory|
      files.each do |name, content|
        File.write("#{directory}/#{name}", content.is_a?(String) ? content : JSON.generate(content))
      end
      yield Guest::Result.new(status: 0, stdout: "", stderr: "", directory: directory)
    end
  end

  def process(name, switches, longest)
    { name: name, pid: 1, switches: switches, address_space_switches: switches / 2, waits: 4,
      wait_total_ms: 8.0, longest_wait_ms: longest, ran_ms: 20.5 }
  end

  def report(kind: 0, dispatches: 7)
    { ending: { kind: kind, reason: "stall" }, decisions: { dispatches: dispatches },
      processes: [process("chatroom", 100, 3.5), process("chatroom", 60, 9.5), process("sh", 5_000, 99)] }
  end

  def left(**changes)
    said = { messages: 400, ms: 50.0 }
    { "said" => said, "plain" => said.merge(ms: 2.0), "counted.json" => report, "plain.json" => report,
      **STAT, **changes.transform_keys(&:to_s) }
  end

  def figures(policy, **changes)
    result(left(**changes)) { |given| CowSched::Figures.of(CHATROOM, policy, given) }
  end

  def test_figures_of_a_run
    one = figures("rule")
    assert_in_delta 0.2, one[:address_space_switches_per_message]
    assert_in_delta 0.4, one[:switches_per_message]
    assert_in_delta 5_000, one[:instructions]
    assert_in_delta 2, one[:mean_wait_ms]
    assert_in_delta 9.5, one[:longest_wait_ms]
    assert_equal({ "sh" => 20.5 }, one[:beside_ms])
    assert_equal 50, one[:idle_ms_at_most], "of CPU 0: three hundredths idle, two waiting"
  end

  def test_a_scheduler_that_was_not_at_work_gives_no_figures
    error = assert_raises(Guest::Error) { figures("rule", "plain.json": report(kind: 1026)) }
    assert_match(/not at work to the end: .*stall/, error.message)
    assert_raises(Guest::Error) { figures("scx", "counted.json": report(dispatches: 0)) }
    assert_in_delta 0.4, figures("default", "counted.json": report(dispatches: 0))[:switches_per_message]
  end

  def test_shares
    said = { ms: 1_500, processes: [{ threads: [30.0] }, { threads: [30.0, 60.0, 90.0] }] }
    share = result("said" => said, "counted.json" => report) do |given|
      CowSched::Figures.of(CowSched::WORKLOADS["share"], "rule", given)
    end
    assert_equal({ lone: 20.0, each_of_three: 40.0 }, share)
  end

  def row(workload, policy, values, cpus: 1)
    samples = values.map do |value|
      { longest_wait_ms: value, address_space_switches_per_message: value / 1_000 }
    end
    { workload: workload, policy: policy, cpus: cpus, samples: samples, **CowSched::Figures.summary(samples) }
  end

  def test_medians_and_ranges
    made = row("chatroom-8", "scx", [30.0, 10.0, 20.0])
    assert_in_delta 20, made[:longest_wait_ms]
    assert_equal [10.0, 30.0], made[:ranges][:longest_wait_ms]
    refute made.key?(:instructions)
    assert_in_delta 15, row("chatroom-8", "scx", [10.0, 20.0])[:longest_wait_ms]
  end

  def test_tables
    rows = [row("chatroom-8", "default", [30.0, 10.0, 20.0]), row("chatroom-8", "rule", [2.0]),
            row("puma", "rule", [4.0]), row("chatroom-8-cpus-2", "homes", [1.0], cpus: 2)]
    text = CowSched::Figures.tables(rows).map(&:to_markdown).join
    assert_includes text, "### one CPU: longest wait (ms, less is better)\n\n|  | default | rule |"
    assert_includes text, "| chatroom-8 | 20.0 (10.0 to 30.0) | 2.0 |"
    assert_includes text, "| puma | - | 4.0 |"
    assert_includes text, "### several CPUs: longest wait (ms, less is better)\n\n|  | homes |"
    assert_includes text, "switches between address spaces (for each 1,000 messages"
    refute_includes text, "instructions"
  end

  # Each workload, on one CPU and on two, under the kernel's scheduler, ours without the rule and with it.
  def test_workloads
    %w[chatroom-2 chatroom-8 apache puma share].each do |name|
      one, two = CowSched::WORKLOADS.values_at(name, "#{name}-cpus-2")
      assert_equal [1, 2], [one.cpus, two.cpus], name
      [one, two].each { |workload| assert_empty %w[default scx rule] - workload.policies, name }
    end
  end

  def test_scripts
    default, scx = %w[default scx].map { |policy| CHATROOM.script(policy, true, nil) }
    assert_includes default, "start --json /out/counted.json --observe\nchatroom 8 1 20 $SIZE >/out/said"
    refute_includes default, "--no-statistics"
    assert_includes scx, "start --json /out/counted.json --no-rule\n"
    assert_includes scx, "start --no-statistics --json /out/plain.json --no-rule\n"
    refute_includes CowSched::WORKLOADS["share"].script("rule", true, nil), "/out/plain"
    groups = CowSched::WORKLOADS["share-groups"].script("rule", false, nil)
    assert_includes groups, "mkdir $compute $talk\n"
    [default, scx, groups].each { |script| assert system("sh", "-n", "-c", script) }
  end

  def run_command(*arguments)
    text, status = Open3.capture2e(RbConfig.ruby, PROGRAM, *arguments)
    [status.exitstatus, text]
  end

  def test_mistakes
    { %w[--only nothing] => /--only: no such: nothing \(there are chatroom-2, /,
      %w[--policies some] => /--policies: no such: some/,
      %w[--runs 0] => /--runs wants a number above 0/,
      %w[--ruby /nowhere] => %r{/nowhere is missing},
      %w[more] => /not understood: more/ }.each do |arguments, words|
      status, text = run_command(*arguments)
      assert_equal 2, status, text
      assert_match words, text
      assert_equal 1, text.lines.size, text
    end
  end

  def test_what_is_missing
    puma = CowSched::WORKLOADS["puma"]
    command = Struct.new(:ruby, :gems)
    assert_nil CHATROOM.lacks(command.new)
    skip "no wrk here" unless File.executable?("/usr/bin/wrk")
    assert_equal "--ruby and --gems", puma.lacks(command.new("/ruby"))
    assert_nil puma.lacks(command.new("/ruby", "/gems"))
    assert_match(/measure: puma needs --ruby and --gems/, run_command("--only", "puma").last)
  end

  # -- the guest

  def test_complaints_of_a_kernel
    good = ["[1.2] sched_ext: BPF scheduler \"cow_aggregate\" enabled",
            "[1.3] sched_ext: BPF scheduler \"cow_aggregate\" disabled (unregistered from user space)",
            "[1.4] tsc: Refined TSC clocksource calibration"]
    bad = ["[2.1] sched_ext: BPF scheduler \"cow_aggregate\" disabled (runtime error)",
           "[2.2] sched_ext: BPF scheduler \"cow_aggregate\" disabled (runnable task stall)",
           "[2.3] sched_ext: BPF scheduler \"cow_aggregate\" disabled (unregistered from the main kernel)",
           "[2.4] sched_ext: cow_aggregate: spin[9] failed to run for 1.012s",
           "[2.5] WARNING: CPU: 0 PID: 1 at kernel/sched/ext.c:1", "[2.6] BUG: unable to handle page fault",
           "[2.7] rcu: INFO: rcu_preempt detected stalls on CPUs", "[2.8] Call Trace:",
           "[2.9] Out of memory: Killed process 7"]
    log = [*good, *bad].join("\n")
    assert_equal bad, Guest.complaints(log)
    assert_equal bad - [bad[3]], Guest.complaints(log, /failed to run/)
    assert_empty Guest.complaints(good.join("\n"))
  end

  def test_the_pinned_kernel
    assert_match(/\A\d+\.\d+\.\d+\S+amd64\z/, Guest.pinned_kernel)
    two = "pool/linux-binary-1.2-amd64_1.2-1_amd64.deb 0\npool/linux-binary-1.3-amd64_1.3-1_amd64.deb 0\n"
    assert_equal "1.2-amd64", Guest.pinned_kernel(two.lines.first)
    [two, ""].each { |pin| assert_raises(Guest::Error) { Guest.pinned_kernel(pin) } }
  end
end

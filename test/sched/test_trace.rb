# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# sched/simulate: traces of ftrace, read into programs of threads.
class TestSchedulingTrace < Minitest::Test
  include SchedulingTest

  HEAD = <<~TEXT
    # tracer: nop
    #
    #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
    #              | |         |   |||||     |         |
  TEXT
  PIDS = { 11 => 11, 12 => 11, 21 => 21, 5 => 0 }.freeze

  # A line of ftrace at +ms+ by "comm-pid".
  def line(ms, who, cpu, event, text, flags: "d..2.")
    time = format("%5d.%06d", 100 + ms / 1_000, ms % 1_000 * 1_000)
    format("%16s   [%03d] %s %s: %s: %s\n", who, cpu, flags, time, event, text)
  end

  def switch(ms, cpu, prev, state, following)
    names = [prev, following].map { |who| who.match(/\A(.*)-(\d+)\z/).captures }
    line(ms, prev, cpu, "sched_switch",
         "prev_comm=#{names[0][0]} prev_pid=#{names[0][1]} prev_prio=120 prev_state=#{state} ==> " \
         "next_comm=#{names[1][0]} next_pid=#{names[1][1]} next_prio=120")
  end

  def waking(ms, cpu, who, target, flags: "d..3.", event: "sched_waking")
    comm, pid = target.match(/\A(.*)-(\d+)\z/).captures
    line(ms, who, cpu, event, "comm=#{comm} pid=#{pid} prio=120 target_cpu=001", flags: flags)
  end

  def read(text, pids = PIDS, **more)
    Trace.new("a.trace", HEAD + text, pids.dup, **more).workload
  end

  def steps(entry)
    entry.program.to_a.transpose
  end

  MS = 1_000_000

  # 11 runs for 3 ms and wakes 21 after 2, which runs for 4 ms on the other CPU and wakes 11 after 1 of them.
  TALK = [[:switch, 0, 0, "swapper/0-0", "R", "chat-11"], [:waking, 2, 0, "chat-11", "a b-21"],
          [:switch, 2, 1, "swapper/1-0", "R", "a b-21"], [:switch, 3, 0, "chat-11", "S", "swapper/0-0"],
          [:waking, 3, 1, "a b-21", "chat-11"], [:switch, 3, 0, "swapper/0-0", "R", "chat-11"],
          [:switch, 5, 0, "chat-11", "S", "swapper/0-0"],
          [:switch, 6, 1, "a b-21", "S", "swapper/1-0"]].freeze

  # As those of talk.
  def assert_same_programs(text)
    wanted, found = [talk, text].map { |one| read(one).entries.map { |entry| steps(entry) } }
    assert_equal wanted, found
  end

  def talk = TALK.map { |name, *arguments| send(name, *arguments) }.join

  def test_wake_ups_become_steps_of_those_who_wake
    found = read(talk)
    first, second = found.entries
    assert_equal [[2 * MS, 1], [1 * MS, WAIT], [2 * MS, sleep_of(1 * MS)]], steps(first)
    assert_equal [[0, WAIT], [1 * MS, 0], [3 * MS, GO]], steps(second)
    assert_equal [1, 2], [first, second].map(&:space)
    assert_equal ["chat", "a b"], [first, second].map(&:kind)
    assert_equal ["a", 1, 6 * MS], [found.name, found.messages, found.length]
  end

  def test_what_the_recorded_scheduler_did
    found = read(talk).recorded
    assert_equal [2, 2, 2, 0], found.values_at(:cpus, :threads, :hand_overs, :address_space_switches)
    assert_equal 0, found[:longest_wait_ms]
    late = talk.sub(switch(2, 1, "swapper/1-0", "R", "a b-21"), "").sub(
      switch(3, 0, "chat-11", "S", "swapper/0-0"), switch(3, 0, "chat-11", "S", "a b-21")
    ).lines.first(3).join + switch(4, 0, "a b-21", "R+", "chat-11") + switch(9, 0, "chat-11", "R+", "a b-21")
    found = read(HEAD + late).recorded
    assert_equal [1, 3, 5.0], found.values_at(:cpus, :address_space_switches, :longest_wait_ms)
  end

  # What is simulated on one CPU without a rule can be computed from the programs: 21 waits until 11 blocks.
  def test_the_trace_is_played
    simulation = Simulation.new(read(talk), "scx", cpus: 1)
    figures = simulation.run(0.007)
    # 11: 0-3. 21: 3-7, and it wakes 11 at 4. Then 11 runs.
    assert_equal [3 * MS, 4 * MS], simulation.tasks.map { |task| simulation.cpu_time(task) }
    assert_in_delta 3, figures[:longest_wait_ms]
    assert_equal 2, figures[:hand_overs]
  end

  def test_being_preempted_is_no_part_of_a_program
    text = switch(0, 0, "swapper/0-0", "R", "chat-11") + switch(2, 0, "chat-11", "R+", "x-21") +
           switch(3, 0, "x-21", "R", "chat-11") + switch(5, 0, "chat-11", "D", "x-21") +
           switch(6, 0, "x-21", "Z", "swapper/0-0") + switch(9, 0, "swapper/0-0", "R", "chat-11")
    first, second = read(text).entries
    # Nobody was seen to wake 11: it slept until it ran again.
    assert_equal [[4 * MS, sleep_of(4 * MS)]], steps(first)
    assert_equal [[2 * MS, sleep_of(3 * MS)]], steps(second)
  end

  def test_devices_and_timers_wake_after_the_recorded_time
    text = switch(0, 0, "swapper/0-0", "R", "chat-11") + switch(1, 0, "chat-11", "S", "x-21") +
           waking(4, 0, "x-21", "chat-11", flags: "dNh4.") + switch(5, 0, "x-21", "S", "chat-11") +
           switch(6, 0, "chat-11", "S", "swapper/0-0") +
           waking(8, 0, "swapper/0-0", "chat-11", flags: "d.s3.") +
           switch(8, 0, "swapper/0-0", "R", "chat-11")
    first, = read(text).entries
    assert_equal [[1 * MS, sleep_of(3 * MS)], [1 * MS, sleep_of(2 * MS)]], steps(first)
    # What arrives over loopback wakes in a softirq of the one that sent it.
    text = text.sub("dNh4.", "d.s4.")
    first, second = read(text).entries
    assert_equal [[1 * MS, WAIT], [1 * MS, sleep_of(2 * MS)]], steps(first)
    assert_equal [3 * MS, 0], steps(second).first
  end

  def test_sched_wakeup_counts_only_where_there_is_no_sched_waking
    again = waking(2, 0, "chat-11", "a b-21", event: "sched_wakeup")
    text = talk.lines.insert(2, again).join
    assert_same_programs text
    alone = talk.gsub("sched_waking", "sched_wakeup")
    assert_same_programs alone
  end

  def test_a_thread_that_is_forked_waits_for_its_fork
    text = switch(0, 0, "swapper/0-0", "R", "chat-11") +
           line(2, "chat-11", 0, "sched_process_fork", "comm=chat pid=11 child_comm=chat child_pid=30") +
           switch(3, 0, "chat-11", "R+", "chat-30") +
           line(4, "chat-30", 0, "sched_process_exit", "comm=chat pid=30 prio=120 group_dead=true") +
           switch(5, 0, "chat-30", "X", "chat-11") + switch(7, 0, "chat-11", "S", "swapper/0-0")
    parent, child = read(text, PIDS.merge(30 => 11)).entries
    assert_equal [[2 * MS, 1], [3 * MS, GO]], steps(parent)
    assert_equal [[0, WAIT], [2 * MS, sleep_of(2 * MS)]], steps(child)
    assert_equal 1, child.space
    # Without a line of its own it is taken for a thread of its parent's process.
    assert_equal [1, 1], read(text).entries.map(&:space)
  end

  def test_threads_of_the_kernel
    text = talk + switch(7, 0, "swapper/0-0", "R", "kworker/0:1-15") +
           switch(8, 0, "kworker/0:1-15", "I", "helper-5") + switch(9, 0, "helper-5", "S", "swapper/0-0")
    assert_equal [1, 2, 0, 0], read(text).entries.map(&:space)
    assert_equal 0, read(text).recorded[:address_space_switches]
  end

  # Even if the table has a line for them: by the name, or because they sleep as only the kernel's do.
  def test_threads_of_the_kernel_that_the_table_does_not_know_as_such
    text = talk + switch(7, 0, "swapper/0-0", "R", "kworker/0:1-15") +
           switch(8, 0, "kworker/0:1-15", "S", "odd-16") + switch(9, 0, "odd-16", "I", "swapper/0-0")
    assert_equal [1, 2, 0, 0], read(text, PIDS.merge(15 => 15, 16 => 16)).entries.map(&:space)
  end

  # Whom it woke a device wakes, and its time is nobody's.
  def test_threads_that_are_left_out
    found = read(talk, without: ["a b"])
    assert_equal ["chat"], found.entries.map(&:kind)
    assert_equal [[3 * MS, sleep_of(0)], [2 * MS, sleep_of(1 * MS)]], steps(found.entries.first)
    assert_equal 1, found.recorded[:threads]
    forked = switch(0, 0, "swapper/0-0", "R", "sh-11") +
             line(1, "sh-11", 0, "sched_process_fork", "comm=sh pid=11 child_comm=sh child_pid=21") +
             switch(2, 0, "sh-11", "S", "x-21") + switch(5, 0, "x-21", "S", "swapper/0-0")
    assert_equal [[3 * MS, GO]], steps(read(forked, without: ["sh"]).entries.first)
    assert_equal 0, read(talk, without: ["nobody"]).recorded[:address_space_switches]
  end

  def test_weights_by_priorities
    text = talk.gsub(/pid=11 ((?:prev_|next_)?prio)=120/, 'pid=11 \1=110')
    assert_equal [931, 100], read(text).entries.map(&:weight), "the kernel's table has 9548 by 1024"
    assert_equal [100, 100], read(text.gsub("prio=110", "prio=49")).entries.map(&:weight)
  end

  def test_forms_of_lines
    other = talk.gsub(/\[00(\d)\] d..[23]\./, '(-----) [00\1] ....').gsub(/(\d+\.\d{6}):/, '\1000:')
    assert_same_programs other
    bare = talk.gsub(/\] d..[23]\./, "]")
    assert_same_programs bare
    other = "#{talk}\n#{line(6, "x-y z-99", 1, "sched_stat_runtime", "comm=x-y z pid=99 runtime=5")}"
    assert_same_programs other
  end

  def test_copies_are_processes_of_their_own
    found = read(talk).multiplied(7, spread: 1_000, random: Random.new(1))
    assert_equal 6, found.entries.size
    assert_equal [1, 2, 3, 4, 5, 6], found.entries.map(&:space)
    assert_equal [0, 0, 2, 2, 4, 4], found.entries.map(&:copy)
    assert_equal [0, 0], found.entries.map(&:delay).first(2)
    assert_equal ["chat 1", "a b 2"] * 3, found.entries.map(&:kind)
    found = read(talk).multiplied(6, spread: 1_000, random: Random.new(1), same: true)
    assert_equal [1, 2, 1, 2, 1, 2], found.entries.map(&:space)
    assert_equal 2, found.processes
    figures = Simulation.new(found, "rule", cpus: 2).run(0.1)
    assert_operator figures[:hand_overs], :>, 20
  end

  # -- faults

  FAULTS = {
    "" => /a\.trace: there is no event in it/,
    "nonsense\n" => /a\.trace:5: this is no line of ftrace/,
    "CPU:1 [LOST 12 EVENTS]\n" => /a\.trace:5: the kernel lost 12 events here: record with a larger buffer/
  }.freeze

  def fault(&block) = assert_raises(Trace::Bad, &block).message

  def assert_bad(expected, text, pids = PIDS)
    message = fault { read(text, pids) }
    assert_match expected, message
    assert_equal 1, message.lines.size
  end

  def test_faults_of_a_trace
    FAULTS.each { |text, expected| assert_bad(expected, text) }
    assert_bad(/the trace ends in the middle of a line/, talk.chomp)
    assert_bad(/sched_switch lacks its fields/, talk + line(7, "swapper/0-0", 0, "sched_switch", "x=1"))
    assert_bad(/sched_waking lacks its fields/, talk + line(7, "swapper/0-0", 0, "sched_waking", "comm=x"))
    assert_bad(/sched_process_fork lacks its/, talk + line(7, "swapper/0-0", 0, "sched_process_fork", ""))
    assert_bad(/a\.trace:13: the time goes back/, talk + switch(1, 0, "swapper/0-0", "R", "chat-11"))
    assert_bad(/21 runs on CPU 0, where 0 was put: events are missing/,
               talk + switch(8, 0, "a b-21", "S", "chat-11"))
    assert_bad(/11 runs on two CPUs/, talk + switch(7, 0, "swapper/0-0", "R", "chat-11") +
                                      switch(8, 1, "swapper/1-0", "R", "chat-11"))
    assert_bad(/pid 21 \(a b\) is not in the table of processes/, talk, { 11 => 11 })
    assert_bad(/shorter than a ms/, switch(0, 0, "swapper/0-0", "R", "chat-11"))
    idle = [0, 5].map { |ms| switch(ms, 0, "swapper/0-0", "R", "swapper/0-0") }
    assert_bad(/no thread runs/, idle.join)
  end

  def test_a_trace_that_lacks_what_its_head_names
    head = "# entries-in-buffer/entries-written: 9/9   #P:2\n"
    assert_bad(/it has 8 of the 9 events that its head names: it is cut off/, head + talk)
    assert_equal 2, read(head.gsub("9/9", "8/8") + talk).entries.size
  end

  # A thread that was woken and had no CPU before the end of the trace: it needs some time, to be played.
  def test_a_thread_that_does_not_come_to_run
    found = read(talk + waking(6, 0, "swapper/0-0", "late-30"), PIDS.merge(30 => 30))
    assert_equal [[0, sleep_of(6 * MS)], [1, GO]], steps(found.entries.last)
    Simulation.new(found, "rule", cpus: 1).run(0.1)
  end

  # From 2 ms to 5 ms: 11 runs in it at first, and its sleep from 5 ms on is not seen.
  def test_a_part_of_a_trace
    first, second = read(talk, part: [0.002, 0.005]).entries
    assert_equal [[0, 1], [1 * MS, WAIT], [2 * MS, GO]], steps(first)
    assert_equal [[0, WAIT], [1 * MS, 0], [2 * MS, GO]], steps(second)
    assert_match(/there is no event in that part of it/, fault { read(talk, part: [1, 2]) })
  end

  # CPU 1 has events from 2 ms on: what CPU 0 did before is left out.
  def test_a_trace_whose_beginning_was_written_over
    head = "# entries-in-buffer/entries-written: 8/20   #P:4\n"
    found = read(head + talk)
    assert_equal [4 * MS, 4], [found.length, found.recorded[:cpus]]
    assert_equal [[0, 1], [1 * MS, WAIT], [2 * MS, sleep_of(1 * MS)]], steps(found.entries.first)
  end

  def test_files
    Dir.mktmpdir do |directory|
      trace, pids = %w[chat.trace chat.pids].map { |name| File.join(directory, name) }
      File.write(trace, HEAD + talk)
      File.write(pids, "# pid tgid\n11 11 chat\n 12 11\n\n21 21\n")
      assert_equal ["chat", 2], Trace.read(trace, pids).then { |found| [found.name, found.entries.size] }
      assert system("gzip", "-n", trace)
      assert_equal "chat", Trace.read("#{trace}.gz", pids).name
      File.binwrite("#{trace}.gz", File.binread("#{trace}.gz")[0..-20])
      assert_match(/cut off or damaged/, fault { Trace.read("#{trace}.gz", pids) })
      File.write(trace, "")
      assert_match(/chat\.trace: the trace is empty/, fault { Trace.read(trace, pids) })
      { "" => /the table of processes is empty/,
        "11 x\n" => /chat\.pids:1: "pid tgid" is wanted, two numbers/,
        "11 11\n5\n" => /chat\.pids:2/ }.each do |text, expected|
        File.write(pids, text)
        assert_match(expected, fault { Pids.read(pids) })
      end
      assert_match(/No such file/, fault { Trace.read(File.join(directory, "none"), pids) })
    end
  end
end

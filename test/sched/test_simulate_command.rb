# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# sched/simulate/simulate, its made-up workloads and what it writes.
class TestSimulateSchedulingCommand < Minitest::Test
  include SchedulingTest

  # -- workloads

  def made(name, processes: 4, threads: 4, seed: 1)
    Generator.make(name, processes: processes, threads: threads, random: Random.new(seed))
  end

  def sizes(...)
    found = made(...)
    [found.entries.size, found.processes]
  end

  def test_sizes_of_workloads
    { "chatroom" => [160, 4], "workers" => [40, 5], "spinners" => [4, 4] }.each do |name, expected|
      assert_equal expected, sizes(name), name
    end
    assert_equal [80, 1], sizes("chatroom", processes: 1)
    assert_equal [400, 4], sizes("chatroom", threads: 400)
    assert_equal [240, 3], sizes("chatroom", processes: 3, threads: 240)
    assert_equal [9, 3], sizes("spinners", processes: 3, threads: 9)
  end

  def test_the_same_seed_makes_the_same
    %w[chatroom workers].each do |name|
      first, second, other = [1, 1, 2].map { |seed| made(name, seed: seed).entries.map(&:to_h) }
      assert_equal first, second
      refute_equal first, other
    end
  end

  # Every thread waits as often as it is woken: else it would stop for ever, or be woken more and more often.
  def test_waits_and_wake_ups_are_equal
    { "chatroom" => [1, 3, 8], "workers" => [1, 4] }.each do |name, counts|
      counts.each do |processes|
        entries = made(name, processes: processes).entries
        times = entries.each_index.map { |i| name == "chatroom" ? rounds(i) : 1 }
        waits = entries.zip(times).map { |entry, times| entry.program.acts.count(Program::WAIT) * times }
        wakes = [0] * entries.size
        entries.zip(times) do |entry, times|
          entry.program.acts.each { |act| wakes[act] += times if act >= 0 }
        end
        assert_equal waits, wakes, name
      end
    end
  end

  # How often the program of the thread at a place in a chatroom is gone through while its others are once:
  # the server's senders, third of four roles, send what each of the users has sent.
  def rounds(place)
    place / Generator::USERS % 4 == 2 ? Generator::USERS : 1
  end

  def test_workloads_go_on
    %w[chatroom workers].each do |name|
      early, late = [0.1, 0.4].map do |time|
        Simulation.new(made(name), "rule", cpus: 2).run(time)[:hand_overs]
      end
      assert_operator late, :>, 3 * early, name
    end
  end

  # The claim that is to be simulated: fewer switches of address space, and none waits longer than the bound.
  def test_the_rule_avoids_switches_of_address_space
    scx, rule = %w[scx rule].map do |policy|
      Simulation.new(made("chatroom", processes: 8, threads: 8), policy, cpus: 2).run(0.2, from: 0.04)
    end
    per = [scx, rule].map { |figures| figures[:address_space_switches].fdiv(figures[:hand_overs]) }
    assert_operator per[1], :<, per[0] / 7
    assert_operator rule[:longest_wait_ms], :<=, rule[:bound_ms]
  end

  # -- the command

  def run_quick(*arguments)
    Dir.mktmpdir do |directory|
      out, errors, status = command("--quick", "--output", directory, *arguments)
      assert_predicate status, :success?, errors
      yield out, JSON.parse(File.read(File.join(directory, "results.json"))), directory
    end
  end

  KEYS = %w[
    workload policy bonus_ms cpus threads processes simulated address_space_switches_per_message instructions
    longest_wait_ms mean_wait_ms p99_wait_ms bound_ms switches address_space_switches hand_overs jain
    hungry_least hungry_most fair_share_least fair_share_most idle_beside_queue_ns
  ].freeze

  def test_quick
    run_quick("--processes", 4, "--spinners", 1) do |out, raw, directory|
      assert_match(/^simulated, chatroom, 161 threads in 5 processes: switches of address space /, out)
      assert_match(/^2 CPUs +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$/, out)
      assert_equal Policies::ALL.keys.product([2, 8]).sort,
                   raw["rows"].map { |row| row.values_at("policy", "cpus") }.sort
      raw["rows"].each do |row|
        assert_empty KEYS - row.keys
        assert_equal [0, true, nil], row.values_at("idle_beside_queue_ns", "simulated", "instructions")
        assert_equal %w[queues processor].include?(row["policy"]), row["bound_ms"].nil?
        assert_operator row["hungry_most"], :>=, row["hungry_least"]
        assert_nil row["fair_share_most"]
      end
      stored = File.readlines(File.join(directory, "tables.md"), chomp: true)
      assert_equal out.lines.first(6).map(&:chomp), stored.grep(/\A- /).map { |line| line[2..] }
      assert_path_exists File.join(directory, "longest-wait-ms-recorded.svg") if CowBench::Chart.available?
    end
  end

  def test_the_same_arguments_give_the_same_rows
    first, second, other = [1, 1, 2].map do |seed|
      run_quick("--seed", seed, "--policies", "rule") { |_, raw| raw["rows"] }
    end
    assert_equal first, second
    refute_equal first, other
  end

  def test_several_bonuses_and_numbers_of_threads
    run_quick("--policies", "scx,rule", "--bonus", "1,2.5", "--threads", "320,700") do |out, raw|
      assert_match(/^ +scx +rule 1 ms +rule 2\.5 ms$/, out)
      assert_equal [320, 640], raw["rows"].map { |row| row["threads"] }.uniq
      assert_equal [nil, 1, 2.5], raw["rows"].map { |row| row["bonus_ms"] }.uniq
    end
  end

  def test_time_by_the_number_of_cpus
    run_quick("--policies", "rule", "--cpu-seconds", "0.2") do |out, raw|
      assert_match(/^simulated: 0\.2 s by the number of CPUs, of which/, out)
      assert_equal [0.1, 0.025], raw["rows"].map { |row| row["seconds"] }
    end
  end

  def test_spinners_alone_have_no_messages
    run_quick("--workload", "spinners", "--weights", "100,200") do |out, raw|
      assert_nil raw["rows"][0]["address_space_switches_per_message"]
      assert_includes out, "slice 5.0 ms, clock head; "
      refute_match(/a 1,000 messages|: messages/, out)
    end
  end

  SWITCH = "sched_switch: prev_comm=%s prev_pid=%d prev_prio=120 prev_state=%s ==> " \
           "next_comm=%s next_pid=%d next_prio=120"
  WAKING = "sched_waking: comm=%s pid=%d prio=120 target_cpu=000"
  IDLE = ["swapper/0", 0].freeze
  # ms, who, what.
  ROUND = [[1, IDLE, format(SWITCH, *IDLE, "R", "a", 11)], [2, ["a", 11], format(WAKING, "b", 21)],
           [3, ["a", 11], format(SWITCH, "a", 11, "S", "b", 21)], [4, ["b", 21], format(WAKING, "a", 11)],
           [6, ["b", 21], format(SWITCH, "b", 21, "S", *IDLE)]].freeze

  # Writes a trace of 200 rounds, 10 ms each, in which a wakes b and b wakes a.
  def trace(directory)
    lines = 200.times.flat_map do |i|
      ROUND.map do |ms, who, text|
        format("%s-%d [000] d..2. %d.%06d: %s\n", *who, 100 + i / 100, i % 100 * 10_000 + ms * 1_000, text)
      end
    end
    { "t.trace" => lines.join, "t.pids" => "11 11\n21 21\n" }.map do |name, text|
      File.join(directory, name).tap { |path| File.write(path, text) }
    end
  end

  def test_a_trace
    Dir.mktmpdir do |directory|
      trace, pids = trace(directory)
      run_quick("--trace", trace, "--pids", pids, "--messages", 100) do |out, raw, written|
        assert_match(/a message is what the traced program counted/, out)
        assert_match(/measured, for comparison: recorded in the trace on 1 CPU 3990.0 switches of addr/, out)
        recorded = raw["measured"][0]
        picture = File.join(written, "longest-wait-ms-recorded.svg")
        assert_includes File.read(picture), "recorded, in the trace" if CowBench::Chart.available?
        assert_equal ["recorded", 1, 400, 399],
                     recorded.values_at("policy", "cpus", "hand_overs", "address_space_switches")
        assert_equal ["t"], raw["rows"].map { |row| row["workload"] }.uniq
      end
    end
  end

  def test_measured_rows_are_drawn_beside
    Dir.mktmpdir do |directory|
      path = File.join(directory, "m.json")
      rows = [{ workload: "chatroom", policy: "default", address_space_switches_per_message: 0.9,
                instructions: 1, longest_wait_ms: 4.5 },
              { workload: "chatroom-cpus-1", policy: "rule-20", cpus: 1, longest_wait_ms: 2 },
              { workload: "apache", policy: "rule", longest_wait_ms: 3 }]
      File.write(path, JSON.generate(cpus: 2, rows: rows))
      run_quick("--measured", path) do |out, raw, written|
        assert_includes out, "rule 20 ms on 1 CPU longest wait 2.0 ms"
        assert_includes out, "measured, for comparison: default on 2 CPUs 900.0 switches of address space " \
                             "a 1,000 messages, longest wait 4.5 ms"
        assert_equal 2, raw["measured"].size
        next unless CowBench::Chart.available?

        picture = File.read(File.join(written, "longest-wait-ms-recorded.svg"))
        assert_includes picture, "default, measured"
        assert_includes picture, "rule, 20 ms, measured"
        assert_includes picture, "homes"
      end
    end
  end

  # The trace that the repository keeps, in the part in which all threads are there.
  def test_the_recorded_chatroom
    traces = File.expand_path("../../sched/simulate/traces", __dir__)
    found = Trace.read(File.join(traces, "chatroom-8.trace.gz"), File.join(traces, "chatroom-8.pids"),
                       without: %w[cryptomgr_test sh], part: [0.25, 0.95])
    assert_equal ["chatroom-8", 8], [found.name, found.processes]
    scx, rule = %w[scx rule].map { |policy| Simulation.new(found, policy, cpus: 1).run(3, from: 0.5) }
    per = [found.recorded, scx, rule].map do |figures|
      figures[:address_space_switches].fdiv(figures[:hand_overs])
    end
    # The kernel's own scheduler, which was recorded, the order of virtual time, and the rule.
    assert_operator per[0], :>, per[1]
    assert_operator per[1], :>, 5 * per[2]
  end

  # With homes beside spinners, the clock by each CPU's own head is not that by the head of all.
  def test_the_clock
    rows = Policies::CLOCKS.map do |clock|
      arguments = ["--spinners", 4, "--policies", "homes", "--bonus", 20, "--clock", clock]
      run_quick(*arguments) { |_, raw| raw["rows"] }
    end
    assert_equal 3, rows.uniq.size
  end

  # -- mistakes

  def test_mistakes_in_arguments
    { %w[--cpus 0] => /--cpus wants a whole number from 1 to 1024, not 0/, %w[--cpus 2,x] => /not x/,
      %w[--bonus -1] => /--bonus wants a number from 0 to 1000000, not -1/, %w[--bonus much] => /not much/,
      %w[--bonus nan] => /not nan/, %w[--slice 0] => /--slice wants a number from 0.001 /,
      %w[--threads 40000] => /--threads wants a whole number from 1 to 30000/,
      %w[--policies best] => /--policies: no such: best \(there are scx, rule, /,
      %w[--clock sun] => /--clock: no such: sun \(there are head, own, start\)/,
      %w[--workload none] => /--workload: no such: none/, %w[--weights 0] => /--weights/,
      %w[--trace a] => /--trace wants --pids/, %w[--pids a] => /--trace wants --pids/,
      %w[--part 1] => /--part wants two times, the lesser first/, %w[--part 2,1] => /the lesser first/,
      %w[--messages 5] => /--messages wants a --trace/, %w[--nonsense] => /invalid option: --nonsense/,
      %w[more] => /not understood: more/, %w[--seconds 0] => /--seconds/,
      %w[--threads 30000 --spinners 10000] => /\d+ threads are too many: 32640 can be simulated/,
      %w[--quick --space-cost 20000000] => /a whole slice/, %w[--cpus] => /missing argument: --cpus/
    }.each { |arguments, expected| assert_refused(expected, *arguments) }
  end

  def test_mistakes_in_files
    Dir.mktmpdir do |directory|
      trace, pids = trace(directory)
      missing = File.join(directory, "nowhere")
      assert_refused(/No such file or directory: .*nowhere/, "--trace", missing, "--pids", pids)
      assert_refused(/No such file or directory: .*nowhere/, "--trace", trace, "--pids", missing)
      assert_refused(/Is a directory/, "--trace", directory, "--pids", pids)
      File.write(pids, "11 11\n")
      assert_refused(/pid 21 \(b\) is not in the table of processes/, "--trace", trace, "--pids", pids)
      File.write(trace, File.read(trace)[0..-30])
      assert_refused(/in the middle of a line/, "--trace", trace, "--pids", pids)
      bad = File.join(directory, "bad.json")
      { "nonsense" => /this is no JSON/, "{}" => /it has no rows with a policy/,
        '{"rows":[{"policy":"scx"}]}' => /a row does not say its cpus/ }.each do |text, expected|
        File.write(bad, text)
        assert_refused(expected, "--measured", bad)
      end
      assert_refused(/No such file/, "--measured", missing)
      File.write(bad, '{"rows":[{"policy":"scx","workload":"apache","cpus":1}]}')
      assert_refused(/no row is of the workload chatroom \(there are apache\)/, "--measured", bad)
    end
  end
end

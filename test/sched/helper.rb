# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Shared by the tests of sched/simulate. They run on any ruby from 3.1 on.
require "minitest/autorun"
require "json"
require "open3"
require "rbconfig"
require "timeout"
require "tmpdir"
require_relative "../../sched/simulate/lib/command"

module SchedulingTest
  # So that a test can name the classes without the module.
  include Scheduling

  PROGRAM = File.expand_path("../../sched/simulate/simulate", __dir__)
  WAIT = Program::WAIT
  GO = Program::GO

  # A thread of address space +space+ that does +steps+, [run, act] each.
  def entry(space, *steps, weight: 100, kind: "thread", delay: 0)
    program = Program.new(steps.map(&:first), steps.map(&:last))
    Entry.new(kind: kind, space: space, weight: weight, program: program, copy: 0, delay: delay)
  end

  def workload(*entries)
    Workload.new(name: "test", entries: entries, messages: 1)
  end

  def sleep_of(time) = Program.sleep(time)

  # Runs +entries+ for +time+ ns and gives [figures, simulation].
  def play(entries, policy, time, **options)
    simulation = Simulation.new(workload(*entries), policy, **{ cpus: 1, slice: 10, bonus: 5 }.merge(options))
    [simulation.run(time / 1e9), simulation]
  end

  # CPU time of each thread after +time+ ns.
  def shares(entries, policy, time, **options)
    _, simulation = play(entries, policy, time, **options)
    simulation.tasks.map { |task| simulation.cpu_time(task) }
  end

  # A policy in which the places of the threads that were put on a CPU are noted, with the time.
  def noting(name, starts)
    lambda do |cpus, **options|
      policy = Policies::ALL.fetch(name).call(cpus, **options)
      policy.define_singleton_method(:begin) do |task, cpu|
        starts << [task.index, cpu.number]
        super(task, cpu)
      end
      policy
    end
  end

  # The places of threads in the order in which they were put on CPUs.
  def order(entries, policy, time, **options)
    starts = []
    play(entries, noting(policy, starts), time, **options)
    starts.map(&:first)
  end

  # Threads that run, wake one another, sleep and wait, all by chance.
  def chance(random)
    count = 2 + random.rand(12)
    Array.new(count) do |i|
      steps = Array.new(1 + random.rand(6)) { [random.rand(40), act_by_chance(random, count, i)] }
      steps << [1 + random.rand(50), [GO, sleep_of(random.rand(60))].sample(random: random)]
      entry(random.rand(4), *steps, weight: [100, 100, 50, 300].sample(random: random),
                                    delay: random.rand(2) * random.rand(100))
    end
  end

  def act_by_chance(random, count, own)
    case random.rand(4)
    when 0 then WAIT
    when 1 then sleep_of(random.rand(100))
    else ((0...count).to_a - [own]).sample(random: random)
    end
  end

  # Runs the program; gives its standard output, standard error and status.
  def command(*arguments)
    Timeout.timeout(120) { Open3.capture3(RbConfig.ruby, PROGRAM, *arguments.map(&:to_s)) }
  end

  # The program ends with status 1 and prints one line, which matches +expected+.
  def assert_refused(expected, *arguments)
    _, errors, status = command(*arguments)
    assert_equal 1, status.exitstatus, errors
    assert_equal 1, errors.lines.size, errors
    assert_match expected, errors
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/measure/simulation")
require "json"

# The simulation of many workers, and benchmark/simulate.
class TestSimulation < Minitest::Test
  include BenchmarkTest

  DIRECTORY = Dir.mktmpdir("simulation")
  Minitest.after_run { FileUtils.rm_rf(DIRECTORY) }

  # Once for all tests.
  def self.simulation
    @simulation ||= Simulation.new(DIRECTORY)
  end

  def run_one(policy, traces: Simulation::TRACES, **options)
    TestSimulation.simulation.run(policy, traces, { seconds: 120, **options })
  rescue Simulation::Failed => e
    skip e.message if e.message.include?("no C compiler")
    raise
  end

  # The simulation itself, without its harness.
  def program(*arguments)
    run_one("growth", seconds: 10)
    Open3.capture3(File.join(DIRECTORY, "simulate"), *arguments)
  end

  def trace(text)
    File.join(DIRECTORY, "a.tsv").tap { |path| File.write(path, text) }
  end

  def test_the_same_seed_gives_the_same
    first, second = Array.new(2) { run_one("pressure", workers: 20, memory: 700, series: 1) }
    assert_equal first, second
    refute_equal first, run_one("pressure", workers: 20, memory: 700, series: 1, seed: 2)
  end

  # The policies differ only where memory is short.
  def test_one_worker_with_plenty_of_memory_is_calm
    Simulation::TRACES.each do |trace|
      pressed = run_one("pressure", traces: [trace])
      assert_equal [0, 0, 0], pressed.values_at(:level, :changes, :stalled), trace
      assert_equal run_one("growth", traces: [trace]).merge(policy: "pressure"), pressed, trace
    end
  end

  def test_collections_of_a_steady_program_take_what_the_model_expects
    (1..5).each do |seed|
      run = run_one("growth", traces: %w[server], seed: seed)
      assert_in_delta run[:gc], run[:expected], run[:gc] * 0.35
      assert_in_delta 1.0, run[:work] + run[:gc], 0.01
    end
  end

  def test_a_higher_target_takes_more_time_and_less_memory
    low, high = [2, 20].map { |target| run_one("growth", traces: %w[waves], target: target) }
    assert_operator low[:gc], :<, high[:gc]
    assert_operator low[:mean], :>, high[:mean]
  end

  def test_pressure_keeps_eight_workers_in_memory_that_is_short
    pristine, growth, pressure = %w[pristine growth pressure].map do |policy|
      run_one(policy, workers: 8, memory: 380)
    end
    assert_operator pressure[:stalled], :<, growth[:stalled] / 2
    assert_operator pressure[:stalled], :<, pristine[:stalled] / 2
    assert_operator pressure[:work], :>, growth[:work]
    assert_operator pressure[:level], :>, 0
    assert_operator pressure[:mean], :<, growth[:mean]
  end

  # Memory that holds what lives by far is no reason for pressure, one that does not hold it is one for ever.
  def test_levels_by_memory
    found = [2_000, 380, 100].map { |memory| run_one("pressure", workers: 8, memory: memory)[:level] }
    assert_equal [0, 2], found.values_at(0, 2)
    assert_includes 0.5..2, found[1]
  end

  def test_figures_are_possible
    Simulation::POLICIES.each_key do |policy|
      [[1, 100], [8, 300], [1_000, 2_000]].each do |workers, memory|
        run = run_one(policy, workers: workers, memory: memory, seconds: 60)
        assert_equal workers, run[:workers]
        assert_includes 1.0.fdiv(workers)..1.0, run[:fairness], run.inspect
        %i[gc stalled least].each { |key| assert_includes 0.0..1.0, run[key], run.inspect }
        assert_includes 0.0..16.0, run[:work], run.inspect
        assert_operator run[:kept], :<=, run[:mean], run.inspect
        assert_operator run[:mean], :<=, run[:peak], run.inspect
        assert_equal 0, run[:changes], policy if %w[pristine growth].include?(policy)
      end
    end
  end

  # What is recorded of a program: it drops no more than it has made.
  def test_traces
    Simulation::TRACES.each do |name|
      path = File.join(Simulation::DIRECTORY, "traces/#{name}.tsv")
      lines = File.readlines(path, chomp: true)
      assert_operator File.size(path), :<, 50_000
      assert_match(%r{Made anew by: benchmark/simulation/record #{name}\z}, lines[1])
      live = lines.find { |line| line.start_with?("base\t") }.split("\t").last(2).map(&:to_i)
      lines.grep(/\A\d/).each do |line|
        _, _, _, *bytes, dropped = line.split("\t")
        allocated, kept = bytes.map(&:to_i).each_slice(2).to_a
        2.times { |i| assert_operator kept[i], :<=, allocated[i], line }
        drops = dropped.scan(/(\d+):(\d+):(\d+)/).map { |drop| drop.map(&:to_i) }
        live = live.each_with_index.map { |sum, i| sum + kept[i] - drops.sum { |drop| drop[i + 1] } }
        assert_operator live.min, :>=, 0, line
      end
    end
  end

  def test_mistakes_in_the_arguments_of_the_program
    file = File.join(Simulation::DIRECTORY, "traces/waves.tsv")
    { [] => /no trace is given/, ["nowhere.tsv"] => /nowhere\.tsv: No such file/,
      ["--workers", "0", file] => /--workers wants a whole number from 1 to 1000, not 0/,
      ["--workers", "1.5", file] => /whole number/,
      ["--memory", "much", file] => /--memory wants a whole number/,
      ["--workers"] => /--workers wants a value/,
      ["--policy", "best", file] => /pristine, growth or pressure/,
      ["--nonsense", "1", file] => /no option --nonsense/,
      [trace("nonsense\n")] => /a\.tsv:1: this is no line of a trace/ }.each do |arguments, expected|
      _, errors, status = program(*arguments)
      assert_equal 2, status.exitstatus, arguments.inspect
      assert_equal 1, errors.lines.size, errors
      assert_match expected, errors
    end
  end

  def test_mistakes_in_a_trace
    { "repeats\t3\nbase\t1\t40\t0\n0\t5\t1\t40\t0\t0\t0\t-\n" => /a step that is not there/,
      "base\t1\t40\t0\n" => /there is no step/, "0\t5\t1\n" => /a\.tsv:1: a number of 0 or more is missing/,
      "0\t0\t1\t40\t0\t0\t0\t-\n" => /a step takes no time/ }.each do |text, expected|
      _, errors, status = program(trace(text))
      assert_equal 2, status.exitstatus, text
      assert_match expected, errors
    end
  end

  def test_mistakes_in_the_arguments_of_the_command
    assert_refused(/--workers wants a whole number from 1 to 1000, not 2000/,
                   "simulate", "--workers", "4,2000")
    assert_refused(/--memory wants a whole number/, "simulate", "--memory", "much")
    assert_refused(/not understood: nonsense/, "simulate", "nonsense")
    assert_refused(/invalid option: --nonsense/, "simulate", "--nonsense")
  end

  def test_quick
    run_one("growth", seconds: 10)
    out, errors, status = command("simulate", "--quick", "--output", DIRECTORY)
    assert_predicate status, :success?, errors
    assert_match(/^simulation, all three programs: own work .*more is better\)$/, out)
    assert_match(/^8 workers +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$/, out)
    raw = JSON.parse(File.read(File.join(DIRECTORY, "results.json")))
    assert_equal 4 * 2 * 4, raw["runs"].size
    assert_equal 60, raw["series"]["pressure"].size
    assert_path_exists File.join(DIRECTORY, "tables.md")
    return unless out.include?("work.svg")

    picture = File.read(File.join(DIRECTORY, "work.svg"))
    Simulation::POLICIES.each_key { |policy| assert_includes picture, policy }
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../processes/clock"
require_relative "benchmark"

module CowBench
  # Runs the benchmarks in rounds: in each, every case on all builds in turn, so
  # that a pair of runs stands close together in time; every second round the other way
  # round. The first round is run whole; the others only as far as the time goes.
  class Runner
    Sample = Struct.new(:benchmark, :case, :build, :run, :outcome, keyword_init: true)
    # Not measured: +word+ is "skipped" (something is missing here) or "failed".
    Omission = Struct.new(:word, :what, :reason) do
      def to_s
        "#{word}: #{what}: #{reason}"
      end
    end
    Entry = Struct.new(:benchmark, :case, :builds, :seconds) do
      def name
        "#{benchmark.class.title}: #{self.case.label}"
      end
    end

    attr_reader :samples, :omissions

    def initialize(builds, benchmarks, options, progress)
      @builds = builds
      @benchmarks = benchmarks.map { |benchmark| benchmark.new(options) }
      @rounds = options.quick ? 1 : options.runs
      @seconds = options.minutes * 60
      @progress = progress
      @samples = []
      @omissions = []
    end

    def run
      started = Clock.now
      plan = @benchmarks.flat_map { |benchmark| entries(benchmark) }
      1.upto(@rounds) do |round|
        plan = plan.select { |entry| fits?(entry, Clock.now - started) }
        @progress.round(round, plan.sum { |entry| entry.builds.size })
        plan = plan.select { |entry| fits?(entry, Clock.now - started) && run_case(entry, round) }
      end
    end

    private

    def entries(benchmark)
      benchmark.ready
      omit("skipped", benchmark.class.title, benchmark.left_out) if benchmark.left_out
      builds = @builds.reject { |build| build.memory_only? && benchmark.class::SPEED_ONLY }
      cases = benchmark.chosen_cases
      raise Benchmark::Skip, "it has no case of that name" if cases.empty?

      cases.map { |kase| Entry.new(benchmark, kase, builds, 0) }
    rescue Benchmark::Skip => e
      omit("skipped", benchmark.class.title, e.message)
      []
    end

    # Whether there is time for one more round of a case. The first is always run.
    def fits?(entry, elapsed)
      entry.seconds.zero? || elapsed + entry.seconds < @seconds
    end

    # Says whether the case can be run again.
    def run_case(entry, round)
      free = Memory.available / 1024
      needs = entry.case.needs
      raise Benchmark::Skip, "needs #{needs} MB of memory, #{free} MB are free" if free < needs

      started = Clock.now
      outcomes = (round.even? ? entry.builds.reverse : entry.builds).to_h do |build|
        @progress.start("#{entry.name}, #{build.name}")
        [build, entry.benchmark.measure(build.of_round(round), entry.case)]
      end
      entry.seconds = Clock.now - started
      outcomes.each do |build, outcome|
        @samples << Sample.new(benchmark: entry.benchmark.class.title, case: entry.case.label,
                               build: build.name, run: round, outcome: outcome)
      end
      true
    rescue Benchmark::Skip, Measured::Failed => e
      omit(e.is_a?(Benchmark::Skip) ? "skipped" : "failed", entry.name, e.message)
      false
    end

    def omit(word, what, reason)
      @omissions << Omission.new(word, what, reason)
      @progress.say(@omissions.last.to_s)
    end
  end
end

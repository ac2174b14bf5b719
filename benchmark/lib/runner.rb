# frozen_string_literal: true

require_relative "benchmark"

# Runs the benchmarks: each case on all builds in turn (A B A B), so that a
# pair of runs stands close together in time.
class Runner
  Sample = Struct.new(:benchmark, :case, :build, :run, :outcome, keyword_init: true)
  Skipped = Struct.new(:what, :reason)
  RUNS = 3
  # No further round of a case is begun after so many seconds on it.
  ENOUGH = 60

  attr_reader :samples, :skipped

  def initialize(builds, benchmarks, options, progress)
    @builds = builds
    @benchmarks = benchmarks.map { |benchmark| benchmark.new(options) }
    @runs = options.quick ? 1 : options.runs || RUNS
    @progress = progress
    @samples = []
    @skipped = []
  end

  def run
    plan = @benchmarks.select { |benchmark| ready?(benchmark) }
                      .flat_map { |benchmark| benchmark.cases.map { |kase| [benchmark, kase] } }
    @progress.total = plan.sum { |benchmark, _| builds_for(benchmark).size * @runs }
    plan.each { |benchmark, kase| run_case(benchmark, kase) }
  end

  private

  def builds_for(benchmark)
    @builds.reject { |build| build.memory_only? && benchmark.class::SPEED_ONLY }
  end

  def ready?(benchmark)
    benchmark.ready
    true
  rescue Benchmark::Skip => e
    skip(benchmark.class.title, e.message)
    false
  end

  def run_case(benchmark, kase)
    what = "#{benchmark.class.title}: #{kase.label}"
    rounds = 0
    builds = builds_for(benchmark)
    if kase.needs && Memory.available / 1024 < kase.needs
      return skip(what, "needs #{kase.needs} MB of memory, #{Memory.available / 1024} MB are free")
    end

    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    while rounds < @runs && (rounds.zero? || Process.clock_gettime(Process::CLOCK_MONOTONIC) - started < ENOUGH)
      rounds += 1
      builds.each do |build|
        @progress.start("#{what}, #{build.name}, run #{rounds} of #{@runs}")
        @samples << Sample.new(benchmark: benchmark.class.title, case: kase.label, build: build.name, run: rounds,
                               outcome: benchmark.measure(build, kase))
      end
    end
  rescue Benchmark::Skip, Measured::Failed => e
    skip(what, e.message)
  ensure
    @progress.total -= (@runs - rounds) * builds.size
  end

  def skip(what, reason)
    @skipped << Skipped.new(what, reason)
    @progress.say("skipped: #{what}: #{reason}")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "rbconfig"
require "tmpdir"
require_relative "../lib/processes/supervised"

module CowBench
  # Whole programs of upstream's, by upstream's own harness. Each file is a case, each of its
  # jobs a row.
  module ProgramRun
    TIME = ["time of an iteration", "ns", :less, 1].freeze
    FAMILIES = %w[app array hash string vm].freeze
    SHORT = %w[app_fib.rb array_max_int.yml].freeze
    LIMIT = 300
    # Seconds of a job that is a loop.
    DURATION = 0.3
    RUNNER = "ips"
    # Seconds that a file's jobs are to take on a build; shorter ones are run several times, for the best.
    SECONDS = 1.2
    MOST = 9
    RUNNERS = File.expand_path("../driver", __dir__)
    # How tables and lists show all three (Benchmark).
    SYNTHETIC = true
    SPEED_ONLY = true
    BY_NAME = true
    LINE = /^(?<job>\S.*?) {2,}(?<rate>[\d.]+(?:e\+?\d+)?) *$/.freeze

    def ready
      raise Benchmark::Skip, "needs CRuby's source tree: give --source DIR" unless options.source
      raise Benchmark::Skip, "no benchmark/{#{FAMILIES.join(",")}}_* in #{options.source}" if files.empty?

      _, status = driver({}, "--version")
      raise Errno::ENOENT unless status.success?
    rescue Errno::ENOENT
      raise Benchmark::Skip, "no benchmark-driver: install the gem benchmark_driver, or give --driver FILE"
    end

    def cases
      @repeats = {}
      files.map { |path| Benchmark::Case.new(label: File.basename(path), arguments: [path], needs: 500) }
    end

    def left_out
      quick? ? "--quick runs only #{SHORT.join(", ")}" : nil
    end

    def measure(build, kase)
      path, = kase.arguments
      rates = first_rates(build, path) unless @repeats[path]
      rates = jobs(build, path, @repeats[path]) unless rates && @repeats[path] == 1
      times = rates.to_h { |job, rate| [row(path, job), 1e9 / rate] }
      Benchmark::Outcome.new(values: { time: times }, raw: { repeats: @repeats[path] })
    end

    private

    def files
      found = Dir[File.join(options.source, "benchmark/{#{FAMILIES.join(",")}}_*.{rb,yml}")].sort
      found = found.select { |path| SHORT.include?(File.basename(path)) } if quick?
      chosen(found)
    end

    # Of one run; and notes how often a job is to be run for a sample, so that it takes long enough.
    def first_rates(build, path)
      begun = Clock.now
      jobs(build, path, 1).tap { @repeats[path] = (SECONDS / (Clock.now - begun)).round.clamp(1, MOST) }
    end

    # { job => iterations a second, or what the runner counts }
    def jobs(build, path, repeats)
      executable = [build.name, [build.path, "--disable-gems", *self.class::SWITCHES].join(" ")].join("::")
      out, status = driver(build.environment, path, "-e", executable, "-r", self.class::RUNNER,
                           "-o", "simple", "--output-humanize", "false", "--repeat-count", repeats.to_s,
                           "--run-duration", self.class::DURATION.to_s, "--timeout", self.class::LIMIT.to_s)
      rates = out.scan(LINE).to_h { |job, rate| [job, Float(rate)] }
      if !status.success? || rates.empty? || out.include?("ERROR")
        reason = out.lines.grep(/rror/).first&.strip || status
        raise Measured::Failed, "#{File.basename(path)} on #{build.name}: #{reason}"
      end

      rates
    end

    # The job's own name where it begins with the file's.
    def row(path, job)
      base = File.basename(path, ".*")
      job.start_with?(base) ? job : "#{base}: #{job}"
    end

    def driver(environment, *arguments)
      command = options.driver || "benchmark-driver"
      home = File.expand_path("../..", command)
      gems = File.directory?(File.join(home, "specifications")) ? { "GEM_PATH" => home } : {}
      start = options.driver ? [RbConfig.ruby, command] : [command]
      # The driver ends what takes longer than LIMIT.
      Supervised.capture(*start, *arguments, seconds: Float::INFINITY, chdir: Dir.tmpdir,
                                             environment: environment.merge(gems, "RUBYLIB" => RUNNERS))
    end
  end

  class Programs < Benchmark
    include ProgramRun
    metric :time, *TIME, geometric: true
    SUMMARY = "CRuby's own benchmarks app_*, array_*, hash_*, string_* and vm_*, by benchmark-driver, no JIT"
    SWITCHES = %w[--disable-jit].freeze
  end

  class ProgramsYjit < Benchmark
    include ProgramRun
    metric :time, *TIME, geometric: true
    SUMMARY = "the same with YJIT"
    SWITCHES = %w[--yjit].freeze
  end

  class ProgramsInstructions < Benchmark
    include ProgramRun
    metric :instructions, "instructions of an iteration", "count", :less, 1, geometric: true
    SUMMARY = "instructions of the same, counted by callgrind: a count that no layout changes; no JIT"
    SWITCHES = %w[--disable-jit].freeze
    RUNNER = "instructions"
    DURATION = 0.05
    LIMIT = 1200

    def ready
      super
      needs_valgrind
    end

    def measure(build, kase)
      path, = kase.arguments
      counts = jobs(build, path, 1).transform_keys { |job| row(path, job) }
      Outcome.new(values: { instructions: counts }, raw: {})
    end
  end
end

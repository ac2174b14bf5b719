# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "benchmark"
require_relative "command_line"
require_relative "machine"
require_relative "options"
require_relative "progress"
require_relative "report"
require_relative "runner"
%w[fork_gc fork_requests fork_exit call_caches parent_slots skk jobs gc sweep instructions marking programs
   address_space malloc growth lifetimes job_servers large_master substrings heap_growth].each do |name|
  require_relative "../../cases/#{name}"
end

module CowBench
  # benchmark/run.
  class RunCommand < CommandLine
    NAME = "benchmark/run"
    AFTER_INTERRUPT = "; all measured processes are stopped, and what was measured is kept"
    BANNER = <<~TEXT
      Usage: benchmark/run --ruby NAME=PATH --ruby NAME=PATH [options]
      Measures rubies side by side; the first is the base the others are compared with.

    TEXT

    attr_reader :options

    def initialize(arguments)
      super
      @options = Options.new
      @glibc = true
    end

    private

    def work(rest)
      no_arguments(rest)
      return list if @list

      @output = output(@output || File.join(ROOT, "build/benchmark"))
      measure(builds, options.chosen(Benchmark.all))
    end

    def define(parser)
      define_rubies(parser, "a build to measure; may be given again; %d in PATH: 1, 2, ...,",
                    "another of tool/layouts' in each round")
      define_builds(parser)
      define_choice(parser)
      define_files(parser)
      parser.on("--list", "say what benchmarks there are") { @list = true }
    end

    def define_builds(parser)
      define_env(parser)
      parser.on("--[no-]glibc", "also measure the memory of the base with glibc's malloc",
                "and MALLOC_ARENA_MAX=2 (default: yes)") { |on| @glibc = on }
    end

    def define_choice(parser)
      titles = Benchmark.all.map(&:title)
      parser.on("--only NAMES", Array,
                "only these benchmarks, with commas between them (see --list)") do |names|
        options.only = known("--only", names, titles)
      end
      parser.on("--quick", "each benchmark once and small, to see that it works") { options.quick = true }
      parser.on("--runs N", Integer,
                "at most so many runs of a case on each build (default #{Options::RUNS})") do |n|
        options.runs = positive("--runs", n)
      end
      parser.on("--minutes N", Integer, "begin no further run after so many minutes, once every case was run",
                "(default #{Options::MINUTES})") { |n| options.minutes = positive("--minutes", n) }
      parser.on("--files REGEXP", "of gc and programs only the files whose names match") do |text|
        options.files = pattern("--files", text)
      end
      parser.on("--cases REGEXP", "only the cases whose names, as the tables have them, match") do |text|
        options.cases = pattern("--cases", text)
      end
    end

    def define_files(parser)
      parser.on("--source DIR", "CRuby's source tree, for gc, sweep and programs") do |path|
        options.source = directory(path)
      end
      parser.on("--driver FILE",
                "the command benchmark-driver, for programs (default: that in PATH)") do |path|
        options.driver = File.expand_path(path)
      end
      parser.on("--dictionary FILE", "the dictionary for the benchmark skk") do |path|
        options.dictionary = path
      end
      parser.on("--output DIR", "where the results go (default build/benchmark)") { |path| @output = path }
    end

    def list
      say(Benchmark.all.map { |benchmark| format("%-14s %s", benchmark.title, benchmark.summary) })
    end

    def pattern(option, text)
      Regexp.new(text)
    rescue RegexpError => e
      raise Bad, "#{option}: #{e.message}"
    end

    def directory(path)
      File.directory?(path) ? File.expand_path(path) : raise(Bad, "--source: no such directory: #{path}")
    end

    # Ready to run; the first is the base.
    def builds
      base, *others = given_builds
      [base, *(base.with("glibc", glibc_environment(base)) if @glibc), *others]
    end

    # glibc's malloc as careful users set it up. Preloading the C library puts
    # its malloc before that of a library the ruby is linked with.
    def glibc_environment(base)
      preload = base.allocator["name"] == "glibc" ? {} : { "LD_PRELOAD" => "libc.so.6" }
      { "MALLOC_ARENA_MAX" => "2" }.merge(preload)
    end

    def measure(builds, benchmarks)
      progress = Progress.new
      facts = Machine.facts(ROOT).merge(name: File.basename(@output), commands: [to_s], options: options.to_h)
      runner = Runner.new(builds, benchmarks, options, progress)
      ended = to_its_end?(runner)
      progress.finish
      return interrupted if !ended && runner.samples.empty?

      report = Report.new(facts, builds, benchmarks, runner)
      report.publish(@output, progress)
      return interrupted unless ended

      report.failed? ? FAILED : 0
    end

    # False where it was interrupted: by INT, or by TERM, as a program in the background ignores INT.
    def to_its_end?(runner)
      before = trap(:TERM) { Thread.main.raise(Interrupt) }
      runner.run
      true
    rescue Interrupt
      false
    ensure
      trap(:TERM, before)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: ruby run.rb rspec|minitest RESULTS SEED FILE...
# Runs a suite that others wrote, for tool/check-others: rspec, or minitest or test-unit as the files load.
# Every test becomes a line of RESULTS as it ends: "passed", "failed" or "skipped", a tab and its name. The
# last line is "ended", so that a suite that dies is told from one that has ended. Nothing is loaded here that
# a suite may want to load itself, or to replace.
# With COW_CHILD set the files are loaded and the heap is warmed up, then all tests run in a forked child.

# The file of results.
module CowNames
  class << self
    def open(path)
      @file = File.open(path, "a")
      @file.sync = true
      @lock = Mutex.new
    end

    # The process that runs the tests; what it forks does not record.
    def begin = @pid = Process.pid

    def record(name, result)
      return unless @pid == Process.pid

      name = name.to_s.encode("UTF-8", invalid: :replace, undef: :replace).scrub.tr("\n\t", " ")
      @lock.synchronize { @file.write("#{result}\t#{name}\n") }
    end

    def end = record("", "ended")

    def fork_if_wanted
      if ENV.delete("COW_CHILD")
        Process.warmup if Process.respond_to?(:warmup)
        load File.expand_path("../ruby/run_in_child.rb", __dir__)
      end
      self.begin
    end
  end
end

def record_minitest
  reporter = Class.new(Minitest::AbstractReporter) do
    def record(result)
      mark = { "." => "passed", "S" => "skipped" }.fetch(result.result_code, "failed")
      CowNames.record("#{result.klass}##{result.name}", mark)
    end

    def report = CowNames.end
    def passed? = true
  end
  Minitest.define_singleton_method(:plugin_cow_names_init) { |_| self.reporter << reporter.new }
  Minitest.extensions << "cow_names"
end

def record_test_unit
  Test::Unit::UI::TestRunnerMediator.prepend(Module.new do
    def initialize(*)
      super
      results = {}
      skips = %w[Pending Omission].map { |name| Test::Unit.const_get(name) }
      add_listener(Test::Unit::TestResult::FAULT) do |fault|
        next if defined?(Test::Unit::Notification) && fault.is_a?(Test::Unit::Notification)

        result = skips.any? { |kind| fault.is_a?(kind) } ? "skipped" : "failed"
        results[fault.test_name] = result unless results[fault.test_name] == "failed"
      end
      add_listener(Test::Unit::TestCase::FINISHED) do |name|
        CowNames.record(name, results.delete(name) || "passed")
      end
      add_listener(Test::Unit::UI::TestRunnerMediator::FINISHED) do
        # Of what is done once for a class, or before all.
        results.each { |name, result| CowNames.record(name, result) }
        CowNames.end
      end
    end
  end)
end

def run_rspec(seed, files)
  require "rspec/core"
  RSpec::Core::Runner.prepend(Module.new do
    def run_specs(groups)
      CowNames.fork_if_wanted
      super
    end
  end)
  formatter = Class.new do
    def initialize(_) = nil

    %w[passed failed pending].each do |result|
      define_method("example_#{result}") do |notification|
        example = notification.example
        CowNames.record("#{example.full_description} (#{example.id})", result.sub("pending", "skipped"))
      end
    end

    # Without examples there is an error outside of them.
    def dump_summary(summary)
      outside = summary.errors_outside_of_examples_count
      CowNames.record("what stands outside of examples", "failed") if outside.positive?
      CowNames.end
    end
  end
  CowNames.const_set(:Formatter, formatter)
  RSpec::Core::Formatters.register(formatter, :example_passed, :example_failed, :example_pending,
                                   :dump_summary)
  exit RSpec::Core::Runner.run(["--seed", seed, "--format", "progress", "--format", "CowNames::Formatter",
                                "--out", File::NULL, *files])
end

with, results, seed, *files = ARGV
CowNames.open(results)
srand(seed.to_i) # some suites make tests, and their names, at random
if with == "rspec"
  ARGV.clear
  run_rspec(seed, files)
else
  ARGV.replace(["--seed", seed])
  ENV["SEED"] = seed
  files.each { |file| require File.expand_path(file) }
  # Where both are loaded, the suite is minitest's if it is to run by itself.
  if defined?(Minitest::AbstractReporter) &&
     (Minitest.class_variable_get(:@@installed_at_exit) || !defined?(Test::Unit::AutoRunner))
    record_minitest
    Minitest.autorun
  elsif defined?(Test::Unit::AutoRunner)
    require "test/unit/ui/testrunnermediator"
    ARGV.clear # it takes no seed, and runs by name
    record_test_unit
  else
    abort "run.rb: these files load neither minitest nor test-unit"
  end
  CowNames.fork_if_wanted
end

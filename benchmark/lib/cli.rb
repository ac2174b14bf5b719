# frozen_string_literal: true

require_relative "benchmark"
require_relative "machine"
require_relative "options"
require_relative "progress"
require_relative "report"
require_relative "runner"
%w[fork_gc fork_requests fork_exit call_caches parent_slots skk jobs gc sweep instructions marking programs].each { |name| require_relative "../cases/#{name}" }

# benchmark/run.
class CommandLine
  ROOT = File.expand_path("../..", __dir__)
  USAGE = 2
  INTERRUPTED = 130

  def initialize(arguments)
    @arguments = arguments
  end

  # Gives the exit status.
  def run
    options = Options.new(@arguments, Benchmark.all)
    return tell(options.help) if options.instead == :help
    return tell(Benchmark.all.map { |benchmark| format("%-14s %s", benchmark.title, benchmark.summary) }) if options.instead == :list

    options.prepare_output(File.join(ROOT, "build", "benchmark"))
    measure(options, options.builds)
  rescue OptionParser::ParseError, Build::Unusable => e
    warn "benchmark/run: #{e.message}"
    USAGE
  rescue Interrupt
    interrupted
  end

  private

  def tell(text)
    puts text
    0
  end

  def measure(options, builds)
    progress = Progress.new
    facts = Machine.facts(ROOT).merge(options: options.to_h)
    runner = Runner.new(builds, options.chosen, options, progress)
    ended = to_its_end?(runner)
    progress.finish
    return interrupted if !ended && runner.samples.empty?

    report = Report.new(facts, builds, options.chosen, runner)
    puts report.text
    files = report.write(options.output) { |line| progress.say(line) }
    puts "written: #{files.join(", ")}", "took #{progress.elapsed}"
    return interrupted unless ended

    report.failed? ? 1 : 0
  end

  # Or was it interrupted? By TERM, too, as a program in the background ignores INT.
  def to_its_end?(runner)
    before = trap(:TERM) { Thread.main.raise(Interrupt) }
    runner.run
    true
  rescue Interrupt
    false
  ensure
    trap(:TERM, before)
  end

  def interrupted
    warn "\nbenchmark/run: interrupted; all measured processes are stopped, and what was measured is kept"
    INTERRUPTED
  end
end

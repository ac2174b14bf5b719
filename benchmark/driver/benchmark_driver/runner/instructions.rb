# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "benchmark_driver/runner/ips"
require "open3"

# A runner of benchmark-driver (-r instructions): the instructions of an iteration, counted by
# callgrind. A count is the same wherever the linker puts a function. Of a job that is a loop
# only what three quarters of its iterations add is counted, without the program's start.
class BenchmarkDriver::Runner::Instructions < BenchmarkDriver::Runner::Ips
  METRIC = BenchmarkDriver::Metric.new(name: "Instructions of an iteration", unit: "count",
                                       larger_better: false)
  Job = Class.new(BenchmarkDriver::DefaultJob)
  JobParser = BenchmarkDriver::DefaultJobParser.for(klass: Job, metrics: [METRIC])
  COUNTED = /Collected : (\d+)/.freeze

  def metric
    METRIC
  end

  # For the warm-up alone, which is not counted.
  def value_duration(duration:, loop_count:)
    [duration / loop_count, duration]
  end

  # A file's own number of iterations is for their time; one is a program that is no loop.
  def run(jobs)
    @loops = jobs.reject { |job| job.loop_count == 1 }.each { |job| job.loop_count = nil }
    super
  end

  private

  def run_benchmark(job, context:)
    return [count(job, context, 1).to_f, 0.0] unless @loops.any? { |loop| loop.equal?(job) }

    # What a warm-up found, down to a power of two: another build is to have the same, as how
    # often it collects changes with it. It may have found 0.
    times = job.loop_count = 1 << [job.loop_count.bit_length - 1, 2].max
    few = times / 4
    [(count(job, context, times) - count(job, context, few)).fdiv(times - few), 0.0]
  end

  # Of +times+ iterations, and of as many without the script as are left of the job's: so the
  # loop itself is in every count of the job the same number of times.
  def count(job, context, times)
    script = [context.prelude, job.prelude, times_loop("", job.loop_count - times),
              times_loop(job.script, times), job.teardown].join("\n")
    output, status = with_script(script) do |path|
      Open3.capture2e("valgrind", "--tool=callgrind", "--trace-children=yes",
                      "--callgrind-out-file=/dev/null",
                      *context.executable.command, path, stdin_data: "")
    end
    found = output.scan(COUNTED).flatten
    if !status.success? || found.empty?
      raise "#{job.name}: Error: #{output.lines.grep_v(/\A==/).last&.strip || status}"
    end

    found.sum(&:to_i) # of the processes that it forked, too
  end

  def times_loop(script, times)
    return script if times == 1

    <<~RUBY
      __bmdv_i = 0
      while __bmdv_i < #{times}
        #{script}
        __bmdv_i += 1
      end
    RUBY
  end
end

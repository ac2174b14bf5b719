# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../lib/measure/job_queue"

module CowBench
  # What the benchmarks of job workers share: a queue for each run.
  module JobRun
    private

    def with_queue(build, number, workload, wait:)
      queue = JobQueue.new(number, wait: wait)
      measured = Measured.run(build, workload, queue.port, *yield)
      raise Measured::Failed, "#{workload}: wrong answer: #{queue.wrong}" if queue.wrong
      done = queue.done
      raise Measured::Failed, "#{workload}: #{done} of #{number} jobs came back" unless done == number

      measured
    ensure
      queue&.close
    end
  end

  class JobThreads < Benchmark
    include JobRun

    SUMMARY = "job workers in the manner of Sidekiq: 2 processes of 25 threads, forked from one parent of " \
              "120 MB"
    SYNTHETIC = true
    metric :private, "private dirty memory of a process", "MB", :less, 1
    metric :tree, "all processes (sum of Pss)", "MB", :less, 1
    metric :throughput, "throughput", "jobs/s", :more, 0
    MEGABYTES = 120
    PROCESSES = 2
    THREADS = 25
    WAIT = 0.002

    def cases
      (quick? ? [0] : [0, 1]).map { |times| Case.new(label: warmups(times), arguments: [times], needs: 700) }
    end

    def measure(build, kase)
      number = quick? ? 200 : 6_000
      measured = with_queue(build, number, "job_threads", wait: WAIT) do
        [MEGABYTES, *kase.arguments, PROCESSES, THREADS, number]
      end
      values = { private: {}, tree: {}, throughput: measured.result["jobs"] / measured.result["seconds"] }
      measured.looks.each do |point, look|
        values[:private]["#{kase.label}, #{point}"] = mb(look.mean("Private_Dirty"))
        values[:tree]["#{kase.label}, #{point}"] = mb(look.sum("Pss"))
      end
      Outcome.new(values: values, raw: raw(measured))
    end
  end

  class JobForks < Benchmark
    include JobRun

    SUMMARY = "a job worker in the manner of Resque: a parent of 120 MB forks a child for every job"
    SYNTHETIC = true
    metric :private, "private dirty memory of a child after its job", "MB", :less, 1
    metric :throughput, "throughput", "jobs/s", :more, 1
    MEGABYTES = 120

    def cases
      (quick? ? [0] : [0, 1]).map { |times| Case.new(label: warmups(times), arguments: [times], needs: 500) }
    end

    def measure(build, kase)
      number, every = quick? ? [4, 2] : [60, 6]
      measured = with_queue(build, number, "job_forks", wait: 0) do
        [MEGABYTES, *kase.arguments, number, every]
      end
      sizes = measured.looks.values.map { |look| mb(look.mean("Private_Dirty")) }
      values = { private: sizes.sum / sizes.size,
                 throughput: measured.result["jobs"] / measured.result["seconds"] }
      Outcome.new(values: values, raw: raw(measured))
    end
  end
end

# frozen_string_literal: true

require_relative "../lib/job_queue"

# What the benchmarks of job workers share: a queue for each run.
module JobRun
  private

  def with_queue(build, number, workload, wait:)
    queue = JobQueue.new(number, wait: wait)
    measured = Measured.run(build, workload, queue.port, *yield)
    raise Measured::Failed, "#{workload}: wrong answer: #{queue.wrong}" if queue.wrong
    raise Measured::Failed, "#{workload}: #{queue.done} of #{number} jobs came back" unless queue.done == number

    measured
  ensure
    queue&.close
  end
end

class JobThreads < Benchmark
  include JobRun

  SUMMARY = "job workers in the manner of Sidekiq: 2 processes of 25 threads, forked from one parent of 120 MB"
  SYNTHETIC = true
  METRICS = [
    Metric.new(key: :private, title: "private dirty memory of a process", unit: "MB", better: :less, digits: 1),
    Metric.new(key: :tree, title: "all processes (sum of Pss)", unit: "MB", better: :less, digits: 1),
    Metric.new(key: :throughput, title: "throughput", unit: "jobs/s", better: :more, digits: 0)
  ].freeze
  MEGABYTES = 120
  PROCESSES = 2
  THREADS = 25
  WAIT = 0.002

  def cases
    (quick? ? [0] : [0, 1]).map { |times| Case.new(label: warmups(times), arguments: [times], needs: 700) }
  end

  def measure(build, kase)
    number = quick? ? 200 : 6_000
    measured = with_queue(build, number, "job_threads", wait: WAIT) { [MEGABYTES, *kase.arguments, PROCESSES, THREADS, number] }
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
  METRICS = [
    Metric.new(key: :private, title: "private dirty memory of a child after its job", unit: "MB", better: :less, digits: 1),
    Metric.new(key: :throughput, title: "throughput", unit: "jobs/s", better: :more, digits: 1)
  ].freeze
  MEGABYTES = 120

  def cases
    (quick? ? [0] : [0, 1]).map { |times| Case.new(label: warmups(times), arguments: [times], needs: 500) }
  end

  def measure(build, kase)
    number, every = quick? ? [4, 2] : [60, 6]
    measured = with_queue(build, number, "job_forks", wait: 0) { [MEGABYTES, *kase.arguments, number, every] }
    values = { private: measured.looks.values.sum { |look| mb(look.mean("Private_Dirty")) } / measured.looks.size,
               throughput: measured.result["jobs"] / measured.result["seconds"] }
    Outcome.new(values: values, raw: raw(measured))
  end
end

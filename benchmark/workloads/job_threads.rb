# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Processes of many threads that do jobs, forked from one parent.
require_relative "crew"
require_relative "job"
require_relative "parent"

port, megabytes, warmups, processes, threads, jobs = ARGV.map(&:to_i)
kept = Parent.boot(megabytes)
Workload.warm_up(warmups)

crew = Crew.new(processes) do |words|
  stat = GC.stat
  started = Workload.now
  if words == "collect"
    GC.start
    done = 0
  else
    done = Array.new(threads) { Thread.new { Job.work(port) } }.sum(&:value)
  end
  { done: done, seconds: Workload.now - started, gc: Workload.gc_delta(stat) }
end

Workload.at(Workload.point("before the jobs"))
answers = crew.order("work")
Workload.at(Workload.point("after #{jobs} jobs"))
crew.order("collect")
Workload.at(Workload.point("after a collection"))
crew.dismiss
gc = answers.map { |worker| worker["gc"] }.reduce { |sum, one| sum.merge(one) { |_, a, b| a + b } }
Workload.result(jobs: answers.sum { |worker| worker["done"] },
                seconds: answers.map { |worker| worker["seconds"] }.max, gc: gc)
kept.size # still needed

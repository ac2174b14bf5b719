# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A parent that forks a child for every job.
require_relative "job"
require_relative "parent"

port, megabytes, warmups, jobs, every = ARGV.map(&:to_i)
kept = Parent.boot(megabytes)
Workload.warm_up(warmups)
points = (every..jobs).step(every).to_h { |number| [number, Workload.point("job #{number}")] }

seconds = (1..jobs).sum do |number|
  started = Workload.now
  reader, writer = IO.pipe
  pid = fork do
    exit!(1) unless Job.work(port, most: 1) == 1
    if points[number]
      before = Workload.now
      Workload.at(points[number])
      writer.write((Workload.now - before).to_s)
    end
  end
  writer.close
  looked = reader.read.to_f
  raise "a job failed: #{$?}" unless Process.wait2(pid).last.success?

  Workload.now - started - looked
end
Workload.result(jobs: jobs, seconds: seconds)
kept.size # still needed

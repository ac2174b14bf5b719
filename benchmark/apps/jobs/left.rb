# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: QUEUE=sidekiq ruby left.rb [again]
# Prints, as one line of JSON, how many jobs wait in the queue, are running, will be tried again, how often
# one has raised an error, which jobs were given up (the number and the error of each), and which will be done
# later (the number and why). With "again" those that were given up are put back into the queue.
require "json"
require_relative "config/environment"

# +job+ is what ActiveJob wrote into the queue.
def number(job)
  job["arguments"].first
end

def solid_queue(again)
  waiting = [SolidQueue::ReadyExecution, SolidQueue::ScheduledExecution, SolidQueue::BlockedExecution]
  failed = SolidQueue::FailedExecution.all.to_a
  found = { waiting: waiting.sum(&:count), running: SolidQueue::ClaimedExecution.count, again: 0,
            raised: failed.count { |one| !one.exception_class.start_with?("SolidQueue::Processes::") },
            later: [], failed: failed.map { |one| [number(one.job.arguments), one.exception_class] } }
  failed.each(&:retry) if again
  found
end

def sidekiq(again)
  require "sidekiq/api"
  failed = Sidekiq::DeadSet.new
  later = Sidekiq::RetrySet.new.map { |job| [number(job["args"].first), "waits for another try"] } +
          Sidekiq::Queue.all.flat_map { |queue| queue.map { |job| [number(job["args"].first), "waits"] } }
  found = { waiting: Sidekiq::Queue.all.sum(&:size), running: Sidekiq::WorkSet.new.size,
            again: Sidekiq::RetrySet.new.size, raised: Sidekiq::Stats.new.failed, later: later,
            failed: failed.map { |job| [number(job["args"].first), job["error_class"]] } }
  failed.retry_all if again
  found
end

puts JSON.generate(send(ENV.fetch("QUEUE"), ARGV.first == "again"))

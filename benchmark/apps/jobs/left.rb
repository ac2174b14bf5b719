# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: QUEUE=sidekiq ruby left.rb [again]
# Prints, as one line of JSON, how many jobs wait in the queue, are running, will be tried again, or have
# failed and by which errors. With "again" those that have failed are put back into the queue.
require "json"
require_relative "config/environment"

def solid_queue(again)
  waiting = [SolidQueue::ReadyExecution, SolidQueue::ScheduledExecution, SolidQueue::BlockedExecution]
  failed = SolidQueue::FailedExecution.all.to_a
  found = { waiting: waiting.sum(&:count), running: SolidQueue::ClaimedExecution.count, again: 0,
            failed: failed.map(&:exception_class).tally }
  failed.each(&:retry) if again
  found
end

def sidekiq(again)
  require "sidekiq/api"
  failed = Sidekiq::DeadSet.new
  found = { waiting: Sidekiq::Queue.all.sum(&:size), running: Sidekiq::WorkSet.new.size,
            again: Sidekiq::RetrySet.new.size, failed: failed.map { |job| job["error_class"] }.tally }
  failed.retry_all if again
  found
end

puts JSON.generate(send(ENV.fetch("QUEUE"), ARGV.first == "again"))

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require_relative "../measure/statistics"
require_relative "clients"
require_relative "job_server"

module CowBench
  # Jobs that are enqueued all the time, by a process beside the job server: what Clients is for a server for
  # HTTP.
  class JobLoad
    # Jobs a second where nothing else is said: what a Solid Queue on SQLite does beside others.
    RATE = 5
    # Seconds between two calls that enqueue, and in which one must be answered.
    STEP = 0.5
    PATIENCE = 120
    # Seconds without a job that is done after which the queue is looked at, and in which all must be done.
    # Solid Queue gives up a process of which it has not heard for five minutes.
    STILL = 20
    LONGEST = 420
    # Seconds after it was enqueued in which a worker has taken a job, so that it may end with the worker; and
    # how many later jobs are looked at that are done about when it would have been, where the queue is long.
    TAKEN = 10
    OVERTAKE = 25

    # +failures+ are known after +finish+.
    attr_reader :sent, :failures

    def initialize(server, rate: nil)
      @server = server
      @rate = rate || RATE
      @sent = 0
      @enqueued = []
      @failures = []
    end

    # Goes on when the process that enqueues is ready.
    def start
      orders, @orders = IO.pipe
      @answers, answers = IO.pipe
      @enqueuer = @server.enqueuer(orders, answers)
      [orders, answers].each(&:close)
      enqueue(0)
      began = Clock.now
      @thread = Thread.new do
        until @ends
          sleep STEP
          enqueue(((Clock.now - began) * @rate).to_i)
        end
      end
      @thread.report_on_exception = false
      self
    rescue Service::Failed
      stop
      raise
    end

    # Raises Service::Failed if nothing is enqueued any more.
    def check
      @thread.join(0)
    end

    # Raises Service::Failed where the last jobs could not be enqueued.
    def stop
      @ends = true
      @thread&.join
    ensure
      @orders&.close
      @enqueuer&.kill
      @answers&.close
    end

    # How many of them were done.
    def answered
      @server.done.map(&:first).uniq.size
    end

    # Waits until all jobs are done, or nothing is done any more. Jobs that the server gave up are put back,
    # as a person would do. A hash for JSON: how many were done, and how many of these more than once; which
    # errors the server gave jobs up for, and how often a job raised one; how many were never done.
    def finish
      wait
      # The first time of each.
      done_at = @server.done.reverse.to_h
      left = @server.left(again: true)
      wait unless left[:failed].empty?
      numbers = @server.done.map(&:first)
      never = [*0...@sent] - numbers
      kinds = left[:failed].to_h.merge(never.to_h { |number| [number, JobServer::NEVER_DONE] })
      kinds.merge!(left[:later].to_h.slice(*never))
      @failures = kinds.map { |number, kind| failure(number, kind, done_at) }
      { done: numbers.uniq.size, twice: numbers.tally.count { |_, number| number > 1 },
        failed: left[:failed].map(&:last).tally, raised: left[:raised], lost: never.size }
    end

    private

    # A process that has taken the job may have ended from when it was enqueued until half of those jobs were
    # done that came after it.
    def failure(number, kind, done_at)
      time = @enqueued.find { |to, _| to > number }.last
      later = Statistics.median(done_at.values_at(*number..number + OVERTAKE).compact)
      Clients::Failure.new(time, [time + TAKEN, *later].max, kind)
    end

    def enqueue(to)
      now = Clock.now
      @orders.puts "#{@sent} #{to}"
      raise Service::Failed, "jobs cannot be enqueued: #{@server.complaint}" unless answered?

      @enqueued << [to, now]
      @sent = to
    rescue Errno::EPIPE
      raise Service::Failed, "the process that enqueues has ended: #{@server.complaint}"
    end

    # What the application logs stands between the answers.
    def answered?
      while @answers.wait_readable(PATIENCE)
        line = @answers.gets or return false
        return true if line.start_with?("begun")
      end
    end

    def not_done
      @sent - answered
    end

    def wait
      begun = changed = Clock.now
      seen = nil
      until not_done.zero? || Clock.now - begun > LONGEST
        changed = Clock.now if seen != (seen = not_done)
        break if Clock.now - changed > STILL && nothing_goes_on?

        sleep STEP
      end
    end

    # Also where jobs are said to run although their process has ended, this says no.
    def nothing_goes_on?
      @server.left.values_at(:waiting, :running, :again).sum.zero?
    end
  end
end

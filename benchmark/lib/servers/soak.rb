# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../measure/statistics"
require_relative "kinds"
require_relative "wrk"

module CowBench
  # One server under load, in rounds. For two thirds of the time nothing else
  # happens, and the memory of its workers should level off. Then, in every few
  # rounds, something happens to it, as it does in production; afterwards all
  # workers must be there again.
  class Soak
    Failed = Class.new(StandardError)
    # One round: when it ended (s), what happened in it, the answers, the mean
    # private memory of a worker (MB), the sum of Pss (MB), the workers. +complaint+: which
    # errors these were.
    Round = Struct.new(:seconds, :event, :requests, :errors, :excused, :private, :tree, :workers, :complaint,
                       keyword_init: true)

    REQUESTS = 1_000
    QUIET = 2 / 3.0
    # Rounds from one event to the next.
    EVERY = 3
    # Seconds after which the workers must be back.
    BACK = 60
    # The requests that a killed worker was answering fail.
    EXCUSED = { "kill a worker" => Wrk::CONNECTIONS }.freeze
    # How much the last third of the quiet rounds may lie above the middle one.
    LEVEL = 0.05

    # What can happen to a kind of server: name => [signal, its receiver].
    EVENTS = {
      "unicorn" => { "kill a worker" => %i[KILL worker], "rolling restart (HUP)" => %i[HUP master],
                     "upgrade (USR2)" => %i[USR2 upgrade] },
      "puma" => { "kill a worker" => %i[KILL worker], "restart (USR2)" => %i[USR2 master] },
      "puma-fork_worker" => { "kill a worker" => %i[KILL worker], "refork (URG)" => %i[URG master] },
      "pitchfork" => { "kill a worker" => %i[KILL worker] },
      "pitchfork-reforking" => { "kill a worker" => %i[KILL worker], "refork (USR2)" => %i[USR2 master] },
      "passenger" => { "kill a worker" => %i[KILL worker], "restart (restart.txt)" => %i[touch application],
                       "graceful restart of Apache (USR1)" => %i[USR1 front] },
      "apache-puma" => { "kill a worker" => %i[KILL worker], "restart (USR2)" => %i[USR2 master],
                         "graceful restart of Apache (USR1)" => %i[USR1 front] }
    }.freeze

    attr_reader :rounds

    def initialize(server, list, seconds, requests: REQUESTS)
      @server = server
      @list = list
      @seconds = seconds
      @requests = requests
      @rounds = []
      @first = 0
    end

    # Yields each round when it is over.
    def run
      started = Clock.now
      events = EVENTS.fetch(@server.class.title).to_a.cycle
      until (elapsed = Clock.now - started) > @seconds
        event = elapsed > @seconds * QUIET && @rounds.size % EVERY == EVERY - 1 ? events.next : nil
        @rounds << round(event, started)
        yield @rounds.last if block_given?
      end
    end

    # Errors that nothing excuses.
    def errors
      @rounds.sum { |round| [round.errors - round.excused, 0].max }
    end

    # Growth from the middle third of the quiet rounds to their last, as a share of
    # the former; nil where there are too few.
    def growth
      quiet = @rounds.take_while { |round| !round.event }
      return if quiet.size < 6

      thirds = quiet.each_slice((quiet.size / 3.0).ceil).to_a
      middle, last = thirds.last(2).map { |part| Statistics.median(part.map(&:private)) }
      last / middle - 1
    end

    def level?
      growth.nil? || growth <= LEVEL
    end

    private

    def round(event, started)
      result = load(event)
      @first += @requests
      back(event)
      seen = @server.look
      workers = seen.select(&:worker)
      Round.new(seconds: (Clock.now - started).round, event: event&.first, requests: result.requests,
                errors: result.errors, excused: EXCUSED.fetch(event&.first, 0), workers: workers.size,
                complaint: result.complaint, tree: Memory.mb(seen.sum { |process| process.sample["Pss"] }),
                private: Memory.mb(workers.sum { |process| process.sample["Private_Dirty"] }) / workers.size)
    end

    # Plays the next part of the list; as soon as requests are answered, the event happens.
    def load(event)
      answered = Queue.new
      load = Thread.new do
        Wrk.play(@server.port, @list, @first, @requests) { answered << true }
      ensure
        answered.close
      end
      load.report_on_exception = false
      disturb(*event.last) if event && answered.pop
      load.value
    end

    def disturb(signal, whom)
      case whom
      when :worker then Process.kill(signal, @server.workers.sample(random: random))
      when :master then Process.kill(signal, @server.pid)
      when :front then Process.kill(signal, @server.front)
      when :application then @server.restart_application
      when :upgrade then upgrade(signal)
      end
    end

    # The old master starts a new one, and leaves when that has its workers.
    def upgrade(signal)
      old = @server.workers
      Process.kill(signal, @server.pid)
      wait("workers of the new master") { (@server.workers - old).size == Server::WORKERS }
      @server.handed_over(@server.successors.last)
    end

    def back(event)
      wait("#{Server::WORKERS} workers after #{event&.first || "the requests"}") do
        @server.workers.size == Server::WORKERS
      end
      @server.settle
    end

    def wait(what)
      Clock.wait_until(BACK, pause: 0.1) do
        @server.reap
        yield
      end or
        raise Failed, "no #{what} after #{BACK} s: #{@server.complaint}"
    end

    def random
      @random ||= Random.new(1)
    end
  end
end

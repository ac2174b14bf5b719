# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../memory/cgroup"
require_relative "clients"
require_relative "job_load"
require_relative "kinds"
require_relative "soak_result"

module CowBench
  # One server under load that never pauses. In the first third of the time something happens to it again and
  # again, as it does in production; each time all workers must come back. In the second third the new workers
  # warm up; in the last one their memory shall be flat.
  class Soak
    Failed = Class.new(StandardError)
    # What can happen: +signal+ goes to +whom+; +replaces+ says which workers must have been replaced
    # afterwards (:victim, :all, :most: all but one, or nil).
    Event = Struct.new(:name, :signal, :whom, :replaces)
    # The same where it happened: when, from start to end (of the monotonic clock), how many workers ended
    # that had work, what the kernel had to do, how many workers were there still that should have been
    # replaced, and what is to be said of it.
    Happened = Struct.new(:event, :from, :to, :deaths, :hits, :kept, :note)

    # Parts of the time: from where to where things happen. Each happens once at least, also where that takes
    # longer, but not in the last third.
    FIRST = 1 / 15.0
    DISTURBED = 1 / 3.0
    # Looks at the memory, and seconds between two at most.
    LOOKS = 180
    SLOWEST = 10
    # Looks from one event to the next.
    EVERY = 2
    # Seconds after which the workers must be back.
    BACK = 120
    # Seconds of a limit of memory.
    LIMIT = 10
    # Makes the kernel choose a worker when memory runs out, and not their parent.
    CHOSEN = "500"

    KILL = Event.new("KILL a worker", :KILL, :worker, :victim)
    TERM = Event.new("TERM a worker", :TERM, :worker, :victim)
    RESTART = Event.new("restart (TERM, start)", nil, :restart, :all)
    CRASH = Event.new("KILL all, start", nil, :crash, :all)
    MEMORY = Event.new("limit of memory", nil, :limit, nil)
    ALWAYS = [KILL, TERM, RESTART, MEMORY].freeze
    # What a master does that knows USR2 as a restart.
    AGAIN = Event.new("restart (USR2)", :USR2, :master, :all)
    GRACEFUL = Event.new("graceful restart of Apache (USR1)", :USR1, :front, nil)
    # In place of KILL, TERM: one process is all there is.
    ALONE = [CRASH, RESTART, MEMORY].freeze

    EVENTS = {
      "unicorn" => [*ALWAYS, Event.new("rolling restart (HUP)", :HUP, :master, :all),
                    Event.new("upgrade (USR2)", :USR2, :upgrade, :all)],
      "puma" => [*ALWAYS, AGAIN],
      "puma-defaults" => [*ALWAYS, AGAIN],
      "puma-fork_worker" => [*ALWAYS, Event.new("refork (URG)", :URG, :master, :most), AGAIN],
      "pitchfork" => ALWAYS,
      "pitchfork-reforking" => [*ALWAYS, Event.new("refork (USR2)", :USR2, :master, :most)],
      "passenger" => [*ALWAYS, Event.new("restart (restart.txt)", nil, :application, :all), GRACEFUL],
      "apache-puma" => [*ALWAYS, AGAIN, GRACEFUL],
      "solid_queue, fork" => [*ALWAYS, CRASH],
      "solid_queue, async" => ALONE,
      "sidekiq, plain" => ALONE,
      "sidekiq, swarm of 4" => [*ALWAYS, CRASH]
    }.freeze
    # Those that end at TERM without a word to who waits for an answer.
    ABRUPT = %w[unicorn pitchfork pitchfork-reforking passenger].freeze

    attr_reader :rounds, :happened, :load

    # +group+ is the Cgroup of the server; without one there are no limits of memory. +upgrades+ tells whether
    # a new master can be adopted (Supervised.adopt_orphans).
    def initialize(server, load, seconds, group: nil, upgrades: true)
      @server = server
      @load = load
      @seconds = seconds
      @group = group
      @rounds = []
      @happened = []
      @events = EVENTS.fetch(server.class.title)
      @events -= [MEMORY] unless group
      @events = @events.reject { |event| event.whom == :upgrade } unless upgrades
    end

    # Yields each look when it was made.
    def run
      @begun = Clock.now
      until over?
        @begun_look = Clock.now
        event = next_event
        happen(event) if event
        @rounds << look(event)
        yield @rounds.last if block_given?
        sleep [@begun_look + pause - Clock.now, 0].max
      end
    end

    # A hash for JSON, with what failed because of which event.
    def to_h
      room = @happened.to_h { |one| [one, excuses(one)[:number]] }
      # The latest first, as they take the excuses of the latest event.
      failed = @load.failures.sort_by { |failure| -failure.sent }.group_by { |failure| cause(failure, room) }
                     .transform_values { |failures| failures.map(&:kind).tally }
      bugs = { "[BUG] in the log" => @server.bugs }.reject { |_, number| number.zero? }
      { server: @server.class.title, sent: @load.sent, answered: @load.answered, rounds: @rounds,
        events: @happened.map { |one| event_to_h(one, failed.fetch(one, {})) },
        not_happened: (@events - @happened.map(&:event)).map(&:name),
        failed_without: failed.fetch(nil, {}).merge(bugs) }
    end
    # Seconds after an event in which a request may still fail because of it.
    AFTER = 1

    private

    # The last thing that had begun to happen when a request failed and was not over when it was sent; if
    # there are several, one that may still excuse such a failure. +room+ has how many each still excuses.
    def cause(failure, room)
      possible = @happened.select { |one| one.from <= failure.known && failure.sent <= one.to + AFTER }
      one = possible.reverse.find { |happened| room[happened].positive? && explains?(happened, failure.kind) }
      room[one] -= 1 if one
      one || possible.last
    end

    def explains?(one, kind)
      excuses(one)[:kinds].include?(kind)
    end

    def elapsed
      Clock.now - @begun
    end

    def over?
      elapsed > @seconds
    end

    def pause
      [@seconds.fdiv(LOOKS), SLOWEST].min
    end

    def next_event
      return if elapsed < @seconds * FIRST || @rounds.size % EVERY != EVERY - 1
      # All of them, also where the time is short; but the last third is quiet.
      return if elapsed > @seconds * (@happened.size < @events.size ? SoakResult::QUIET : DISTURBED)

      @events[@happened.size % @events.size]
    end

    def look(event)
      seen = @server.look
      workers = seen.select { |process| process.worker && @server.serves?(process.title) }
      private = workers.sum { |process| process.sample["Private_Dirty"] }
      gone = event ? 0 : (@seen.to_a - workers.map(&:pid)).size
      @seen = workers.map(&:pid)
      { seconds: elapsed.round(1), event: event&.name, sent: @load.sent, answered: @load.answered,
        failed: @load.failures.size, workers: workers.size, gone: gone,
        private: (Memory.mb(private) / workers.size unless workers.empty?),
        tree: Memory.mb(seen.sum { |process| process.sample["Pss"] }) }
    end

    def event_to_h(one, kinds)
      { name: one.event.name, seconds: (one.from - @begun).round(1), took: (one.to - one.from).round(1),
        failed: kinds, excuses: excuses(one), deaths: one.deaths, hits: one.hits, kept: one.kept.to_i,
        note: one.note }
    end

    # What an event explains: so many failures of these :kinds together, and any :number of those of :away.
    def excuses(one)
      return { number: one.deaths * @server.at_work, kinds: lost_kinds, away: [] } if @server.is_a?(JobServer)

      gone = %i[restart crash].include?(one.event.whom) || one.note == REVIVED
      number = gone ? CUTS * @load.at_once : one.deaths * [@server.at_work, @load.at_once].min
      { number: number, kinds: CUT, away: gone ? AWAY : [] }
    end
    CUT = ["cut", "status 502"].freeze
    AWAY = ["refused", "status 502", "status 503"].freeze
    # How often a client is cut off when a server goes: by a worker, and waiting for one.
    CUTS = 2

    def lost_kinds
      @load.failures.map(&:kind).uniq.grep(@server.class::LOST)
    end

    def happen(event)
      one = Happened.new(event, Clock.now, nil, deaths(event))
      @happened << one
      victims = disturb(event, one, @server.workers)
      back(one, victims)
    ensure
      one.to = Clock.now
    end

    # Workers that end although they have work. At TERM a job server lets its jobs end, or puts them back; a
    # server for HTTP closes the socket on which others wait.
    def deaths(event)
      case event.whom
      when :worker then event.signal == :KILL || ABRUPT.include?(@server.class.title) ? 1 : 0
      when :restart then @server.is_a?(JobServer) ? 0 : @server.number_of_serving
      when :crash then @server.number_of_serving
      else 0
      end
    end

    # Gives the workers that have to go.
    def disturb(event, one, workers)
      case event.whom
      when :worker then return one_worker(event.signal, one)
      when :master then signal(event.signal, @server.pid)
      when :front then signal(event.signal, @server.front)
      when :application then @server.restart_application
      when :upgrade then upgrade(event.signal)
      when :restart then @server.restart
      when :crash then @server.crash
      when :limit then limit(one)
      end
      event.replaces ? workers : []
    end

    def one_worker(name, one)
      victim = @server.serving.sample(random: @random ||= Random.new(1))
      return [victim].each { |pid| signal(name, pid) } if victim

      # The last one has just ended by itself, and the next is not there yet.
      one.deaths = 0
      one.note = "no worker was there"
      []
    end

    def signal(name, pid)
      Process.kill(name, pid)
    rescue Errno::ESRCH
      nil # it has ended by itself
    end

    # The old master starts a new one, and leaves when that has its workers.
    def upgrade(signal)
      signal(signal, @server.pid)
      masters = []
      wait do
        # The old master may be replacing workers at the moment.
        masters = @server.workers.filter_map { |worker| @server.origin(worker) } - [@server.pid]
        masters.size == @server.number_of_workers
      end or lost("workers of the new master")
      @server.handed_over(masters.first)
    end

    # What the server takes is all that it may take, for some seconds.
    def limit(one)
      hits, ended = @group.hits, @group.ended
      limited { one.note = "the kernel refused it" }
      one.hits = @group.hits - hits
      one.deaths = @group.ended - ended
      one.note ||= "never reached" if one.hits.zero?
      return unless @server.ended?

      one.note = REVIVED
      one.deaths = [one.deaths, @server.number_of_serving].max
      @server.restart
    end
    REVIVED = "the server was started anew"

    def limited
      before = score(@server.pid)
      choose(CHOSEN)
      @group.limit_to_use
      ends = Clock.now + [LIMIT, @seconds / 20.0].min
      while Clock.now < ends && !@server.ended?
        choose(CHOSEN)
        sleep 0.2
      end
    rescue Errno::EBUSY
      yield
    ensure
      @group.limit = @group.without_limit
      choose(before)
    end

    def choose(score)
      return unless @server.number_of_workers > 1

      @server.workers.each do |pid|
        File.write("/proc/#{pid}/oom_score_adj", score)
      rescue SystemCallError
        nil # it has ended
      end
    end

    def score(pid)
      File.read("/proc/#{pid}/oom_score_adj").chomp
    end

    def back(one, victims)
      stay = one.event.replaces == :most ? 1 : 0
      return if wait { all_there? && (@server.workers & victims).size <= stay }

      lost("#{@server.number_of_workers} workers after: #{one.event.name}") unless all_there?
      one.kept = [(@server.workers & victims).size - stay, 0].max
      one.note = "#{one.kept} workers were not replaced" if one.kept.positive?
    end

    def all_there?
      @server.workers.size == @server.number_of_workers
    end

    def wait
      Clock.wait_until(BACK, pause: 0.1) do
        lost("server") if @server.ended?
        @server.reap
        yield
      end
    end

    def lost(what)
      raise Failed, "no #{what} after #{BACK} s: #{@server.complaint}"
    end
  end
end

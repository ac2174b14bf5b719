# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../memory/cgroup"
require_relative "server"
require_relative "wrk"

module CowBench
  # A server under load whose cgroup is limited to a part of the memory that it took freely: what it gives
  # back, how it serves meanwhile, and how soon it serves as before when the limit is gone.
  class UnderPressure
    WORKERS = 8
    # Servers that start as many as they are told to, and only those of the server.
    SERVERS = %w[unicorn puma pitchfork].freeze
    # Of what the cgroup takes freely.
    PART = 0.7
    # Requests: until the server has warmed up, to measure it freely and under pressure, and in a turn after
    # that.
    WARM = 4_000
    MEASURED = 2_000
    TURN = 200
    # Parts of these, and of the seconds below, for a run that is to be quick.
    QUICK = 0.02
    QUICK_SECONDS = 0.3
    # Seconds after which it is looked what came back.
    BACK = 4
    # The throughput that counts as full, of the free one, and the seconds in which it is waited for.
    FULL = 0.95
    LONGEST = 60
    # Seconds between two notes of a worker's times (gc_time.rb).
    PAUSE = 0.5

    # +server+ stands in +group+, and its workers note their times in +times+, a directory (gc_time.rb).
    def initialize(server, group, list, times, quick: false)
      @server = server
      @group = group
      @list = list
      @times = times
      @part = quick ? QUICK : 1
      @seconds = quick ? QUICK_SECONDS : 1
      @first = 0
    end

    # A hash for JSON. Raises Server::Failed where a request fails while nothing is limited.
    def call
      play(WARM)
      freely = measured { play(MEASURED) }
      private, before = taken
      pressed = measured { squeezed { request(MEASURED) } }
      @group.limit = @group.without_limit
      { ended: @group.ended, private: private, taken: before, left: @left, limit: @limit, reached: @reached,
        freely: freely, pressed: pressed, recovery: recovery(freely[:rate]) }
    end

    private

    def play(count)
      result = request(count)
      return result unless result.errors.positive?

      raise Server::Failed, "#{result.errors} errors (#{result.complaint}): #{@server.complaint}"
    end

    def request(count)
      count = (count * @part).ceil
      result = Wrk.play(@server.port, @list, @first, count, connections: WORKERS)
      @first += count
      result
    end

    # What a part gave, and the share that collections had of the workers' CPU time.
    def measured
      before = times
      result = yield
      sleep 2 * PAUSE
      gc, ran = 2.times.map { |i| times.sum { |pid, seconds| seconds[i] - before.fetch(pid, [0, 0])[i] } }
      { rate: result.rate, p50: result.p50, p99: result.p99, errors: result.errors,
        complaint: result.complaint, gc: gc, cpu: ran }
    end

    # { process => [seconds of collections, seconds of CPU time] }
    def times
      Dir[File.join(@times, "*")].grep(/\/\d+\z/).to_h do |path|
        [File.basename(path), File.read(path).split.map(&:to_f)]
      end
    end

    # The private memory of the workers, and all that the server takes, what was swapped out included, in KB.
    def taken
      seen = @server.look
      [seen.select(&:worker).sum { |process| process.sample["Private_Dirty"] },
       seen.sum { |process| process.sample.values_at("Pss", "SwapPss").compact.sum }]
    end

    # Limits the memory while the block runs, and notes what the server has left after BACK seconds.
    def squeezed
      @limit = (@group.used * PART).to_i
      watcher = Thread.new { squeeze }
      watcher.report_on_exception = false
      yield
    ensure
      watcher&.join
    end

    # Where the kernel refuses a limit, because it cannot get so much back at once, the lowest that it takes
    # is set, again and again.
    def squeeze
      begun = Clock.now
      until Clock.now > begun + BACK * @seconds
        lower unless @reached
        sleep 0.1
      end
      @left = taken.last
    end

    def lower
      @group.limit = @limit
      @reached = true
    rescue Errno::EBUSY
      @reached = false
      lower_a_little
    end

    def lower_a_little
      @group.limit_to_use
    rescue Errno::EBUSY
      nil # perhaps the next time
    end

    # Seconds until the server is as fast as before, LONGEST at most.
    def recovery(rate)
      begun = Clock.now
      loop do
        seconds = Clock.now - begun
        return seconds if play(TURN).rate >= rate * FULL || seconds > LONGEST * @seconds
      end
    end
  end
end

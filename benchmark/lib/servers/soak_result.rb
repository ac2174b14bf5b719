# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../measure/statistics"

module CowBench
  # What a soak found, as it stands in its results.json: whether the memory was flat, and which requests or
  # jobs failed for no reason that an event gives.
  class SoakResult
    # From where on the memory shall be flat, as a part of the time.
    QUIET = 2 / 3.0
    # What it may rise in that time, as a share of itself, also where the rise is certain.
    SMALL = 0.01
    # Standard errors to each side of a slope within which the true one is taken to lie.
    ERRORS = 2

    # +hash+ has symbols for keys, or strings where the kinds of failures are keys.
    def initialize(hash)
      @hash = hash
    end

    def [](key)
      @hash[key]
    end

    def to_h
      @hash
    end

    def name
      [@hash[:server], *(@hash[:app] unless jobs?), *("oob_gc" if @hash[:oob_gc])].join(", ")
    end

    # The rounds of the last third.
    def last_third
      from = rounds.empty? ? 0 : rounds.last[:seconds] * QUIET
      rounds.select { |round| round[:seconds] > from && round[:private] }
    end

    # Statistics::Line, MB over hours; nil where there are too few looks.
    def line
      Statistics.line(last_third.map { |round| [round[:seconds] / 3600.0, round[:private]] })
    end

    # "flat", "grows", "falls", or "too short".
    def memory
      line = self.line or return "too short"
      return "flat" if line.slope.abs <= ERRORS * line.error || line.rise.abs <= SMALL

      line.slope.positive? ? "grows" : "falls"
    end

    # All failures, also those of no event: { event's name or "none" => { kind => number } }.
    def failed
      by_event { |event| event[:failed] }
    end
    NONE = "none"

    # How many of them no event explains, in the same manner.
    def unexcused
      by_event { |event| excess(event).select { |_, number| number.positive? } }
    end

    # Requests that failed; jobs that the server gave up or lost.
    def failures
      jobs? ? given_up + lost : failed.values.sum { |kinds| kinds.values.sum }
    end

    def unexcused_failures
      return unexcused.values.sum { |kinds| kinds.values.sum } unless jobs?

      loses = @hash[:server].start_with?(*LOSES)
      [given_up + (loses ? lost : 0) - begun, 0].max + (loses ? 0 : lost)
    end
    # Whose killed processes take the jobs with them that they have begun: a fetch takes a job from the queue.
    LOSES = %w[sidekiq].freeze

    def excused
      failures - unexcused_failures
    end

    def jobs?
      @hash.key?(:jobs)
    end

    # Processes that the kernel ended because memory ran out.
    def ended
      limits.sum { |event| event[:deaths] }
    end

    def rounds
      @hash[:rounds]
    end

    def events
      @hash[:events]
    end

    # Jobs that were never done; records that are not there although their making was answered.
    def lost
      (@hash[:jobs] || @hash[:records]).to_h[:lost].to_i
    end

    # Nothing but what is to be expected.
    def fine?
      !@hash[:ended_early] && unexcused_failures.zero? && (jobs? || lost.zero?)
    end

    private

    # What the block gives of each event, and the failures of none.
    def by_event
      found = Hash.new { |hash, name| hash[name] = Hash.new(0) }
      events.each { |event| yield(event).each { |kind, number| found[event[:name]][kind.to_s] += number } }
      @hash[:failed_without].each { |kind, number| found[NONE][kind.to_s] += number }
      found
    end

    def limits
      events.select { |event| event[:hits] }
    end

    def given_up
      (@hash[:jobs][:failed] || {}).values.sum
    end

    # Jobs that killed processes may have begun.
    def begun
      events.sum { |event| (event[:allowed].transform_keys(&:to_s)["cut"] || 0) }
    end

    def excess(event)
      allowed = event[:allowed].transform_keys(&:to_s)
      event[:failed].to_h do |kind, number|
        limit = allowed.fetch(kind.to_s, 0)
        [kind.to_s, limit == true ? 0 : number - limit]
      end
    end
  end
end

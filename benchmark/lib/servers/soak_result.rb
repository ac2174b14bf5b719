# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../measure/statistics"

module CowBench
  # What a soak found, as it stands in its results.json: whether the memory was flat, and which requests or
  # jobs failed for no reason that an event gives.
  class SoakResult
    # From where on the memory shall be flat, as a part of the time.
    QUIET = 2 / 3.0
    # What it may rise or fall in that time, as a share of itself, and be flat.
    SMALL = 0.01
    # Minutes of a soak from which on memory is judged: before that, workers warm up.
    LONG = 15
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

    # The rounds of the last third, from the end of what happened last.
    def last_third
      ends = events.map { |event| event[:seconds] + event[:took] }
      from = [rounds.empty? ? 0 : rounds.last[:seconds] * QUIET, *ends].max
      rounds.select { |round| round[:seconds] > from && round[:private] }
    end

    # Statistics::Line, MB over hours; nil where there are too few looks.
    def line
      Statistics.line(last_third.map { |round| [round[:seconds] / 3600.0, round[:private]] })
    end

    # "flat", "grows", "falls"; "unclear" where the true line may be flat or not; "too short".
    def memory
      line = self.line unless @hash[:ended_early]
      third = (1 - QUIET) * rounds.last[:seconds] / 3600 if line
      return "too short" unless line && line.width > third / 2

      # What is seen of the third stands for all of it.
      rise, off = [line.slope, ERRORS * line.error].map { |slope| slope * third / line.mean }
      least, most = rise - off, rise + off
      return "flat" if [least.abs, most.abs].max <= SMALL

      least > SMALL ? "grows" : most < -SMALL ? "falls" : "unclear"
    end

    # All failures, also those of no event: { event's name or "none" => { kind => number } }.
    def failed
      by_event { |event| all(event) }
    end
    NONE = "none"
    # A kind of failure beside those of requests and jobs.
    KEPT = "not replaced"

    # How many of them no event explains, in the same manner.
    def unexcused
      by_event { |event| excess(event).select { |_, number| number.positive? } }
    end

    # Requests that failed, jobs that the server gave up or lost, workers that stayed.
    def failures
      failed.values.sum { |kinds| kinds.values.sum }
    end

    def unexcused_failures
      unexcused.values.sum { |kinds| kinds.values.sum }
    end

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
      !@hash[:ended_early] && unexcused_failures.zero? && (jobs? || lost.zero?) &&
        (rounds.last.to_h[:seconds].to_f < LONG * 60 || !["grows", "too short"].include?(memory))
    end

    # Workers that were gone in the last third without anything that had happened to them.
    def gone
      last_third.sum { |round| round[:gone].to_i }
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

    def all(event)
      kept = event[:kept].positive? ? { KEPT => event[:kept] } : {}
      event[:failed].transform_keys(&:to_s).merge(kept)
    end

    # The kinds that an event explains share one number of excuses.
    def excess(event)
      number, kinds, away = event[:excuses].values_at(:number, :kinds, :away)
      all(event).except(*away).to_h do |kind, times|
        excused = kinds.include?(kind) ? [times, number].min : 0
        number -= excused
        [kind, times - excused]
      end
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # The times that wrk has taken of its answers: hashes from microseconds to how often. At its end wrk adds
  # what it thinks was not asked meanwhile (stats_correct in its stats.c): for each time of at least two
  # intervals also that time less one interval, less two, and so on, as long as more than one is left.
  # Such requests belong to a load that keeps to a rate. Ours asks when it was answered, so they never were.
  module Latencies
    # Stands in the stamp of a run whose percentiles are such; those of older runs hold wrk's additions, too.
    ALONE = "times of the answers alone"

    # Takes out again what wrk has added. The greatest time is what was measured, as wrk only adds shorter
    # ones; so going down, each time is as measured once all greater ones are seen to.
    def self.restored(counts, microseconds, complete, connections)
      interval = interval(microseconds, complete, connections)
      return counts.dup unless interval

      found = counts.dup
      # All that wrk has added stands in counts, so no time is missing there.
      counts.keys.sort.reverse_each do |time|
        break if time < 2 * interval

        (time - interval).step(interval + 1, -interval) { |m| found[m] = found.fetch(m, 0) - found[time] }
      end
      found.reject { |_, count| count.zero? }
    end

    # Of wrk, in microseconds: between two requests of a connection, in the mean. nil where it adds nothing.
    def self.interval(microseconds, complete, connections)
      rounds = complete / connections
      microseconds / rounds if rounds.positive?
    end

    # The least time that so many per cent of the answers did not exceed; nil without an answer.
    def self.percentile(counts, percent)
      rank = (counts.values.sum * percent / 100r).ceil
      counts.sort.find { |_, count| (rank -= count) <= 0 }&.first
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "server_run"

module CowBench
  # One setting on several builds at once, for speed: their servers stand side by side, and each answers the
  # same few requests in turn while the others rest. So a machine whose speed changes within minutes is as
  # fast for one as for the others.
  class SideBySide
    # Requests in a turn.
    TURN = 250
    STEPS = ServerRun::STEPS.drop(2).freeze
    QUICK_STEPS = ServerRun::QUICK_STEPS.drop(1).freeze

    def initialize(setting, builds, app, quick: false, stops: nil)
      @runs = builds.map { |build| ServerRun.new(setting, build, app) }
      @stops = stops || (quick ? QUICK_STEPS : STEPS)
    end

    # Gives an array of hashes for JSON, one for each build: the sums between the stops, and what the
    # processes held there.
    def call
      @runs.each(&:start)
      played = @runs.map { [] }
      points = @runs.map { |run| [run.look(0)] }
      turns.each_with_index do |(from, to), i|
        @runs.each_index.to_a.rotate(i).each { |run| played[run] << @runs[run].drive(from, to) }
        @runs.zip(points) { |run, seen| seen << run.look(to) } if @stops.include?(to)
      end
      played.zip(points).map { |loads, seen| { points: seen, loads: between_stops(loads) } }
    ensure
      @runs.each(&:stop)
    end

    # First and last request of each turn; a turn ends at each stop.
    def turns
      [0, *@stops].each_cons(2).flat_map do |from, to|
        [*from.step(to - 1, TURN), to].each_cons(2).to_a
      end
    end

    private

    def between_stops(loads)
      [0, *@stops].each_cons(2).map do |from, to|
        same = loads.select { |load| load[:from] >= from && load[:to] <= to }
        requests, seconds, cpu, faults =
          %i[requests seconds cpu faults].map { |key| same.sum { |load| load[key] } }
        { from: from, to: to, requests: requests, rate: requests / seconds, cpu: cpu, faults: faults }
      end
    end
  end
end

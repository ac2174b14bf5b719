# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # What benchmark/run is to measure.
  class Options
    RUNS = 5
    MINUTES = 14

    attr_accessor :quick, :runs, :minutes, :source, :dictionary, :driver, :files, :cases, :only

    def initialize
      @quick = false
      @runs = RUNS
      @minutes = MINUTES
    end

    # Those of +benchmarks+ that --only names, in their own order.
    def chosen(benchmarks)
      benchmarks.select { |benchmark| only ? only.include?(benchmark.title) : !benchmark::BY_NAME }
    end

    def to_h
      { quick: quick, runs: runs, minutes: minutes, source: source, dictionary: dictionary,
        files: files&.source, cases: cases&.source, only: only }
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class LargeMaster < Benchmark
    WORKERS = 4
    SUMMARY = "a generated application of a real one's size: a master of 1 GB and 5 million live objects, " \
              "and #{WORKERS} workers that serve requests at once. Prepared: Process.warmup, where it is " \
              "called, and the first fork".freeze
    SYNTHETIC = true
    BY_NAME = true
    metric :prepared, "time until the first worker is forked", "ms", :less, 0
    metric :fork, "a further fork", "ms", :less, 1
    metric :master, "resident memory of the master before it forks", "MB", :less, 0
    metric :private, "private dirty memory of a worker", "MB", :less, 1
    metric :tree, "the whole server (sum of Pss)", "MB", :less, 0
    metric :median, "median of a request's time", "ms", :less, 2
    metric :p99, "99th percentile of a request's time", "ms", :less, 1
    metric :longest, "longest request", "ms", :less, 0
    metric :gc_time, "GC time of all workers", "ms", :less, 0
    metric :full, "full collections of all workers", "count", :less, 0
    # What Parent.boot is asked for, so that it comes to OBJECTS.
    MEGABYTES = 950
    OBJECTS = 5_000_000
    TIMEOUT = 1_800

    def cases
      [0, 1].map do |number|
        Case.new(label: warmups(number), arguments: [quick? ? 8 : MEGABYTES, number, WORKERS, *steps],
                 needs: quick? ? 300 : 7_000)
      end
    end

    def measure(build, kase)
      measured = Measured.run(build, "large_master", *kase.arguments, timeout: TIMEOUT)
      result = measured.result
      too_small = !quick? && result["live"] < OBJECTS
      raise Measured::Failed, "the master has #{result["live"]} live objects only" if too_small

      values = { **times(result), **collections(result["gc"]), **memory(kase.label, measured.looks) }
      raw = raw(measured)
      Outcome.new(values: values, raw: raw.merge(result: result.except("times")))
    end

    private

    def steps
      quick? ? [0, 20] : [0, 100, 500, 2_000]
    end

    def memory(label, looks)
      booted = looks.fetch("booted")
      rows = looks.except("booted").transform_keys { |point| "#{label}, #{point}" }
      { master: mb(booted.parent["Rss"]),
        private: rows.transform_values { |look| mb(look.mean("Private_Dirty")) },
        tree: rows.transform_values { |look| mb(look.sum("Pss")) } }
    end

    def times(result)
      sorted = result["times"].sort
      forks = result["other_forks"]
      seconds = { prepared: result["warmup"] + result["first_fork"], fork: forks.sum / forks.size,
                  median: Statistics.median(sorted), p99: sorted[sorted.size * 99 / 100],
                  longest: sorted.last }
      seconds.transform_values { |time| time * 1_000 }
    end

    def collections(stats)
      { gc_time: stats.sum { |stat| stat["time"] }, full: stats.sum { |stat| stat["major_gc_count"] } }
    end
  end
end

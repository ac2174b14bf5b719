# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  class Gc < Benchmark
    SUMMARY = "CRuby's own benchmark/gc programs, unchanged, each in a process of its own, each round with " \
              "other objects made before"
    SYNTHETIC = true
    SPEED_ONLY = true
    metric :time, "wall time, start of ruby included", "s", :less, 2
    metric :gc_time, "GC time", "ms", :less, 0
    metric :mark_time, "of it marking", "ms", :less, 0
    metric :sweep_time, "of it sweeping", "ms", :less, 0
    metric :collections, "collections", "count", :less, 0
    metric :peak, "peak resident memory", "MB", :less, 1
    # The harness of these programs, which is not used here.
    NO_PROGRAM = %w[gcbench].freeze
    # A heap grows by steps, and where it stops within one decides how often it is collected
    # and how high it peaks: chance, for a program alone. Each step is 1.8 times the last, from
    # what there is at the start on. So each round begins with so many objects more than the
    # last, a quarter of them of 40 bytes: in eight rounds the heap of those, 13,000 slots in
    # the beginning, passes through one whole step, in twenty through two.
    BALLAST = 5_200
    SHORT = %w[null hash1 binary_trees].freeze
    NEEDS = Hash.new(300).merge("hash2" => 1_200, "ring" => 1_600, "rdoc" => 600).freeze

    def ready
      raise Skip, "needs CRuby's source tree: give --source DIR" unless options.source
      raise Skip, "no benchmark/gc/*.rb in #{options.source}" if programs.empty?
    end

    def cases
      programs.sort.map { |path| Case.new(label: name(path), arguments: [path], needs: NEEDS[name(path)]) }
    end

    def left_out
      quick? ? "--quick runs only #{SHORT.join(", ")}" : nil
    end

    def measure(build, kase)
      measured = Measured.run(build, "gc", *kase.arguments, (build.round - 1) * BALLAST)
      gc = measured.result["gc"]
      # Older rubies tell no parts.
      parts = { mark_time: gc["marking_time"], sweep_time: gc["sweeping_time"] }.compact
      values = { time: measured.looks["end"].seconds, gc_time: gc["time"], collections: gc["count"],
                 peak: mb(measured.peak), **parts }
      Outcome.new(values: values, raw: raw(measured))
    rescue Measured::Failed => e
      e.message.include?("(LoadError)") ? raise(Skip, "a library is missing: #{e.message}") : raise
    end

    private

    def programs
      paths = Dir[File.join(options.source, "benchmark/gc/*.rb")].reject do |path|
        NO_PROGRAM.include?(name(path))
      end
      paths = paths.select { |path| SHORT.include?(name(path)) } if quick?
      chosen(paths)
    end

    def name(path)
      File.basename(path, ".rb")
    end
  end
end

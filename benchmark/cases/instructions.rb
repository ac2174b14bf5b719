# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "tmpdir"
require_relative "../lib/processes/supervised"

module CowBench
  class Instructions < Benchmark
    SUMMARY = "instructions of a full collection and of allocation, counted by callgrind; no JIT"
    SYNTHETIC = true
    SPEED_ONLY = true
    metric :instructions, "instructions for an object", "count", :less, 1
    WHAT = ["mark, in order", "mark, at random", "mark, strings in a hash", "mark, objects", "mark, arrays",
            "mark, procs", "allocate and sweep"].freeze
    TIMES = 3
    LIMIT = 600

    def ready
      needs_valgrind
    end

    def cases
      objects = quick? ? 2_000 : 100_000
      WHAT.map do |what|
        Case.new(label: "#{what}, #{objects} objects", arguments: [what, objects], needs: 500)
      end
    end

    # What +TIMES+ times more cost, so that nothing else is counted.
    def measure(build, kase)
      what, objects = kase.arguments
      none, some = [0, TIMES].map { |times| count(build, what, objects, times) }
      Outcome.new(values: { instructions: (some - none).fdiv(TIMES * objects) },
                  raw: { none: none, some: some })
    end

    private

    def count(build, what, objects, times)
      program = [build.path, "--disable-gems", "--disable-jit",
                 File.join(Measured::WORKLOADS, "instructions.rb")]
      output, status = Supervised.capture("valgrind", "--tool=callgrind", "--trace-children=yes",
                                          "--callgrind-out-file=/dev/null", *program, what, objects.to_s,
                                          times.to_s, environment: build.environment, chdir: Dir.tmpdir,
                                          seconds: LIMIT)
      found = output[/Collected : (\d+)/, 1]
      unless status&.success? && found
        reason = status ? output.lines.last&.strip || status : "no end after #{LIMIT} s"
        raise Measured::Failed, "instructions on #{build.name}: #{reason}"
      end

      found.to_i
    end
  end
end

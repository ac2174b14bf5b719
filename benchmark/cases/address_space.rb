# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../lib/processes/supervised"

module CowBench
  # Addresses are not random (setarch -R): where they are, jemalloc takes 6 MB more in some runs,
  # which decides what fits where little is left (doc/arenas.md).
  class AddressSpace < Benchmark
    SUMMARY = "small arrays that fit into a limit of address space, with addresses that are not random"
    SYNTHETIC = true
    BY_NAME = true
    metric :arrays, "arrays that fit", "thousands", :more, 0
    MEGABYTES = [50, 55, 60, 70, 80, 100, 120, 140, 160, 200, 300, 400, 500, 600, 1_000].freeze
    PROGRAM = File.expand_path("../../test/ruby/hold_arrays.rb", __dir__)
    LIMIT = 300

    def ready
      return if Supervised.capture("setarch", "-R", "true", seconds: 10).last&.success?

      raise Skip, "setarch -R is not allowed here, or not installed (Debian package util-linux)"
    end

    def cases
      (quick? ? [100] : MEGABYTES).map do |megabytes|
        Case.new(label: "#{megabytes} MB", arguments: [megabytes * 1_000_000], needs: megabytes)
      end
    end

    # Where the ruby does not start within the limit, none fit.
    def measure(build, kase)
      bytes = kase.arguments.first
      output, = Supervised.capture("prlimit", "--as=#{bytes}", "setarch", "-R", build.path, "--disable-gems",
                                   PROGRAM, environment: build.environment, seconds: LIMIT)
      Outcome.new(values: { arrays: output[/ \.+/].to_s.strip.size }, raw: output.size)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require "open3"
require_relative "compiler"

module CowBench
  # The program simulation/simulate.c, compiled, and its runs.
  class Simulation
    Failed = Class.new(StandardError)
    DIRECTORY = File.expand_path("../../simulation", __dir__)
    HEADERS = File.expand_path("../../../gc", __dir__)
    TRACES = %w[server waves batch].freeze
    # What the columns are called => arguments.
    POLICIES = { "pristine" => %w[--policy pristine], "growth" => %w[--policy growth],
                 "pressure" => %w[--policy pressure], "alone" => %w[--policy pressure --tree 0] }.freeze

    # Compiles it in +directory+.
    def initialize(directory)
      @program = File.join(directory, "simulate")
      error = Compiler.compile(File.join(DIRECTORY, "simulate.c"), @program, "-std=gnu11", "-O2",
                               "-I", HEADERS, "-lm")
      raise Failed, error if error
    end

    # Gives the figures of one run. +options+: { workers: 8, ... }.
    def run(policy, traces, options)
      arguments = options.flat_map { |name, value| ["--#{name}", value.to_s] }
      files = traces.map { |name| File.join(DIRECTORY, "traces/#{name}.tsv") }
      output, errors, status = Open3.capture3(@program, *POLICIES.fetch(policy), *arguments, *files)
      raise Failed, errors.lines.first.to_s.chomp.delete_prefix("simulate: ") unless status.success?

      JSON.parse(output, symbolize_names: true)
    end
  end
end

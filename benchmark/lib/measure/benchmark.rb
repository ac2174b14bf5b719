# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "open3"
require_relative "measured"
require_relative "registry"

module CowBench
  # What a benchmark is. A subclass in cases/ says in class methods what it
  # measures, and how one run of one case is made.
  class Benchmark
    extend Registry

    # +better+ is :less or :more. +alone+: the base has about nothing of it, a ratio
    # to that says nothing. +geometric+: its rows' ratios have a geometric mean; where it is a pattern, those
    # rows have one whose labels have the same there.
    Metric = Struct.new(:key, :title, :unit, :better, :digits, :alone, :geometric, keyword_init: true)
    # +needs+ is memory in MB; +arguments+ are the benchmark's own.
    Case = Struct.new(:label, :arguments, :needs, keyword_init: true)
    # +values+: metric's key => { row's label => number }, or a number where the
    # row is the case. +raw+ goes into the JSON as it is.
    Outcome = Struct.new(:values, :raw, keyword_init: true)
    # Why a benchmark, or a case, cannot be run here: one line.
    Skip = Class.new(StandardError)

    # For classes that declare what they measure.
    module Metrics
      def metric(key, title, unit, better, digits, **more)
        metrics << Metric.new(key: key, title: title, unit: unit, better: better, digits: digits, **more)
      end

      def metrics
        @metrics ||= []
      end
    end
    extend Metrics

    class << self
      # fork_gc for CowBench::ForkGc.
      def title
        name[/\w+\z/].gsub(/(?<=[a-z])(?=[A-Z])/, "_").downcase
      end

      # One line; SYNTHETIC benchmarks say so in every table.
      def summary
        self::SUMMARY
      end

      def synthetic?
        self::SYNTHETIC
      end

      # Pictures beside the bars of each table; +samples+ are those of this benchmark.
      def charts(_samples)
        []
      end
    end

    attr_reader :options

    def initialize(options)
      @options = options
    end

    # Those that --cases names.
    def chosen_cases
      options.cases ? cases.select { |kase| kase.label.match?(options.cases) } : cases
    end

    # Whether only speed is the question.
    SPEED_ONLY = false
    # Whether it is run only where --only names it: it takes long.
    BY_NAME = false

    # Raises Skip where something the benchmark needs is missing.
    def ready
    end

    # What is not run this time, and why: one line, or nil.
    def left_out
    end

    private

    # For +ready+ of what callgrind counts.
    def needs_valgrind
      Open3.capture2e("valgrind", "--version")
    rescue Errno::ENOENT
      raise Skip, "valgrind is not installed (Debian package valgrind)"
    end

    def quick?
      options.quick
    end

    # Those of +paths+ that --files names.
    def chosen(paths)
      options.files ? paths.select { |path| File.basename(path).match?(options.files) } : paths
    end

    # Runs the block so many times at once, with 0, 1, ... Gives what each gave, or its failure, when all have
    # come to their end.
    def side_by_side(number)
      threads = Array.new(number) { |i| Thread.new { yield i } }
      threads.each { |thread| thread.report_on_exception = false }
      threads.map do |thread|
        thread.value
      rescue Measured::Failed => e
        e
      end
    end

    def mb(kilobytes)
      Memory.mb(kilobytes)
    end

    def raw(measured)
      looks = measured.looks.transform_values do |look|
        { parent: look.parent, workers: look.workers, seconds: look.seconds }
      end
      { looks: looks, result: measured.result, wall: measured.wall }
    end

    def warmups(number)
      number.zero? ? "no warmup" : "#{number} warmup#{"s" if number > 1}"
    end
  end
end

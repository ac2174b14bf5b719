# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What the tests of the benchmarks share. They run on any ruby from 3.1 on;
# what they measure is COW_RUBY or RUBY, or else the ruby that runs them.
require "minitest/autorun"
require "open3"
require "rbconfig"
require "timeout"
require "tmpdir"

module CowBench
end

module BenchmarkTest
  # A test names the classes of benchmark/lib as they name each other.
  include CowBench

  BENCHMARK = File.expand_path("../../benchmark", __dir__)
  RUBY = ENV["COW_RUBY"] || ENV["RUBY"] || RbConfig.ruby
  FACTS = { date: "2026-01-02T03:04:05Z", cores: 2, cpu: "a | b", memory_mb: 100, kernel: "Linux",
            transparent_huge_pages: "madvise" }.freeze

  # What a report asks of a Build.
  Named = Struct.new(:name, :version, :allocator, :env, :layouts)

  def self.load(name)
    require File.join(BENCHMARK, name)
  end

  # Runs a program of benchmark/ on this ruby; gives its output, errors and status.
  def command(name, *arguments)
    Timeout.timeout(300) { Open3.capture3(RbConfig.ruby, File.join(BENCHMARK, name), *arguments.map(&:to_s)) }
  end

  # It ends with status 2 and one line that says +expected+.
  def assert_refused(expected, name, *arguments)
    _, errors, status = command(name, *arguments)
    assert_equal 2, status.exitstatus, errors
    assert_equal 1, errors.lines.size, errors
    assert_match expected, errors
  end
end

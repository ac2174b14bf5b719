# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Shared by the tests of the benchmarks. They run on any ruby from 3.1 on. The ruby that they measure is
# COW_RUBY, RUBY or the ruby that runs them.
require "minitest/autorun"
require "open3"
require "rbconfig"
require "timeout"
require "tmpdir"

module CowBench
end

module BenchmarkTest
  # So that a test can name the classes of benchmark/lib without the module.
  include CowBench

  BENCHMARK = File.expand_path("../../benchmark", __dir__)
  RUBY = ENV["COW_RUBY"] || ENV["RUBY"] || RbConfig.ruby
  # Name and path of a ruby that can serve. One that is given has the gems of tool/check's servers.
  INSTALLED = ENV["COW_INSTALLED_RUBY"] ? ["cow", ENV["COW_INSTALLED_RUBY"]] : ["test", RbConfig.ruby]
  FACTS = { date: "2026-01-02T03:04:05Z", cores: 2, cpu: "a | b", memory_mb: 100, kernel: "Linux",
            transparent_huge_pages: "madvise" }.freeze

  # In place of a Build: the values that a report reads.
  Named = Struct.new(:name, :version, :allocator, :env, :layouts)

  def self.load(name)
    require File.join(BENCHMARK, name)
  end

  # Runs a program of benchmark/ on this ruby; gives its standard output, standard error and status.
  def command(name, *arguments)
    Timeout.timeout(300) { Open3.capture3(RbConfig.ruby, File.join(BENCHMARK, name), *arguments.map(&:to_s)) }
  end

  # The program ends with status 2 and prints one line, which matches +expected+.
  def assert_refused(expected, name, *arguments)
    _, errors, status = command(name, *arguments)
    assert_equal 2, status.exitstatus, errors
    assert_equal 1, errors.lines.size, errors
    assert_match expected, errors
  end
end

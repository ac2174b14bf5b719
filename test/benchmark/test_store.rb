# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "fileutils"
require "json"

class TestStore < Minitest::Test
  include BenchmarkTest

  COMMIT = `git -C #{BENCHMARK} rev-parse --verify HEAD`.chomp

  def setup
    skip "this is no git checkout" if COMMIT.empty?
    @directory = Dir.mktmpdir("store")
    @run = File.join(@directory, "run")
    @results = File.join(@directory, "results")
    FileUtils.mkdir_p(@run)
    File.write(File.join(@run, "tables.md"), "# servers\n")
    File.write(File.join(@run, "a.svg"), "<svg/>")
    File.write(File.join(@run, "other.txt"), "")
  end

  def teardown
    FileUtils.rm_rf(@directory) if @directory
  end

  def write(commands: ["benchmark/run-servers --ruby stock=build/stock"], path: "build/stock",
            mapped: "[heap]", **machine)
    machine = { date: "2026-01-02T03:04:05Z", commit: COMMIT, name: "servers", commands: commands, **machine }
    builds = [{ name: "stock", path: path }]
    raw = { machine: machine, builds: builds, samples: [{ mapped => 1 }] }
    File.write(File.join(@run, "results.json"), JSON.generate(raw))
  end

  def store(*more)
    command("store", @run, "--results", @results, *more)
  end

  def refused(expected, *more)
    assert_refused expected, "store", @run, "--results", @results, *more
    refute_path_exists @results
  end

  def test_a_finished_run_is_copied_unchanged
    write
    out, errors, status = store
    assert_predicate status, :success?, errors
    target = File.join(@results, "2026-01-02-#{COMMIT[0, 7]}", "servers")
    assert_equal "stored: #{target}\n", out
    assert_equal %w[a.svg results.json tables.md], Dir.children(target).sort
    Dir.children(target).each do |name|
      assert_equal File.read(File.join(@run, name)), File.read(File.join(target, name))
    end
  end

  def test_nothing_is_overwritten
    write
    store
    File.write(File.join(@run, "tables.md"), "new\n")
    assert_refused(/is there already: remove it, or give --name/, "store", @run, "--results", @results)
    _, errors, status = store("--name", "again")
    assert_predicate status, :success?, errors
    files = Dir[File.join(@results, "*/*/tables.md")].sort
    assert_equal [["again", "new\n"], ["servers", "# servers\n"]],
                 files.map { |file| [file.split("/")[-2], File.read(file)] }
  end

  def test_a_commit_that_is_not_in_this_repository_is_refused
    { "#{COMMIT}-dirty" => /made with uncommitted changes/,
      "0" * 40 => /this repository has no commit 0000/,
      nil => /this repository has no commit of that run/,
      "#{COMMIT}, #{"1" * 40}" => /runs are of several commits/,
      "#{COMMIT}-dirty, #{COMMIT}" => /made with uncommitted changes/ }.each do |commit, message|
      write(commit: commit)
      refused message
    end
  end

  def test_a_run_that_cannot_be_repeated_is_refused
    write(commands: nil)
    refused(/does not say which command made it/)
    write(path: "/somewhere/ruby")
    refused(%r{/somewhere/ruby is outside this repository})
    write(commands: ["benchmark/run --source /somewhere/src"])
    refused(%r{/somewhere/src is outside this repository})
    write(mapped: "/somewhere/json.so")
    refused(%r{/somewhere/json.so is outside this repository})
    write(path: "/usr/bin/ruby", mapped: %([&'"/]), commands: ["benchmark/run --output /tmp/x --files ^a/b"])
    assert_predicate store.last, :success?
  end

  def test_mistakes_are_one_line
    refused(/no finished run in .*: results.json is missing/)
    write
    refused(%r{--name wants letters, digits, . _ and -, not "../x"}, "--name", "../x")
    FileUtils.rm(File.join(@run, "tables.md"))
    refused(/no finished run in .*: tables.md is missing/)
    assert_refused(/which run\? give the directory that it wrote/, "store")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
%w[lib/measure/options lib/measure/command_line cases/job_servers].each { |name| BenchmarkTest.load(name) }
require "json"

class TestJobServers < Minitest::Test
  include BenchmarkTest

  # As Solid Queue, Sidekiq and servers/sidekiq_swarm.rb name their processes.
  TITLES = {
    SolidQueueFork => { "solid-queue-fork-supervisor(1.4.0): supervising 5, 6" => "fork-supervisor",
                        "solid-queue-supervisor(1.1.0): supervising 5" => "supervisor",
                        "solid-queue-dispatcher(1.4.0): dispatching every 1 seconds" => "dispatcher",
                        "solid-queue-worker(1.4.0): waiting for jobs in *" => "worker" },
    SidekiqSwarm => { "sidekiqswarm" => "parent", "sidekiq 8.1.1 jobs [0 of 5 busy]" => "sidekiq" }
  }.freeze

  def test_roles
    TITLES.each do |kind, titles|
      titles.each { |title, role| assert_equal role, kind.role(title) }
    end
    forked = TITLES[SolidQueueFork].keys.grep(SolidQueueFork::WORKER)
    assert_equal 2, forked.size, "no supervisor is a worker"
  end

  def test_they_are_no_servers_for_requests
    BenchmarkTest.load("lib/servers/kinds")
    assert_equal ["solid_queue, fork", "solid_queue, async", "sidekiq, plain", "sidekiq, swarm of 4"],
                 JobServer.all.map(&:title)
    assert_empty JobServer.all & Server.all
  end

  def process(role, private_dirty, pss)
    { title: "solid-queue-#{role}(1): x", Private_Dirty: private_dirty * 1024, Pss: pss * 1024 }
  end

  def test_values
    processes = [process("supervisor", 5, 50), process("worker", 10, 20), process("worker", 20, 40)]
    points = { "idle" => processes }
    loads = [{ from: 0, to: 100, seconds: 2.0, cpu: 1.0 }, { from: 100, to: 300, seconds: 3.0, cpu: 1.0 }]
    values = SolidQueue.new(Options.new).send(:values, "fork", SolidQueueFork, points, loads)
    assert_equal({ "fork, idle" => 110.0 }, values[:tree])
    assert_equal({ "fork, idle: supervisor" => 5.0, "fork, idle: worker" => 15.0 }, values[:each])
    assert_equal({ "fork, 1 to 100" => 10.0, "fork, 101 to 300" => 5.0 }, values[:cpu])
    assert_equal({ "fork, 1 to 100" => 2.0, "fork, 101 to 300" => 3.0 }, values[:seconds])
  end

  def test_quick_has_each_kind_once
    quick = Options.new.tap { |options| options.quick = true }
    kinds = [SolidQueue, SidekiqServers].flat_map do |benchmark|
      benchmark.new(quick).cases.map { |kase| kase.arguments.first }
    end
    assert_equal JobServer.all.map(&:title).sort, kinds.map(&:title).sort
  end

  def test_the_application_has_what_rails_has_and_jobs
    made = Array.new(2) do
      Dir.mktmpdir do |directory|
        output, status = Open3.capture2e(RbConfig.ruby, File.join(BENCHMARK, "apps/jobs/generate"), directory)
        assert_predicate status, :success?, output
        files = Dir[File.join(directory, "**/*")].select { |file| File.file?(file) }.sort
        files.to_h { |file| [file.delete_prefix("#{directory}/"), File.read(file)] }
      end
    end
    assert_equal made.first, made.last
    names = JobServer::KINDS.map { |name| "app/jobs/#{name.gsub(/(?<!\A)(?=[A-Z])/, "_").downcase}.rb" }
    assert_empty [*names, "rails.gemfile", "servers.gemfile", "seed_records.rb"] - made.first.keys
    assert_match(%r{^require_relative "../jobs"$}, made.first["config/environments/production.rb"])
    assert_match(/KINDS = %w\[#{JobServer::KINDS.join(" ")}\]/, made.first["app/jobs/application_job.rb"])
  end

  # Runs a benchmark as a whole, with the gems of a Rails application; gives what was seen of each case.
  def run_quickly(name)
    skip "COW_INSTALLED_RUBY names no installed ruby (make rubies)" unless ENV["COW_INSTALLED_RUBY"]

    Dir.mktmpdir do |directory|
      out, errors, status = command("run", "--quick", "--only", name, "--no-glibc", "--ruby",
                                    INSTALLED.join("="), "--output", directory)
      reason = out[/^skipped: #{name}[^:]*: (.*)/, 1]
      skip reason if reason

      assert_predicate status, :success?, errors + out
      samples = JSON.parse(File.read(File.join(directory, "results.json")))["samples"]
      samples.to_h { |sample| [sample["case"], sample["outcome"]["raw"]] }
    end
  end

  def test_solid_queue
    seen = run_quickly("solid_queue")
    assert_all_is_seen(seen.fetch("fork, rehearsed"), 4)
    assert_all_is_seen(seen.fetch("async"), 1)
  end

  def test_sidekiq
    seen = run_quickly("sidekiq")
    assert_all_is_seen(seen.fetch("swarm of 4, rehearsed"), 5)
    assert_all_is_seen(seen.fetch("plain"), 1)
  end

  def assert_all_is_seen(raw, processes)
    assert_equal ["idle", "after 12"], raw["points"].keys
    assert_equal [processes] * 2, raw["points"].values.map(&:size)
    raw["points"].values.flatten.each { |process| refute ProcessTable.alive?(process["pid"]) }
    load = raw["loads"].first
    assert_equal [0, 12], load.values_at("from", "to")
    assert_operator load["seconds"], :>, 0
  end
end

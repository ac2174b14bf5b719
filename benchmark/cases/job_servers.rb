# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../lib/measure/benchmark"
require_relative "../lib/servers/app"
require_relative "../lib/servers/job_server"

module CowBench
  # What the benchmarks of real job servers share. They want an installed ruby (make rubies).
  module JobServerRun
    STEPS = [0, 100, 1_000].freeze
    QUICK_STEPS = [0, 12].freeze
    # Seconds without a job before the first look: heartbeats and polling have come round.
    IDLE = 70
    QUICK_IDLE = 1

    def self.included(benchmark)
      super
      benchmark.class_eval do
        metric :tree, "all processes (sum of Pss)", "MB", :less, 1
        metric :each, "private dirty memory of a process", "MB", :less, 1
        metric :seconds, "from the time jobs are enqueued to the end of the last", "s", :less, 2
        metric :cpu, "CPU time for a job", "ms", :less, 2
        metric :first_fork, "the first fork, seal included", "ms", :less, 1
      end
    end

    def measure(build, kase)
      kind, settings = kase.arguments
      app.prepare(build)
      Dir.mktmpdir("jobs") do |directory|
        server = kind.new(app, build, directory, { yjit: true, **settings })
        run(server, kase.label)
      ensure
        server&.stop
      end
    rescue App::Missing, Service::Missing => e
      raise Benchmark::Skip, e.message
    rescue Service::Failed => e
      raise Measured::Failed, e.message
    end

    private

    def app
      @app ||= App.new("jobs", File.join(CommandLine::ROOT, "build"))
    end

    # What is done in the process that forks: name and setting of each way; quickly the one that takes most.
    def before_fork
      ways = [[nil, {}], ["warmup", { warmup: true }], ["rehearsed", { rehearsed: true }]]
      quick? ? ways.last(1) : ways
    end

    # A case for each of +settings+.
    def cases_of(kind, *settings)
      settings.map do |words, setting|
        Benchmark::Case.new(label: [kind.title.split(", ").last, *words].join(", "),
                            arguments: [kind, setting.to_h], needs: 1_500)
      end
    end

    def run(server, label)
      server.start
      rehearsed(server)
      first_fork = server.first_fork
      sleep(quick? ? QUICK_IDLE : IDLE)
      steps = quick? ? QUICK_STEPS : STEPS
      points = { "idle" => look(server) }
      loads = steps.each_cons(2).map do |from, to|
        load = server.work(from, to)
        points["after #{to}"] = look(server)
        load
      end
      Benchmark::Outcome.new(values: values(label, server.class, points, loads).merge(first_fork: first_fork),
                             raw: { points: points, loads: loads, first_fork: first_fork })
    end

    def rehearsed(server)
      return unless server.settings[:rehearsed]
      return if server.rehearsal&.then { |text| !text.include?("failed") }

      raise Measured::Failed, "not rehearsed: #{server.rehearsal || server.complaint}"
    end

    def look(server)
      server.look.map { |seen| seen.to_h.except(:sample).merge(seen.sample.transform_keys(&:to_sym)) }
    end

    def values(label, kind, points, loads)
      rows = points.flat_map { |point, processes| rows(label, kind, point, processes) }
      loads = loads.to_h { |load| ["#{label}, #{load[:from] + 1} to #{load[:to]}", load] }
      { tree: points.to_h { |point, all| ["#{label}, #{point}", mb(all.sum { |process| process[:Pss] })] },
        each: rows.to_h, seconds: loads.transform_values { |load| load[:seconds] },
        cpu: loads.transform_values { |load| load[:cpu] * 1_000 / (load[:to] - load[:from]) } }
    end

    # Of processes with the same role the mean.
    def rows(label, kind, point, processes)
      processes.group_by { |process| kind.role(process[:title]) }.map do |role, same|
        ["#{label}, #{point}: #{role}", mb(same.sum { |process| process[:Private_Dirty] }.fdiv(same.size))]
      end
    end
  end

  class SolidQueue < Benchmark
    SUMMARY = "Solid Queue on SQLite, as its generator sets it up, in a Rails application of 90 models"
    SYNTHETIC = false
    BY_NAME = true
    include JobServerRun

    def cases
      [*cases_of(SolidQueueFork, *before_fork), *cases_of(SolidQueueAsync, [nil, {}])]
    end
  end

  class SidekiqServers < Benchmark
    SUMMARY = "Sidekiq in a Rails application of 90 models: alone, and in the manner of its swarm"
    SYNTHETIC = false
    BY_NAME = true
    include JobServerRun

    def self.title
      "sidekiq"
    end

    def ready
      Sidekiq.missing&.then { |reason| raise Skip, reason }
    end

    def cases
      [*cases_of(Sidekiq, [nil, {}]), *cases_of(SidekiqSwarm, *before_fork)]
    end
  end
end

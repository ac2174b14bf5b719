# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "guest"
require_relative "workloads"
require_relative "../../benchmark/lib/measure/command_line"
require_relative "../../benchmark/lib/measure/machine"
require_relative "../../benchmark/lib/measure/table"

module CowSched
  # sched/measure: boots a guest for each workload, runs it under each policy by turns, and writes rows of
  # figures and tables of them.
  class MeasureCommand < CowBench::CommandLine
    NAME = "sched/measure"
    AFTER_INTERRUPT = "; what was finished is written"
    ERRORS = [Guest::Error, SystemCallError].freeze
    BANNER = <<~TEXT
      Usage: sched/measure [options]
      Runs workloads in an emulated machine under the kernel's scheduler, under sched_ext in the order of
      virtual time, and with the rule. Each figure is a median over the runs.

    TEXT
    EMULATED = "Made in an emulated machine (QEMU, TCG) whose clock counts instructions, one a ns: " \
               "switches, waits and instructions do not depend on the load of the machine, and say nothing " \
               "of caches and TLBs. Several CPUs take turns on one clock: read their switches, not times."
    Metric = Struct.new(:key, :title, :unit, :digits, keyword_init: true)
    METRICS = [
      Metric.new(key: :address_space_switches_per_message, title: "switches between address spaces",
                 unit: "for each 1,000 messages, less is better", digits: 1),
      Metric.new(key: :switches_per_message, title: "switches between threads",
                 unit: "for each 1,000 messages, less is better", digits: 1),
      Metric.new(key: :instructions, title: "instructions, kernel and all, nothing counted by process",
                 unit: "thousands a message, less is better", digits: 2),
      Metric.new(key: :mean_wait_ms, title: "mean wait of a thread that could run",
                 unit: "ms, less is better", digits: 2),
      Metric.new(key: :longest_wait_ms, title: "longest wait", unit: "ms, less is better", digits: 1)
    ].freeze
    SHARES = [
      Metric.new(key: :lone, title: "a process of one thread that computes, beside a chatroom of 8 processes",
                 unit: "ms of CPU time a second", digits: 2),
      Metric.new(key: :each_of_three, title: "each thread of one with three, at the same time",
                 unit: "ms of CPU time a second", digits: 2)
    ].freeze
    SCALE = { address_space_switches_per_message: 1_000, switches_per_message: 1_000,
              instructions: 0.001 }.freeze

    def initialize(arguments)
      super
      @runs = 3
      @seconds = 280
      @workloads = WORKLOADS.reject { |_, workload| workload.needs }.keys
    end

    attr_reader :ruby, :gems

    private

    def define(options)
      options.on("--only NAME,...", Array, "of #{WORKLOADS.keys.join(", ")}") do |names|
        @workloads = names
      end
      options.on("--runs N", Integer, "of each workload and policy (#{@runs})") do |runs|
        @runs = runs
      end
      options.on("--quick", "small workloads, one run: to see that it works") do
        @quick = true
        @runs = 1
      end
      options.on("--seconds S", Integer, "after which a guest is killed (#{@seconds})") { |s| @seconds = s }
      options.on("--ruby PREFIX", "an installed ruby with the gem puma, for the workload puma") do |path|
        @ruby = path
      end
      options.on("--gems DIR", "the directory of its gems (GEM_HOME)") do |path|
        @gems = path
      end
      options.on("--output DIR", "where the results go (default build/sched/measured)") do |path|
        @output = path
      end
    end

    def check(rest)
      raise Bad, "unknown argument #{rest.first}" unless rest.empty?

      unknown = @workloads - WORKLOADS.keys
      raise Bad, "no workload #{unknown.first}; there are #{WORKLOADS.keys.join(", ")}" if unknown.any?
      raise Bad, "--runs and --seconds want 1 or more" if @runs < 1 || @seconds < 1

      @ruby, @gems = [@ruby, @gems].map { |path| path && real(path) }
    end

    # Where it is: there it stands in the guest as well, as it was built for that place.
    def real(path)
      File.realpath(path)
    rescue SystemCallError
      raise Bad, "#{path} is missing"
    end

    def work(rest)
      check(rest)
      @output = File.expand_path(@output || File.join(ROOT, "build/sched/measured"))
      FileUtils.mkdir_p(@output)
      @facts = CowBench::Machine.facts(ROOT).merge(name: File.basename(@output), commands: [to_s])
      @rows = []
      @workloads.each do |name|
        @rows += measure(name)
        write
      end
      puts [*head, "", *tables.map(&:to_text)].join("\n"),
           "", "written: tables.md, results.json in #{CowBench::CommandLine.without_root(@output)}"
      0
    end

    def measure(name)
      workload = WORKLOADS[name]
      raise Bad, "puma needs --ruby" if workload.needs == :ruby && !@ruby

      images = workload.image ? { disk: workload.image.call(self) } : {}
      workload.policies.map do |policy|
        warn "#{NAME}: #{name}, #{policy}"
        row(name, workload, policy, images)
      end
    end

    def row(name, workload, policy, images)
      script = workload.script(policy, @quick, @runs, @ruby)
      result = Guest.new(cpus: workload.cpus, memory: workload.memory, seconds: @seconds, **images)
                    .run(script, name: "measure-#{name}-#{policy}")
      raise Guest::Error, "#{name}, #{policy}: #{result.stderr}" unless result.status.zero?

      figures(name, workload, policy, result)
    end

    def figures(name, workload, policy, result)
      runs = (1..@runs).map { |run| one(workload, result, run) }
      { workload: name, policy: policy, arguments: POLICIES[policy], cpus: workload.cpus, emulated: true,
        **medians(runs), samples: runs }
    end

    # What the process with one thread got, and for each thread the one with three, in ms a second.
    def share(result, run)
      said = JSON.parse(result.file("said#{run}").lines.last)
      one, three = said["processes"].map { |process| process["threads"].sum / process["threads"].size }
      { lone: one * 1_000 / said["ms"], each_of_three: three * 1_000 / said["ms"] }
    end

    def one(workload, result, run)
      return share(result, run) if workload.share

      counted = result.json("counted#{run}.json")
      rows = counted["processes"].select { |process| workload.counts?(process["name"]) }
      said = JSON.parse(result.file("said#{run}").lines.last)
      plain = workload.cpus == 1 ? JSON.parse(result.file("plain#{run}").lines.last) : nil
      messages = said["messages"]
      waits = rows.sum { |row| row["waits"] }
      { messages: messages,
        address_space_switches_per_message: rows.sum { |row| row["address_space_switches"] }.fdiv(messages),
        switches_per_message: rows.sum { |row| row["switches"] }.fdiv(messages),
        instructions: plain && (plain["ms"] * 1e6 / plain["messages"]),
        mean_wait_ms: waits.zero? ? 0 : rows.sum { |row| row["wait_total_ms"] } / waits,
        longest_wait_ms: rows.map { |row| row["longest_wait_ms"] }.max,
        decisions: counted["decisions"] }
    end

    def medians(runs)
      (METRICS + SHARES).filter_map do |metric|
        values = runs.map { |run| run[metric.key] }.compact.sort
        [metric.key, values[values.size / 2]] if values.any?
      end.to_h
    end

    # After each workload: a run that is ended later leaves what it has.
    def write
      raw = { machine: @facts, note: EMULATED, runs: @runs, quick: @quick ? true : false, rows: @rows }
      markdown = ["# #{@facts[:name]}", "", *head.map { |line| "- #{line}" }, "", *tables.map(&:to_markdown)]
      files = { "tables.md" => markdown.join("\n"), "results.json" => JSON.pretty_generate(raw) << "\n" }
      files.each do |name, text|
        File.write(File.join(@output, name), CowBench::CommandLine.without_root(text))
      end
    end

    def head
      [*CowBench::Machine.head(@facts), "guest: kernel #{kernel}; runs of each: #{@runs}", EMULATED,
       "default: the kernel's scheduler; scx: ours without the rule, in the order of virtual time; rule: " \
       "with it; rule-N: with a bonus of N ms in place of 5; homes: with processor aggregation"]
    end

    def kernel = File.basename(File.dirname(Dir["#{Guest::BUILD}/root/usr/lib/modules/*/vmlinuz"].first.to_s))

    def tables
      [1, 2].flat_map do |cpus|
        names = @rows.select { |row| (row[:cpus] == 1) == (cpus == 1) }.map { |row| row[:workload] }.uniq
        next [] if names.empty?

        (METRICS + SHARES).filter_map { |metric| table(metric, names, cpus) }
      end
    end

    def table(metric, names, cpus)
      known = @rows.select { |row| names.include?(row[:workload]) && row[metric.key] }
      policies = known.map { |row| row[:policy] }.uniq
      with = names.select { |name| @rows.any? { |row| row[:workload] == name && row[metric.key] } }
      lines = with.map do |name|
        [name, *policies.map do |policy|
          row = @rows.find { |one| one.values_at(:workload, :policy) == [name, policy] }
          value = row && row[metric.key]
          value ? format("%.#{metric.digits}f", value * SCALE.fetch(metric.key, 1)) : "-"
        end]
      end
      return if lines.empty?

      CowBench::Table.new("#{cpus == 1 ? "one CPU" : "several CPUs"}: #{metric.title} (#{metric.unit})",
                          ["", *policies], lines)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "figures"
require_relative "workloads"
require_relative "../../benchmark/lib/measure/command_line"
require_relative "../../benchmark/lib/measure/machine"

module CowSched
  # sched/measure: runs workloads in an emulated machine under each policy by turns, each run in a machine
  # that was booted for it, and writes rows of figures and tables of them.
  class MeasureCommand < CowBench::CommandLine
    NAME = "sched/measure"
    AFTER_INTERRUPT = "; what was finished is written"
    ERRORS = [Guest::Error, SystemCallError].freeze
    BANNER = <<~TEXT
      Usage: sched/measure [options]
      Runs workloads in an emulated machine under the kernel's scheduler, under sched_ext in the order of
      virtual time, and with the rule. Without --only it runs all that can run here: those with apache need
      apache2 and wrk, those with puma wrk, --ruby and --gems.

    TEXT
    EMULATED = "Made in an emulated machine (QEMU, TCG) whose clock counts instructions, one a ns: " \
               "switches, waits and instructions do not depend on the load of the machine, and say nothing " \
               "of caches and TLBs. Several CPUs take turns on one clock: read their switches, not times."

    def initialize(arguments)
      super
      @runs = 3
      @seconds = 900
    end

    attr_reader :ruby, :gems

    private

    def define(options)
      options.on("--only NAME,...", Array, "of #{WORKLOADS.keys.join(", ")}") { |names| @workloads = names }
      options.on("--policies NAME,...", Array, "of #{POLICIES.keys.join(", ")}; without it, those that the " \
                                               "workload is for") { |names| @policies = names }
      options.on("--runs N", Integer, "of each workload and policy (#{@runs})") { |runs| @runs = runs }
      options.on("--quick", "small workloads, one run: to see that it works") do
        @quick = true
        @runs = 1
      end
      options.on("--seconds S", Integer, "after which a guest is killed (#{@seconds})") { |s| @seconds = s }
      options.on("--ruby PREFIX", "an installed ruby with the gem puma") { |path| @ruby = path }
      options.on("--gems DIR", "the directory of its gems (GEM_HOME)") { |path| @gems = path }
      options.on("--output DIR", "where the results go (default build/sched/measured)") do |path|
        @output = path
      end
    end

    def check(rest)
      no_arguments(rest)
      positive("--runs", @runs)
      positive("--seconds", @seconds)
      known("--only", @workloads, WORKLOADS.keys) if @workloads
      known("--policies", @policies, POLICIES.keys) if @policies
      @ruby, @gems = [@ruby, @gems].map { |path| path && real(path) }
      choose
    end

    # Where it is: there it stands in the guest as well, as it was built for that place.
    def real(path)
      File.realpath(path)
    rescue SystemCallError
      raise Bad, "#{path} is missing"
    end

    # Those that can run here, if none was asked for.
    def choose
      lacks = WORKLOADS.transform_values { |workload| workload.lacks(self) }
      if @workloads
        name = @workloads.find { |one| lacks[one] }
        raise Bad, "#{name} needs #{lacks[name]}" if name
      else
        @workloads = WORKLOADS.keys.reject { |one| lacks[one] }
        left_out = lacks.compact
        left_out.each { |one, what| warn "#{NAME}: #{one} is left out; it needs #{what}" }
      end
    end

    def work(rest)
      check(rest)
      @output = output(@output || File.join(ROOT, "build/sched/measured"))
      @facts = CowBench::Machine.facts(ROOT).merge(name: File.basename(@output), commands: [to_s])
      @rows = []
      @images = {}
      @workloads.each { |name| measure(name, WORKLOADS[name]) }
      puts [*head, "", *Figures.tables(@rows).map(&:to_text)].join("\n"),
           "", "written: tables.md, results.json in #{CowBench::CommandLine.without_root(@output)}"
      0
    end

    # By turns: each policy once, then each once more, and so on. After each run all is written.
    def measure(name, workload)
      policies = @policies || workload.policies
      samples = Hash.new { |hash, policy| hash[policy] = [] }
      others = @rows
      @runs.times do |run|
        policies.each do |policy|
          warn "#{NAME}: #{name}, #{policy}, run #{run + 1}"
          samples[policy] << sample(name, workload, policy)
          @rows = others + samples.map { |one, some| row(name, workload, one, some) }
          write
        end
      end
    end

    def row(name, workload, policy, samples)
      { workload: name, policy: policy, arguments: POLICIES[policy], cpus: workload.cpus, emulated: true,
        **Figures.summary(samples), samples: samples }
    end

    # A guest of two CPUs stands still for seconds once in some hundred runs, and its kernel says so; then the
    # run is made anew, once.
    def sample(name, workload, policy, again: true)
      result = boot(name, workload, policy)
      complaints = result.complaints
      return Figures.of(workload, policy, result) if result.status.zero? && complaints.empty?

      words = (complaints.first(3) << result.stderr).join("; ")
      raise Guest::Error, "#{name}, #{policy}: #{words}" unless again && complaints.any?

      warn "#{NAME}: #{name}, #{policy}: made anew, as the guest's kernel said: #{complaints.first}"
      sample(name, workload, policy, again: false)
    end

    def boot(name, workload, policy)
      images = workload.image ? { disk: @images[workload.image] ||= workload.image.call(self) } : {}
      guest = Guest.new(cpus: workload.cpus, memory: workload.memory, seconds: @seconds, **images)
      guest.run(workload.script(policy, @quick, @ruby), name: "measure-#{name}-#{policy}")
    end

    def write
      raw = { machine: @facts, note: EMULATED, runs: @runs, quick: @quick ? true : false, rows: @rows }
      tables = Figures.tables(@rows).map(&:to_markdown)
      markdown = ["# #{@facts[:name]}", "", *head.map { |line| "- #{line}" }, "", *tables]
      files = { "tables.md" => markdown.join("\n"), "results.json" => JSON.pretty_generate(raw) << "\n" }
      files.each do |name, text|
        File.write(File.join(@output, name), CowBench::CommandLine.without_root(text))
      end
    end

    def head
      [*CowBench::Machine.head(@facts),
       "guest: kernel #{Guest.pinned_kernel}, booted anew for each run; runs of each, by turns: #{@runs}; " \
       "a figure is their median, in brackets the least and the greatest", EMULATED,
       "default: the kernel's scheduler; scx: ours without the rule, in the order of virtual time; rule: " \
       "with it; rule-N: with a bonus of N ms in place of 5; homes: with processor aggregation"]
    end
  end
end

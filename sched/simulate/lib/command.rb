# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../../../benchmark/lib/measure/command_line"
require_relative "../../../benchmark/lib/measure/machine"
require_relative "../../../benchmark/lib/measure/progress"
require_relative "generator"
require_relative "measured"
require_relative "report"
require_relative "simulation"
require_relative "trace"

module Scheduling
  # sched/simulate/simulate.
  class Command < CowBench::CommandLine
    NAME = "sched/simulate/simulate"
    AFTER_INTERRUPT = "; nothing is written"
    ERRORS = [Trace::Bad, Measured::Bad, Simulation::Broken, Policies::Shared::Broken].freeze
    BANNER = <<~TEXT
      Usage: sched/simulate/simulate [options]
      Plays the threads of a recorded or made-up workload on 2 to 128 CPUs, with and without rules that run
      threads of one address space one after the other. A recorded workload is a trace of ftrace in text form
      and a table of lines "pid tgid".

    TEXT
    CPUS = [2, 4, 8, 16, 32, 64, 128].freeze
    QUICK = { cpus: [2, 8], seconds: 0.1 }.freeze
    MOST_CPUS = 1_024
    MOST_THREADS = 30_000
    MS = 1_000_000
    # The part of the time that is simulated before anything is counted.
    BEFORE = 0.2

    # The mistakes of benchmark/ end with 2; here 1 stands for all.
    def run
      status = super
      status == USAGE ? FAILED : status
    end

    def initialize(arguments)
      super
      @options = { cpus: CPUS, threads: [0], policies: Policies::ALL.keys, bonus: [5.0], slice: 5.0,
                   seconds: 1.0, seed: 1, processes: 8, spinners: 0, weights: [100], switch_cost: 0,
                   space_cost: 0, workload: "chatroom", same_processes: false, clock: "head" }
    end

    private

    def define(options)
      options.separator("The workload:")
      define_workload(options)
      options.separator("The machine and the rules:")
      define_machine(options)
      options.separator("The rest:")
      define_rest(options)
    end

    def define_workload(options)
      options.on("--trace FILE", "what ftrace printed, also packed by gzip") { |path| @trace = path }
      options.on("--pids FILE", "its table of lines \"pid tgid\"; tgid 0: a thread of the kernel") do |path|
        @pids = path
      end
      options.on("--messages N", "messages that the traced program counted (else each wake-up of a thread",
                 "by another thread is one)") do |text|
        @options[:messages] = whole("--messages", text, 1..10**12)
      end
      options.on("--without NAME,...", Array, "threads of the trace with these names are left out") do |names|
        @options[:without] = names
      end
      options.on("--part FROM,TO", Array, "seconds from the first event: only this part is played") do |texts|
        part = texts.map { |text| real("--part", text, 0..1_000_000) }
        raise Bad, "--part wants two times, the lesser first" unless part.size == 2 && part[0] < part[1]

        @options[:part] = part
      end
      options.on("--recorded-by NAME", "the policy under which it was traced (default recorded)") do |name|
        @options[:recorded_by] = name
      end
      options.on("--workload NAME",
                 "without a trace: #{Generator::ALL.keys.join(", ")} (default chatroom)") do |name|
        @options[:workload] = known("--workload", [name], Generator::ALL.keys).first
      end
      options.on("--processes N", "without a trace: its processes (default 8)") do |text|
        @options[:processes] = whole("--processes", text, 1..MOST_THREADS)
      end
      list(options, :threads, "so many copies of it as make no more threads than this (default one copy)",
           1..MOST_THREADS)
      options.on("--same-processes", "copies are threads of the same processes, not further processes") do
        @options[:same_processes] = true
      end
      options.on("--spinners N", "so many processes more, of one thread that never blocks") do |text|
        @options[:spinners] = whole("--spinners", text, 0..MOST_THREADS)
      end
      list(options, :weights, "of these, by turns (default 100)", 1..10_000)
    end

    def define_machine(options)
      list(options, :cpus, "(default #{CPUS.join(",")})", 1..MOST_CPUS)
      options.on("--policies NAME,...", Array, "(default #{Policies::ALL.keys.join(",")})") do |names|
        @options[:policies] = known("--policies", names, Policies::ALL.keys).uniq
      end
      options.on("--bonus MS,...", Array,
                 "of virtual time, for #{Policies::WITH_BONUS.join(", ")} (default 5)") do |all|
        @options[:bonus] = all.map { |text| real("--bonus", text, 0..1_000_000) }.uniq
      end
      options.on("--slice MS", "that a thread runs at the most (default 5)") do |text|
        @options[:slice] = real("--slice", text, 0.001..1_000_000)
      end
      options.on("--credit MS",
                 "that a thread is behind the clock at most when it wakes (default: the slice)") do |text|
        @options[:credit] = real("--credit", text, 0..1_000_000)
      end
      options.on("--carry MS",
                 "the same when it has used up its slice (default: that, and what the rule allows)") do |text|
        @options[:carry] = real("--carry", text, 0..1_000_000)
      end
      options.on("--clock NAME", "how far the clock goes when a thread begins: to the head of its queue",
                 "(head), with homes to that of the CPU's own (own), or to the thread itself (start)",
                 "(default head)") do |name|
        @options[:clock] = known("--clock", [name], Policies::CLOCKS).first
      end
      { switch_cost: "a switch of threads takes (default 0)",
        space_cost: "one between address spaces takes beside that (default 0)" }.each do |key, text|
        options.on("--#{key.to_s.tr("_", "-")} NS", text) do |value|
          @options[key] = whole("--#{key.to_s.tr("_", "-")}", value, 0..1_000_000_000)
        end
      end
    end

    def define_rest(options)
      options.on("--seconds S", "that are simulated; the first fifth is not counted (default 1)") do |text|
        @options[:seconds] = real("--seconds", text, 0.001..100_000)
      end
      options.on("--cpu-seconds S", "in place of --seconds: this by the number of CPUs") do |text|
        @options[:cpu_seconds] = real("--cpu-seconds", text, 0.001..1_000_000)
      end
      options.on("--seed N", "of what is left to chance (default 1)") do |text|
        @options[:seed] = whole("--seed", text, 0..4_000_000_000)
      end
      options.on("--measured FILE,...", Array, "results.json of measured runs, to be drawn beside") do |paths|
        @measured = paths.flat_map { |path| Measured.read(path) }
      end
      options.on("--quick", "#{QUICK[:cpus].join(" and ")} CPUs for #{QUICK[:seconds]} s") do
        @options.merge!(QUICK)
      end
      options.on("--output DIR", "where the results go (default build/sched/simulate)") do |path|
        @output = path
      end
    end

    # --KEY N,...
    def list(options, key, text, range)
      options.on("--#{key} N,...", Array, text) do |numbers|
        @options[key] = numbers.map { |number| whole("--#{key}", number, range) }.uniq
        raise Bad, "--#{key} names nothing" if numbers.empty?
      end
    end

    def real(option, text, range)
      value = Float(text, exception: false)
      return value if value && range.cover?(value)

      raise Bad, "#{option} wants a number from #{range.begin} to #{range.end}, not #{text}"
    end

    def work(rest)
      no_arguments(rest)
      costs = @options.values_at(:switch_cost, :space_cost).sum
      raise Bad, "a switch of address spaces would cost a whole slice" if costs >= ns(@options[:slice])

      base = workload
      check_size(base.entries.size)
      @output = output(@output || File.join(ROOT, "build/sched/simulate"))
      facts = CowBench::Machine.facts(ROOT).merge(name: File.basename(@output), commands: [to_s])
      progress = CowBench::Progress.new
      beside = measured(base)
      rows = simulate(base, progress)
      progress.finish
      Report.new(facts, @options, rows, beside).publish(@output, progress)
      0
    end

    def workload
      raise Bad, "--trace wants --pids, and --pids wants --trace" if @trace.nil? != @pids.nil?

      base = @trace ? trace(part: @options[:part]) : made
      base.messages = messages_of(@trace ? trace : base) if @options[:messages]
      @options.delete(:processes) if @trace
      @options[:workload] = base.name
      base
    end

    def made
      Generator.make(@options[:workload], processes: @options[:processes], threads: 1,
                                          random: Random.new(@options[:seed]))
    end

    def trace(**more)
      Trace.read(@trace, @pids, without: @options[:without] || [], **more)
    end

    # What a wake-up counts as. The program counted for the whole of the trace.
    def messages_of(whole)
      hand_overs = whole.recorded ? whole.recorded[:hand_overs] : 0
      raise Bad, "--messages wants a --trace with wake-ups of threads by threads" if hand_overs.zero?

      @options[:messages].fdiv(hand_overs)
    end

    def check_size(threads)
      most = Simulation::MOST - @options[:cpus].max
      count = [@options[:threads].max / threads, 1].max * threads + @options[:spinners]
      raise Bad, "#{count} threads are too many: #{most} can be simulated" if count > most
    end

    def simulate(base, progress)
      plan = @options[:threads].product(@options[:cpus], bonuses)
      progress.round(1, plan.size)
      plan.map do |threads, cpus, (policy, bonus)|
        progress.start([policy, ("#{bonus} ms" if bonus), "#{cpus} CPUs",
                        ("#{threads} threads" if threads.positive?)].compact.join(", "))
        row(base, threads, cpus, policy, bonus)
      end
    end

    # [policy, bonus in ms or nil] for each column.
    def bonuses
      @options[:policies].flat_map do |policy|
        bonus = Policies::WITH_BONUS.include?(policy) ? @options[:bonus] : [nil]
        bonus.map { |ms| [policy, ms] }
      end
    end

    def row(base, threads, cpus, policy, bonus)
      random = Random.new(@options[:seed])
      seconds = seconds_of(cpus)
      played = base.multiplied(threads, spread: spread(base, seconds), random: random,
                                        same: @options[:same_processes])
      played = played.with_spinners(@options[:spinners], @options[:weights])
      simulation = Simulation.new(played, policy, cpus: cpus, bonus: ns(bonus || 0), **rules)
      figures = simulation.run(seconds, from: seconds * BEFORE)
      { workload: base.name, policy: policy, bonus_ms: bonus, cpus: cpus, threads: played.entries.size,
        processes: played.processes, asked_threads: threads, simulated: true, seconds: seconds,
        **Report.per_message(figures, base.messages, seconds * (1 - BEFORE)), instructions: nil,
        **figures }
    end

    def seconds_of(cpus)
      @options[:cpu_seconds] ? @options[:cpu_seconds] / cpus : @options[:seconds]
    end

    # Copies begin within the length of the trace, but before it is counted.
    def spread(base, seconds)
      [base.length, seconds * 1_000 * MS * BEFORE].compact.min.to_i
    end

    # But for the policy and its bonus.
    def rules
      credit, carry = @options.values_at(:credit, :carry)
      slice = ns(@options[:slice])
      { slice: slice, credit: credit ? ns(credit) : slice, carry: carry && ns(carry),
        clock: @options[:clock], costs: @options.values_at(:switch_cost, :space_cost) }
    end

    def ns(milliseconds)
      (milliseconds * MS).round
    end

    # What was measured, and what the trace says itself.
    def measured(base)
      rows = Measured.of(@measured || [], base.name)
      return rows unless base.recorded

      recorded = base.recorded
      per = Report.per_message(recorded, base.messages, recorded[:seconds])
      [*rows, { workload: base.name, policy: @options[:recorded_by] || "recorded", bonus_ms: nil,
                simulated: false, in_trace: true, **per, **recorded }]
    end
  end
end

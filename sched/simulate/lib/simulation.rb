# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "bound"
require_relative "figures"
require_relative "heap"
require_relative "policies"
require_relative "workload"

module Scheduling
  # Runs the threads of a workload on CPUs, in virtual time, with one policy. Times are whole ns.
  #
  # A CPU runs a thread until it blocks, sleeps or has used its slice; nothing else interrupts it. A thread
  # that becomes ready goes to an idle CPU at once, else into a queue. The same arguments give the same run.
  class Simulation
    # What must hold in each run does not.
    Broken = Class.new(StandardError)

    # A thread in the run.
    class Task
      attr_reader :index, :entry, :space, :weight, :runs, :acts, :copy
      # step: the place in its program; left: ns of that step's run; tokens: wake-ups that came before
      # it blocked; since: when it became ready; used: CPU time since it was last put on a CPU; begun:
      # whether its delay has passed; away: whether it can not run now; blocks: how often it has left a CPU
      # of itself.
      attr_accessor :vtime, :queue, :cpu, :step, :left, :tokens, :waiting, :since, :used, :cpu_ns, :cost_ns,
                    :passes, :woken, :consumed, :bound, :begun, :away, :blocks

      def initialize(index, entry, bound)
        @index = index
        @entry = entry
        @space = entry.space
        @weight = entry.weight
        @runs = entry.program.runs
        @acts = entry.program.acts
        @copy = entry.copy
        @bound = bound
        @vtime = @step = @tokens = @since = @used = @cpu_ns = @cost_ns = @passes = @woken = @consumed = 0
        @blocks = 0
        @away = entry.delay.positive?
        @left = @runs[0]
      end

      # What its program has done of runs by now.
      def progress
        @passes * entry.program.total + @runs.first(@step + 1).sum - @left
      end
    end

    class CPU
      attr_reader :number
      # task: what it runs; last: what it ran last; space: the address space it ran last; slice: ns that are
      # left of the slice; cost: ns of the switch that are left; piece: ns until its next event; from: when
      # that piece, or its idleness, began.
      attr_accessor :task, :last, :space, :slice, :cost, :piece, :from, :busy_ns, :idle_ns

      def initialize(number)
        @number = number
        @busy_ns = @idle_ns = @from = @cost = 0
      end
    end

    # Lower bits of an event say of whom it is: a CPU, or from cpus.size on a thread.
    BITS = 16
    MOST = 1 << (BITS - 1)
    MS = 1_000_000

    attr_reader :tasks, :cpus, :now, :slice, :policy

    # +policy+ is a name of Policies::ALL, or what makes one like those.
    # +credit+, +carry+ and +clock+: see Policies.
    # +costs+: ns of a switch of threads, and ns more for one of address spaces. They are the time of the
    # thread that comes.
    def initialize(workload, policy, cpus:, slice: 5 * MS, bonus: 5 * MS, credit: slice, carry: nil,
                   clock: "head", costs: [0, 0])
      @workload = workload
      @slice = slice
      @switch_cost, @space_cost = costs
      raise ArgumentError, "a switch costs a whole slice" if costs.sum >= slice

      @cpus = Array.new(cpus) { |number| CPU.new(number) }
      maker = policy.is_a?(String) ? Policies::ALL.fetch(policy) : policy
      @policy = maker.call(@cpus, slice: slice, bonus: bonus, credit: credit, carry: carry, clock: clock)
      @tasks = make_tasks(workload.entries)
      @events = Heap.new
      @now = 0
      @figures = Figures.new
      @beside_queue = 0
    end

    # Simulates +seconds+ and gives the Figures of what came after +from+ seconds.
    def run(seconds, from: 0)
      @figures.start(self)
      begin_all
      advance((from * 1_000 * MS).round)
      @figures.start(self) if from.positive?
      advance((seconds * 1_000 * MS).round)
      check
      @figures.finish(self, @beside_queue)
    end

    # CPU time of a thread until now, also of the piece that has not ended.
    def cpu_time(task)
      task.cpu_ns + (running?(task) ? @now - @cpus[task.cpu].from : 0)
    end

    # ns for which each of the threads has waited that wait for a CPU now.
    def waiting
      @tasks.reject { |task| task.away || running?(task) }.map { |task| @now - task.since }
    end

    # The longest wait that the policy allows; nil where it bounds none.
    def bound
      @tasks.map(&:bound).max if @policy.bounded?
    end

    private

    def make_tasks(entries)
      raise ArgumentError, "more than #{MOST} threads" if entries.size > MOST - @cpus.size

      limits = Bound.table(entries.map(&:weight), cpus: @cpus.size, slice: @slice, lag: @policy.lag,
                                                  margin: @policy.margin, lead: @policy.lead)
      entries.each_with_index.map do |entry, i|
        Task.new(i, entry, @policy.bounded? ? limits[entry.weight] : Float::INFINITY)
      end
    end

    def begin_all
      @tasks.each do |task|
        delay = task.entry.delay
        delay.zero? ? first_step(task) : push_event(delay, @cpus.size + task.index)
      end
    end

    # Also for a thread whose delay has passed. Who begins blocked or asleep needs no CPU for that.
    def first_step(task)
      task.begun = true
      act = task.acts[0]
      return ready(task) if task.left.positive? || act > Program::WAIT || act == Program::GO

      next_step(task)
      task.away = true
      task.blocks += 1
      if act == Program::WAIT
        task.tokens.positive? ? consume(task) : (return task.waiting = true)
        ready(task)
      else
        push_event(Program::SLEEP - act, @cpus.size + task.index)
      end
    end

    def push_event(after, index)
      @events.push((@now + after) << BITS | index)
    end

    def advance(till)
      events = @events
      count = @cpus.size
      while (event = events.top) && (time = event >> BITS) <= till
        pass_to(time)
        events.pop
        index = event & ((1 << BITS) - 1)
        index < count ? piece_ended(@cpus[index]) : timer(@tasks[index - count])
      end
      pass_to(till)
    end

    def pass_to(time)
      return if time == @now

      @beside_queue += time - @now if @policy.queued.positive? && @policy.idle?
      @now = time
    end

    def timer(task)
      task.begun ? ready(task) : first_step(task)
    end

    # Time and costs of the piece, then what the program does next.
    def piece_ended(cpu)
      task = cpu.task
      account(cpu, task, cpu.piece)
      return unless steps(cpu, task)

      if cpu.slice.zero?
        stop(cpu, task, blocks: false)
        task.since = @now
        queue(task, false)
        dispatch(cpu)
      else
        go_on(cpu, task)
      end
    end

    def account(cpu, task, time)
      if cpu.cost.positive?
        paid = time < cpu.cost ? time : cpu.cost
        cpu.cost -= paid
        task.cost_ns += paid
        task.left -= time - paid
      else
        task.left -= time
      end
      task.cpu_ns += time
      task.used += time
      cpu.busy_ns += time
      cpu.slice -= time
      cpu.from = @now
    end

    # What comes after a run that has ended. False where the thread has left the CPU.
    def steps(cpu, task)
      while task.left.zero?
        act = task.acts[task.step]
        next_step(task)
        if act >= 0
          wake(@tasks[task.copy + act])
        elsif act == Program::WAIT
          next consume(task) if task.tokens.positive?

          stop(cpu, task)
          task.waiting = true
          dispatch(cpu)
          return false
        elsif act <= Program::SLEEP
          stop(cpu, task)
          push_event(Program::SLEEP - act, @cpus.size + task.index)
          dispatch(cpu)
          return false
        end
      end
      true
    end

    def next_step(task)
      step = task.step + 1
      if step == task.runs.size
        step = 0
        task.passes += 1
      end
      task.step = step
      task.left = task.runs[step]
    end

    def consume(task)
      task.tokens -= 1
      task.consumed += 1
    end

    # A hand-over: what is counted as a message.
    def wake(task)
      task.woken += 1
      @figures.handed_over if task.space.positive?
      if task.waiting
        task.waiting = false
        task.consumed += 1
        ready(task)
      else
        task.tokens += 1
      end
    end

    def ready(task)
      task.since = @now
      task.away = false
      cpu = @policy.idle_for(task)
      return queue(task, true) unless cpu

      cpu.idle_ns += @now - cpu.from
      @policy.arrive(task, true)
      start(cpu, task)
    end

    def queue(task, woken)
      @policy.arrive(task, woken)
      @policy.put(task)
    end

    def dispatch(cpu)
      task = @policy.take(cpu)
      return start(cpu, task) if task

      cpu.from = @now
      @policy.idle(cpu)
    end

    def start(cpu, task)
      waited = @now - task.since
      check_wait(task, waited)
      @policy.begin(task, cpu)
      @figures.started(waited, task.cpu && task.cpu != cpu.number)
      cpu.cost = switch(cpu, task)
      cpu.task = cpu.last = task
      task.cpu = cpu.number
      task.used = 0
      cpu.slice = @slice
      cpu.from = @now
      go_on(cpu, task)
    end

    # Gives what the switch costs.
    def switch(cpu, task)
      return 0 if cpu.last == task

      space = task.space
      other = space.positive? && cpu.space != space
      @figures.switched(other && cpu.space)
      cpu.space = space if other
      other ? @switch_cost + @space_cost : @switch_cost
    end

    def go_on(cpu, task)
      length = task.left + cpu.cost
      length = cpu.slice if cpu.slice < length
      cpu.piece = length
      @events.push((@now + length) << BITS | cpu.number)
    end

    def stop(cpu, task, blocks: true)
      task.vtime += -(-task.used * 100 / task.weight)
      task.blocks += 1 if blocks
      task.away = blocks
      cpu.task = nil
    end

    def running?(task)
      task.cpu && @cpus[task.cpu].task == task
    end

    # What holds in each run: no CPU idles beside a queue, no CPU time is made or lost, programs have done
    # what their threads were given, no wake-up is lost.
    def check
      raise Broken, "CPUs idled for #{@beside_queue} ns beside a queue" unless @beside_queue.zero?

      @cpus.each do |cpu|
        time = cpu.busy_ns + cpu.idle_ns + @now - cpu.from
        raise Broken, "CPU #{cpu.number} was busy and idle for #{time} of #{@now} ns" unless time == @now
      end
      @tasks.each { |task| check_task(task) }
      given, used = @cpus.sum(&:busy_ns), @tasks.sum(&:cpu_ns)
      raise Broken, "CPUs gave #{given} ns, and threads used #{used}" unless given == used
    end

    def check_wait(task, waited)
      return unless waited > task.bound

      raise Broken, "a thread waited #{waited} ns, more than the bound of #{task.bound}"
    end

    def check_task(task)
      check_wait(task, @now - task.since) unless task.away || running?(task)
      done = task.cpu_ns - task.cost_ns
      raise Broken, "a thread ran #{done} ns and did #{task.progress}" unless done == task.progress
      return if task.woken == task.consumed + task.tokens

      raise Broken, "a thread was woken #{task.woken} times and noticed #{task.consumed}"
    end
  end
end

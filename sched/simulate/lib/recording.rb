# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "workload"

module Scheduling
  # Turns the events of a trace into programs of threads, and counts what the recorded scheduler did.
  #
  # A thread's run is what it had of CPUs between two events of its own. A wake-up by another thread is a step
  # of the one that wakes; the one that is woken waits for it. Who is woken by a device, a timer or the idle
  # thread sleeps for as long as it did. Being preempted is the scheduler's doing and no part of a program.
  class Recording
    # The events do not fit together.
    Torn = Class.new(StandardError)

    # Weight of nice 0, and by how much the kernel's weights differ from one nice to the next.
    WEIGHT = 100
    STEP = 1.25
    NICE_0 = 120
    NICES = (100..139).freeze
    # Names of threads of the kernel, in case the table lacks them or does not say that they are.
    KERNEL = %r{\A((kworker|ksoftirqd|migration|cpuhp|irq|kcompactd|kswapd)[/\d]|rcu_|cryptomgr_|kthreadd\z|
                khugepaged\z|kauditd\z|oom_reaper\z|sched_ext_)}x
    # The state of a thread that sleeps and is not to count as load: only the kernel's do so.
    IDLE = "I"

    # since: of its run; state: :new, :running, :ready, :blocked or :ended; run: ns since its last step;
    # ready_at: when it began to wait for a CPU; kernel: whether its sleep showed that it is the kernel's.
    Thread = Struct.new(:pid, :place, :comm, :prio, :steps, :state, :run, :since, :blocked_at, :ready_at,
                        :kernel)
    CPU = Struct.new(:thread, :space, :last)

    # A program's step until all threads are known: what was run, and a place, WAIT or a sleep.
    def initialize(start, spaces)
      @start = start
      @spaces = spaces
      @threads = []
      @by_pid = {}
      @cpus = {}
      @counts = { switches: 0, address_space_switches: 0, hand_overs: 0, migrations: 0, dispatches: 0 }
      @waits = []
    end

    # Notes a name and a priority of the thread +pid+. The idle thread, 0, is none.
    def meet(pid, comm, prio)
      return if pid.zero?

      thread = @by_pid[pid] || add(pid, :new)
      thread.comm = comm if comm && !comm.empty? && comm != "<...>"
      thread.prio = prio if prio
    end

    # The thread +pid+ runs on +cpu+, as a line says.
    def at(time, cpu, pid)
      here = @cpus[cpu]
      if here.nil?
        @cpus[cpu] = here = CPU.new(nil, nil, nil)
        run(here, @by_pid[pid], @start) unless pid.zero?
      end
      runs = here.thread&.pid || 0
      raise Torn, "#{pid} runs on CPU #{cpu}, where #{runs} was put: events are missing" unless runs == pid

      account(here.thread, time)
    end

    def switch(time, cpu, prev, state, pid)
      here = @cpus[cpu]
      leave(@by_pid[prev], state, time) unless prev.zero?
      here.thread = nil
      run(here, @by_pid[pid], time) unless pid.zero?
    end

    # +waker+ is nil for a device or a timer. Who is not asleep, or not yet, is not woken.
    def waking(time, waker, pid)
      thread = @by_pid[pid] or return
      return unless %i[new blocked].include?(thread.state)

      if waker && @by_pid.key?(waker)
        step(@by_pid[waker], thread.place)
        thread.steps << [thread.run, Program::WAIT]
        @counts[:hand_overs] += 1 unless space(thread).zero?
      else
        thread.steps << [thread.run, Program.sleep(time - (thread.blocked_at || @start))]
      end
      thread.run = 0
      thread.state = :ready
      thread.ready_at = time
    end

    # The child waits until its parent has come to its fork. A pid may be used again.
    def fork(time, parent, child, comm)
      return if child.zero?

      @spaces[child] ||= @spaces[parent] if @spaces.key?(parent) && !@spaces.key?(child) && ended?(child)
      thread = ended?(child) ? add(child, :ready) : @by_pid[child]
      thread.comm = comm
      thread.state = :ready
      thread.ready_at = time
      thread.steps << [0, Program::WAIT]
      parent.zero? ? thread.steps.pop : step(@by_pid[parent], thread.place)
    end

    # The Workload; +last+ is the time of the last event, +cpus+ the number of CPUs if it is known.
    def workload(name, last, cpus = nil)
      @count = cpus || @cpus.size
      @cpus.each_value { |cpu| account(cpu.thread, last) if cpu.thread }
      @length = last - @start
      raise Torn, "the trace is shorter than a ms" if @length < 1_000_000

      @threads.each { |thread| close(thread, last) }
      entries = @threads.map { |thread| entry(thread) }
      raise Torn, "no thread runs in it" if entries.sum { |entry| entry.program.total }.zero?

      Workload.new(name: name, entries: renumbered(entries), messages: 1, recorded: figures, length: @length)
    end

    private

    def add(pid, state)
      thread = Thread.new(pid, @threads.size, nil, nil, [], state, 0, nil, nil, nil)
      @threads << thread
      @by_pid[pid] = thread
    end

    def ended?(pid)
      !@by_pid.key?(pid) || @by_pid[pid].state == :ended
    end

    # Adds the run until +time+.
    def account(thread, time)
      return unless thread&.since

      thread.run += time - thread.since
      thread.since = time
    end

    # The thread has run, and now does +act+.
    def step(thread, act)
      thread.steps << [thread.run, act]
      thread.run = 0
    end

    def leave(thread, state, time)
      account(thread, time)
      thread.since = nil
      thread.kernel ||= state == IDLE
      if state.start_with?("R")
        thread.state = :ready
        thread.ready_at = time
      else
        thread.state = state.match?(/\A[XZ]/) ? :ended : :blocked
        thread.blocked_at = time
      end
    end

    def run(cpu, thread, time)
      raise Torn, "#{thread.pid} runs on two CPUs" if thread.state == :running

      wait_until(thread, time)
      count(cpu, thread)
      thread.state = :running
      thread.since = time
      cpu.thread = thread
    end

    # Who runs without a wake-up that was seen was woken by what nobody saw, now.
    def wait_until(thread, time)
      if thread.state == :blocked
        thread.steps << [thread.run, Program.sleep(time - thread.blocked_at)]
        thread.run = 0
      elsif thread.ready_at
        @waits << time - thread.ready_at
      end
      thread.ready_at = nil
    end

    def count(cpu, thread)
      @counts[:dispatches] += 1
      return if cpu.last == thread

      @counts[:switches] += 1 if cpu.last
      cpu.last = thread
      space = space(thread)
      return if space.zero? || cpu.space == space

      @counts[:address_space_switches] += 1 if cpu.space
      cpu.space = space
    end

    def space(thread)
      return 0 if thread.kernel || thread.comm.to_s.match?(KERNEL)

      @spaces.fetch(thread.pid) { unknown(thread) }
    end

    def unknown(thread)
      raise Torn, "pid #{thread.pid} (#{thread.comm || "no name"}) is not in the table of processes"
    end

    # A wait whose end was not recorded is as long as it is seen.
    def close(thread, last)
      asleep = %i[blocked ended].include?(thread.state) ? last - thread.blocked_at : 0
      step(thread, asleep.positive? ? Program.sleep(asleep) : Program::GO)
    end

    def entry(thread)
      program = Program.new([], [])
      thread.steps.each { |run, act| program.add(run, act) }
      program.add(1, Program::GO) if program.total.zero?
      Entry.new(kind: kind(thread), space: space(thread), weight: weight(thread.prio), program: program,
                copy: 0, delay: 0)
    end

    # The name of its process, where that was seen: processes of one name want the same.
    def kind(thread)
      (@by_pid[@spaces[thread.pid]] || thread).comm || thread.pid.to_s
    end

    # Of threads with another policy than the usual ones no more is known than that they are ready.
    def weight(prio)
      return WEIGHT unless prio && NICES.cover?(prio)

      [(WEIGHT / STEP**(prio - NICE_0)).round, 1].max
    end

    # Address spaces by 1, 2, 3.
    def renumbered(entries)
      numbers = entries.map(&:space).uniq.reject(&:zero?).each.with_index(1).to_h
      entries.each { |entry| entry.space = numbers.fetch(entry.space, 0) }
    end

    def figures
      sorted = @waits.sort
      { cpus: @count, threads: @threads.size, seconds: @length / 1e9, **@counts,
        longest_wait_ms: (sorted.last || 0) / 1e6,
        mean_wait_ms: sorted.empty? ? 0.0 : sorted.sum / 1e6 / sorted.size,
        p99_wait_ms: sorted.empty? ? 0.0 : sorted[(sorted.size * 0.99).ceil - 1] / 1e6 }
    end
  end
end

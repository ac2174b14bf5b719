# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "heap"

module Scheduling
  # The rules that say which thread a CPU runs next.
  #
  # A thread has a virtual time: what it has run, in ns, by 100 / weight. Queues are in its order, and of
  # equal threads the one that came first is first. The clock goes on when a CPU begins to run a thread: to
  # that thread's virtual time, but not beyond the first queued one's, because a thread that a rule lets go
  # before its turn says nothing of the time that others have reached. Who has slept is given the clock's time
  # less the credit at the least, so that sleep does not earn more than that, also where an idle CPU runs it
  # at once; who has used up its slice, the clock's time less the carry.
  #
  # A key is a virtual time and, in its lower bits, a number that rises with each key.
  module Policies
    BITS = 26

    # How far the clock may go. head: to the first thread of its queue. own: with homes, to the first of what
    # the CPU has itself; else as head. start: to the thread that begins, whatever is queued.
    CLOCKS = %w[head own start].freeze

    # One queue for all CPUs.
    class Shared
      # Why a dispatch broke the rules of its policy.
      Broken = Class.new(StandardError)

      attr_reader :queued

      # All in ns of virtual time but the slice. +bonus+ is nil without the paper's rule. +carry+ is, if nil,
      # so long that nobody gives away what the rule makes it wait for: the margin, by which others may get
      # ahead, and a slice; and no less than the credit.
      def initialize(cpus, slice:, credit: slice, carry: nil, bonus: nil, clock: "head")
        @cpus = cpus
        @slice = slice
        @bonus = bonus
        @credit = credit
        @carry = carry || [credit, margin + slice].max
        @by = clock
        @clock = 0
        @number = 0
        @queued = 0
        @at = {}
        @all = Heap.new
        @spaces = Hash.new { |spaces, space| spaces[space] = Heap.new }
        @idle = (1 << cpus.size) - 1
      end

      # How far a thread may be before the head of the queue when it is run.
      def margin
        @bonus || 0
      end

      # How far a queued thread may be behind the clock: as far as when it was queued, or, if the clock goes
      # past it with those that are taken before it, the margin.
      def lag
        [@credit, @carry, *(margin unless @by == "head")].max
      end

      # How far a thread may be before the clock when it is run.
      def lead
        @by == "start" ? 0 : margin
      end

      # Whether the bound of Bound holds for a thread's wait.
      def bounded?
        true
      end

      # An idle CPU for a thread that has been woken; nil where all are busy.
      def idle_for(task)
        return if @idle.zero?

        last = task.cpu
        last && @idle[last] == 1 ? @cpus[last] : @cpus[lowest_idle]
      end

      def idle(cpu)
        @idle |= 1 << cpu.number
      end

      def idle?
        !@idle.zero?
      end

      # Before a thread is run or queued that was not. +woken+: it has slept and not used up its slice.
      def arrive(task, woken)
        least = @clock - (woken ? @credit : @carry)
        task.vtime = least if task.vtime < least
      end

      def put(task)
        key = key_for(task.vtime)
        @at[key] = task
        @all.push(key)
        @spaces[task.space].push(key) if @bonus
        @queued += 1
      end

      # The thread that +cpu+ runs next, out of the queue; nil where it is empty.
      def take(cpu)
        head = head_of(@all) or return
        key = choose(cpu, head)
        task = @at.delete(key)
        @all.pop if key == head
        @spaces[task.space].pop if @bonus
        @queued -= 1
        check(head, key)
        task
      end

      # A CPU begins to run it.
      def begin(task, cpu)
        @clock = moved(@clock, task.vtime, first(cpu))
        @idle &= ~(1 << cpu.number)
      end

      private

      # The virtual time that a clock may not go past when +cpu+ begins a thread; nil if none is queued.
      def first(_cpu)
        time_of(head_of(@all))
      end

      def time_of(key)
        key && key >> BITS
      end

      # The clock after a thread with that virtual time has begun.
      def moved(clock, vtime, first)
        raise Broken, "a thread was behind the clock by more than #{lag} ns" if vtime < clock - lag

        vtime = first if first && first < vtime && @by != "start"
        [clock, vtime].max
      end

      def key_for(vtime)
        @number += 1
        raise Broken, "more than #{1 << BITS} dispatches: simulate a shorter time" if @number >> BITS != 0

        vtime << BITS | @number
      end

      def lowest_idle
        (@idle & -@idle).bit_length - 1
      end

      # The least key that is still queued: those that went by another way are left in the heap till then.
      def head_of(heap)
        at = @at
        while (key = heap.top)
          return key if at.key?(key)

          heap.pop
        end
      end

      # The paper's rule: the first thread of the address space that ran last, if its virtual time is at
      # most the head's and the bonus.
      def choose(cpu, head)
        return head unless @bonus && cpu.space

        own = @spaces[cpu.space].top
        own && (own >> BITS) <= (head >> BITS) + @bonus ? own : head
      end

      def check(head, key)
        return unless key < head || (key >> BITS) > (head >> BITS) + margin

        raise Broken, "a thread was run before its turn"
      end
    end

    # Processor aggregation in one order of virtual time. A CPU serves the address spaces that have their home
    # on it, and the threads of the kernel, by the paper's rule. When it has none of them, or when the first
    # of them is later than the first of all by more than the bonus and a slice, it takes the address space of
    # the first of all; of one that runs on its home just now only that thread.
    class Homes < Shared
      KERNEL = 0

      def initialize(cpus, **options)
        super
        @homes = {}
        @counts = cpus.map { 0 }
        # Keys of each CPU's own, also of spaces that have moved away since.
        @own = cpus.map { Heap.new }
      end

      def margin
        2 * @bonus + @slice
      end

      def idle_for(task)
        home = @homes[task.space]
        return @cpus[home] if home && @idle[home] == 1

        super
      end

      # A space that has none gets its home where its thread ran last, or where fewest have theirs.
      def put(task)
        super
        return if task.space == KERNEL

        home = @homes[task.space]
        return @own[home].push(task.vtime << BITS | @number) if home

        move(task.space, @cpus[task.cpu || @counts.index(@counts.min)])
      end

      def begin(task, cpu)
        super
        move(task.space, cpu) unless task.space == KERNEL || @homes[task.space]
      end

      private

      def first(cpu)
        @by == "own" ? time_of(own(cpu)) : super
      end

      # The first of the threads that +cpu+ serves.
      def own(cpu)
        [first_own(cpu.number), @spaces[KERNEL].top].compact.min
      end

      def choose(cpu, head)
        own = own(cpu)
        if own.nil? || (own >> BITS) > (head >> BITS) + @bonus + @slice
          settle(@at[head].space, cpu)
          return head
        end
        same = cpu.space && @homes[cpu.space] == cpu.number && @spaces[cpu.space].top
        same && (same >> BITS) <= (own >> BITS) + @bonus ? same : own
      end

      def first_own(number)
        heap = @own[number]
        while (key = head_of(heap))
          return key if @homes[@at[key].space] == number

          heap.pop
        end
      end

      def settle(space, cpu)
        home = @homes[space] or return
        move(space, cpu) unless home == cpu.number || @cpus[home].task&.space == space
      end

      def move(space, cpu)
        before = @homes[space]
        @counts[before] -= 1 if before
        @counts[cpu.number] += 1
        @homes[space] = cpu.number
        @spaces[space].each { |key| @own[cpu.number].push(key) }
      end
    end

    # A queue a CPU, in which the threads of a group are that have their home there; each queue has a clock
    # of its own. An idle CPU takes all queued threads of one foreign group. Where it can only take what
    # would leave the other CPU without work, it takes a single thread, as a woken thread does for which
    # the home is busy and another CPU is idle.
    class Queues < Shared
      # +by_space+: whether the threads of an address space are a group, or each thread is one.
      def initialize(cpus, by_space: true, **options)
        super(cpus, **options)
        @by_space = by_space
        @homes = {}
        @heaps = cpus.map { Heap.new }
        @clocks = cpus.map { 0 }
        @counts = cpus.map { 0 }
        # { group => Heap } of each CPU's queue.
        @groups = cpus.map { {} }
      end

      # A queue is fair in itself only.
      def bounded?
        false
      end

      def idle_for(task)
        home = home_of(task)
        @idle[home] == 1 ? @cpus[home] : super
      end

      def arrive(task, woken)
        home = home_of(task)
        translate(task, home)
        least = @clocks[home] - (woken ? @credit : @carry)
        task.vtime = least if task.vtime < least
      end

      def put(task)
        home = home_of(task)
        translate(task, home)
        insert(task, home)
        @queued += 1
      end

      def take(cpu)
        return if @queued.zero?

        number = cpu.number
        steal(number) if @by_space && @counts[number].zero?
        return single(longest) if @counts[number].zero?

        head = head_of(@heaps[number])
        from(number, own(cpu, head) || head, head)
      end

      def begin(task, cpu)
        @homes[group(task)] = cpu.number unless @by_space
        queue = task.queue
        @clocks[queue] = moved(@clocks[queue], task.vtime, time_of(head_of(@heaps[queue])))
        @idle &= ~(1 << cpu.number)
      end

      private

      def group(task)
        @by_space && task.space.positive? ? task.space : -task.index - 1
      end

      # Without one: where it ran last, else on an idle CPU, else where fewest are queued.
      def home_of(task)
        @homes[group(task)] ||= task.cpu || (idle? ? lowest_idle : @counts.index(@counts.min))
      end

      def translate(task, queue)
        return if task.queue == queue

        task.vtime += @clocks[queue] - @clocks[task.queue] if task.queue
        task.queue = queue
      end

      def insert(task, queue)
        key = key_for(task.vtime)
        @at[key] = task
        @heaps[queue].push(key)
        (@groups[queue][group(task)] ||= Heap.new).push(key)
        @counts[queue] += 1
      end

      def own(cpu, head)
        return unless @bonus && @by_space && cpu.space

        key = @groups[cpu.number][cpu.space]&.top
        key if key && (key >> BITS) <= (head >> BITS) + @bonus
      end

      def from(queue, key, head)
        check(head, key)
        task = @at.delete(key)
        @heaps[queue].pop if key == head
        heap = @groups[queue][group(task)]
        heap.pop
        @groups[queue].delete(group(task)) if heap.size.zero?
        @counts[queue] -= 1
        @queued -= 1
        task
      end

      def longest
        @counts.index(@counts.max)
      end

      # Takes the group of which most threads wait in the longest queue, but not the one that runs there.
      def steal(number)
        victim = longest
        running = @cpus[victim].task
        running &&= group(running)
        chosen, heap = @groups[victim].reject { |key,| key == running }.max_by { |_, keys| keys.size }
        return unless chosen

        @groups[victim].delete(chosen)
        @counts[victim] -= heap.size
        @homes[chosen] = number
        heap.clear.each do |key|
          task = @at.delete(key)
          translate(task, number)
          insert(task, number)
        end
      end

      def single(queue)
        head = head_of(@heaps[queue])
        from(queue, head, head)
      end
    end

    # What --policies names, in the order of tables, and what makes it.
    ALL = {
      "scx" => ->(cpus, **options) { Shared.new(cpus, **options, bonus: nil) },
      "rule" => ->(cpus, **options) { Shared.new(cpus, **options) },
      "queues" => ->(cpus, **options) { Queues.new(cpus, **options, bonus: nil, by_space: false) },
      "processor" => ->(cpus, **options) { Queues.new(cpus, **options) },
      "homes" => ->(cpus, **options) { Homes.new(cpus, **options) }
    }.freeze
    # Those that have a bonus.
    WITH_BONUS = %w[rule processor homes].freeze
  end
end

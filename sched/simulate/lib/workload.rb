# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Scheduling
  # What a thread does, again and again: it runs for runs[i] ns, and then comes acts[i].
  # A number of 0 or more wakes that thread of the same copy of the workload; the others are below.
  Program = Struct.new(:runs, :acts) do
    def total
      runs.sum
    end

    # Adds a step. Without time or effect it is left out.
    def add(run, act)
      return if run.zero? && act == Program::GO

      runs << run
      acts << act
    end
  end

  class Program
    # Blocks until another thread wakes this one, or goes on if one has done so already.
    WAIT = -1
    # Nothing: the next step follows.
    GO = -2
    # This and less: sleeps for SLEEP - act ns.
    SLEEP = -3

    def self.sleep(time)
      SLEEP - time
    end
  end

  # A thread of a workload. +space+ is its address space, 0 for a thread of the kernel, which has none.
  # +copy+ is the place of the first thread of its copy of the workload; +delay+ ns pass before it begins.
  Entry = Struct.new(:kind, :space, :weight, :program, :copy, :delay, keyword_init: true)

  # The threads that are simulated together. +messages+ is what a hand-over from thread to thread counts
  # as: 1, or what the recorded program said of itself divided by its hand-overs. +recorded+ are figures of
  # the trace that it comes from, +length+ is the ns of the trace, both nil without one.
  Workload = Struct.new(:name, :entries, :messages, :recorded, :length, keyword_init: true)

  class Workload
    # An address space as a figure counts it: threads of the kernel are none.
    def processes
      entries.map(&:space).uniq.count(&:positive?)
    end

    # As many whole copies as +threads+ has room for, one at least. All but the first begin later, by up to
    # +spread+ ns, so that copies do not move in step. With +same+ the copies are further threads of the same
    # processes. The copies of a process are a kind of their own.
    def multiplied(threads, spread:, random:, same: false)
      copies = [threads / entries.size, 1].max
      spaces = entries.map(&:space).max
      all = copies.times.flat_map do |copy|
        delay = copy.zero? ? 0 : random.rand(spread + 1)
        entries.map do |entry|
          space = entry.space.zero? || same ? entry.space : entry.space + copy * spaces
          kind = copies == 1 ? entry.kind : "#{entry.kind} #{entry.space}"
          Entry.new(**entry.to_h, kind: kind, space: space, copy: copy * entries.size, delay: delay)
        end
      end
      with(all)
    end

    # +count+ more processes of one thread that never blocks. Their weights are +weights+, by turns.
    def with_spinners(count, weights)
      with(entries + Workload.spinners(count, weights, entries.map(&:space).max || 0))
    end

    def with(entries)
      Workload.new(**to_h, entries: entries)
    end

    # A spinner's run has an end only so that its program has one.
    SPIN = 1_000_000_000

    def self.spinners(count, weights, spaces)
      program = Program.new([SPIN], [Program::GO])
      Array.new(count) do |i|
        Entry.new(kind: "spinner", space: spaces + i + 1, weight: weights[i % weights.size], program: program,
                  copy: 0, delay: 0)
      end
    end
  end
end

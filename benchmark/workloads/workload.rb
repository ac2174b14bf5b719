# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What the measured programs share. They run on the ruby under measurement,
# so this file asks for little: any ruby from 2.7 on runs it.
#
# A measured program talks with the observer over its standard input and
# output: "at NAME" says that a point is reached, and the program waits there,
# at rest, until the observer has looked and answers; "is JSON" gives figures.
# The code between two points must not be disturbed by the talking, so the
# words are made beforehand.
require "json"

module Workload
  OUT = $stdout.dup
  IN = $stdin.dup
  ANSWER = +""
  [OUT, IN].each { |io| io.sync = true }
  # The program's own output goes nowhere.
  $stdout.reopen(File::NULL, "w")

  # Stays here until the observer has taken its sample.
  def self.at(line)
    OUT.syswrite(line)
    IN.sysread(3, ANSWER)
  rescue EOFError, Errno::EPIPE
    exit!(1) # the observer is gone
  end

  # The word for a point, to be made before anything is measured.
  def self.point(name)
    "at #{name}\n".freeze
  end

  def self.result(figures)
    OUT.syswrite("is #{JSON.generate(figures)}\n")
  rescue Errno::EPIPE
    exit!(1)
  end

  # Before 3.3 there was no warmup; compacting is what came nearest.
  def self.warm_up(times)
    times.times { Process.respond_to?(:warmup) ? Process.warmup : GC.compact }
  end

  # A child that leaves without finalization: what a process writes while it
  # ends is not measured here.
  def self.forked
    fork do
      yield
      exit!(0)
    rescue Exception => e # rubocop:disable Lint/RescueException
      warn e.full_message(highlight: false)
      exit!(1)
    end
  end

  # Runs a child to its end.
  def self.child(&work)
    exit!(1) unless Process.wait2(forked(&work)).last.success?
  end

  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # GC.stat as the difference to +before+, for the keys that only count up.
  COUNTING = %i[count time marking_time sweeping_time minor_gc_count major_gc_count compact_count
                total_allocated_objects total_freed_objects total_allocated_pages].freeze

  def self.gc_delta(before, after = GC.stat)
    COUNTING.filter_map { |key| [key, after[key] - before[key]] if before.key?(key) }.to_h
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Many methods whose call sites are all warm; a child collects once and calls
# them all again.
require_relative "workload"

methods, sites, warmups = ARGV.map(&:to_i)
METHODS_PER_CLASS = 100

before = Workload.point("before")
collected = Workload.point("collected")
called = Workload.point("called")
objects = Array.new(methods / METHODS_PER_CLASS) do |c|
  leaves = Array.new(sites) { |s| "def leaf_#{s}; #{s}; end" }
  calls = Array.new(sites) { |s| "leaf_#{s}" }.join("; ")
  callers = Array.new(METHODS_PER_CLASS) { |m| "def call_#{m}; #{calls}; end" }
  all = "def call_all; #{Array.new(METHODS_PER_CLASS) { |m| "call_#{m}" }.join("; ")}; end"
  Object.const_set("Generated#{c}", Class.new { class_eval([*leaves, *callers, all].join("\n")) }).new
end
objects.each(&:call_all)
Workload.warm_up(warmups)

Workload.child do
  stat = GC.stat
  Workload.at(before)
  GC.start
  Workload.at(collected)
  started = Workload.now
  objects.each(&:call_all)
  seconds = Workload.now - started
  Workload.at(called)
  Workload.result(seconds: seconds, gc: Workload.gc_delta(stat))
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: ruby enqueue.rb FROM TO
#        ruby enqueue.rb
# Enqueues the jobs with these numbers at once; says when it began, by the clock that the jobs use. Without
# numbers it reads lines of them and answers each.
require_relative "config/environment"

KINDS = ApplicationJob::KINDS.map(&:constantize)

def enqueue(from, to)
  jobs = (Integer(from)...Integer(to)).map { |number| KINDS[number % KINDS.size].new(number) }
  begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  ActiveJob.perform_all_later(jobs)
  begun
end

$stdout.sync = true
if ARGV.empty?
  $stdin.each_line { |line| puts "begun #{enqueue(*line.split)}" }
else
  puts "begun #{enqueue(*ARGV)}"
end

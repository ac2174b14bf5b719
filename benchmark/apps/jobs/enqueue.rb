# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: ruby enqueue.rb FROM TO
# Enqueues the jobs with these numbers at once; says when it began, by the clock that the jobs use.
require_relative "config/environment"

from, to = ARGV.map { |text| Integer(text) }
kinds = ApplicationJob::KINDS.map(&:constantize)
jobs = (from...to).map { |number| kinds[number % kinds.size].new(number) }
puts "begun #{Process.clock_gettime(Process::CLOCK_MONOTONIC)}"
ActiveJob.perform_all_later(jobs)

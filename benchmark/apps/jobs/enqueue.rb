# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: ruby enqueue.rb FROM TO
# Enqueues the jobs with these numbers at once; says when it began, by the clock that the jobs use.
require_relative "config/environment"

from, to = ARGV.map { |text| Integer(text) }
jobs = (from...to).map { |number| ApplicationJob::KINDS[number % 3].constantize.new(number) }
puts "begun #{Process.clock_gettime(Process::CLOCK_MONOTONIC)}"
ActiveJob.perform_all_later(jobs)

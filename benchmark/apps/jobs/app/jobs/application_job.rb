# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A job does its work for one kind of records, by its number, and notes its number and the time in a file.
class ApplicationJob < ActiveJob::Base
  KINDS = %w[ReportJob PageJob ChangeJob].freeze

  def self.models
    @models ||= ApplicationRecord.descendants.sort_by(&:name)
  end

  # Called in the process that forks, in place of a job (doc/rehearsal.md).
  def self.rehearse
    ApplicationJob.models.each_index { |number| new.rehearse(number) }
  end

  def perform(number)
    work(number)
    line = "#{number} #{Process.clock_gettime(Process::CLOCK_MONOTONIC)}\n"
    File.open(ENV.fetch("DONE"), File::WRONLY | File::APPEND) { |file| file.syswrite(line) }
  end

  def rehearse(number)
    work(number)
  end

  private

  def model(number)
    models = ApplicationJob.models
    models[number % models.size]
  end

  def record(number)
    model(number).find(1 + number % 60)
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A summary of the last records of a kind.
class ReportJob < ApplicationJob
  private

  def work(number)
    records = model(number).recent(40).to_a
    JSON.generate(records.map { |record| record.attributes.merge(facts: record.facts) }).bytesize
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Changes a record, with its validations.
class ChangeJob < ApplicationJob
  def rehearse(number)
    record(number).tap { |record| record.title = "Changed" }.validate
  end

  private

  def work(number)
    record(number).update!(title: "Changed #{number}")
  end
end

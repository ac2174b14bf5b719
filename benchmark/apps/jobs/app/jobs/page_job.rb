# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# The page of a record, as a mail would hold it.
class PageJob < ApplicationJob
  private

  def work(number)
    record = record(number)
    name = record.model_name
    ApplicationController.render(template: "#{name.plural}/show", layout: false,
                                 assigns: { name.singular => record }).bytesize
  end
end

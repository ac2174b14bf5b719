# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Sums over a kind of records, cached for a minute.
module Reporting
  extend ActiveSupport::Concern

  def summary_of(model)
    Rails.cache.fetch([model.name, :summary, I18n.locale], expires_in: 60) do
      fields = model.summary_fields
      rows = model.limit(200).pluck(:id, *fields)
      fields.each_with_index.to_h do |field, i|
        numbers = rows.map { |row| row[i + 1].to_f }
        [model.column_labels(I18n.locale)[field],
         { sum: numbers.sum.round(2), mean: (numbers.sum / [numbers.size, 1].max).round(2),
           most: numbers.max }]
      end
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

class ApplicationRecord < ActiveRecord::Base
  primary_abstract_class

  scope :recent, ->(count = 20) { order(id: :desc).limit(count) }

  # Worked out when first asked, in whatever process that is.
  def self.column_labels(locale)
    (@column_labels ||= {})[locale] ||= columns.to_h do |column|
      [column.name, human_attribute_name(column.name, locale: locale)]
    end
  end

  def self.summary_fields
    @summary_fields ||= columns.select do |column|
      %i[integer decimal].include?(column.type) && !column.name.end_with?("id")
    end.map(&:name)
  end
end

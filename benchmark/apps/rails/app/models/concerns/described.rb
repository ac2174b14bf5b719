# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What all kinds of records say about themselves.
module Described
  extend ActiveSupport::Concern

  included do
    validates :title, presence: true, length: { maximum: 120 }
    validates :code, presence: true, format: /\A[A-Z]{2}-\d+\z/
    scope :titled, ->(words) { where("title LIKE ?", "%#{sanitize_sql_like(words)}%") }
  end

  def place
    @place ||= PlaceTable.by_code[format("%05d", id.to_i * 74 % 80_000)]
  end

  def heading
    @heading ||= "#{code}: #{title}".truncate(60)
  end

  def to_param
    id.to_s
  end
end

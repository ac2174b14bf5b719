# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "table"

module CowBench
  # Which functions wrote pages first (LostPages#writers and others).
  module WritersTable
    MOST = 40
    NOTE = "unknown: no write was seen; the other side copied the page, or it was lost before " \
           "the record began"

    # +writers+: [kind, function] => MB, the largest first. nil where there are none, as the faults were not
    # recorded.
    def self.of(title, writers)
      of_stops(title, ["MB"], [writers])
    end

    # The same of several stops, whose +names+ stand above the columns, in the order of the last one.
    def self.of_stops(title, names, stops)
      return if stops.empty? || stops.last.empty?

      shown = stops.last.keys.first(MOST)
      rows = shown.map do |kind, function|
        [function, kind, *stops.map { |writers| format("%.2f", writers.fetch([kind, function], 0)) }]
      end
      rest = stops.map { |writers| writers.except(*shown) }
      if rest.last.any?
        rows << ["(#{rest.last.size} more)", "", *rest.map { |writers| format("%.2f", writers.values.sum) }]
      end
      Table.new(title, ["function", "kind", *names], rows, note: NOTE)
    end
  end
end

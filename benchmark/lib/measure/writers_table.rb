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
      return if writers.empty?

      rows = writers.map { |(kind, function), size| [function, kind, format("%.2f", size)] }
      shown = rows.first(MOST)
      more = rows.size - shown.size
      shown << ["(#{more} more)", "", format("%.2f", writers.values.drop(MOST).sum)] if more.positive?
      Table.new(title, ["function", "kind", "MB"], shown, note: NOTE)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module ApplicationHelper
  # A value as a person reads it, by its type.
  def shown(value)
    case value
    when nil then "–"
    when true then t("site.yes_word")
    when false then t("site.no_word")
    when BigDecimal then number_to_currency(value)
    when Integer then number_with_delimiter(value)
    when Date then l(value)
    else truncate(value.to_s, length: 80)
    end
  end
end

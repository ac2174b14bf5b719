# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # A table as text for a terminal and as Markdown.
  class Table
    attr_reader :title, :note, :head, :rows

    # +head+ and each of +rows+ are arrays of strings; the first column is a label.
    def initialize(title, head, rows, note: nil)
      @title = title
      @note = note
      @head = head
      @rows = rows
    end

    def to_text
      widths = columns.map { |column| column.map(&:length).max }
      lines = [head, widths.map { |width| "-" * width }, *rows].map do |cells|
        aligned = cells.zip(widths).each_with_index.map do |(cell, width), i|
          i.zero? ? cell.ljust(width) : cell.rjust(width)
        end
        aligned.join("  ").rstrip
      end
      [title, *note, "", *lines].join("\n") << "\n"
    end

    def to_markdown
      rule = head.each_index.map { |i| i.zero? ? "---" : "---:" }
      lines = [head, rule, *rows].map do |cells|
        "| #{cells.map { |cell| cell.gsub("|", "\\|") }.join(" | ")} |"
      end
      ["### #{title}", "", *(note && [note, ""]), *lines].join("\n") << "\n"
    end

    private

    def columns
      [head, *rows].transpose
    end
  end
end

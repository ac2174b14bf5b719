# frozen_string_literal: true

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
      cells.each_with_index.map { |cell, i| i.zero? ? cell.ljust(widths[i]) : cell.rjust(widths[i]) }.join("  ").rstrip
    end
    [title, *note, "", *lines].join("\n") << "\n"
  end

  def to_markdown
    rule = head.each_index.map { |i| i.zero? ? "---" : "---:" }
    lines = [head, rule, *rows].map { |cells| "| #{cells.map { |cell| cell.gsub("|", "\\|") }.join(" | ")} |" }
    ["### #{title}", "", *(note && [note, ""]), *lines].join("\n") << "\n"
  end

  private

  def columns
    [head, *rows].transpose
  end
end

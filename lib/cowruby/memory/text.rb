# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../memory"

module CowRuby
  module Memory
    # A Report for people.
    class Text
      # Characters of the column of processes: a longer title is cut.
      TITLE = 40
      HEAD = ["PID", "process", "private", "shared", "Pss", "swap", "parent's, still shared"].freeze
      # A worker that shares less of its parent's memory than this is shown in red.
      LOW = 0.5
      BOLD = "\e[1m%s\e[0m"
      RED = "\e[31m%s\e[0m"

      # Columns of a sentence.
      WIDTH = 78

      # Breaks +text+ into lines, each behind +indent+ except the first.
      def self.wrap(text, indent = "")
        text.gsub(/(.{1,#{WIDTH - indent.size}})(?: +|\z)/, "\\1\n#{indent}").rstrip
      end

      # +colour+: whether to use the terminal's colours. Nothing is said by colour alone.
      def initialize(report, colour: false)
        @report = report
        @colour = colour
      end

      def to_s
        lines = [colour(BOLD, line(HEAD)), *@report.rows.map { |row| process(row) }, total, "", meaning]
        [*lines, *@report.notes.map { |note| Text.wrap("Note: #{note}") }].join("\n") + "\n"
      end

      private

      def process(row)
        usage = row.usage
        title = "  " * row.member.depth + name(row.member)
        numbers = sizes(usage.private_total, usage.shared_total, usage.pss, usage.swap)
        text = line([row.member.pid, title, *numbers, shared(row)])
        row.share && row.share < LOW ? colour(RED, text) : text
      end

      def name(member)
        member.title.empty? ? "(without a title)" : member.title
      end

      # Only a worker has a parent here.
      def shared(row)
        return "" unless row.share

        "#{megabytes(row.still_shared)} of #{megabytes(row.at_fork)} (#{(row.share * 100).round} %)"
      end

      def total
        count = @report.rows.size
        colour(BOLD, line(["total", "#{count} process#{"es" unless count == 1}",
                           *sizes(@report.sum(:private_total), nil, @report.sum(:pss), @report.swap), ""]))
      end

      def meaning
        pss, rss = [:pss, :rss].map { |sum| Memory.megabytes(@report.sum(sum)) }
        Text.wrap("Sizes are in MB. The server takes #{pss}: the sum of Pss. The sum of RSS (#{rss}) " \
                  "misleads: it counts a shared page once for each process that has it.")
      end

      def line(cells)
        pid, title, *numbers, shared = cells
        title = "#{title[0, TITLE - 3]}..." if title.size > TITLE
        [pid.to_s.rjust(8), title.ljust(TITLE), *numbers.map { |number| number.to_s.rjust(9) }, "  #{shared}"]
          .join(" ").rstrip
      end

      def sizes(*bytes)
        bytes.map { |number| number ? megabytes(number) : "-" }
      end

      def megabytes(bytes)
        Memory.megabytes(bytes, "")
      end

      def colour(code, text)
        @colour ? format(code, text) : text
      end
    end
  end
end

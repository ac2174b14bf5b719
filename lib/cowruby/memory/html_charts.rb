# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "erb"

module CowRuby
  module Memory
    # What the page of Html is drawn with. Each method gives HTML; what it is given may be any text. Words stand
    # in HTML, not in pictures, so that they keep their size on a small screen.
    module HtmlCharts
      # Okabe and Ito's colours, which differ for eyes of all kinds, and in grey.
      COLOURS = { blue: "#0072b2", vermilion: "#d55e00", green: "#009e73", orange: "#e69f00", sky: "#56b4e9",
                  purple: "#cc79a7", grey: "#999999", pale: "#dbe4ea", white: "#ffffff" }.freeze
      # Shades of one colour, from light to dark: for what is more or less of something.
      SHADES = %w[#e3eef6 #b3cfe5 #74a9cf #2b7bba #084a81].freeze
      # Cells of a map. Where there are more pages, a cell stands for several.
      MOST_CELLS = 16_384
      COLUMNS = 128
      # The height of a chart of lines, and of a line of words beside it, in em.
      HEIGHT = 14.0
      LINE = 1.4

      private

      def escape(text)
        ERB::Util.html_escape(text)
      end

      def percent(part)
        part ? "#{(part * 100).round} %" : "-"
      end

      # A bar of parts: [[colour, amount, words]...], as wide as +most+ at the most. What is lost is striped.
      def bar(parts, most)
        segments = parts.select { |_, amount| amount.positive? }.map do |colour, amount, words, striped|
          %(<i class="#{"striped" if striped}" title="#{escape(words)}" ) +
            %(style="width:#{(amount * 100.0 / most).round(3)}%;background-color:#{colour}"></i>)
        end
        %(<div class="bar">#{segments.join}</div>)
      end

      # [[colour, words, striped]...]
      def legend(entries)
        items = entries.map do |colour, words, striped|
          %(<li><i class="key#{" striped" if striped}" style="background-color:#{colour}"></i>#{escape(words)}</li>)
        end
        %(<ul class="legend">#{items.join}</ul>)
      end

      # +rows+ of cells, the first one the head. Cells are text; the first of each row names it.
      def table(rows)
        head, *body = rows
        cells = head.map { |cell| "<th>#{escape(cell)}</th>" }.join
        lines = body.map do |name, *numbers|
          "<tr><th>#{escape(name)}</th>#{numbers.map { |number| "<td>#{escape(number)}</td>" }.join}</tr>"
        end
        %(<div class="wide"><table><tr>#{cells}</tr>#{lines.join}</table></div>)
      end

      # Lines over time, each with its name at its end. +lines+: [[colour, name, [value or nil...]]...],
      # +times+: seconds since the first.
      def lines(lines, times)
        most = lines.flat_map(&:last).compact.max
        most = 1 unless most&.positive?
        span = times.last.positive? ? times.last : 1
        paths = lines.map do |colour, _, values|
          points = times.zip(values).select(&:last)
          d = points.map { |time, value| "#{(time * 1000.0 / span).round(1)},#{(1000 - value * 1000.0 / most).round(1)}" }
          %(<polyline points="#{d.join(" ")}" stroke="#{colour}"/>)
        end
        %(<div class="chart" style="height:#{HEIGHT}em"><svg viewBox="0 0 1000 1000" preserveAspectRatio="none">) +
          %(<path d="M0 0H1000M0 500H1000M0 1000H1000" class="grid"/>#{paths.join}</svg>#{names(lines, most)}</div>)
      end

      # The names at the ends of lines, moved apart where they would stand on each other.
      def names(lines, most)
        lines = lines.select { |_, _, values| values.compact.any? }
        from_top = lines.map { |_, _, values| (1 - values.compact.last.fdiv(most)) * HEIGHT }
        order = from_top.each_index.sort_by { |i| from_top[i] }
        order.each_cons(2) { |above, below| from_top[below] = [from_top[below], from_top[above] + LINE].max }
        lines.each_with_index.map do |(colour, name, _), i|
          %(<b style="top:#{(from_top[i] - LINE / 2).round(2)}em;color:#{colour}">#{escape(name)}</b>)
        end.join
      end

      # A map of cells in rows, by address. +colours+: one for each cell, nil for none.
      def cell_map(colours, name)
        rows = (colours.size + COLUMNS - 1) / COLUMNS
        paths = colours.each_index.select { |i| colours[i] }.group_by { |i| colours[i] }.map do |colour, cells|
          runs = cells.slice_when { |a, b| b != a + 1 || (b % COLUMNS).zero? }
          d = runs.map { |run| "M#{run.first % COLUMNS} #{run.first / COLUMNS}h#{run.size}v1h-#{run.size}z" }
          %(<path fill="#{colour}" d="#{d.join}"/>)
        end
        %(<svg class="map" role="img" aria-label="#{escape(name)}" viewBox="0 0 #{COLUMNS} #{rows}" ) +
          %(shape-rendering="crispEdges">#{paths.join}</svg>)
      end
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "erb"

module CowRuby
  module Memory
    # What the page of Html is drawn with. Each method gives HTML; what it is given may be any text. Words stand
    # in HTML, not in pictures, so that they keep their size on a small screen.
    module HtmlCharts
      # Colours that differ in lightness, too: no two of a legend have the same grey.
      KINDS = { objects: "#0b3c6e", words: "#8a5a9e", yjit: "#e69f00", malloc: "#2a9a6c", other: "#c9c9c9",
                unknown: "#a5d2ee" }.freeze
      STATES = { sealed: "#c3d9e6", shared: "#86b6d6", own: "#2f7db8", lost: "#4a1500", absent: "#ffffff" }.freeze
      SHADES = %w[#e3eef6 #b3cfe5 #74a9cf #2b7bba #084a81].freeze
      INK = "#1a1a1a"
      # Cells of a map at most. Where there are more pages, a cell stands for several.
      MOST_CELLS = 16_384
      COLUMNS = (16..128).freeze
      # The height of a chart of lines, and of a line of words beside it, in em.
      HEIGHT = 14.0
      LINE = 1.4
      # Of the lines of a chart, one after the other.
      DASHES = ["", "9 5", "2 4"].freeze

      private

      def escape(text)
        ERB::Util.html_escape(text)
      end

      def percent(part)
        part ? "#{(part * 100).round} %" : "-"
      end

      # A bar of parts, as wide as +most+ at the most: [[colour, amount, striped]...].
      def bar(parts, most)
        segments = parts.select { |_, amount| amount.positive? }.map do |colour, amount, striped|
          %(<i#{" class=\"striped\"" if striped} style="width:#{(amount * 100.0 / most).round(3)}%;) +
            %(background-color:#{colour}"></i>)
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

      # Lines over time, each with its name at its end. +lines+: [[name, [value or nil...]]...], +times+:
      # seconds since the first.
      def line_chart(lines, times)
        most = lines.flat_map(&:last).compact.max
        most = 1 unless most&.positive?
        span = times.last.positive? ? times.last : 1
        paths = lines.each_with_index.map do |(_, values), i|
          points = times.zip(values).select(&:last).map do |time, value|
            "#{(time * 1000.0 / span).round(1)},#{(1000 - value * 1000.0 / most).round(1)}"
          end
          %(<polyline points="#{points.join(" ")}" stroke-dasharray="#{DASHES[i % DASHES.size]}"/>)
        end
        %(<div class="chart"><svg viewBox="0 0 1000 1000" preserveAspectRatio="none">) +
          %(<path d="M0 0H1000M0 500H1000M0 1000H1000" class="grid"/>#{paths.join}</svg>#{names(lines, most)}</div>)
      end

      # The names at the ends of lines, moved apart where they would stand on each other.
      def names(lines, most)
        named = lines.each_with_index.select { |(_, values), _| values.compact.any? }
        from_top = named.map { |(_, values), _| (1 - values.compact.last.fdiv(most)) * HEIGHT }
        order = from_top.each_index.sort_by { |i| from_top[i] }
        order.each_cons(2) { |above, below| from_top[below] = [from_top[below], from_top[above] + LINE].max }
        named.zip(from_top).map do |((name, _), i), top|
          sample = %(<svg class="sample" viewBox="0 0 40 10"><path d="M0 5H40" ) +
                   %(stroke-dasharray="#{DASHES[i % DASHES.size]}"/></svg>)
          %(<b style="top:#{(top - LINE / 2).round(2)}em">#{sample}#{escape(name)}</b>)
        end.join
      end

      # A map of cells in rows. +colours+: one for each cell.
      def cell_map(colours, name)
        columns = Math.sqrt(4 * colours.size).ceil.clamp(COLUMNS.min, COLUMNS.max)
        rows = [(colours.size + columns - 1) / columns, 1].max
        paths = colours.each_index.group_by { |i| colours[i] }.map do |colour, cells|
          runs = cells.slice_when { |a, b| b != a + 1 || (b % columns).zero? }
          d = runs.map { |run| "M#{run.first % columns} #{run.first / columns}h#{run.size}v1h-#{run.size}z" }
          %(<path fill="#{colour}" d="#{d.join}"/>)
        end
        %(<svg class="map" role="img" aria-label="#{escape(name)}" viewBox="0 0 #{columns} #{rows}" ) +
          %(shape-rendering="crispEdges">#{paths.join}</svg>)
      end
    end
  end
end

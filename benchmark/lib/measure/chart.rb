# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "cgi"
require "fileutils"
require "open3"

module CowBench
  # Pictures, drawn by gnuplot. They are to be read at a glance, also on a phone: one colour a
  # ruby, names at the ends of lines and bars in place of a legend, every scale from 0 on.
  module Chart
    Failed = Class.new(StandardError)

    # Pixels. At this width a phone shows the picture at about three quarters of its size.
    WIDTH = 480
    FONT = 15
    # Of a letter, in the mean.
    LETTER = 0.55 * FONT
    # Okabe and Ito's colours, which people without colour vision tell apart: blue, vermillion, green,
    # purple, orange, black.
    COLOURS = %w[#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #000000].freeze
    # Of one ruby's cases, in order: solid, dashed, dotted, dashed and dotted.
    DASHES = ["solid", "(12,7)", "(2,5)", "(12,5,2,5)", "(2,2)", "(20,4,4,4)",
              "(8,3,2,3,2,3)"].freeze

    class << self
      def available?
        Open3.capture2e("gnuplot", "--version").last.success?
      rescue Errno::ENOENT
        false
      end

      # +names+ are those of the plots, which browsers show and screen readers say.
      def draw(path, title, names, script)
        output, status = Open3.capture2e("gnuplot", stdin_data: script)
        if status.success?
          name(path, title, names)
          return path
        end

        FileUtils.rm_f(path)
        raise Failed, "gnuplot: #{output.lines.map(&:strip).reject(&:empty?).first || status}"
      end

      # gnuplot calls a picture "Gnuplot" and its plots by numbers.
      def name(path, title, names)
        text = File.read(path).sub("<title>Gnuplot</title>") { "<title>#{CGI.escapeHTML(title)}</title>" }
        text.gsub!(/<title>gnuplot_plot_(\d+)</) { "<title>#{CGI.escapeHTML(names[$1.to_i - 1])}<" }
        File.write(path, text)
      end

      def quote(text)
        %("#{text.to_s.gsub(/["\\]/) { |char| "\\#{char}" }.gsub("\n", "\\n")}")
      end

      # Named inline data, one table of columns.
      def data(name, rows)
        "$#{name} << END\n#{rows.map { |row| row.join(" ") }.join("\n")}\nEND\n"
      end

      def head(path, title, height)
        <<~GNUPLOT
          set terminal svg noenhanced size #{WIDTH},#{height} font "sans-serif,#{FONT}" background "white"
          set output #{quote(path)}
          set label #{quote(wrapped(title))} at screen 0.02, screen #{1 - 16.fdiv(height)} left
          unset key
          set border 3 linecolor rgb "#888888"
          set tics nomirror textcolor rgb "black"
        GNUPLOT
      end

      # In lines that fit; what is in brackets at the end stays in one.
      def wrapped(text)
        text = text.sub(/\([^()]*\)\z/) { |words| words.tr(" ", "\u00a0") }
        text.gsub(/(.{1,#{(WIDTH / LETTER * 0.93).floor}})(?: +|\z)/, "\\1\n").chomp.tr("\u00a0", " ")
      end

      # The ruby of a build: with "+" begins what is only another environment.
      def ruby_of(build)
        build[/\A[^+]+/]
      end

      # { build => colour }, the same for all builds of one ruby.
      def colours(builds)
        rubies = builds.map { |build| ruby_of(build) }.uniq
        builds.to_h { |build| [build, COLOURS[rubies.index(ruby_of(build)) % COLOURS.size]] }
      end

      # The next round number.
      def round_up(number)
        return 1 unless number.positive?

        unit = 10.0**Math.log10(number).floor
        rounds = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map { |times| times * unit }
        rounds.find { |round| round >= number * 0.999 }
      end
    end

    # What a ruby (+build+) did in one case (a string, or nil where there is only one); +points+
    # are [x, y].
    Line = Struct.new(:build, :case, :points) do
      def label
        [build, self.case].compact.join(", ")
      end
    end

    # +lines+ are Line. +top+, +builds+ and +cases+, which are the same for charts that are compared: where
    # the y axis ends, and what colours and dashes are given to in their order (by default what
    # the lines have).
    Lines = Struct.new(:name, :title, :x_title, :y_title, :lines, :log_x, :top, :builds, :cases,
                       keyword_init: true)

    class Lines
      HEIGHT = 400
      # The plot's edges: parts of the height, and pixels.
      BOTTOM = 0.16
      TOP = 0.84
      LEFT = 76

      def draw(directory)
        raise Failed, "it has no points" if lines.all? { |line| line.points.empty? }

        path = File.join(directory, "#{name}.svg")
        Chart.draw(path, title, lines.map(&:label), <<~GNUPLOT)
          #{Chart.head(path, title, HEIGHT)}
          #{axes}
          #{labels.join("\n")}
          #{lines.each_with_index.map { |line, i| Chart.data("line#{i}", line.points) }.join}
          plot #{plots.join(", ")}
        GNUPLOT
      end

      # Where the y axis ends.
      def highest
        top || Chart.round_up(lines.flat_map { |line| line.points.map(&:last) }.max)
      end

      # { line => y of its label }: the line's end, moved so that no label covers another.
      def label_places
        gap = highest * Chart::FONT * 1.2 / (HEIGHT * (TOP - BOTTOM))
        ordered = lines.sort_by { |line| line.points.last.last }
        places = ordered.map { |line| line.points.last.last }
        places.each_index { |i| places[i] = [places[i], places[i - 1] + gap].max if i.positive? }
        over = highest
        places.each_index.reverse_each do |i|
          places[i] = [places[i], over].min
          over = places[i] - gap
        end
        ordered.zip(places).to_h
      end

      private

      def axes
        x = lines.flat_map { |line| line.points.map(&:first) }
        step = "set xtics #{Chart.round_up((x.max - x.min) / 4.0)}" unless log_x
        scale = "set logscale x\nset format x \"%.0s%c\"" if log_x
        right = 1 - (lines.map { |line| line.label.size }.max * Chart::LETTER + 14) / Chart::WIDTH
        <<~GNUPLOT
          set lmargin at screen #{LEFT.fdiv(Chart::WIDTH)}
          set rmargin at screen #{right}
          set bmargin at screen #{BOTTOM}
          set tmargin at screen #{TOP}
          set xrange [#{x.min}:#{x.max}]
          set yrange [0:#{highest}]
          #{step}
          #{scale}
          set xlabel #{Chart.quote(x_title)}
          set ylabel #{Chart.quote(y_title)} offset 1.5,0
          set grid ytics linecolor rgb "#dddddd"
        GNUPLOT
      end

      def colours
        @colours ||= Chart.colours((builds || []) | lines.map(&:build))
      end

      def labels
        label_places.map do |line, y|
          "set label #{Chart.quote(line.label)} at graph 1, first #{y} left offset character 0.6,0 " \
            "textcolor rgb #{Chart.quote(colours[line.build])}"
        end
      end

      def plots
        known = (cases || []) | lines.map(&:case)
        lines.each_with_index.map do |line, i|
          dash = Chart::DASHES[known.index(line.case) % Chart::DASHES.size]
          "$line#{i} using 1:2 with lines linewidth 2.5 linecolor rgb #{Chart.quote(colours[line.build])} " \
            "dashtype #{dash}"
        end
      end
    end

    # Bars from the left for each of +rows+, [label, [number or nil, ...]], one for each of
    # +builds+, with its name and number at its end.
    Bars = Struct.new(:name, :title, :x_title, :digits, :builds, :rows, keyword_init: true)

    class Bars
      # More rows than these are no picture.
      MOST = 30
      # Pixels: of a bar, and above and below all of them.
      BAR = 21
      ABOVE = 60
      BELOW = 62

      def draw(directory)
        path = File.join(directory, "#{name}.svg")
        drawn = builds.each_index.reject { |i| bars(i).empty? }
        Chart.draw(path, title, drawn.flat_map { |i| [builds[i]] * 2 }, <<~GNUPLOT)
          #{Chart.head(path, title, height)}
          #{axes}
          #{row_labels.join("\n")}
          #{builds.each_index.map { |i| Chart.data("bars#{i}", bars(i)) }.join}
          plot #{plots.join(", ")}
        GNUPLOT
      end

      private

      # A line for each row's label, one for each bar, and a gap.
      def places
        rows.size * (builds.size + 1.4)
      end

      def height
        (places * BAR + ABOVE + BELOW).ceil
      end

      def place(row, bar)
        row * (builds.size + 1.4) + bar + 0.6
      end

      def axes
        <<~GNUPLOT
          set lmargin at screen 0.03
          set rmargin at screen #{1 - (longest * Chart::LETTER + 14) / Chart::WIDTH}
          set tmargin at screen #{1 - ABOVE.fdiv(height)}
          set bmargin at screen #{BELOW.fdiv(height)}
          set xrange [0:#{highest}]
          set yrange [#{places}:0]
          set xtics #{Chart.round_up(highest / 3.0)}
          unset ytics
          set xlabel #{Chart.quote(x_title)}
          set style fill solid 1 noborder
        GNUPLOT
      end

      def highest
        Chart.round_up(rows.flat_map(&:last).compact.max || 0)
      end

      def longest
        builds.each_index.flat_map { |i| bars(i).map { |bar| bar.last.size - 2 } }.max || 0
      end

      def row_labels
        rows.each_with_index.map do |(label, _), i|
          "set label #{Chart.quote(label)} at 0, #{place(i, 0)} left"
        end
      end

      # number, place, name and number as text
      def bars(index)
        rows.each_with_index.filter_map do |(_, numbers), row|
          number = numbers[index] or next
          [number, place(row, index + 0.9), Chart.quote("#{builds[index]} #{format("%.#{digits}f", number)}")]
        end
      end

      # Of the builds of one ruby, the first is drawn full, the others are drawn pale.
      def plots
        colours = Chart.colours(builds)
        builds.each_with_index.flat_map do |build, i|
          next [] if bars(i).empty?

          pale = build == Chart.ruby_of(build) ? "" : " fillstyle solid 0.45"
          ["$bars#{i} using ($1/2):2:(0):1:($2-0.42):($2+0.42) with boxxyerror#{pale} " \
           "linecolor rgb #{Chart.quote(colours[build])}",
           "$bars#{i} using 1:2:3 with labels left offset character 0.6,0"]
        end
      end
    end
  end
end

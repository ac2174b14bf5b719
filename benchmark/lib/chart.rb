# frozen_string_literal: true

require "fileutils"
require "open3"

# Pictures, drawn by gnuplot.
module Chart
  Failed = Class.new(StandardError)

  def self.available?
    Open3.capture2e("gnuplot", "--version").last.success?
  rescue Errno::ENOENT
    false
  end

  def self.draw(path, script)
    output, status = Open3.capture2e("gnuplot", stdin_data: script)
    return path if status.success?

    FileUtils.rm_f(path)
    raise Failed, "gnuplot: #{output.lines.map(&:strip).reject(&:empty?).first || status}"
  end

  def self.quote(text)
    %("#{text.to_s.gsub(/["\\]/) { |char| "\\#{char}" }}")
  end

  # Named inline data, one table of columns.
  def self.data(name, rows)
    "$#{name} << END\n#{rows.map { |row| row.join(" ") }.join("\n")}\nEND\n"
  end

  def self.head(path, title, width, height)
    <<~GNUPLOT
      set terminal svg noenhanced size #{width},#{height} background "white"
      set output #{quote(path)}
      set title #{quote(title)}
      set grid ytics
      set yrange [0:*]
      set key outside below
    GNUPLOT
  end

  # A line for each of +lines+: [label, [[x, y], ...]].
  Lines = Struct.new(:name, :title, :x_title, :y_title, :lines, :log_x) do
    def draw(directory)
      path = File.join(directory, "#{name}.svg")
      blocks = lines.each_with_index.map { |(_, points), i| Chart.data("line#{i}", points) }
      plots = lines.each_with_index.map { |(label, _), i| "$line#{i} using 1:2 with linespoints title #{Chart.quote(label)}" }
      Chart.draw(path, <<~GNUPLOT)
        #{Chart.head(path, title, 800, 420 + 18 * lines.size)}
        set xlabel #{Chart.quote(x_title)}
        #{"set logscale x" if log_x}
        set ylabel #{Chart.quote(y_title)}
        #{blocks.join}
        plot #{plots.join(", ")}
      GNUPLOT
    end
  end

  # A group of bars for each of +rows+: [label, [number or nil, ...]].
  Bars = Struct.new(:name, :title, :y_title, :series, :rows) do
    def draw(directory)
      path = File.join(directory, "#{name}.svg")
      data = rows.map { |label, numbers| [Chart.quote(label.tr('"', "'")), *numbers.map { |number| number || "NaN" }] }
      plots = series.each_with_index.map { |label, i| "$bars using #{i + 2}:xtic(1) title #{Chart.quote(label)}" }
      Chart.draw(path, <<~GNUPLOT)
        #{Chart.head(path, title, 400 + 60 * rows.size, 480)}
        set ylabel #{Chart.quote(y_title)}
        set style data histogram
        set style fill solid 0.8 border
        set xtics rotate by -35
        #{Chart.data("bars", data)}
        plot #{plots.join(", ")}
      GNUPLOT
    end
  end
end

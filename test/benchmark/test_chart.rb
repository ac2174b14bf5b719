# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/measure/chart")
require "rexml/document"

class TestChart < Minitest::Test
  include BenchmarkTest

  BLUE = "rgb(0,114,178)"
  VERMILLION = "rgb(213,94,0)"

  # Texts and lines of an SVG file, as gnuplot writes it.
  Text = Struct.new(:words, :colour, :x, :y, :size)
  Stroke = Struct.new(:colour, :dashed, :width)

  def draw(chart)
    skip "gnuplot is not installed" unless Chart.available?

    Dir.mktmpdir { |directory| REXML::Document.new(File.read(chart.draw(directory))) }
  end

  def texts(document)
    REXML::XPath.match(document, "//text").map do |text|
      group = text.parent
      x, y = group["transform"].scan(/[\d.]+/).first(2).map(&:to_f)
      Text.new(text.text.to_s.strip, group["fill"].delete(" "), x, y, group["font-size"].to_f)
    end
  end

  # The line that gnuplot draws for each plot.
  def strokes(document)
    REXML::XPath.match(document, "//g[starts-with(@id, 'gnuplot_plot_')]").map do |plot|
      path = REXML::XPath.first(plot, ".//path")
      width = path.parent["stroke-width"].to_f
      Stroke.new(path["stroke"].delete(" "), !path["stroke-dasharray"].nil?, width)
    end
  end

  def lines(**more)
    ends = { %w[stock plain] => 199, %w[cow plain] => 140, %w[stock warmup] => 197, %w[cow warmup] => 139 }
    lines = ends.map { |names, y| Chart::Line.new(*names, [[0, 5], [1_000, y - 20], [10_000, y]]) }
    Chart::Lines.new(name: "x", title: "Memory of a worker (less is better)", x_title: "requests served",
                     y_title: "private memory (MB)", lines: lines, **more)
  end

  def bars(rows = [["no warmup", [68.84, 79.1, 4.4]], ["1 warmup", [47.2, nil, 3.9]]])
    Chart::Bars.new(name: "x", title: "Memory (less is better)", x_title: "MB", digits: 1,
                    builds: %w[stock stock+glibc cow], rows: rows)
  end

  def test_each_ruby_has_a_colour_and_each_case_its_dashes
    found = strokes(draw(lines))
    assert_equal [BLUE, VERMILLION] * 2, found.map(&:colour)
    assert_equal [false, false, true, true], found.map(&:dashed)
    assert(found.all? { |stroke| stroke.width >= 2 }, "a line is thinner than 2")
  end

  # Also if a chart does not show all builds and cases.
  def test_colours_and_dashes_are_the_same_on_charts_that_are_compared
    one = lines(builds: %w[stock other cow], cases: %w[none plain warmup])
    one.lines.select! { |line| line.build == "cow" }
    found = strokes(draw(one))
    assert_equal ["rgb(0,158,115)"] * 2, found.map(&:colour)
    assert_equal [true, true], found.map(&:dashed)
  end

  def test_lines_have_their_names_at_their_ends_and_there_is_no_legend
    words = texts(draw(lines))
    names = words.select { |text| text.words.match?(/\A(stock|cow), (plain|warmup)\z/) }
    assert_equal 4, names.size
    colours = names.to_h { |text| [text.words[/\w+/], text.colour] }
    assert_equal({ "stock" => BLUE, "cow" => VERMILLION }, colours)
    # The names are to the right of the plot and inside the picture, and none covers another.
    names.each { |text| assert_operator text.x, :>, Chart::WIDTH / 2 }
    names.each { |text| assert_operator text.x + text.words.size * Chart::LETTER, :<=, Chart::WIDTH }
    names.map(&:y).sort.each_cons(2) { |above, below| assert_operator below - above, :>=, Chart::FONT }
  end

  def test_title_axes_and_size
    document = draw(lines)
    words = texts(document)
    ["Memory of a worker (less is better)", "requests served", "private memory (MB)", "0"].each do |expected|
      assert_includes words.map(&:words), expected
    end
    assert_equal "Memory of a worker (less is better)", REXML::XPath.first(document, "//svg/title").text
    # Scaled to a width of 360 pixels a letter is still more than 10 pixels high.
    words.each { |text| assert_operator text.size * 360 / Chart::WIDTH, :>, 10 }
    background = REXML::XPath.first(document, "//rect")
    assert_equal ["#ffffff", Chart::WIDTH.to_s], [background["fill"], background["width"]]
  end

  # A label may be lower than the end of its line, but not above the plot.
  def test_labels_stay_in_the_plot
    chart = lines(top: 200)
    places = chart.label_places.values.sort
    assert_operator places.last, :<=, 200
    assert_equal places, places.uniq
    assert_equal 200, chart.highest
    assert_equal 200, lines.highest
    assert_equal 250, lines(top: 250).highest
  end

  def test_bars_have_names_and_numbers_at_their_ends
    document = draw(bars)
    words = texts(document)
    expected = ["stock 68.8", "stock+glibc 79.1", "cow 4.4", "stock 47.2", "cow 3.9"]
    assert_equal expected.sort, words.map(&:words).grep(/\A(stock|cow)/).sort
    assert_empty ["no warmup", "1 warmup", "MB", "Memory (less is better)"] - words.map(&:words)
    words.each { |text| assert_operator text.x + text.words.size * Chart::LETTER, :<=, Chart::WIDTH }
    # A build with another environment has the same colour, but pale.
    bars = REXML::XPath.match(document, "//polygon")
    fills = bars.map { |bar| [bar["fill"].delete(" "), bar["fill-opacity"].to_f] }
    assert_equal [[BLUE, 0.0], [BLUE, 0.45], [VERMILLION, 0.0]], fills.uniq.sort
  end

  def test_bars_of_zero
    assert_includes texts(draw(bars([["none", [0.0, nil, 0]]]))).map(&:words), "stock 0.0"
  end

  def test_round_up
    found = [0, 1, 0.21, 7, 199.9, 1_234].map { |number| Chart.round_up(number) }
    assert_equal [1, 1, 0.25, 8, 200, 1500], found
  end

  def test_a_long_title_is_broken_before_its_brackets
    title = "an application: private dirty memory of a worker (less is better)"
    assert_equal "an application: private dirty memory of a worker\n(less is better)", Chart.wrapped(title)
  end

  def test_characters_that_mean_something_to_gnuplot
    chart = lines
    chart.title = %q(a "b" \ <c> & $d #{e})
    assert_includes texts(draw(chart)).map(&:words), chart.title
  end
end

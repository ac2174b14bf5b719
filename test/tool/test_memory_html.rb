# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "rbconfig"
require_relative "../../lib/cowruby/memory/html_charts"

# What cowruby-memory --html writes, as a browser draws it: Debian's chromium, without a screen or a network.
class TestMemoryHtml < Minitest::Test
  PROGRAM = File.join(ToolTest::TOP, "bin/cowruby-memory")
  COLOURS = CowRuby::Memory::HtmlCharts::COLOURS
  SHADES = CowRuby::Memory::HtmlCharts::SHADES
  # The width of a telephone, and of a screen.
  NARROW, WIDE = 390, 1200
  # chromium's windows are not narrower than this; so the page is put into a frame.
  FRAME = %(<style>*{margin:0;border:0}</style><iframe src="page.html" style="width:%dpx;height:%dpx"></iframe>)
  HEIGHT = 3_000

  SERVER = <<~'RUBY'
    $0 = "unicorn master of a test"
    $all = Array.new(300_000) { |i| "inherited #{i}" * 2 }
    $all.select!.with_index { |_, i| i % 7 != 0 }
    GC.start
    3.times do |i|
      fork do
        $0 = "unicorn worker[#{i}]"
        $all.first(20_000).each { |text| text << "!" }
        $own = Array.new(60_000 * (i + 1)) { |n| "own #{n}" * 2 }
        GC.start
        sleep
      end
    end
    sleep 2
    puts $$
    $stdout.flush
    gets
    exit!
  RUBY

  def setup
    @chromium = %w[chromium chromium-browser google-chrome].find { |name| system("which", name, out: File::NULL) }
    skip "needs chromium (Debian package chromium)" unless @chromium
    require "chunky_png"
  rescue LoadError
    skip "needs chunky_png (Debian package ruby-chunky-png)"
  end

  def with_server(ruby)
    Open3.popen2(ruby, "--disable-gems", "-e", SERVER, pgroup: true) do |input, output, thread|
      output.gets
      yield thread.pid
      input.close
    ensure
      Process.kill(:KILL, -thread.pid)
    end
  end

  # Writes the page of a server, after +looks+ looks.
  def page(directory, ruby, watch: nil)
    file = File.join(directory, "page.html")
    with_server(ruby) do |pid|
      command = [RbConfig.ruby, "-w", PROGRAM, pid.to_s, "--html", file]
      if watch
        looking = Process.spawn(*command, "--watch=0.3")
        sleep watch
        Process.kill(:INT, looking)
        Process.wait(looking)
        assert_equal 0, $?.exitstatus
      else
        output, status = Open3.capture2e(*command)
        assert_equal ["", 0], [output, status.exitstatus]
      end
    end
    file
  end

  # The page as it is drawn, +width+ pixels wide.
  def drawn(directory, width)
    File.write(File.join(directory, "frame.html"), format(FRAME, width, HEIGHT))
    picture = File.join(directory, "#{width}.png")
    command = [@chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--user-data-dir=#{directory}/profile", "--window-size=#{[width, 600].max},#{HEIGHT}",
               "--allow-file-access-from-files", "--screenshot=#{picture}", "file://#{directory}/frame.html"]
    output, status = Open3.capture2e({ "HOME" => directory }, *command)
    assert status.success? && File.exist?(picture), output
    ChunkyPNG::Image.from_file(picture).crop(0, 0, width, HEIGHT)
  end

  # Pixels of a colour: { "#rrggbb" => number }.
  def colours(image)
    image.pixels.tally.to_h { |pixel, number| [format("#%06x", pixel >> 8), number] }
  end

  # The lowest row in which something is drawn.
  def bottom(image)
    (image.height - 1).downto(0).find { |y| image.row(y).any? { |pixel| pixel >> 8 != 0xffffff } }
  end

  # On a screen and on a telephone: bars in the colours of kinds, both maps, lines; nothing beyond the edge.
  def test_what_is_drawn
    ruby = ENV["COW_RUBY"] || RbConfig.ruby
    Dir.mktmpdir do |directory|
      page(directory, ruby, watch: 3)
      narrow, wide = drawn(directory, NARROW), drawn(directory, WIDE)
      [narrow, wide].each do |image|
        found = Hash.new(0).merge(colours(image))
        %i[blue green sky vermilion].each { |name| assert_operator found[COLOURS[name]], :>, 100, name }
        assert_operator SHADES.count { |shade| found[shade] > 150 }, :>=, 3, "shades of how full pages are"
        assert_operator bottom(image), :>, 800
        # Text and pictures end before the page does.
        last = image.column(image.width - 3).map { |pixel| pixel >> 8 }.tally
        assert_operator last.fetch(0xffffff, 0), :>, HEIGHT * 0.97, "something is cut off on the right"
      end
      # The words are as large on both; so the narrow page is the longer one.
      assert_operator bottom(narrow), :>, bottom(wide)
    end
  end

  # Where the ruby is another one, and at the first look.
  def test_any_ruby
    Dir.mktmpdir do |directory|
      text = File.read(page(directory, RbConfig.ruby))
      assert_includes text, "One look has been made"
      image = drawn(directory, WIDE)
      assert_operator colours(image).fetch(COLOURS[:vermilion], 0), :>, 1_000, "lost pages"
      refute_includes text, "sealed: the worker"
    end
  end
end

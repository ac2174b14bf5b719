# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "rbconfig"
require "timeout"
require_relative "../../lib/cowruby/memory/html_charts"
require_relative "../../lib/cowruby/memory/address_space"

# What cowruby-memory --html writes, as a browser draws it: Debian's chromium, without a screen or a network.
class TestMemoryHtml < Minitest::Test
  PROGRAM = File.join(ToolTest::TOP, "bin/cowruby-memory")
  Charts = CowRuby::Memory::HtmlCharts
  # The width of a telephone, and of a screen.
  NARROW, WIDE = 390, 1200
  # chromium's windows are not narrower than this; so the page is put into a frame. Nothing may hide what
  # stands too far on the right.
  FRAME = %(<style>*{margin:0;border:0}</style>) +
          %(<iframe scrolling="no" src="page.html" style="width:%dpx;height:%dpx"></iframe>)
  HEIGHT = 3_600
  # A sample in a legend has fewer pixels than this of its colour.
  SAMPLE = 450

  SERVER = <<~'RUBY'
    $0 = "unicorn master of a test"
    $all = Array.new(300_000) { |i| "inherited #{i}" * 2 }
    $all.select!.with_index { |_, i| i % 7 != 0 }
    GC.start
    reader, writer = IO.pipe
    3.times do |i|
      fork do
        $0 = "unicorn worker[#{i}]"
        $all.first(20_000).each { |text| text << "!" }
        $own = Array.new(60_000 * (i + 1)) { |n| "own #{n}" * 2 }
        GC.start
        writer.puts "ready"
        sleep
      end
    end
    3.times { reader.gets }
    puts $$
    $stdout.flush
    gets
    exit!
  RUBY

  def setup
    @chromium = %w[chromium chromium-browser].find { |name| system("which", name, out: File::NULL) }
    skip "needs chromium (Debian package chromium)" unless @chromium
    require "chunky_png"
  rescue LoadError
    skip "needs chunky_png (Debian package ruby-chunky-png)"
  end

  def with_server(ruby)
    Open3.popen2(ruby, "--disable-gems", "-e", SERVER, pgroup: true) do |input, output, thread|
      pid = Integer(output.gets)
      CowRuby::Memory::AddressSpace.new(pid).close
      yield pid
      input.close
    rescue CowRuby::Memory::AddressSpace::Unreadable => e
      skip e.message
    ensure
      Process.kill(:KILL, -thread.pid)
    end
  end

  # Writes the page of a server, once or until it shows how it went on; gives its text.
  def page(directory, ruby, watch: false)
    file = File.join(directory, "page.html")
    with_server(ruby) do |pid|
      command = [RbConfig.ruby, "-w", PROGRAM, pid.to_s, "--html", file]
      if watch
        looking = Process.spawn(*command, "--watch=0.3")
        wait_for { File.exist?(file) && File.read(file).include?("<polyline") }
        Process.kill(:INT, looking)
        Process.wait(looking)
        assert_equal 0, $?.exitstatus
      else
        output, status = Open3.capture2e(*command)
        assert_equal ["", 0], [output, status.exitstatus]
      end
    end
    File.read(file)
  end

  def wait_for
    Timeout.timeout(60) { sleep 0.1 until yield }
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
    Hash.new(0).merge(image.pixels.tally.to_h { |pixel, number| [format("#%06x", pixel >> 8), number] })
  end

  # The lowest row in which something is drawn.
  def bottom(image)
    (image.height - 1).downto(0).find { |y| image.row(y).any? { |pixel| pixel >> 8 != 0xffffff } }
  end

  # On a screen and on a telephone: bars of kinds, both maps, lines; and nothing beyond the edge.
  def test_what_is_drawn
    cow = ENV["COW_RUBY"]
    Dir.mktmpdir do |directory|
      text = page(directory, cow || RbConfig.ruby, watch: true)
      assert_equal 3, text.scan("<polyline").size
      assert_match(/\d+ of \d+ pages used/, text) if cow
      [NARROW, WIDE].each do |width|
        image = drawn(directory, width)
        found = colours(image)
        wanted = { **Charts::KINDS.slice(:objects, :malloc), **Charts::STATES.slice(:own, :lost) }
        wanted.each do |name, colour|
          assert_operator found[colour], :>, SAMPLE * 2, "#{name}, #{width} pixels wide"
        end
        assert_operator Charts::SHADES.count { |shade| found[shade] > SAMPLE * 2 }, :>=, 2, "shades"
        assert_operator bottom(image), :<, HEIGHT - 10, "the page is longer than it should be"
        beside = (width - 8...width).flat_map { |x| image.column(x).map { |pixel| pixel >> 8 } }.uniq
        assert_equal [0xffffff], beside, "something stands too far on the right, #{width} pixels wide"
      end
    end
  end

  # Where the ruby is another one, and at the first look.
  def test_any_ruby
    Dir.mktmpdir do |directory|
      text = page(directory, RbConfig.ruby)
      assert_includes text, "One look has been made"
      refute_includes text, "sealed"
      assert_operator colours(drawn(directory, WIDE))[Charts::STATES[:lost]], :>, SAMPLE * 2, "lost pages"
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require_relative "../../tool/lib"

# start_from_cow in tool/lib.sh: what another build takes from the first.
class TestStartFromCow < Minitest::Test
  RBCONFIG = <<~'RUBY'
      CONFIG["prefix"] = (TOPDIR || DESTDIR + "/other")
      CONFIG["optflags"] = "-O1"
      CONFIG["cppflags"] = "-DX=1"
  RUBY

  def setup
    @top = Dir.mktmpdir("cow-start")
    %w[lib.sh lib.rb progress].each { |name| copy_tool(name) }
    @past = Time.at(1_000_000_000)
    write("build/config.args", "", @past)
    %w[lib/mkmf.rb ext/extmk.rb ext/a/extconf.rb ext/b/c/extconf.rb].each { |name| source(name, @past) }
    object("Makefile", "prefix = /first\nYJIT_LIBS=yjit/libyjit.a\n")
    object("yjit/libyjit.a", "rust")
    object("ext/a/Makefile", "prefix = $(DESTDIR)/first\noptflags = -O3\ncppflags = \nLIBS = -la\n")
    object("ext/a/extconf.h", "#define HAVE_A 1\n")
    object("ext/b/c/Makefile", "prefix = $(DESTDIR)/first\n")
    object("ext/b/c/extconf.h", "#define ETC \"/first/etc\"\n")
    object("ext/-test-/d/Makefile", "")
    object(".bundle/gems/e/ext/e/Makefile", "")
    object("exts.mk", "")
  end

  def teardown = FileUtils.rm_rf(@top)

  def copy_tool(name)
    FileUtils.mkdir_p("#{@top}/tool")
    FileUtils.cp("#{TOP}/tool/#{name}", "#{@top}/tool/")
  end

  def write(path, text, time = Time.now)
    FileUtils.mkdir_p(File.dirname("#{@top}/#{path}"))
    File.write("#{@top}/#{path}", text)
    File.utime(time, time, "#{@top}/#{path}")
  end

  def object(path, text) = write("build/cow/obj/#{path}", text)
  def source(path, time = Time.now) = write("build/other/src/#{path}", "", time)

  # Gives the files that the other build has then, with their text. +changes+: arguments of start_from_cow.
  def start(arguments = "--prefix=/other", *changes)
    write("build/other/obj/Makefile",
          "YJIT_LIBS=yjit/libyjit.a\nrbconfig.rb:\n\tcp ../rbconfig rbconfig.rb\n")
    write("build/other/rbconfig", RBCONFIG.gsub(/^/, "  "))
    write("build/other/obj/.cow-configured", "#{arguments}\n")
    script = 'set -eu; top=$1; . tool/lib.sh; shift; cd build/other/obj; start_from_cow "$top/log" other "$@"'
    output, status = Open3.capture2e("sh", "-c", script, "sh", @top, *changes, chdir: @top)
    assert_predicate status, :success?, output
    Dir.chdir("#{@top}/build/other/obj") do
      Dir["{ext,yjit,.bundle}/**/*"].select { |file| File.file?(file) }.sort.to_h do |file|
        [file, File.read(file)]
      end
    end
  end

  def test_what_is_the_same_is_taken
    makefile = "prefix = $(DESTDIR)/other\noptflags = -O1\ncppflags = -DX=1\nLIBS = -la\n"
    assert_equal({ "ext/a/Makefile" => makefile, "ext/a/extconf.h" => "#define HAVE_A 1\n",
                   "yjit/libyjit.a" => "rust" }, start)
  end

  def test_other_flags_may_find_out_other_things
    ["cflags=-fsanitize=address", "-x LDFLAGS=-L/lib"].each do |arguments|
      assert_equal ["yjit/libyjit.a"], start(arguments).keys
    end
  end

  def test_who_says_what_flags_of_the_linker_change
    assert_equal ["yjit/libyjit.a"], start("cflags=-O0 LDFLAGS=-L/lib", "s|-la|-lb|").keys
    files = start("-x LDFLAGS=-L/lib", "s|^cppflags = .*|& -DY|\ns|-la|-lb|")
    makefile = "prefix = $(DESTDIR)/other\noptflags = -O1\ncppflags = -DX=1 -DY\nLIBS = -lb\n"
    assert_equal makefile, files["ext/a/Makefile"]
  end

  def test_a_source_that_has_changed_since
    source("ext/a/extconf.rb", Time.now + 60)
    assert_equal ["yjit/libyjit.a"], start.keys
  end

  def test_a_first_build_that_is_not_whole_or_of_other_arguments
    File.delete("#{@top}/build/cow/obj/exts.mk")
    assert_empty start
    object("exts.mk", "")
    write("build/config.args", "", Time.now + 60)
    assert_empty start
    write("build/config.args", "", @past)
    write("upstream.pin", "version=3.4.6\n", Time.now + 60)
    assert_empty start
  end

  def test_only_before_the_first_make
    write("build/other/obj/exts.mk", "")
    assert_empty start
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# ./configure: what it gives to CRuby's, and what it refuses.
class TestConfigure < Minitest::Test
  include ToolTest

  def setup
    super
    take("configure", "Makefile.in", "upstream.pin", "configure.ac")
  end

  def configure(*arguments, set: {})
    Open3.capture3(set, "./configure", "--disable-yjit", "--without-jemalloc", *arguments, chdir: @top)
  end

  def given(*arguments)
    _, err, status = configure(*arguments)
    assert status.success?, err
    read("build/config.args")
  end

  def test_the_defaults_say_nothing_to_the_compiler
    refute_match(/XCFLAGS/, given("--prefix=/opt/x"))
    assert_match(%r{'--prefix=/opt/x'}, read("build/config.args"))
  end

  # tool/lib.sh unsets what make has of these.
  def test_the_compilers_of_the_environment_are_written_down
    set = { "CC" => "cc", "CFLAGS" => "-O1", "CXX" => "c++ -x", "CXXFLAGS" => "-O2", "LDFLAGS" => "-L/x" }
    _, err, status = Open3.capture3(set, "./configure", "--disable-yjit", "--without-jemalloc", chdir: @top)
    assert status.success?, err
    set.each { |name, value| assert_includes read("build/config.args"), " '#{name}=#{value}'" }
  end

  def test_a_ruby_that_is_too_old_is_refused
    File.chmod(0o755, write("#{@dir}/bin/ruby", "#!/bin/sh\nexit 1\n"))
    path = "#{@dir}/bin:#{ENV.fetch("PATH")}"
    _, err, status = Open3.capture3({ "PATH" => path }, "./configure", chdir: @top)
    refute status.success?
    assert_match(/the ruby that comes first in PATH is older than 3.1; put the directory of a newer one/, err)
    _, err, status = configure(set: { "RUBYOPT" => "-rnone" })
    assert status.success?, err
  end

  def test_a_locator_and_a_page_size_become_definitions
    assert_match(/'XCFLAGS= -DCOW_LOCATE_BY=COW_LOCATE_ALIGNOFF -DHEAP_PAGE_ALIGN_LOG=15'/,
                 given("--with-mark-locator=alignoff", "--with-heap-page-size=32"))
    refute_match(/mark-locator|heap-page-size/, read("build/config.args"))
  end

  def test_substrings_that_are_copies_become_a_definition
    assert_match(/'XCFLAGS= -DCOW_SHARED_MIDDLE=0'/, given("--disable-shared-middle"))
    refute_match(/shared-middle/, read("build/config.args"))
    refute_match(/XCFLAGS|shared-middle/, given("--enable-shared-middle"))
  end

  # What configure defines is what gc/ reads.
  def test_each_locator_is_the_one_that_is_compiled
    %w[arena alignoff binary linear header].each do |name|
      flags = given("--with-mark-locator=#{name}")[/'XCFLAGS=([^']*)'/, 1].to_s.split
      code = "struct heap_page { int x; };\n#include \"locate_bits.h\"\nlocator COW_LOCATE_NAME\n"
      command = ["cc", "-E", "-P", *flags, "-I", File.expand_path("../../gc", __dir__), "-"]
      out, status = Open3.capture2(*command, stdin_data: code)
      assert status.success?
      assert_equal "locator \"#{name}\"", out.lines(chomp: true).last
    end
  end

  # What a kind of build gets beside build/config.args (tool/lib.sh).
  def kind_options(kind, *arguments)
    given(*arguments)
    out, status = Open3.capture2("sh", "-c", "top=$PWD; . tool/lib.sh; kind_options #{kind}", chdir: @top)
    assert status.success?
    out.chomp
  end

  def test_flags_of_the_user_for_the_interpreter_stay
    assert_includes given("XCFLAGS=-DX='a b'"), %q{'XCFLAGS=-DX='\\''a b'\\'''}
    assert_equal "XCFLAGS=' -DCOW_LOCATE_BY=COW_LOCATE_ALIGNOFF'", kind_options("alignoff", "--prefix=/opt/x")
    assert_equal "XCFLAGS='-DX -DY -DCOW_LOCATE_BY=COW_LOCATE_ALIGNOFF'",
                 kind_options("alignoff", "XCFLAGS=-DX -DY")
    assert_equal "XCFLAGS='-DX='\\''a\\tb'\\'' -DCOW_LOCATE_BY=COW_LOCATE_LINEAR'",
                 kind_options("linear", "XCFLAGS=-DX='a\\tb'")
    assert_equal "XCFLAGS=' -DHEAP_PAGE_ALIGN_LOG=15 -DCOW_LOCATE_BY=COW_LOCATE_BINARY'",
                 kind_options("binary", "--with-heap-page-size=32", "--with-mark-locator=alignoff")
    [[{}, ["XCFLAGS=-DX"]], [{ "XCFLAGS" => "-DX" }, []]].each do |set, arguments|
      _, err, status = configure("--with-heap-page-size=32", *arguments, set: set)
      refute status.success?
      assert_match(/XCFLAGS cannot be given with arguments that set it/, err)
    end
  end

  # Of two the later one is CRuby's.
  def test_tools_of_the_user_stay
    # Works with a plugin only, as gcc-ar calls it.
    ar = ENV.fetch("PATH").split(":").map { |directory| "#{directory}/ar" }.find { |file| File.exist?(file) }
    File.chmod(0o755, write("#{@dir}/bin/ar", <<~SH))
      #!/bin/sh
      case $* in *--plugin*) exec #{ar} "$@" ;; esac
      exit 1
    SH
    File.chmod(0o755, write("#{@dir}/bin/my-ar", "#!/bin/sh\nexec gcc-ar \"$@\"\n"))
    path = { "PATH" => "#{@dir}/bin:#{ENV.fetch("PATH")}" }
    [%w[NM=my-nm AR=gcc-ar], %w[AR=my-ar]].each do |argument, found|
      out, err, status = Open3.capture3(path, "./configure", "--without-jemalloc", argument, chdir: @top)
      assert status.success?, err
      skip "no gcc-ar with rustc here" unless out.match?(/what rustc writes... (gcc-ar|my-ar)$/)

      [argument, *found].each do |last|
        assert_equal last, read("build/config.args").scan(/'(#{last[/\w+=/]}[^']*)'/).flatten.last
      end
    end
  end

  # One that stops at rustc's objects is no reason to fail, unless YJIT was asked for.
  def test_an_ar_of_the_user_that_does_not_work
    skip "no rustc here" unless ENV.fetch("PATH").split(":").any? { |one| File.executable?("#{one}/rustc") }

    File.chmod(0o755, write("#{@dir}/bin/my-ar", "#!/bin/sh\nexit 1\n"))
    env = { "AR" => "#{@dir}/bin/my-ar" }
    out, err, status = Open3.capture3(env, "./configure", "--without-jemalloc", chdir: @top)
    assert status.success?, err
    skip "rustc does not work here" if out.include?("without YJIT: rustc")

    assert_match(/without YJIT: \S+my-ar \(AR\) does not read what rustc writes/, out)
    assert_match(/'--disable-yjit'/, read("build/config.args"))
    _, err, status = Open3.capture3(env, "./configure", "--without-jemalloc", "--enable-yjit", chdir: @top)
    refute status.success?
    assert_match(/--enable-yjit cannot be used: \S+my-ar \(AR\) does not/, err)
  end

  # On the others CRuby's configure says whether there is a YJIT.
  def test_yjit_is_asked_for_on_the_processors_that_it_knows
    skip "no YJIT for this processor" unless RbConfig::CONFIG["host_cpu"].match?(/x86_64|aarch64/)
    skip "no rustc here" unless ENV.fetch("PATH").split(":").any? { |one| File.executable?("#{one}/rustc") }

    { "gcc" => /'--enable-yjit=yes'/, "gcc -D__ANDROID__" => /\A(?!.*yjit)/ }.each do |compiler, expected|
      out, err, status = Open3.capture3({ "CC" => compiler }, "./configure", "--without-jemalloc",
                                        chdir: @top)
      assert status.success?, err
      skip "rustc or ar does not work here" if out.include?("without YJIT: ")

      assert_match(expected, read("build/config.args"))
    end
  end

  def test_a_yjit_that_cannot_be_built
    File.chmod(0o755, write("#{@dir}/bin/rustc", "#!/bin/sh\nexit 1\n"))
    path = { "PATH" => "#{@dir}/bin:#{ENV.fetch("PATH")}" }
    _, err, status = Open3.capture3(path, "./configure", "--without-jemalloc", "--enable-yjit=dev",
                                    chdir: @top)
    refute status.success?
    assert_match(/--enable-yjit cannot be used: rustc or ld does not work/, err)
    _, err, status = Open3.capture3(path, "./configure", "--without-jemalloc", chdir: @top)
    assert status.success?, err
    assert_match(/'--disable-yjit'/, read("build/config.args"))
  end

  def test_what_cannot_be_is_refused_by_name
    given("--with-modular-gc=no")
    refute_match(/modular/, read("build/config.args"))
    FileUtils.rm_rf(File.join(@top, "build"))
    { "--with-modular-gc" => /--with-modular-gc cannot be used/,
      "--with-mark-locator=hash" => /hash: it is arena, alignoff, binary, linear or header/,
      "--without-mark-locator" => /no: it is arena/, "--with-mark-locator" => /yes: it is arena/,
      "--with-mark-locator=" => /: it is arena/, "--with-mark-locator=arena alignoff" => /: it is arena/,
      "--with-heap-page-size=24" => /24: it is 16, 32 or 64/, "--with-heap-page-size=8" => /8: it is 16/,
      "--with-heap-page-size=16384" => /16384: it is 16/, "--with-heap-page-size=64K" => /64K: it is 16/,
      "--with-heap-page-size=-1" => /-1: it is 16/ }.each do |argument, message|
      _, err, status = configure(argument)
      refute status.success?, argument
      assert_match message, err
      refute_path_exists File.join(@top, "build/config.args"), "nothing is left half done"
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require_relative "../../tool/lib"

# configure_once in tool/lib.sh: which builds share what configure finds out.
class TestConfigureOnce < Minitest::Test
  # Writes down its arguments and what the cache says, as a configure that finds out one thing more.
  CONFIGURE = <<~SH
    #!/bin/sh
    [ ! -f ../fails ] || exit 1
    { echo "$@"; [ ! -f config.cache ] || cat config.cache; } >asked
    env >environment
    case " $* " in *" -C "*) echo found >>config.cache ;; esac
    touch Makefile
  SH

  def setup
    @top = Dir.mktmpdir("cow-configure")
    FileUtils.mkdir_p(%W[#{@top}/tool #{@top}/build])
    %w[lib.sh lib.rb progress].each { |name| FileUtils.cp("#{TOP}/tool/#{name}", "#{@top}/tool/") }
    File.write("#{@top}/build/config.args", "--given")
    File.write("#{@top}/upstream.pin", "version=3.4.5\n")
  end

  def teardown = FileUtils.rm_rf(@top)

  def configure(kind, *arguments, fails: false, env: {})
    directory = "#{@top}/build/#{kind}"
    FileUtils.mkdir_p("#{directory}/src")
    File.write("#{directory}/src/configure", CONFIGURE, perm: 0o755)
    fails ? FileUtils.touch("#{directory}/fails") : FileUtils.rm_f("#{directory}/fails")
    script = 'set -eu; top=$1; . tool/lib.sh; compile_in "$2"; shift 2; configure_once "$top/log" "$@"'
    _, status = Open3.capture2e(env, "sh", "-c", script, "sh", @top, directory, kind, *arguments,
                                chdir: @top)
    assert_equal !fails, status.success?
    asked = "#{directory}/obj/asked"
    File.readlines(asked, chomp: true) if File.exist?(asked)
  end

  def test_what_one_finds_the_others_take
    assert_equal ["--given -C --prefix=/a b"], configure("cow", "--prefix=/a b")
    assert_equal ["--given -C", "found"], configure("stock")
  end

  def test_flags_for_sanitizers_find_out_for_themselves
    configure("cow")
    flags = "cflags=-fsanitize=address"
    assert_equal ["--given -x #{flags}"], configure("asan", "-x", flags)
    assert_equal ["--given -C XCFLAGS=-DX", "found"], configure("stock", "XCFLAGS=-DX")
  end

  # What depends on flags of the compiler they find out for themselves, and they pass nothing on.
  def test_other_flags_of_the_compiler_take_what_the_machine_has
    configure("cow")
    found = "ac_cv_env_CFLAGS_set=\nac_cv_func_fork=yes\nrb_cv_stack=no\nac_cv_sizeof_int=4\n"
    File.write("#{@top}/build/configure.cache", found)
    %w[cppflags=-DRUBY_DEBUG optflags=-O1].each_with_index do |flags, i|
      assert_equal ["--given -C #{flags} LDFLAGS=-L/x", "ac_cv_func_fork=yes", "ac_cv_sizeof_int=4"],
                   configure("other#{i}", flags, "LDFLAGS=-L/x")
    end
    assert_equal found, File.read("#{@top}/build/configure.cache")
  end

  def test_a_prefix_of_its_own_is_the_only_one
    File.write("#{@top}/build/config.args", " '--prefix=/a b' '--given'")
    assert_equal ["--given -C --prefix=/c"], configure("deb", "--prefix=/c")
    assert_equal "--prefix=/a b --given -C", configure("cow").first
  end

  def test_other_arguments_begin_anew
    configure("cow")
    File.utime(Time.now + 60, Time.now + 60, "#{@top}/build/config.args")
    assert_equal ["--given -C"], configure("stock")
  end

  def test_only_once
    configure("cow")
    File.delete("#{@top}/build/cow/obj/asked")
    assert_nil configure("cow")
  end

  def test_what_was_built_with_other_arguments_goes
    configure("stock", "optflags=-O1")
    FileUtils.touch("#{@top}/build/stock/obj/gc.o")
    configure("stock", "optflags=-O1")
    assert_path_exists "#{@top}/build/stock/obj/gc.o"
    assert_equal ["--given -C"], configure("stock")
    refute_path_exists "#{@top}/build/stock/obj/gc.o"
  end

  def test_what_was_built_with_other_flags_of_ours_goes
    object = "#{@top}/build/cow/obj/gc.o"
    configure("cow")
    FileUtils.touch([object, "#{@top}/build/cow/obj/.installed.list"])
    FileUtils.touch("#{@top}/build/config.args", mtime: Time.now + 60)
    configure("cow")
    assert_path_exists object
    File.write("#{@top}/build/config.args", "'optflags=-O1'")
    assert_equal "optflags=-O1 -C", configure("cow").first
    refute_path_exists object
    # make uninstall knows no other.
    assert_path_exists "#{@top}/build/cow/obj/.installed.list"
  end

  def test_what_was_built_of_another_cruby_goes
    object = "#{@top}/build/cow/obj/gc.o"
    configure("cow")
    FileUtils.touch(object)
    File.write("#{@top}/upstream.pin", "version=3.4.6\n")
    FileUtils.touch("#{@top}/upstream.pin", mtime: Time.now + 60)
    assert_equal ["--given -C"], configure("cow"), "nothing of what the other one has found"
    refute_path_exists object
  end

  # Builds for a prefix of their own are the same whatever ours is.
  def test_another_prefix_of_ours_is_nothing_to_those_with_their_own
    File.write("#{@top}/build/config.args", " '--prefix=/a' '--given'")
    configure("deb", "--prefix=/c")
    FileUtils.touch("#{@top}/build/deb/obj/gc.o")
    File.write("#{@top}/build/config.args", " '--prefix=/b' '--given'")
    configure("deb", "--prefix=/c")
    assert_path_exists "#{@top}/build/deb/obj/gc.o"
  end

  # What configure has found in build/config.args holds, and not what is set when make runs.
  def test_the_compiler_is_that_of_our_configure
    set = %w[CC CFLAGS CPP CPPFLAGS CXX CXXFLAGS LDFLAGS LIBS MAKEFLAGS].to_h { |name| [name, "none"] }
    configure("cow", env: set.merge("OTHER" => "kept"))
    found = File.read("#{@top}/build/cow/obj/environment")
    assert_includes found, "OTHER=kept\n"
    set.each_key { |name| refute_match(/^#{name}=/, found) }
  end

  # ccache as it says where its files are: there, or nowhere as without a home.
  def test_a_ccache_without_a_place_gets_one
    links = "#{@top}/build/ccache"
    FileUtils.mkdir_p(links)
    File.symlink("#{@top}/ccache", "#{links}/cc")
    { "#{@top}/home" => nil, "/dev/null/home" => "#{links}/store" }.each do |place, given|
      File.write("#{@top}/ccache", "#!/bin/sh\necho #{place}\n", perm: 0o755)
      kind = given ? "without" : "with"
      configure(kind, env: { "COW_CCACHE" => links, "CCACHE_DIR" => nil })
      assert_equal given, File.read("#{@top}/build/#{kind}/obj/environment")[/^CCACHE_DIR=(.*)/, 1]
    end
  end

  # It says so the next time as well, and leaves nothing to others.
  def test_a_failure_is_repeated
    2.times { assert_nil configure("cow", fails: true) }
    assert_equal ["--given -C"], configure("stock")
  end
end

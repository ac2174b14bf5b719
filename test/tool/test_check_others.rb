# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "digest"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"
require_relative "../../benchmark/lib/processes/process_table"
load File.expand_path("../../tool/check-others", __dir__)

# How the list is read and suites are run and compared, with small packages made here; this ruby stands for
# both, and nothing is fetched.
class TestCheckOthers < Minitest::Test
  TOOL = File.expand_path("../../tool/check-others", __dir__)
  # The base ruby may have it where GEM_PATH of the tests does not look.
  MINITEST = File.dirname($LOADED_FEATURES.grep(%r{/minitest\.rb\z}).first)

  def setup
    @dir = Dir.mktmpdir("cow-others")
    @out = File.join(@dir, "out")
    @entries = []
    FileUtils.mkdir_p(File.join(@out, "packages"))
  end

  # What needs a network namespace, which not every user may make.
  def isolated
    system(*CheckOthers::ALONE, "true", %i[out err] => File::NULL) or skip "unshare --net is refused here"
  end

  def teardown = FileUtils.rm_rf(@dir)

  # Runs the tool over the packages that were made.
  def run_suites(...)
    isolated
    check(...)
  end

  def check(*arguments)
    File.write("#{@dir}/list.yml", YAML.dump(@entries))
    Open3.capture3(TOOL, "--packages", "#{@dir}/list.yml", "--output", @out,
                   "--ruby", "stock=#{RbConfig.ruby}", "--ruby", "cow=#{RbConfig.ruby}", *arguments)
  end

  def refuse(pattern, *arguments)
    out, err, status = check(*arguments)
    refute status.success?, out
    assert_equal 1, err.lines.size, err
    assert_match pattern, err
  end

  # A package that is there already, with its entry.
  def package(name, files, **keys)
    source = File.join(@dir, "#{name}-1.0")
    files.each do |path, text|
      FileUtils.mkdir_p(File.dirname("#{source}/#{path}"))
      File.write("#{source}/#{path}", text)
    end
    tarball = "#{@out}/packages/#{name}.tar.gz"
    system("tar", "-czf", tarball, "-C", @dir, "#{name}-1.0", exception: true)
    @entries << { "name" => name, "version" => "1.0", "source" => "pool/none/#{name}.tar.gz",
                  "sha256" => Digest::SHA256.file(tarball).hexdigest, "tests" => ["test/test_*.rb"] }
                .merge(keys.transform_keys(&:to_s))
  end

  # A suite of minitest; ours? tells the two rubies from each other.
  def suite(body)
    { "lib/mine.rb" => "MINE = 42\n", "test/test_mine.rb" => <<~RUBY }
      $LOAD_PATH.unshift #{MINITEST.dump}
      require "minitest/autorun"
      require "mine"
      class TestMine < Minitest::Test
        def ours? = __FILE__.include?("/cow/")
        def runs = File.exist?("runs") ? File.size("runs") : 0
        #{body}
      end
    RUBY
  end

  def test_our_own_list
    packages = read_list(File.expand_path("../others/list.yml", __dir__))
    assert_equal packages.map(&:name), packages.map(&:name).uniq
    assert_operator packages.size, :>=, 20
    assert_operator packages.count { |package| package.extensions.any? }, :>=, 8
    packages.each { |package| assert_match(/\A\h{64}\z/, package.sha256, package.name) }
    # What is not pinned would be another gem tomorrow.
    assert_empty packages.flat_map(&:gems).grep_v(/\A[\w.-]+:\d[\w.]*\z/)
  end

  def test_mistakes
    refuse(/no such package in the list: b; there are/, "--only", "b")
    refuse(/no such way: sideways/, "--ways", "sideways")
    refuse(/invalid option: --nonsense/, "--nonsense")
    refuse(/not understood: extra/, "extra")
    package("a", suite(""))
    refuse(/the cow ruby is not there: .*run make rubies/, "--ruby", "cow=/nonexistent")
    @entries = []
    refuse(/nothing is chosen/)
    @entries = [{ "name" => "a", "colour" => "red" }]
    refuse(/a: no such key: colour/)
    @entries = [{ "name" => "a", "version" => "1", "tests" => [] }]
    refuse(/a: sha256 is missing/)
    package("b", suite(""), with: "luck")
    @entries.shift
    refuse(/b: with luck/)
    @entries = { "a" => 1 }
    refuse(/a list of packages is wanted/)
    refuse(/the list cannot be read/, "--packages", "/nonexistent")
  end

  def test_a_suite_that_is_the_same_on_both
    package("mine", suite("def test_a = assert_equal(42, MINE)\n  def test_b = skip\n  def test_c = flunk"))
    out, err, status = run_suites
    assert status.success?, out + err
    %w[plain child poison].each do |way|
      assert_match(/^mine 1\.0 #{way}: +1 passed, 0 failed, 2 skipped/, out)
    end
    assert_match(/the same on both: (1 failed, 1 skipped|1 skipped, 1 failed)$/, out)
    assert_equal "3 passed, 0 failed, 6 skipped\n", out.lines.last
    tests, results = %w[tests results].map { |name| JSON.parse(File.read("#{@out}/#{name}.json")) }
    assert_equal({ "stock" => "failed", "cow" => "failed" }, tests["mine 1.0 child"]["TestMine#test_c"])
    assert_equal({ "passed" => 1, "failed" => 0, "skipped" => 2, "differ" => {} },
                 results["others"]["mine 1.0 child"])
    assert_includes File.read("#{@out}/tables.md"), "| mine 1.0 | child | 1 | 0 | 2 |\n"
  end

  # A file in its home, and a process that goes on.
  def test_what_a_run_leaves_behind_is_gone
    package("mine", suite(<<~'BODY'))
      def test_a
        assert_empty Dir.children(Dir.home)
        File.write(File.join(Dir.home, ".rc"), "1")
        File.write("going", "#{Process.spawn("sleep", "60")}\n", mode: "a")
      end
    BODY
    out, err, status = run_suites
    assert status.success?, out + err
    assert_equal "3 passed, 0 failed, 0 skipped\n", out.lines.last
    sleepers = Dir["#{@out}/{stock,cow}/mine-1.0/going"].flat_map { |file| File.readlines(file, chomp: true) }
    assert_equal 4, sleepers.size
    assert_empty(sleepers.select { |pid| CowBench::ProcessTable.alive?(pid) })
  end

  # An installed ruby has test-unit; the one that runs the tests may not.
  def test_a_suite_of_test_unit
    text = <<~'RUBY'
      require "test/unit"
      class TestMine < Test::Unit::TestCase
        def test_a = assert(true)
        def test_b = omit
        def test_c = flunk
      end
    RUBY
    package("mine", { "test/test_mine.rb" => text })
    ruby = ENV.fetch("COW_INSTALLED_RUBY", RbConfig.ruby)
    out, err, = run_suites("--ways", "plain,child", "--ruby", "stock=#{ruby}", "--ruby", "cow=#{ruby}")
    %w[plain child].each { |way| assert_match(/^mine 1\.0 #{way}: +1 passed, 0 failed, 2 skipped/, out, err) }
  end

  # On ours alone.
  def test_the_way_of_poison
    body = "def test_a = assert_equal([ours? ? 'poison' : nil], [ENV['RUBY_STRING_SHARE_MIDDLE']])"
    package("mine", suite(body))
    assert_match(/^mine 1\.0 poison: +1 passed/, run_suites("--ways", "poison").first)
  end

  def test_a_test_that_fails_on_ours_is_tried_again_and_told_by_name
    package("mine", suite("def test_a = refute(ours?)\n  def test_b = assert(ours?)"))
    out, _, status = run_suites("--ways", "plain")
    assert_equal 1, status.exitstatus
    three = %w[failed passed].map { |result| ([result] * 3).join(", ") }
    assert_includes out, "FAILED: TestMine#test_a: #{three.first} on ours, #{three.last} on pristine"
    assert_includes out, "skipped: TestMine#test_b: #{three.first} on pristine, #{three.last} on ours"
    assert_equal "0 passed, 1 failed, 1 skipped\n", out.lines.last
  end

  def test_a_test_that_fails_once_is_unsteady
    package("mine", suite("def test_a = (File.write('runs', '.', mode: 'a'); assert(!ours? || runs > 1))\n" \
                          "  def test_b = pass"))
    out, err, status = run_suites("--ways", "plain")
    assert status.success?, out + err
    assert_match(/skipped: unsteady: TestMine#test_a: failed, passed, passed on ours, passed, passed/, out)
    assert_equal "1 passed, 0 failed, 1 skipped\n", out.lines.last
  end

  def test_a_suite_that_dies_on_ours
    package("mine", suite("def test_a = ours? ? Process.kill(:KILL, $$) : assert(true)"))
    out, _, status = run_suites("--ways", "plain")
    assert_equal 1, status.exitstatus
    assert_match(/FAILED: TestMine#test_a: missing, missing, missing on ours/, out)
    assert_match(/SIGKILL/, out)
  end

  # Once in three runs, when all tests have passed.
  def test_a_crash_at_the_end_is_told_if_it_comes_once
    once = "File.write('runs', '.', mode: 'a'); Process.kill(:KILL, $$) if File.size('runs') == 1"
    body = "def test_a = Minitest.after_run { #{once} if ours? }"
    package("mine", suite(body))
    out, _, status = run_suites("--ways", "plain")
    assert_equal 1, status.exitstatus
    assert_match(/FAILED: its end: a signal, as never on pristine \(SIGKILL/, out)
  end

  def test_another_status_with_the_same_results
    package("mine", suite("def test_a = Minitest.after_run { exit! 3 if ours? }"))
    out, _, status = run_suites("--ways", "plain")
    assert_equal 1, status.exitstatus
    assert_match(/FAILED: its end: status 3, on pristine 0/, out)
  end

  def test_in_a_child_all_is_loaded_before
    package("mine", suite("LOADED = $$\n  def test_a = assert_equal(ENV['WANTED'], (LOADED == $$).to_s)"),
            environment: { "WANTED" => "true" })
    assert_match(/^mine 1\.0 plain: +1 passed/, run_suites("--ways", "plain").first)
    @entries.first["environment"]["WANTED"] = "false"
    # Pristine ran as it is, without a child.
    assert_match(/TestMine#test_a: failed on pristine, passed on ours/, run_suites("--ways", "child").first)
  end

  def test_an_extension_is_compiled_for_each
    unless File.exist?(File.join(RbConfig::CONFIG["rubyhdrdir"], "ruby.h"))
      skip "the base ruby has no headers (Debian package ruby-dev)"
    end

    native = { "ext/mine/extconf.rb" => <<~RUBY, "ext/mine/mine.c" => <<~C }
      require "mkmf"
      raise "no x" unless with_config("x") == "1"
      create_makefile "mine/mine"
    RUBY
      #include <ruby.h>
      void Init_mine(void) { rb_define_global_const("MINE_NATIVE", INT2FIX(43)); }
    C
    body = "def test_a = assert_equal(43, (require('mine/mine'); MINE_NATIVE))"
    package("mine", suite(body).merge(native), extensions: ["ext/mine --with-x=1"])
    out, err, = run_suites("--ways", "plain")
    assert_match(/^mine 1\.0 plain: +1 passed/, out, err)
    assert_equal 2, Dir["#{@out}/{stock,cow}/mine-1.0/lib/mine/mine.so"].size
  end

  def test_what_cannot_be_had_is_skipped_with_its_reason
    package("away", suite(""))
    FileUtils.rm(Dir["#{@out}/packages/*"])
    package("broken", suite("").merge("ext/extconf.rb" => "abort\n"), extensions: ["ext"])
    package("odd", suite("").merge("test/test_mine.rb" => "raise 'no'\n"))
    out, err, status = run_suites("--ways", "plain")
    assert_equal 1, status.exitstatus
    assert_includes err, "nothing has passed on both"
    assert_match(/skipped: cannot be had on pristine: no mirror of this machine's apt has away\.tar\.gz/, out)
    assert_match(/skipped: cannot be had on pristine: ext does not compile: /, out)
    assert_match(/skipped: pristine ran no test: .*no \(RuntimeError\)/, out)
    assert_equal "0 passed, 0 failed, 3 skipped\n", out.lines.last
  end

  def test_names_are_the_same_in_each_run
    lines = ["#<A:0x00007f001234>", "a #{@dir}/b.rb", "a #{@dir.tr(".", "_")}/b.rb", "ä", "in /tmp/others9/c"]
    text = lines.map { |name| "passed\t#{name}\n" }.join
    File.write("#{@dir}/#{CheckOthers::RESULTS}", "#{text}ended\t\n")
    status = Struct.new(:signaled?, :exitstatus).new(false, 0)
    result = CheckOthers.allocate.send(:read, [@dir, "/tmp/others9"], "", status)
    assert_equal [["#<A:0x>", "a b.rb", "a b.rb (2)", "ä", "in c"], []], [result.tests.keys, result.trouble]
  end
end

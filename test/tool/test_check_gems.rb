# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"
load File.expand_path("../../tool/check-gems", __dir__)

# How the list is read, results are compared and a run is told, with a small gem
# made here; this ruby stands for both.
class TestCheckGems < Minitest::Test
  TOOL = File.expand_path("../../tool/check-gems", __dir__)
  # The base ruby may have it where GEM_PATH of the tests does not look.
  MINITEST = File.dirname($LOADED_FEATURES.grep(%r{/minitest\.rb\z}).first)

  def setup
    @dir = Dir.mktmpdir("cow-gems")
    @gems = File.join(@dir, "gems")
    FileUtils.mkdir_p([@gems, File.join(@dir, "cache")])
  end

  def teardown = FileUtils.rm_rf(@dir)

  def list(*lines) = File.write(File.join(@gems, "list"), lines.map { |line| "#{line}\n" }.join)

  def check(*arguments)
    Open3.capture3(TOOL, "--gems", @gems, "--output", "#{@dir}/out", "--cache", "#{@dir}/cache",
                   "--ruby", "stock=#{RbConfig.ruby}", "--ruby", "cow=#{RbConfig.ruby}", *arguments)
  end

  def refuse(pattern, *arguments)
    out, err, status = check(*arguments)
    refute status.success?, out
    assert_equal 1, err.lines.size, err
    assert_match pattern, err
  end

  # A gem of plain Ruby: how extensions are built is RubyGems' part.
  def make_gem(name: "cowtest", version: "1.0", files: {})
    source = Dir.mktmpdir("source", @dir)
    files = { "lib/#{name}.rb" => "module CowTest\n  VALUE = 42\nend\n" }.merge(files)
    files.each do |path, text|
      FileUtils.mkdir_p(File.dirname("#{source}/#{path}"))
      File.write("#{source}/#{path}", text)
    end
    File.write("#{source}/#{name}.gemspec", <<~SPEC)
      Gem::Specification.new do |s|
        s.name, s.version, s.summary, s.authors = "#{name}", "#{version}", "a test", ["us"]
        s.license, s.homepage = "MIT", "http://localhost"
        s.files = #{files.keys.inspect}
      end
    SPEC
    output, status = Open3.capture2e("gem", "build", "#{name}.gemspec", "--output",
                                     "#{@dir}/cache/#{name}-#{version}.gem", chdir: source)
    assert status.success?, output
  end

  def tests(body)
    File.write(File.join(@gems, "cowtest.rb"), <<~RUBY)
      gem ENV.fetch("COW_GEM"), ENV.fetch("COW_GEM_VERSION")
      $LOAD_PATH.unshift #{MINITEST.dump}
      require "minitest/autorun"
      require "cowtest"
      class TestGem < Minitest::Test
        def ours? = ENV["COW_KIND"] == "cow"
        #{body}
      end
    RUBY
  end

  def test_reads_the_list
    list "# comment", "", "a 1.0 source,compiled ours compiled --x --y # more",
         "b 2.0.pre source test/**/*_test.rb -"
    a, b = read_list(File.join(@gems, "list"))
    assert_equal ["a", "1.0", %w[source compiled], "ours", %w[compiled], %w[--x --y]], a.to_a
    assert_equal [[], []], [b.quick, b.arguments]
  end

  def test_our_own_list_has_tests_for_each
    entries = read_list(File.expand_path("../gems/list", __dir__))
    entries.select { |entry| entry.tests == "ours" }.each do |entry|
      assert_path_exists File.expand_path("../gems/#{entry.name}.rb", __dir__)
    end
    needed = %w[bigdecimal json nokogiri sqlite3 msgpack oj bcrypt ffi nio4r puma racc bootsnap
                google-protobuf]
    assert_empty needed - entries.map(&:name)
    compiled = entries.select { |entry| entry.forms.include?("compiled") }
    assert_equal %w[ffi google-protobuf nokogiri sqlite3], compiled.map(&:name).sort
  end

  def test_mistakes
    refuse(/the list cannot be read/)
    list "a 1.0 source"
    refuse(/list:1: not understood: a 1.0 source/)
    list "a latest source ours -"
    refuse(/list:1: not understood/)
    list "a 1.0 sauce ours -"
    refuse(/list:1: not understood/)
    list "a 1.0 source ours -"
    refuse(/no such gem in the list: b; there are a/, "--only", "b")
    refuse(/invalid option: --nonsense/, "--nonsense")
    refuse(/not understood: extra/, "extra")
    refuse(/the cow ruby is not there: .*run make rubies/, "--ruby", "cow=/nonexistent")
    refuse(/the stock ruby does not run/, "--ruby", "stock=/bin/false")
  end

  def test_lists_what_quick_takes
    list "a 1.0 source,compiled ours compiled", "b 1.0 source ours -"
    assert_equal "a 1.0 source\na 1.0 compiled\nb 1.0 source\n", check("--list").first
    assert_equal "a 1.0 compiled\n", check("--list", "--quick").first
  end

  # Tests T#a, T#b and so on, with their results.
  def tests_of(names, results) = names.chars.map { |name| "T##{name}" }.zip(results).to_h

  def test_compares_name_by_name
    stock = Result.new(tests_of("abcde", %w[passed passed failed skipped passed]), [])
    cow = Result.new(tests_of("abcdf", %w[passed failed passed failed failed]), [])
    row = Row.new("x").compare(stock, cow)
    assert_equal(tests_of("abcdef", %w[passed failed skipped skipped failed skipped]), row.outcomes)
    assert_includes row.notes, "FAILED: T#e: missing on ours, passes on pristine"
    assert_includes row.notes, "skipped: T#c: failed on pristine, passed on ours"
  end

  def test_a_run_that_dies
    crash = Result.new({}, ["[BUG] no"])
    good = Result.new({ "T#a" => "passed" }, [])
    assert_equal "failed", Row.new("x").compare(good, crash).outcomes["T#a"]
    assert_equal({ "T#a" => "skipped", "as a whole" => "skipped" },
                 Row.new("x").compare(crash, good).outcomes)
    # All its tests passed, and then it died.
    row = Row.new("x").compare(good, Result.new({ "T#a" => "passed" }, ["[BUG] late"]))
    assert_equal "failed", row.outcomes["as a whole"]
  end

  def test_a_gem_that_passes_on_both
    make_gem
    tests "def test_value = assert_equal(42, CowTest::VALUE)\n  def test_skip = skip"
    list "cowtest 1.0 source ours source"
    out, err, status = check
    assert status.success?, out + err
    assert_match(/^cowtest 1\.0 source: +2 passed, 0 failed, 1 skipped/, out)
    assert_match(/^cowtest 1\.0 built for pristine: +1 passed/, out)
    assert_match(/^cowtest 1\.0 source, poisoned: +1 passed/, out)
    assert_match(/^cowtest 1\.0 for-pristine, poisoned: +1 passed/, out)
    assert_match(/^cowtest 1\.0 built here, on pristine: +1 passed/, out)
    assert_equal "6 passed, 0 failed, 5 skipped\n", out.lines.last
    results = JSON.parse(File.read("#{@dir}/out/results.json"))
    assert_equal({ "stock" => "passed", "cow" => "passed" },
                 results["gems"]["cowtest 1.0 source"]["tests"]["TestGem#test_value"])
    assert_match(/\Atool\/check-gems --/, results["machine"]["commands"].first)
    tables = File.read("#{@dir}/out/tables.md")
    assert_includes tables, "| cowtest 1.0 | source | 2 | 0 | 1 |\n"
    assert_match(/^- cow: ruby \d/, tables)
  end

  def test_a_test_that_fails_on_ours_only
    make_gem
    tests "def test_a = refute(ours?)\n  def test_b = flunk"
    list "cowtest 1.0 source ours source"
    out, _, status = check
    assert_equal 1, status.exitstatus
    assert_match(/FAILED: TestGem#test_a: failed on ours, passes on pristine/, out)
    assert_match(/skipped: TestGem#test_b: failed on pristine, failed on ours/, out)
    # Poisoned as well, and built here it passes on pristine.
    assert_equal "2 passed, 4 failed, 5 skipped\n", out.lines.last
  end

  def test_a_gem_that_cannot_be_had_is_skipped_with_the_reason
    File.write("#{@dir}/cache/cowother-1.0.gem", "not a gem")
    make_gem
    tests "def test_value = assert_equal(42, CowTest::VALUE)"
    FileUtils.cp("#{@gems}/cowtest.rb", "#{@gems}/cowother.rb")
    list "cowtest 1.0 source ours source", "cowother 1.0 source ours source"
    out, err, status = check
    assert status.success?, out + err
    assert_match(/skipped: cannot be had on pristine: \S+/, out)
    assert_match(/\A\d+ passed, 0 failed, 1 skipped\n\z/, out.lines.last)
  end

  # As where there is no network: nothing was compared.
  def test_where_no_gem_can_be_had_nothing_has_passed
    File.write("#{@dir}/cache/cowtest-1.0.gem", "not a gem")
    tests ""
    list "cowtest 1.0 source ours source"
    out, err, status = check
    refute status.success?
    assert_match(/skipped: cannot be had on pristine: \S+/, out)
    assert_equal "0 passed, 0 failed, 1 skipped\n", out.lines.last
    assert_match(/nothing has passed on both/, err)
  end

  def test_tests_that_a_gem_ships
    make_gem(files: { "test/test_own.rb" => <<~RUBY })
      $LOAD_PATH.unshift #{MINITEST.dump}
      require "minitest/autorun"
      require "cowtest"

      class TestOwn < Minitest::Test
        def test_it = assert_equal(42, CowTest::VALUE)
      end
    RUBY
    list "cowtest 1.0 source test/test_*.rb -"
    out, err, = check
    assert_match(/^cowtest 1\.0 source: +2 passed, 0 failed/, out, err)
  end

  def test_what_is_built_is_kept_until_asked_or_the_ruby_is_another
    make_gem
    tests "def test_a = nil"
    list "cowtest 1.0 source ours -"
    check
    stamp = "#{@dir}/out/cow/cowtest-1.0-source/.built"
    before = File.stat(stamp).ino
    check
    assert_equal before, File.stat(stamp).ino
    File.write(stamp, "another ruby")
    check
    refute_equal "another ruby", File.read(stamp)
    check("--rebuild")
    assert_equal "", File.read(stamp)[/another/].to_s
  end
end

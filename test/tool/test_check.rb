# frozen_string_literal: true

require_relative "helper"
load File.expand_path("../../tool/check", __dir__)

# How results are read and compared; the suites themselves are not run.
class TestCheck < Minitest::Test
  def setup
    @dir = Dir.mktmpdir("cow-check")
    @report = File.join(@dir, "report.json")
  end

  def teardown = FileUtils.rm_rf(@dir)

  def record(path, status, more = '"stdout": null')
    %({ "testPath": "#{path}",\n "status": "TEST_#{status}",\n "stderr": null,\n #{more}\n})
  end

  def outcome(suite, *records, ok: true)
    File.write(@report, "{ \"testCases\": [\n#{records.join(",\n")}")
    report_outcome(suite, @report, "output\n", Struct.new(:success?).new(ok))
  end

  def test_reads_a_report_that_was_cut_off
    o = outcome("test-all", record("file=test/ruby/test_a.rb#class=TestA#testcase=test_x%3D1", "PASSED"),
                record("file=test/ruby/test_a.rb#class=TestA#testcase=test_y", "SKIPPED"))
    assert_equal({ "test/ruby/test_a.rb TestA test_x=1" => "passed", "test/ruby/test_a.rb TestA test_y" => "skipped" }, o.tests)
  end

  def test_the_last_result_of_a_test_counts
    path = "file=a.rb#class=A#testcase=test_x"
    assert_equal %w[passed], outcome("test-all", record(path, "FAILED"), record(path, "PASSED")).tests.values
  end

  def test_a_suite_that_died_without_a_failure_is_a_failure
    o = outcome("test-all", record("file=a.rb#class=A#testcase=test_x", "PASSED"), ok: false)
    assert_equal "failed", o.tests["test-all as a whole"]
    assert_equal ["output\n"], o.notes
  end

  def test_examples_of_one_description_are_told_apart
    path = "file=a_spec.rb#testcase=does it"
    assert_equal %w[failed passed], outcome("test-spec", record(path, "FAILED"), record(path, "PASSED")).tests.values
  end

  def test_reads_what_btest_prints
    output = "test_a.rb\n#1 test_a.rb:3 . 0.1\n#2 test_a.rb:3 warning: x\nF 0.1\n#3 test_b.rb:9 . 0.2\n\n#2 test_a.rb:3: \n no\nFAIL 1/3 tests failed\n"
    assert_equal({ "test_a.rb line 3" => "passed", "test_a.rb line 3 (2)" => "failed", "test_b.rb line 9" => "passed" },
                 btest_outcome(output, Struct.new(:success?).new(false)).tests)
  end

  def with_expected(failures, counts)
    FileUtils.mkdir_p(@dir)
    File.write(File.join(@dir, "failures"), failures)
    File.write(File.join(@dir, "counts"), counts)
    old = EXPECTED
    Object.send(:remove_const, :EXPECTED)
    Object.const_set(:EXPECTED, @dir)
    yield
  ensure
    Object.send(:remove_const, :EXPECTED)
    Object.const_set(:EXPECTED, old)
  end

  def test_compares_with_what_is_expected
    with_expected("all\ta.rb A x\troot\nall\ta.rb A y\tnetwork\nall\ta.rb A gone\troot\n", "all a.rb 3\nall b.rb 2\n") do
      o = Outcome.new({ "a.rb A x" => "failed", "a.rb A y" => "passed", "a.rb A z" => "failed" }, [])
      lines = compare("all", o, false)
      assert_equal ["expected failure: a.rb A x (root)", "newly passed: a.rb A y was expected to fail (network)", "FAILED: a.rb A z",
                    "MISSING: b.rb ran 0 tests, pristine runs 2", "MISSING: a.rb A gone, an expected failure, did not run"], lines
      assert_equal({ "a.rb A x" => "skipped", "a.rb A y" => "passed", "a.rb A z" => "failed", "b.rb missing" => "failed" }, o.tests)
    end
  end

  def test_unknown_stage_and_option
    _, err, status = Open3.capture3("ruby", File.join(ToolTest::TOP, "tool/check"), "--only", "nonsense")
    refute status.success?
    assert_match(/no such stage: nonsense; there are lint/, err)
    _, err, status = Open3.capture3("ruby", File.join(ToolTest::TOP, "tool/check"), "--nonsense")
    refute status.success?
    assert_match(/invalid option: --nonsense/, err)
  end
end

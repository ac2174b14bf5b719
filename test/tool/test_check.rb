# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

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

  # A file that has another name now would run on all builds again, and nobody would notice.
  def test_files_that_are_named_exist
    [*ANY_ASSERTIONS, *ANY_PAGES, *SLOW.map { |name| name.delete_prefix("test_") }].each do |name|
      assert_path_exists File.join(TOP, "test/ruby/test_#{name}.rb")
    end
  end

  def test_reads_a_report_that_was_cut_off
    o = outcome("test-all", record("file=test/ruby/test_a.rb#class=TestA#testcase=test_x%3D1", "PASSED"),
                record("file=test/ruby/test_a.rb#class=TestA#testcase=test_y", "SKIPPED"))
    expected = { "test_x=1" => "passed", "test_y" => "skipped" }
    assert_equal(expected.transform_keys { |test| "test/ruby/test_a.rb TestA #{test}" }, o.tests)
  end

  def test_each_place_of_undefined_behaviour_is_a_failure
    assert_equal({ "no undefined behaviour" => "passed" }, undefined_behaviour([]).tests)
    files = %w[found.1 found.2].map { |name| File.join(@dir, name) }
    report = "../src/gc.c:12:3: runtime error: left shift of 1 by 64 places\n" \
             "    #0 0x1a in cow_f ../src/gc.c:12\n"
    files.each { |file| File.write(file, report) }
    o = undefined_behaviour(files)
    assert_equal({ "undefined behaviour in cow_f, gc.c" => "failed" }, o.tests)
    assert_equal ["gc.c:12: left shift of 1 by 64 places (#{files.first})"], o.notes
  end

  def test_of_a_file_that_failed_the_notes_tell_why
    output = <<~TEXT
      A#test_x = 0.10 s = .
      A#test_y = 0.10 s = F
      A#test_z = 0.10 s = S

        1) Failure:
      A#test_y [a.rb:3]:
      Expected 1
      to be > 2.

        2) Skipped:
      A#test_z [a.rb:9]:
      not here

      3 runs, 2 assertions, 1 failures, 0 errors, 1 skips
    TEXT
    o = minitest_file_outcome("test_a", output, exit_status(false))
    assert_equal({ "A#test_x" => "passed", "A#test_y" => "failed", "A#test_z" => "skipped" }, o.tests)
    assert_equal ["skipped: A#test_z [a.rb:9]: not here", "1) Failure:", "A#test_y [a.rb:3]:", "Expected 1",
                  "to be > 2."], o.notes.map(&:strip)
    died = minitest_file_outcome("test_a", "A#test_x = 0.10 s = .\n[BUG]\n", exit_status(false))
    assert_equal "failed", died.tests["test_a as a whole"]
    assert_includes died.notes, "[BUG]\n"
  end

  # What failed once and passed when tried again is reported as failed only.
  def test_a_test_that_passes_when_tried_again_has_passed
    output = <<~TEXT
      Retrying...

        1) Error:
      A#test_y:
      Errno::ENOENT

        2) Failure:
      A::B#test_z [a.rb:3]:
      no

      Finished tests in 1.0s
    TEXT
    names = %w[A#testcase=test_x A#testcase=test_y A::B#testcase=test_z]
    File.write(@report, names.map { |name| record("file=a.rb#class=#{name}", "FAILED") }.join(",\n"))
    o = report_outcome("test-all", @report, output, exit_status(false))
    assert_equal({ "a.rb A test_x" => "passed", "a.rb A test_y" => "failed", "a.rb A::B test_z" => "failed" },
                 o.tests)
    assert_equal ["passed when tried again: a.rb A test_x"], o.notes
  end

  def test_what_a_suite_cannot_try_again_is_tried_alone
    output = "Finished tests in 1.0s\n"
    names = %w[test_x test_y test_z=]
    records = names.map { |name| record("file=test/a.rb#class=A#testcase=#{name}", "FAILED") }
    File.write(@report, records.join(",\n"))
    first = report_outcome("test-all", @report, output, Struct.new(:success?).new(false), forgives: false)
    assert_equal %w[failed], first.tests.values.uniq
    asked = []
    define_singleton_method(:cruby_suite) do |_, _, _, arguments|
      asked << arguments
      File.write(@report,
                 record("file=test/a.rb#class=A#testcase=#{arguments[/test_\w/]}",
                        arguments.include?("test_x") ? "PASSED" : "FAILED"))
      [output, Struct.new(:success?).new(true), @report]
    end
    o = try_again(nil, first)
    assert_equal names.map { |name| "test/a.rb A #{name}" }.zip(%w[passed failed failed]).to_h, o.tests
    assert_equal ["passed when tried again: test/a.rb A test_x"], o.notes
    again = asked.map { |arguments| arguments.split.values_at(-3, -1) }
    assert_equal [%w[a.rb /test_x/], %w[a.rb /test_y/]], again
  end

  def test_a_suite_that_died_without_a_failure_is_a_failure
    o = outcome("test-all", record("file=a.rb#class=A#testcase=test_x", "PASSED"), ok: false)
    assert_equal "failed", o.tests["test-all as a whole"]
    assert_equal ["output\n"], o.notes
  end

  # That one test has failed, as it may be expected to, does not say that the suite came to its end.
  def test_a_suite_that_died_after_a_failure_is_a_failure
    records = %w[PASSED FAILED].map { |result| record("file=a.rb#class=A#testcase=test_#{result}", result) }
    File.write(@report, records.join(",\n"))
    died = exit_status(false)
    sums = { "test-all" => "Finished tests in 1.0s\n\n  1) Failure:\nA#test_FAILED [a.rb:3]:\nno\n",
             "test-spec" => "1 file, 2 examples, 9 expectations, 1 failure, 0 errors, 0 tagged\n" }
    sums.each do |suite, sum|
      whole = ->(output) { report_outcome(suite, @report, output, died).tests["#{suite} as a whole"] }
      assert_equal ["failed", nil], [whole.call("1 of 2\n"), whole.call(sum)], suite
    end
    btest = "#1 test_a.rb:3 . 0.1\n#2 test_a.rb:4 F 0.1\n\n#2 test_a.rb:4: \n no\n"
    assert_equal "failed", btest_outcome(btest, died).tests["btest as a whole"]
    assert_equal({ "test_a.rb line 3" => "passed", "test_a.rb line 4" => "failed" },
                 btest_outcome("#{btest}FAIL 1/2 tests failed\n", died).tests)
    rows = { "oj 3 source" => { "outcomes" => { "T#x" => "failed" } } }
    assert_equal "failed", gems_outcome(rows, "oj 3 source:  1 passed\n", died).tests["gems as a whole"]
  end

  def test_a_file_that_died_after_a_failure_is_a_failure
    minitest = "A#test_x = 0.10 s = F\nA#test_y = 0.10 s = .\n"
    sum = "2 runs, 2 assertions, 1 failures, 0 errors, 0 skips\n"
    cmocka = "1..2\nnot ok 1 - test_x\n"
    failed = exit_status(false)
    killed = exit_status(false, signaled: true)
    readers = [[:minitest_file_outcome, minitest, sum], [:tap_outcome, cmocka, "ok 2 - test_y\n"]]
    readers.each do |read, begun, rest|
      [[begun, failed], [begun + rest, killed]].each do |output, status|
        o = send(read, "t", output, status)
        assert_equal "failed", o.tests["t as a whole"]
        refute_empty o.notes
      end
      assert_equal %w[failed passed], send(read, "t", begun + rest, failed).tests.values
    end
  end

  def test_examples_that_pass_are_counted_and_those_that_fail_named
    path = "file=a_spec.rb#testcase=does it"
    File.write(@report, [record(path, "FAILED"), record(path, "FAILED")].join(",\n"))
    output = "1 files, 4 examples, 9 expectations, 2 failures\n"
    o = report_outcome("test-spec", @report, output, exit_status(false))
    assert_equal({ "a_spec.rb does it" => "failed", "a_spec.rb does it (2)" => "failed",
                   "examples" => "passed", "examples (2)" => "passed" }, o.tests)
  end

  def test_reads_what_btest_prints
    output = "test_a.rb\n#1 test_a.rb:3 . 0.1\n#2 test_a.rb:3 warning: x\nF 0.1\n#3 test_b.rb:9 . 0.2\n\n" \
             "#2 test_a.rb:3: \n no\nFAIL 1/3 tests failed\n"
    expected = { "test_a.rb line 3" => "passed", "test_a.rb line 3 (2)" => "failed",
                 "test_b.rb line 9" => "passed" }
    assert_equal(expected, btest_outcome(output, exit_status(false)).tests)
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
    reasons = { "x" => "root", "y" => "network", "gone" => "root" }
    failures = reasons.map { |test, reason| "all\ttest/a/a.rb A #{test}\t#{reason}\n" }.join
    with_expected(failures, "all test/a 3\nall test/b 2\n") do
      tests = { "x" => "failed", "y" => "passed", "z" => "failed" }
      o = Outcome.new(tests.transform_keys { |test| "test/a/a.rb A #{test}" }, [])
      lines = compare("all", o, false)
      assert_equal ["expected failure: test/a/a.rb A x (root)",
                    "newly passed: test/a/a.rb A y was expected to fail (network)",
                    "FAILED: test/a/a.rb A z",
                    "MISSING: test/b ran 0 tests, pristine runs 2",
                    "MISSING: test/a/a.rb A gone, an expected failure, did not run"], lines
      assert_equal({ "test/a/a.rb A x" => "skipped", "test/a/a.rb A y" => "passed",
                     "test/a/a.rb A z" => "failed", "test/b missing" => "failed" }, o.tests)
    end
  end

  # A test that pristine fails in some runs is told where it fails, and not missed where it passes.
  def test_failures_that_come_and_go
    with_expected("spec\ta.rb A x\tsometimes: network\nspec\ta.rb A y\troot\n", "") do
      failed = Outcome.new({ "a.rb A x" => "failed", "a.rb A y" => "failed", "examples" => "passed" }, [])
      assert_equal ["expected failure: a.rb A x (sometimes: network)", "expected failure: a.rb A y (root)"],
                   compare("spec", failed, false)
      assert_empty compare("spec", Outcome.new({ "a.rb A x" => "passed", "a.rb A y" => "failed" }, []),
                           false).grep(/A x/)
      passed = { "a.rb A y" => "failed", "examples" => "passed" }
      assert_equal ["expected failure: a.rb A y (root)"], compare("spec", Outcome.new(passed.dup, []), false)

      write_baseline({ "spec" => Outcome.new(passed, []) })
      assert_equal({ "a.rb A x" => "sometimes: network", "a.rb A y" => "root" }, expected_failures["spec"])
    end
  end

  # What one build cannot do is expected of that build alone.
  def test_failures_of_one_build
    with_expected("all\ttest/a.rb A x\troot\n", "") do
      File.write(File.join(@dir, "failures-alignoff"), "# comment\nall\ttest/a.rb A y\tno compaction\n")
      failed = { "test/a.rb A x" => "failed", "test/a.rb A y" => "failed" }
      both = ["expected failure: test/a.rb A x (root)", "expected failure: test/a.rb A y (no compaction)"]
      assert_equal both, compare("all", Outcome.new(failed.dup, []), false, "alignoff")
      assert_equal ["expected failure: test/a.rb A x (root)", "FAILED: test/a.rb A y"],
                   compare("all", Outcome.new(failed.dup, []), false, "cow")
    end
  end

  def test_counts_leave_out_classes_that_several_files_have
    with_expected("", "all test/a 3\nall test/b 100\nall test/c 2\n") do
      File.write(File.join(@dir, "shared"), "# comment\nShared\n")
      tests = ["a/a.rb A x", "a/a.rb A y", "a/b.rb Shared z", "c/a.rb C x"]
      tests += (1..97).map { |i| "b/b.rb B t#{i}" }
      o = Outcome.new(tests.to_h { |test| ["test/#{test}", "passed"] }, [])
      # one may be missing, or 2 %
      assert_equal ["MISSING: test/b ran 97 tests, pristine runs 100"], compare("all", o, false)
    end
    assert_equal ["Shared"],
                 shared_classes({ "a Shared x" => "", "b Shared x" => "", "a A x" => "", "a A y" => "" })
  end

  def exit_status(fine, signaled: false) = Struct.new(:success?, :signaled?).new(fine, signaled)

  def test_gems_that_were_compared
    rows = { "oj 3 source" => { "outcomes" => { "installs" => "passed", "T#x" => "failed" } } }
    output = "oj 3 source:  1 passed\n    FAILED: T#x: failed on ours\n1 passed, 1 failed, 0 skipped\n"
    o = gems_outcome(rows, output, exit_status(false))
    assert_equal({ "oj 3 source installs" => "passed", "oj 3 source T#x" => "failed" }, o.tests)
    assert_equal ["FAILED: T#x: failed on ours"], o.notes
    assert_equal({ "gems as a whole" => "failed" },
                 gems_outcome({}, "check-gems: error: no list\n", exit_status(false)).tests)
  end

  def test_servers_that_were_started
    output = "skipped: rack: puma, warmup, glibc, stock: no gem: x\n[round 1]\n"
    o = servers_outcome(%w[curve-rack-puma-cow-1], output, exit_status(true))
    expected = { "curve-rack-puma-cow-1" => "passed", "rack: puma, warmup, glibc, stock" => "skipped" }
    assert_equal(expected, o.tests)
    assert_equal ["skipped: rack: puma, warmup, glibc, stock: no gem: x"], o.notes
    o = servers_outcome([], "failed: rack: puma, warmup, glibc, cow: 3 errors\n", exit_status(false))
    assert_equal({ "rack: puma, warmup, glibc, cow" => "failed" }, o.tests)
    assert_equal({ "servers as a whole" => "failed" },
                 servers_outcome([], "benchmark/run-servers: no wrk\n", exit_status(false)).tests)
  end

  def test_stages_run_beside_each_other_where_they_leave_a_processor_idle
    log = Queue.new
    together = Queue.new
    in_lanes(%w[ours btest all spec benchmark], 2) do |stage|
      log << stage
      next unless %w[benchmark spec].include?(stage)

      together << stage
      Timeout.timeout(60) { sleep 0.01 until together.size == 2 } # ends only if both are there
    end
    order = Array.new(log.size) { log.pop }
    assert_equal %w[ours all], order.first(2)
    assert_equal %w[benchmark spec], order[2, 2].sort
    assert_equal %w[btest], order.drop(4)
    assert_raises(KeyError) { in_lanes(%w[spec btest], 2) { |stage| raise KeyError if stage == "spec" } }
    done = []
    in_lanes(%w[spec all btest], 1) { |stage| done << stage }
    assert_equal %w[all spec btest], done
  end

  def test_what_ran_in_one_of_two_ways_only_has_failed
    ways = YJIT_WAYS.keys.map { |where| { "#{where}a" => "passed", "#{where}b" => "passed" } }
    outcome = ->(tests) { Outcome.new(tests, []) }
    assert_equal %w[passed] * 4, alike(ways.map(&outcome)).tests.values
    ways.last.delete("in a child: b")
    assert_equal({ "not run both ways: b" => "failed" },
                 alike(ways.map(&outcome)).tests.select { |_, result| result == "failed" })
  end

  # What is expected of test-all is expected of both of its runs with YJIT, and no more.
  def test_expected_failures_of_test_all_hold_with_yjit
    with_expected("all\ta.rb A x\troot\nyjit\tin a child: a.rb A y\tsecond run\n", "") do
      expected = ["all: a.rb A x", "all, in a child: a.rb A x", "in a child: a.rb A y"]
      failed = ["all: a.rb A y", "a.rb A x"]
      o = Outcome.new((expected + failed).to_h { |name| [name, "failed"] }, [])
      assert_equal failed.map { |name| "FAILED: #{name}" }, compare("yjit", o, false).grep(/\AFAILED/)
      assert_equal failed, o.tests.select { |_, result| result == "failed" }.keys
    end
  end

  # Each ruby of both suites runs with the option; the names say which way.
  def test_the_suites_of_yjit_run_twice
    asked = []
    define_singleton_method(:system) { |*, **| true }
    define_singleton_method(:cruby_suite) do |_, _, target, *arguments|
      asked << [target, arguments.grep(/\ARUN_OPTS/).first[/ -r.*/]]
      File.write(@report, record("file=test/a.rb#class=A#testcase=test_x", "PASSED"))
      [target == "btest" ? "#1 test_a.rb:3 . 0.1\n" : "", exit_status(true), @report]
    end
    o = stage_yjit(Struct.new(:ruby).new("ruby"), {})
    option = YJIT_WAYS.fetch("in a child: ")
    all = ALL_WAYS.fetch("all, in a child: ")
    assert_equal [["btest", nil], ["test-all", nil], ["btest", option], ["test-all", option],
                  ["test-all", nil], ["test-all", all]], asked
    names = ["test_a.rb line 3", "test/a.rb A test_x"]
    assert_equal names + [*names.map { |name| "in a child: #{name}" }, "all: #{names.last}",
                          "all, in a child: #{names.last}"], o.tests.keys
    [option, all].each { |file| assert_path_exists file.delete_prefix(" -r") }
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

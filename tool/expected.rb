# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What is expected of each suite: which tests fail on pristine CRuby as well, and how many
# there are. Loaded by tool/check.
require_relative "suites"

EXPECTED = File.join(TOP, "test/expected")

# Reads "suite<TAB>test<TAB>reason" lines: of all builds, and of one +kind+ alone.
def expected_failures(kind = nil)
  files = ["failures", *("failures-#{kind}" if kind)]
  by_suite(files.flat_map { |file| expected_lines(file).map { |line| line.split("\t", 3) } })
end

# The lines of a file there, without comments; none where it is not there.
def expected_lines(name)
  File.readlines(File.join(EXPECTED, name), chomp: true).grep_v(/\A(#|\z)/)
rescue Errno::ENOENT
  []
end

def by_suite(rows)
  rows.group_by(&:first).transform_values { |found| found.to_h { |_, key, value| [key, value] } }
end

# How many tests of a suite there are, by the place they stand in: the first word
# of a test's name is its file, of which test-all has so many that its directory
# must do. Of test-spec only the number of all is known. A worker of test-all runs
# of several classes of one name only the first, which one is chance: these are
# not counted.
def counts(stage, tests)
  return { "examples" => tests.size } if stage == "spec"
  return tests.keys.map { |name| name.split(" ", 2).first }.tally unless stage == "all"

  shared = expected_shared
  tests.keys.map { |name| name.split(" ", 3) }.reject { |_, klass| shared.include?(klass) }
       .map { |file,| file.split("/").first(2).join("/") }.tally
end

# Some tests come and go with what other files of the same worker load.
def enough?(stage, found, count) = found >= (stage == "all" ? count - [count / 50, 1].max : count)

# Classes of test-all that stand in several files.
def expected_shared = expected_lines("shared")

# Finds them; a run in which each file has a worker of its own names them all.
def shared_classes(tests)
  classes = tests.keys.map { |name| name.split(" ", 3).first(2) }.uniq.map(&:last)
  classes.tally.select { |_, files| files > 1 }.keys
end

# "suite place count" lines: how many tests the pristine build runs.
def expected_counts
  rows = expected_lines("counts").map(&:split)
  by_suite(rows.map { |suite, place, count| [suite, place, count.to_i] })
end

# Whether a test is expected to fail in some runs only: that it passes is then no news.
def sometimes?(reason) = reason.start_with?("sometimes: ")

# The tests of a stage that may fail, each with its reason. The stage yjit runs test-all as well, and what is
# expected of that is expected there.
def expected_reasons(stage, kind)
  failures = expected_failures(kind)
  stage = "all" if stage.start_with?("poison")
  reasons = failures.fetch(stage, {})
  return reasons unless stage == "yjit"

  ALL_WAYS.keys.reduce(reasons) do |found, where|
    found.merge(failures.fetch("all", {}).transform_keys { |test| where + test })
  end
end

# Compares a suite with what is expected; gives the lines to print.
def compare(stage, outcome, quick, kind = nil)
  reasons = expected_reasons(stage, kind)
  lines = []
  outcome.tests.each do |test, result|
    if reasons.key?(test)
      if result == "failed"
        outcome.tests[test] = "skipped"
        lines << "expected failure: #{test} (#{reasons[test]})"
      elsif !sometimes?(reasons[test])
        lines << "newly #{result}: #{test} was expected to fail (#{reasons[test]})"
      end
    elsif result == "failed"
      lines << "FAILED: #{test}"
    end
  end
  return lines unless SUITES.include?(stage)

  found = counts(stage, outcome.tests)
  expected_counts.fetch(stage, {}).each do |file, count|
    next if quick && stage == "all"
    next if enough?(stage, found.fetch(file, 0), count)

    outcome.tests["#{file} missing"] = "failed"
    lines << "MISSING: #{file} ran #{found.fetch(file, 0)} tests, pristine runs #{count}"
  end
  # A spec that passes is not named.
  silent = reasons.reject { |_, reason| sometimes?(reason) }.keys - outcome.tests.keys
  silent.each { |test| lines << "MISSING: #{test}, an expected failure, did not run" } unless quick
  lines
end

# Writes what the pristine build does as what is expected. Reasons that stand
# there already are kept; a new failure gets a "?" that a person must replace. The block
# runs test-all with a worker for each file.
def write_baseline(outcomes)
  FileUtils.mkdir_p(EXPECTED)
  if (all = outcomes["all"])
    separate = yield
    File.write(File.join(EXPECTED, "shared"),
               "# Classes of test-all that stand in several files. Written by make check-baseline.\n" +
               shared_classes(all.tests.merge(separate.tests)).sort.map { |name| "#{name}\n" }.join)
  end
  old = expected_failures
  found = outcomes.slice(*SUITES).to_h { |stage, o| [stage, counts(stage, o.tests)] }
  all_counts = expected_counts.merge(found)
  failures = old.merge(outcomes.to_h do |stage, o|
    now = o.tests.select { |_, r| r == "failed" }.transform_values { "?" }
    kept = old.fetch(stage, {}).select { |test, reason| now.key?(test) || sometimes?(reason) }
    [stage, now.merge(kept)]
  end)
  File.write(File.join(EXPECTED, "counts"),
             "# Tests that pristine CRuby runs: suite, place, count. Written by make check-baseline.\n" +
             all_counts.sort.flat_map { |s, files| files.sort.map { |f, n| "#{s} #{f} #{n}\n" } }.join)
  File.write(File.join(EXPECTED, "failures"),
             "# Tests that fail on pristine CRuby too: suite, test, why. Reasons are written by hand.\n" +
             failures.sort.flat_map { |s, tests| tests.sort.map { |t, why| "#{s}\t#{t}\t#{why}\n" } }.join)
end

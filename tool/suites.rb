# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# How the output of each suite is read: which tests ran, and what became of each.
# Loaded by tool/check.
require "json"
require "uri"
require_relative "lib"

# Names of tests by what became of them: name => "passed", "failed" or "skipped".
Outcome = Struct.new(:tests, :notes)

# A stage without names of single tests of its own: it passes or fails as one.
def whole(name, ok, output)
  Outcome.new({ name => ok ? "passed" : "failed" }, ok ? [] : output.lines.last(15))
end

# Gives each of several tests of one name a name of its own.
def numbered(names)
  seen = Hash.new(0)
  names.map { |name| (n = seen[name] += 1) > 1 ? "#{name} (#{n})" : name }
end

# A suite that ran nothing, died without naming a failure, or did so before the line in which it sums up
# (+ended+), has failed. That a test has failed does not say so: it may be an expected failure.
def whole_too(suite, tests, output, status, ended: true, notes: [])
  return Outcome.new(tests, notes) if tests.any? && (status.success? || (ended && tests.value?("failed")))

  Outcome.new(tests.merge("#{suite} as a whole" => "failed"), output.lines.last(25))
end

# What minitest tells of tests that failed, up to the next such text or the counts at the end.
MINITEST_FAILURE = /^ +\d+\) (?:Failure|Error):\n.*?(?=^ +\d+\) \w+:\n|^\d+ runs, |\z)/m.freeze

# The last line of a run with minitest.
MINITEST_SUM = /^\d+ runs, \d+ assertions, /.freeze

# Minitest's verbose lines: "Class#test = 0.00 s = ." Of a file that failed, the notes tell why and no more,
# as a log of CI is cut.
def minitest_file_outcome(base, output, status)
  tests = output.scan(/^(\S+#\S+) = [\d.]+ s = ([.FES])/).to_h { |test, mark| [test, minitest_result(mark)] }
  notes = output.scan(/^ +\d+\) Skipped:\n(.*\n.*)\n/).map { |skip,| "skipped: #{skip.tr("\n", " ")}" }
  return Outcome.new(tests, notes) if status.success? && tests.any?

  ended = output.match?(MINITEST_SUM) && !status.signaled?
  tests["#{base} as a whole"] = "failed" unless ended && tests.value?("failed")
  reasons = output.scan(MINITEST_FAILURE).flat_map { |text| text.rstrip.lines.first(40) }
  reasons += output.lines.last(40) if reasons.empty? || !ended || output.include?("[BUG]")
  Outcome.new(tests, notes + reasons)
end

# What cmocka prints: "1..2", the number of tests, and "ok 1 - test".
def tap_outcome(base, output, status)
  found = output.scan(/^(not ok|ok) \d+ - (\S+)( # SKIP)?/)
  tests = found.to_h do |ok, test, skip|
    ["#{base}: #{test}", skip ? "skipped" : { "ok" => "passed" }.fetch(ok, "failed")]
  end
  return Outcome.new(tests, []) if status.success? && tests.any?

  ended = found.size == output.scan(/^1\.\.(\d+)$/).sum { |count,| count.to_i } && !status.signaled?
  tests["#{base} as a whole"] = "failed" unless ended && tests.value?("failed")
  Outcome.new(tests, output.lines.last(20))
end

def gems_outcome(rows, output, status)
  tests = rows.map { |title, row| row["outcomes"].transform_keys { |test| "#{title} #{test}" } }
  tests = tests.reduce({}, :merge)
  whole_too("gems", tests, output, status, ended: output.match?(/^\d+ passed, \d+ failed, /),
                                           notes: output.scan(/^ {4}(.+)/).flatten)
end

# +finished+ names the runs that came to their end.
def servers_outcome(finished, output, status)
  omitted = output.scan(/^(skipped|failed): (\w+: [^:]+): (.+)$/)
  tests = finished.to_h { |name| [name, "passed"] }.merge(omitted.to_h { |word, what,| [what, word] })
  whole_too("servers", tests, output, status, notes: omitted.map { |parts| parts.join(": ") })
end

# How test-all and test-spec sum up.
ALL_SUM = /^Finished tests in /.freeze
SPEC_SUM = /^\d+ files?, (\d+) examples?, /.freeze

RECORD = /"testPath": "((?:[^"\\]|\\.)*)",\s*"status": "TEST_(\w+)"/.freeze

# "file=a.rb#class=A#testcase=test_x", as in a report, gives "a.rb A test_x".
def test_name(path)
  parts = JSON.parse("[\"#{path}\"]").first.tr("\n", " ").split("#")
  parts.map { |part| URI.decode_www_form_component(part[/=(.*)/m, 1].gsub("+", "%2B")) }.join(" ")
end

# The reports of test-all and test-spec are JSON, written as they go: read record
# by record, so that a run that was cut off still counts.
# +forgives+: the suite itself tries again what failed.
def report_outcome(suite, path, output, status, forgives: suite == "test-all")
  files = File.directory?(path) ? Dir[File.join(path, "*.json")] : [path].select { |file| File.exist?(file) }
  records = files.sort.flat_map do |file|
    File.read(file).scrub.scan(RECORD).map { |name, result| [test_name(name), result.downcase] }
  end
  # test-spec reports the examples that fail, some of one description, and counts all.
  if suite == "test-spec"
    passed = output[SPEC_SUM, 1].to_i - records.size
    records = numbered(records.map(&:first)).zip(records.map(&:last))
    records += numbered(["examples"] * [passed, 0].max).map { |name| [name, "passed"] }
  end
  tests = records.to_h
  notes = forgives ? forgive_retried(tests, output) : []
  ended = output.match?(suite == "test-spec" ? SPEC_SUM : ALL_SUM)
  outcome = whole_too(suite, tests, output, status, ended: ended)
  outcome.notes.concat(notes)
  outcome
end

# test-all tries tests that have failed once more, and does not report those
# that then pass; what it prints before its last line is what failed in the end.
def forgive_retried(tests, output)
  return [] unless output.match?(ALL_SUM)

  failed = output.scan(/^ +\d+\) (?:Failure|Error|Timeout):\n([^\s#]+)#([^\s\[]+?):?(?: \[|$)/)
                 .map { |parts| parts.join(" ") }
  retried = tests.keys.select { |name| tests[name] == "failed" && !failed.include?(name.split(" ", 2).last) }
  retried.each { |name| tests[name] = "passed" }
  retried.map { |name| passed_again(name) }
end

# btest's own report knows files only; what it prints names every assertion, and
# at the end those that failed.
def btest_outcome(output, status)
  failed = output.scan(/^#(\d+) \S+\.rb:\d+: /).flatten
  found = output.scan(/#(\d+) (test_\w+\.rb):(\d+) /)
  names = numbered(found.map { |_, file, line| "#{file} line #{line}" })
  results = found.map { |id,| failed.include?(id) ? "failed" : "passed" }
  ended = output.match?(/^(PASS all \d+|FAIL \d+\/\d+) tests/)
  whole_too("btest", names.zip(results).to_h, output, status, ended: ended)
end

def passed_again(name) = "passed when tried again: #{name}"

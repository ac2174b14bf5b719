# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require_relative "../faults/harness"

# Calls of the system's and of malloc's that fail, one at a time (test/faults): of each scenario a part,
# another one with another COWRUBY_FAULTS_SEED. make check-faults makes all fail.
class TestFaults < Minitest::Test
  include CowTest

  # Of the calls that are chosen every so many fails.
  STRIDES = Hash.new(40).update(fork: 24, seals: 60, boot: 400, compaction: 60, vm: 70, yjit: 90,
                                pressure: 50, reforks: 50, rehearsal: 70).freeze

  SEED = ENV.fetch("COWRUBY_FAULTS_SEED", "1").to_i

  def setup
    skip "AddressSanitizer brings its own malloc" if ASAN
    skip "with assertions CRuby ends itself where a second try gets no memory (TRY_WITH_GC)" if ASSERTIONS
    skip "only where the kernel is Linux" unless RUBY_PLATFORM.include?("linux")
  end

  def faults
    Dir.mktmpdir("faults") do |directory|
      harness = begin
        Faults::Harness.new(RUBY, directory).tap { |new| skip "this ruby is stripped" if new.symbols.none? }
      rescue Errno::ENOENT => e
        skip "no C compiler, or no nm: #{e.message}"
      end
      yield harness
    end
  end

  Faults::SCENARIOS.each_key do |scenario|
    define_method(:"test_#{scenario}") do
      needs_compaction if scenario == :compaction
      faults do |harness|
        suite = Faults::Suite.new(harness, jobs: 1, stride: STRIDES[scenario], random: 0,
                                           seed: SEED, ours: true)
        results = suite.results(scenario)
        found = StringIO.new
        suite.report(results.select(&:finding?), found)
        assert_empty found.string
        assert_operator results.count { |result| result.failed > 0 }, :>, 0 unless skipped?(results)
      end
    end
  end

  # Is it a scenario for another build, as that of YJIT?
  def skipped?(results) = results.first.output.include?("SKIP")

  # The harness itself: it counts, and it fails the call that it says.
  def test_a_call_that_fails
    faults do |harness|
      result, calls = harness.count(:fork)
      assert_equal :untouched, result.verdict, result.output
      assert_equal 1, calls.count { |call| call.kind == :fork }
      assert_includes harness.places(calls.find { |call| call.kind == :fork }), "rb_fork_ruby"

      plan = Faults::Plan.new(mode: :onwards, kinds: %i[fork], number: 1, error: :enomem)
      result = harness.run(:fork, plan)
      assert_equal :raised, result.verdict, result.output
      assert_match(/^fork right, raised Errno::ENOMEM/, result.output)
    end
  end

  # A collection that promotes the class whose flags Init_VM writes anew at the next moment.
  def test_a_collection_while_the_core_is_made
    faults do |harness|
      _, calls = harness.count(:boot, kinds: %i[malloc])
      call = calls.find { |one| (%w[rb_class_new Init_VM] - harness.places(one)).empty? }
      result = harness.run(:boot, Faults::Plan.new(mode: :once, kinds: %i[malloc], number: call.number))
      assert_equal :passed, result.verdict, result.output
    end
  end
end

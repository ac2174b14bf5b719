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

  def faults(**options)
    Dir.mktmpdir("faults") do |directory|
      harness = begin
        Faults::Harness.new(RUBY, directory, **options)
                       .tap { |new| skip "this ruby is stripped" if new.symbols.none? }
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

  # Programs that end badly by themselves, and what the harness is to call that. An exception that was raised
  # and survived, or that another process has raised, does not excuse a signal.
  BAD_ENDS = {
    segv: ["Process.kill(:SEGV, $$)", :crashed],
    segv_after: ["right('segv_after', 'raised NoMemoryError'); Process.kill(:SEGV, $$)", :crashed],
    kill: ["warn 'failed to allocate memory (NoMemoryError)'; Process.kill(:KILL, $$)", :crashed],
    child: ["wait(child('child') { Process.kill(:KILL, $$) }); right('child', 'passed')", :crashed],
    fatal: ["warn '[FATAL] failed to allocate memory'; Process.kill(:KILL, $$)", :refused],
    status: ["exit!(3)", :silent],
    nothing: ["exit!(0)", :silent],
    refusal: ["warn 'failed to allocate memory (NoMemoryError)'; exit!(1)", :refused],
    changed: ["TEXTS[0] << 'more'; right('changed', 'passed')", :wrong],
    endless: ["sleep", :hung]
  }.freeze

  def test_ends_that_are_bad
    programs = BAD_ENDS.transform_values(&:first)
    none = Faults::Plan.new(mode: :count, kinds: %i[fork])
    ends = {}
    faults(scenarios: programs.except(:endless), objects: 100) do |harness|
      ends = programs.except(:endless).to_h { |name, _| [name, harness.run(name, none).verdict] }
    end
    faults(scenarios: programs.slice(:endless), objects: 100, seconds: 1) do |harness|
      ends[:endless] = harness.run(:endless, none).verdict
    end
    assert_equal BAD_ENDS.transform_values(&:last), ends
  end

  # In place of a Harness: one call is made, and the runs end as they are told, one after the other.
  class Told
    attr_reader :asked

    def initialize(*verdicts)
      @verdicts = verdicts
      @asked = []
    end

    def count(*, **) = [result(:untouched), [Faults::Call.new(1, :fork, [])]]
    def run(_, plan) = @asked.push(plan) && result(@verdicts.shift, plan)
    def result(verdict, plan = nil) = Faults::Result.new(verdict: verdict, plan: plan, output: "")
  end

  def test_a_run_that_hangs_is_made_once_more
    told = { %i[hung passed] => :passed, %i[hung hung] => :hung, %i[crashed passed] => :crashed }
    told.each do |verdicts, last|
      harness = Told.new(*verdicts)
      suite = Faults::Suite.new(harness, kinds: %i[fork], modes: %i[onwards], random: 0)
      seen = []
      results = suite.results(:any) { |result| seen << result.verdict }
      assert_equal [[last], [last]], [results.map(&:verdict), seen]
      assert_equal [harness.asked.first] * (verdicts.first == :hung ? 2 : 1), harness.asked
    end
  end

  def test_all_that_is_known_says_what_is_printed
    assert_empty Faults::KNOWN.select { |known| known.output.nil? }.map(&:reason)
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

  # They raise NoMemoryError, also beside Ractors, where some of them hold the VM's lock.
  def test_no_memory_for_a_walk
    faults do |harness|
      _, calls = harness.count(:walks, kinds: %i[malloc])
      calls = calls.select { |one| harness.places(one).include?("cow_walk_heap") }
      assert_operator calls.size, :>=, 4
      verdicts = calls.map do |call|
        result = harness.run(:walks, Faults::Plan.new(mode: :once, kinds: %i[malloc], number: call.number))
        assert_includes %i[raised passed], result.verdict, result.output
        result.verdict
      end
      assert_includes verdicts, :raised # the number of a call may be another one's in another run
    end
  end

  # The array of all heap pages grows while a page is added to it, and collects for that: pages that are freed
  # go out of the array.
  def test_a_collection_while_a_page_is_added
    needs_compaction
    faults do |harness|
      _, calls = harness.count(:compaction, kinds: %i[realloc])
      adding = %w[heap_page_allocate_and_initialize gc_verify_compaction_references]
      calls = calls.select { |one| (adding - harness.places(one)).empty? }
      refute_empty calls
      calls.each do |call|
        plan = Faults::Plan.new(mode: :once, kinds: %i[realloc], number: call.number)
        result = harness.run(:compaction, plan)
        assert_equal :passed, result.verdict, result.output
      end
    end
  end
end

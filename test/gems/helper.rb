# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Shared by the tests of the gems. tool/check-gems runs each file twice, on pristine CRuby and on ours, with
# the gem in a directory of its own.
#
# COW_GEM and COW_GEM_VERSION name the gem. It is activated before it is required, because CRuby comes with
# older versions of some gems.
gem ENV.fetch("COW_GEM"), ENV.fetch("COW_GEM_VERSION")
require "minitest/autorun"
require "timeout"

class GemTest < Minitest::Test
  # Defines tests of a piece of work that gives the same value each time: one that runs it once, and others
  # under conditions in which mistakes of an extension, and ours, are noticed.
  def self.work(name, &block)
    define_method(:"test_#{name}") { refute_nil instance_exec(&block) }
    define_method(:"test_#{name}_under_stress") { compare_in_child(block) { |work| stressed(&work) } }
    define_method(:"test_#{name}_while_objects_move") { compare_in_child(block) { |work| moving(&work) } }
    define_method(:"test_#{name}_in_forked_workers") { in_workers(block) }
    define_method(:"test_#{name}_in_threads") { in_threads(block) }
  end

  # Defines a test that the extension was loaded from the gem and not from CRuby's own copy. +pattern+ matches
  # the extension's file.
  def self.extension(pattern)
    define_method(:test_the_extension_is_the_gems) do
      found = $LOADED_FEATURES.grep(pattern)
      refute_empty found, "no extension is loaded that matches #{pattern}"
      foreign = found.reject { |file| file.start_with?("#{ENV.fetch("GEM_HOME")}/") }
      assert_empty foreign, "extensions that are not from the gem"
    end
  end

  # A collection at each allocation; in a quick run only minor ones.
  STRESS = ENV["COW_GEM_QUICK"] ? 1 : true

  def stressed
    GC.stress = STRESS
    yield
  ensure
    GC.stress = false
  end

  # Moves every object that can move, before the work and after it; compaction is automatic in between. Does
  # the work again after that: both values must be the same.
  def moving
    move
    GC.auto_compact = true
    value = yield
    GC.start
    GC.auto_compact = false
    move
    again = yield
    value == again ? value : { before: value, after: again }
  end

  def move = GC.verify_compaction_references(expand_heap: true, toward: :empty)

  # Runs the block in a child, so that only one test fails if it crashes.
  def in_child(limit: 120, &block)
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      report(writer, &block)
    end
    writer.close
    message = Timeout.timeout(limit) { reader.read }
    Process.wait(pid)
    assert $?.success?, "the child failed: #{$?}: #{message}"
  rescue Timeout::Error
    Process.kill(:KILL, pid)
    Process.wait(pid)
    flunk "the child did not end within #{limit} s"
  ensure
    reader.close
  end

  private

  def report(writer)
    yield
    exit!(0)
  rescue Exception => e # rubocop:disable Lint/RescueException
    writer.write(e.full_message(highlight: false))
    exit!(1)
  end

  def compare_in_child(block)
    work = -> { instance_exec(&block) }
    expected = work.call
    in_child { assert_equal expected, yield(work) }
  end

  # As with a server that loads the application before it forks: Process.warmup, children, a child of a child.
  def in_workers(block)
    expected = instance_exec(&block)
    Process.warmup
    2.times { in_child { work_as_child(expected, block) } }
    in_child do
      in_child { work_as_child(expected, block) }
      work_as_child(expected, block)
    end
    assert_equal expected, instance_exec(&block)
  end

  def work_as_child(expected, block)
    assert_equal expected, instance_exec(&block)
    GC.start
    assert_equal expected, instance_exec(&block)
  end

  def in_threads(block)
    expected = instance_exec(&block)
    values = Array.new(4) { Thread.new { Array.new(5) { instance_exec(&block) } } }.flat_map(&:value)
    wrong = values.reject { |value| value == expected }
    assert_empty wrong, "values that threads have found in place of #{expected.inspect}"
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/processes/supervised")

class TestProcessTable < Minitest::Test
  include BenchmarkTest

  def test_own_fields
    stat = ProcessTable.stat(Process.pid)
    assert_equal [Process.ppid, Process.getpgrp, false], [stat.parent, stat.group, stat.ended?]
    assert_operator stat.started, :>, 0
    assert_includes ProcessTable.title(Process.pid), "ruby"
  end

  def test_what_has_ended_and_what_never_was
    child = fork { exit!(0) }
    Clock.wait_until(10) { ProcessTable.stat(child).ended? } || flunk("it does not end")
    refute ProcessTable.alive?(child)
    assert_includes ProcessTable.ended(Process.getpgrp), child
    refute_includes ProcessTable.running, child
    assert_includes ProcessTable.all, child
    Process.wait(child)
    assert_nil ProcessTable.stat(child)
    refute ProcessTable.alive?(child)
    assert_equal "", ProcessTable.title(child)
  end
end

class TestSupervised < Minitest::Test
  include BenchmarkTest

  # A parent that forks a child, says both numbers, and does +in_both+; gives what supervises it.
  def with_two(in_both)
    out, inn = IO.pipe
    supervised = Supervised.new(RbConfig.ruby, "-e", <<~RUBY, out: inn)
      child = fork do
        #{in_both}
        sleep
      end
      #{in_both}
      puts [$$, child].join(" ")
      $stdout.flush
      sleep
    RUBY
    inn.close
    yield supervised, out.gets.split.map(&:to_i)
  ensure
    supervised&.kill
    out.close
  end

  def assert_gone(pids)
    assert_empty(pids.select { |pid| ProcessTable.alive?(pid) })
  end

  def test_all_are_known_and_stopped_politely
    with_two("") do |supervised, pids|
      assert_equal pids, supervised.processes
      refute_predicate supervised, :ended?
      supervised.signal(:TERM, pids.last)
      supervised.stop(:TERM, 30)
      assert_gone pids
      assert_equal 15, supervised.status.termsig
    end
  end

  def test_what_does_not_listen_is_killed
    with_two("trap(:TERM, 'IGNORE')") do |supervised, pids|
      supervised.stop(:TERM, 0.3)
      assert_gone pids
      assert_equal 9, supervised.status.termsig
    end
  end

  # The child stays in the group.
  def test_a_child_that_outlives_its_parent_is_killed
    with_two("") do |supervised, pids|
      supervised.signal(:KILL)
      supervised.wait(10)
      assert_equal [pids.last], supervised.processes - [pids.first]
      supervised.kill
      assert_gone pids
    end
  end

  def test_wait_has_a_bound
    with_two("") do |supervised, _|
      assert_nil supervised.wait(0.05)
      supervised.kill
      refute_predicate supervised.wait(1), :success?
    end
  end

  def test_output_is_captured_and_the_time_is_bounded
    output, status = Supervised.capture("sh", "-c", "echo $WORD; echo err >&2; exit 3",
                                        seconds: 30, environment: { "WORD" => "out" })
    assert_equal ["out\nerr\n", 3], [output, status.exitstatus]
    started = Clock.now
    output, status = Supervised.capture("sh", "-c", "echo $$; sleep 60 & sleep 60", seconds: 0.3)
    assert_nil status
    assert_operator Clock.now - started, :<, 30
    assert_empty ProcessTable.group(output.to_i)
  end
end

class TestClock < Minitest::Test
  include BenchmarkTest

  def test_wait_until
    times = 0
    assert_equal 3, Clock.wait_until(10, pause: 0) { (times += 1) == 3 && times }
    assert_nil Clock.wait_until(0.02, pause: 0.01) { false }
  end

  def test_minutes
    assert_equal %w[0:00 1:15 61:01], [0.4, 75.3, 3661].map { |seconds| Clock.minutes(seconds) }
  end
end

# A library for users is to be made of it.
class TestMemoryFolder < Minitest::Test
  include BenchmarkTest

  def test_it_needs_nothing_of_the_other_folders
    script = <<~RUBY
      Dir[#{File.join(BENCHMARK, "lib/memory/*.rb").dump}].each { |file| require file }
      puts $LOADED_FEATURES.grep(%r{benchmark/lib/}).map { |file| file[%r{lib/(\\w+)/}, 1] }.uniq.sort
    RUBY
    output, status = Open3.capture2e(RbConfig.ruby, "-w", "-e", script)
    assert_predicate status, :success?, output
    assert_equal %w[memory processes], output.split
  end
end

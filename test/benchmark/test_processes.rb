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

  def test_a_child_that_has_ended_before_and_after_it_is_waited_for
    child = fork { exit!(0) }
    Clock.wait_until(10) { ProcessTable.stat(child).ended? } || flunk("the child did not end within 10 s")
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

  # Starts a process that forks a child and prints both process numbers; both run +in_both+. Gives the block
  # the Supervised and the two numbers.
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
    assert_empty pids.select { |pid| ProcessTable.alive?(pid) }, "processes that are still alive"
  end

  def test_parent_and_child_are_known_and_end_at_sigterm
    with_two("") do |supervised, pids|
      assert_equal pids, supervised.processes
      refute_predicate supervised, :ended?
      supervised.signal(:TERM, pids.last)
      supervised.stop(:TERM, 30)
      assert_gone pids
      assert_equal 15, supervised.status.termsig
    end
  end

  def test_processes_that_ignore_the_signal_are_killed
    with_two("trap(:TERM, 'IGNORE')") do |supervised, pids|
      supervised.stop(:TERM, 0.3)
      assert_gone pids
      assert_equal 9, supervised.status.termsig
    end
  end

  # The child is still in the process group.
  def test_a_child_that_outlives_its_parent_is_killed
    with_two("") do |supervised, pids|
      supervised.signal(:KILL)
      supervised.wait(10)
      assert_equal [pids.last], supervised.processes - [pids.first]
      supervised.kill
      assert_gone pids
    end
  end

  def test_wait_ends_after_the_given_time
    with_two("") do |supervised, _|
      assert_nil supervised.wait(0.05)
      supervised.kill
      refute_predicate supervised.wait(1), :success?
    end
  end

  def test_capture_gives_the_output_and_ends_after_the_given_time
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

# benchmark/lib/memory is to become a library for users.
class TestMemoryFolder < Minitest::Test
  include BenchmarkTest

  def test_it_needs_only_the_folder_processes
    script = <<~RUBY
      Dir[#{File.join(BENCHMARK, "lib/memory/*.rb").dump}].each { |file| require file }
      puts $LOADED_FEATURES.grep(%r{benchmark/lib/}).map { |file| file[%r{lib/(\\w+)/}, 1] }.uniq.sort
    RUBY
    output, status = Open3.capture2e(RbConfig.ruby, "-w", "-e", script)
    assert_predicate status, :success?, output
    assert_equal %w[memory processes], output.split
  end
end

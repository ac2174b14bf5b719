# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/servers/soak")
BenchmarkTest.load("lib/servers/soak_command")
require "minitest/mock"
require "open3"
require "tmpdir"

class TestSoak < Minitest::Test
  include BenchmarkTest

  def soak(sizes, quiet: sizes.size, **other)
    Soak.new(nil, nil, 0).tap do |soak|
      sizes.each_with_index do |size, i|
        soak.rounds << Soak::Round.new(seconds: i, event: i < quiet ? nil : "kill a worker", requests: 10,
                                       errors: 0, excused: 0, private: size, **other)
      end
    end
  end

  def test_memory_that_levels_off
    assert_in_delta 0.0, soak([10.0, 20, 25, *[30.0] * 40]).growth, 0.05
    assert_predicate soak([10.0, 20, 25, *[30.0] * 40]), :level?
  end

  def test_memory_that_grows
    grows = soak((1..40).map { |i| 10.0 * i })
    refute_predicate grows, :level?
    assert_operator grows.growth, :>, 0.3
  end

  def test_rounds_from_the_first_event_on_do_not_count
    assert_in_delta 0.0, soak([*[30.0] * 30, *[90.0] * 30], quiet: 30).growth
  end

  def test_too_short_to_judge
    assert_nil soak([10.0] * 5).growth
    assert_predicate soak([10.0] * 5), :level?
  end

  def test_errors_of_a_killed_worker_are_excused_and_no_others
    assert_equal 0, soak([1.0] * 3, errors: 4, excused: 4).errors
    assert_equal 6, soak([1.0] * 3, errors: 6, excused: 4).errors
  end

  KILL = ["kill a worker", %i[KILL worker]].freeze

  # Runs one round with an event; +play+ is called in place of wrk.
  def load(play, workers)
    server = Struct.new(:port, :workers).new(0, workers)
    Timeout.timeout(60) { Wrk.stub(:play, play) { Soak.new(server, "", 0).send(:load, KILL) } }
  end

  def test_an_event_waits_for_the_first_answer
    worker = Supervised.new("sleep", "60")
    killed_before = nil
    play = lambda do |*_, &answered|
      killed_before = worker.ended?
      answered.call
      worker.wait(30)
    end
    assert_equal 9, load(play, [worker.pid]).termsig
    refute killed_before
  ensure
    worker&.kill
  end

  def test_without_an_answer_there_is_no_event
    error = assert_raises(Wrk::Failed) { load(->(*_) { raise Wrk::Failed, "none" }, []) }
    assert_equal "none", error.message
  end

  # The script runs in a process of its own, because that process adopts orphans from then on.
  def test_reap_waits_for_orphans_that_have_ended_but_not_for_the_master
    script = <<~'RUBY'
      include CowBench
      abort "skipped" unless Supervised.adopt_orphans
      out, inn = IO.pipe
      master = Supervised.new(RbConfig.ruby, "-e", <<~'MASTER', out: inn)
        Process.wait(fork { puts Process.spawn("true") })
        $stdout.flush
      MASTER
      orphan = out.gets.to_i
      sleep 0.01 until ([master.pid, orphan] - ProcessTable.ended(master.pid)).empty?
      master.reap
      puts File.exist?("/proc/#{orphan}"), master.wait(0).success?
    RUBY
    library = File.join(BENCHMARK, "lib/processes/supervised")
    out, status = Open3.capture2e(RbConfig.ruby, "-r#{library}", "-rrbconfig", "-e", script)
    skip "this system does not let a process adopt orphans" if out == "skipped\n"
    assert status.success?, out
    assert_equal "false\ntrue\n", out
  end

  # The summary is made from the files of earlier soaks.
  def test_summary
    Dir.mktmpdir("soak") do |place|
      FileUtils.mkdir_p(File.join(place, "soak/puma-rails-cow"))
      rounds = [[60, nil, 0, 0, 90.0], [90, nil, 0, 0, 100.25],
                [130, "kill a worker", 6, 4, 50.0]].map do |seconds, event, errors, excused, size|
        { seconds: seconds, event: event, requests: 500, errors: errors, excused: excused, private: size }
      end
      File.write(File.join(place, "soak/puma-rails-cow/results.json"),
                 JSON.generate(rounds: rounds, growth: 0.0125))
      out, = capture_io { assert_equal 0, SoakCommand.run(["--summary", "--place", place]) }
      assert_match(/^\| puma rails cow \| 2 \| 1500 \| 1 \| 2 \| 4 \| 100\.2 \| \+1\.2 % \|$/, out)
      capture_io { assert_equal 2, SoakCommand.run(["--summary", "--place", File.join(place, "none")]) }
    end
  end
end

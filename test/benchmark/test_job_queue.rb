# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/measure/job_queue")

class TestJobQueue < Minitest::Test
  include BenchmarkTest

  def with_queue(jobs)
    queue = JobQueue.new(jobs)
    client = TCPSocket.new("127.0.0.1", queue.port)
    Timeout.timeout(30) { yield queue, ->(words) { client.write("#{words}\n") && client.gets.chomp } }
  ensure
    client&.close
    queue.close
  end

  def test_gives_each_job_once_and_checks_the_answers
    with_queue(3) do |queue, ask|
      3.times do
        job = JSON.parse(ask.call("next"))
        assert_includes JobQueue::KINDS, job["kind"]
        assert_includes 1..JobQueue::MOST_ROWS, job["rows"].size
        assert_equal "ok", ask.call("done #{job["id"]} #{job["rows"].sum { |row| row["amount"] }}")
      end
      assert_equal %w[none none], [ask.call("next"), ask.call("next")]
      assert_equal 3, queue.done
      assert_nil queue.wrong
    end
  end

  def test_wrong_answers_are_kept
    ["done 0 -1", "done 100000 5", "done", "hello"].each do |words|
      with_queue(1) do |queue, ask|
        ask.call(words)
        assert_equal words, queue.wrong
      end
    end
  end

  def test_a_worker_that_disconnects
    with_queue(2) do |queue, ask|
      other = TCPSocket.new("127.0.0.1", queue.port)
      other.write("ne")
      other.close
      refute_equal "none", ask.call("next"), "the queue gives the other worker no job"
    end
  end

  def test_the_same_jobs_in_each_run
    jobs = Array.new(2) { with_queue(5) { |_, ask| Array.new(5) { ask.call("next") } } }
    assert_equal(*jobs)
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# What the other tests rely on: a run ends, and what goes wrong in it is seen.
class TestHelper < Minitest::Test
  include CowTest

  def failure_of(...)
    assert_raises(Minitest::Assertion) { run_ruby(...) }.message
  end

  # Whoever holds the output: the process, a child that it leaves behind, a daemon in a session of its own.
  def test_a_run_that_does_not_end
    held, hold = IO.pipe
    end_of_daemon = "IO.for_fd(ARGV[0].to_i).read"
    { "sleep" => /no end after/, "fork { sleep }" => /no end of the output/,
      "Process.daemon(true, true); #{end_of_daemon}" => /no end of the output/ }.each do |rest, message|
      script = "$stdout.sync = true; puts :begun; #{rest}"
      told = assert_raises(Minitest::Assertion) do
        run_command(RUBY, "--disable-gems", "-e", script, held.fileno.to_s, timeout: 3, held => held)
      end.message
      assert_match message, told
      assert_match(/^begun$/, told)
    end
  ensure
    [held, hold].each(&:close)
  end

  # Although the status is 0, because nobody looked at what the child ended with.
  def test_what_goes_wrong_in_a_child
    crash = "Process.wait(fork { Process.kill(:SEGV, $$); sleep })"
    assert_match(/\[BUG\] Segmentation fault|ERROR: AddressSanitizer/, failure_of(crash))
    finalizer = "ObjectSpace.define_finalizer(Object.new, proc { raise 'no' }); exit"
    assert_match(/Exception in finalizer/, failure_of("Process.wait(fork { #{finalizer} })"))
    assert_match(/no \(RuntimeError\)/, failure_of("raise 'no'"))
  end

  def test_a_warning_that_is_expected
    script = "ObjectSpace.define_finalizer(Object.new, proc { raise 'no' })"
    run_ruby(script, warning: /Exception in finalizer/)
    assert_match(/Exception in finalizer/, failure_of("", warning: /Exception in finalizer/))
  end

  # The block finds an end of file where the process waited.
  def test_a_conversation_that_does_not_end
    Open3.popen2(RUBY, "--disable-gems", "-e", "fork { sleep }; sleep", pgroup: true) do |_, output, thread|
      assert_nil with_limit(thread.pid, 1) { output.gets }
      assert_equal Signal.list.fetch("KILL"), thread.value.termsig
    end
  end

  def test_input_and_output
    out, status = run_command(RUBY, "-e", "warn $stdin.read.size; print 1; exit 3", input: "x" * 200_000)
    assert_equal [["1", "200000\n"], 3], [out.scan(/200000\n|1/).sort, status.exitstatus]
    out, err, = run_command(RUBY, "-e", "warn ENV['A']; print 1", env: { "A" => "b" }, apart: true)
    assert_equal ["1", "b\n"], [out, err]
    run_command(RUBY, "-e", "exit", input: "x" * 200_000) # which nobody reads
    sealed = run_ruby(BALLAST + "Process.wait(fork { print sealed! }); print BALLAST.size")
    assert_equal "true100000", sealed
  end
end

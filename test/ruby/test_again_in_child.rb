# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# again_in_child.rb runs a program as if it were not there.
class TestAgainInChild < Minitest::Test
  include CowTest
  OPTIONS = ["--disable-gems", "-W0", "-r", File.expand_path("again_in_child.rb", __dir__)].freeze

  # Runs the program as a file; gives its output and status.
  def run_again(program, *arguments, input: "", options: OPTIONS, env: {})
    Dir.mktmpdir do |directory|
      File.write(File.join(directory, "a.rb"), program)
      run_command(RUBY, *options, "a.rb", *arguments, env: env, input: input, chdir: directory)
    end
  end

  def test_a_program_sees_nothing_of_it
    program = <<~'RUBY'
      def twice(text) = text * 2
      class Point < Struct.new(:x); end
      p $0, __FILE__, __dir__ == Dir.pwd, ARGV, $stdin.read, twice(Point.new(2).x), $$ == Process.pid
      p self, self.class, ENV["RUBYOPT"], Thread.list.size, Object.constants.size, $VERBOSE
    RUBY
    plain, = run_again(program, "one", "two", input: "text", options: OPTIONS - OPTIONS.last(2))
    again, = run_again(program, "one", "two", input: "text")
    assert_equal plain, again
    assert_equal 13, plain.lines.size
  end

  # The parent's run counts the process that it is in; what it prints is not seen.
  def test_a_file_has_run_in_the_parent
    program = "$runs = [*$runs, $$]\np $runs.uniq.size\n$stderr.puts 'once'\n"
    assert_equal "2\nonce\n".lines.sort, run_again(program).first.lines.sort
    assert_equal "1\nonce\n".lines.sort, run_again("#{program}at_exit { }\n").first.lines.sort
  end

  # Each of the methods is compiled by the parent's run only.
  def test_a_child_inherits_machine_code
    skip "no YJIT in this build" unless defined?(RubyVM::YJIT)
    program = "before = RubyVM::YJIT.runtime_stats(:compiled_iseq_count)\n" +
              Array.new(50) { |i| "def m#{i} = #{i}\nm#{i}\n" }.join +
              "p RubyVM::YJIT.runtime_stats(:compiled_iseq_count) - before\n"
    compiled = lambda do |options|
      Integer(run_again(program, options: [*options, "--yjit-call-threshold=1"]).first)
    end
    assert_operator compiled.call(OPTIONS - OPTIONS.last(2)), :>=, 50
    assert_operator compiled.call(OPTIONS), :<, 10
  end

  def test_what_is_not_a_file_runs_once
    assert_equal "\"-e\"\ntrue\n", run_ruby("p $0; p $runs.nil?; $runs = 1", options: OPTIONS)
    out, = run_command(RUBY, *OPTIONS, "-", input: "p $0; p ARGF.class\n")
    assert_equal "\"-\"\nARGF.class\n", out
  end

  def test_it_ends_as_the_program_does
    found = ["", "exit 3", "raise 'no'", "abort"].map { |text| run_again(text).last.exitstatus }
    assert_equal [0, 3, 1, 1], found
    assert_match(/a\.rb:1:in .*: no \(RuntimeError\)/, run_again("raise 'no'").first)
    %w[KILL TERM SEGV ABRT].each do |signal|
      _, status = run_again("Signal.trap(:#{signal}, 'SYSTEM_DEFAULT') rescue nil\n" \
                            "exec('/bin/sh', '-c', 'kill -#{signal} $$')")
      assert_equal Signal.list.fetch(signal), status.termsig
    end
  end

  def test_it_passes_on_signals
    program = "trap(:TERM) { exit!(7) }\nputs $$\n$stdout.flush\nsleep\n"
    Open3.popen2(RUBY, *OPTIONS, "-e", program, pgroup: true) do |_, output, thread|
      with_limit(thread.pid) do
        refute_equal thread.pid, Integer(output.gets)
        Process.kill(:TERM, thread.pid)
        assert_equal 7, thread.value.exitstatus
      end
    end
  end

  # The rubies that a test starts run in a child; what these start does not.
  def test_the_runner_of_test_all
    runner = "puts ENV['RUBYOPT']\nsystem(#{RUBY.dump}, '--disable-gems', '-e', " \
             "'p Process.ppid == ARGV[0].to_i, ENV[\"RUBYOPT\"]', $$.to_s)\n"
    Dir.mktmpdir do |directory|
      File.write(File.join(directory, "runner.rb"), runner)
      out, = run_command(RUBY, *OPTIONS, "runner.rb", env: { "RUBYOPT" => nil }, chdir: directory)
      assert_equal "-r#{OPTIONS.last}\nfalse\nnil\n", out
    end
  end
end

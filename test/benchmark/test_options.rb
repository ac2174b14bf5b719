# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestOptions < Minitest::Test
  include BenchmarkTest

  def test_every_mistake_is_one_line
    ruby = "a=#{RUBY}"
    Dir.mktmpdir do |directory|
      plain = File.join(directory, "plain")
      File.write(plain, "")
      broken = File.join(directory, "broken")
      File.write(broken, "#!/bin/sh\necho no, >&2; exit 3\n")
      File.chmod(0o755, broken)
      other = File.join(directory, "other")
      File.write(other, "#!/bin/sh\necho something else 1\n")
      File.chmod(0o755, other)
      {
        [] => /no ruby to measure: give --ruby NAME=PATH/,
        ["--ruby", "a"] => /--ruby wants NAME=PATH, not a/,
        ["--ruby", "a b=/x"] => /--ruby wants NAME=PATH/,
        ["--ruby", "a="] => /--ruby wants NAME=PATH/,
        ["--ruby", "a=/nowhere/ruby"] => %r{a: no such file: /nowhere/ruby},
        ["--ruby", "a=#{directory}"] => /a: not an executable file/,
        ["--ruby", "a=#{plain}"] => /a: not an executable file/,
        ["--ruby", "a=#{broken}"] => /a: .*broken -v failed: no,/,
        ["--ruby", "a=#{other}"] => /a: not a ruby/,
        ["--ruby", ruby, "--ruby", ruby] => /two builds are named a/,
        ["--ruby", ruby, "--env", "a:X"] => /--env wants NAME:KEY=VALUE, not a:X/,
        ["--ruby", ruby, "--env", "a"] => /--env wants NAME:KEY=VALUE/,
        ["--ruby", ruby, "--env", "b:X=1"] => /--env names no build: b \(there are a\)/,
        ["--ruby", ruby, "--only", "nothing"] => /--only: no such: nothing \(there are fork_gc, /,
        ["--ruby", ruby, "--runs", "0"] => /--runs wants a number above 0/,
        ["--ruby", ruby, "--runs", "x"] => /invalid argument: --runs x/,
        ["--ruby", ruby, "--source", "/nowhere"] => %r{--source: no such directory: /nowhere},
        ["--ruby", ruby, "--output", "/proc/x"] => /--output: /,
        ["--ruby", ruby, "--output", plain] => /--output: /,
        ["--ruby", ruby, "--files", "("] => /--files: end pattern with unmatched parenthesis/,
        ["--ruby", ruby, "--cases", "["] => /--cases: premature end of char-class/,
        ["--ruby", ruby, "--nonsense"] => /invalid option: --nonsense/,
        ["--ruby", ruby, "extra"] => /not understood: extra/
      }.each do |arguments, message|
        # If the program overlooks a mistake it then starts nothing long and writes nothing here.
        safe = arguments.include?("--output") ? [] : ["--output", File.join(directory, "out")]
        safe += ["--only", "call_caches"] unless arguments.include?("--only")
        assert_refused message, "run", *safe, *arguments
      end
    end
  end

  def test_a_mistake_is_told_where_warnings_are_off
    _, errors, status = Open3.capture3(RbConfig.ruby, "-W0", File.join(BENCHMARK, "run"), "--nonsense")
    assert_equal 2, status.exitstatus
    assert_match(/invalid option: --nonsense/, errors)
  end

  def test_long_benchmarks_are_chosen_by_name_alone
    BenchmarkTest.load("lib/measure/run_command")
    options = Options.new
    long = %w[sweep programs programs_yjit programs_instructions growth]
    assert_empty options.chosen(Benchmark.all).map(&:title) & long
    options.only = %w[sweep gc]
    assert_equal %w[gc sweep], options.chosen(Benchmark.all).map(&:title)
  end

  # Results hold the command as one would type it in a shell, without the path of this repository.
  def test_the_command_as_it_was_called
    BenchmarkTest.load("lib/measure/run_command")
    arguments = ["--ruby", "a=#{CommandLine::ROOT}/build/a", "--files", "it's|a b", "--only", "gc,skk"]
    assert_equal %q(benchmark/run --ruby a=build/a --files 'it'\''s|a b' --only gc,skk),
                 RunCommand.new(arguments).to_s
  end

  def test_list_and_help
    out, _, status = command("run", "--list")
    assert_predicate status, :success?
    titles = %w[fork_gc fork_requests fork_exit call_caches parent_slots skk job_threads job_forks gc sweep
                instructions marking programs programs_yjit programs_instructions address_space
                fork_malloc fork_malloc_c malloc_threads growth lifetimes solid_queue sidekiq
                large_master substrings heap_growth]
    assert_equal titles, out.lines.map { |line| line.split.first }
    out, _, status = command("run", "--help")
    assert_predicate status, :success?
    assert_includes out, "--ruby NAME=PATH"
  end

  def test_pages_mistakes_are_one_line
    assert_refused(/not understood: see --help/, "pages")
    assert_refused(/not a process number: x/, "pages", "compare", "x", "1")
    assert_refused(/no process 999999999/, "pages", "compare", "999999999", Process.pid)
    assert_refused(%r{no such file: /nowhere}, "pages", "compare", Process.pid, Process.pid, "--faults",
                   "/nowhere")
    assert_refused(%r{no such file: /nowhere/ruby}, "pages", "try", "/nowhere/ruby")
    assert_refused(/no process 999999999/, "pages", "record", "999999999", "/dev/null")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "tempfile"

# RUBY_GC_FORK_REPORT=1: one line on standard error before the first fork of a process.
class TestForkReport < Minitest::Test
  include CowTest

  ON = { "RUBY_GC_FORK_REPORT" => "1" }.freeze
  LINE = Regexp.new('^cowruby: process (?<pid>\d+) forks with (?<all>\d+\.\d) MB of memory that its ' \
                    'children can share: (?<heap>\d+\.\d) MB in (?<pages>\d+) heap pages ' \
                    '\((?<sealed>\d+) sealed\)(?<kinds>(?:, \d+\.\d MB of [\w ]+)*); to see what they do ' \
                    'share: cowruby-memory (?<again>\d+)\n')

  # Standard output, standard error, status.
  def run_apart(script, env: ON)
    run_command(RUBY, "-e", script, env: env, apart: true)
  end

  # The only line on standard error.
  def line_of(script, env: ON)
    out, err, status = run_apart(script, env: env)
    assert status.success?, err
    assert_equal 1, err.lines.size, err
    [LINE.match(err) || flunk(err), out]
  end

  def test_nothing_is_said_unless_it_is_asked_for
    [{}, { "RUBY_GC_FORK_REPORT" => "" }, { "RUBY_GC_FORK_REPORT" => "0" }].each do |env|
      _, err, status = run_apart("Process.wait(fork {})", env: env)
      assert_equal ["", true], [err, status.success?], env.inspect
    end
  end

  def test_a_bad_value_is_reported
    _, err, status = run_apart("Process.wait(fork {})", env: { "RUBY_GC_FORK_REPORT" => "yes" })
    assert status.success?, err
    assert_match(/\A.*RUBY_GC_FORK_REPORT=yes is ignored: it must be 0 or 1\n\z/, err)
  end

  # The figures are those that the process sees itself, and of the sealed heap.
  def test_the_line
    line, out = line_of(<<~'RUBY')
      kept = Array.new(200_000) { |i| "element #{i} of the master, which is too long for its slot" }
      Process.wait(fork { exit!(0) })
      anonymous = File.read("/proc/self/smaps_rollup")[/^Anonymous: +(\d+)/, 1].to_f / 1024
      pages, sealed = GC.stat.values_at(:heap_allocated_pages, :sealed_pages)
      puts $$, anonymous, pages, sealed, pages * GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE] / 1048576.0
      kept.size
    RUBY
    pid, anonymous, pages, sealed, heap = out.split.map(&:to_f)
    assert_equal [pid, pid], line.values_at(:pid, :again).map(&:to_i)
    assert_in_delta anonymous, line[:all].to_f, 4
    # A few pages come when the parent goes on.
    assert_in_delta pages, line[:pages].to_i, 16
    assert_equal sealed, line[:sealed].to_i
    assert_operator sealed, :>, 0
    assert_in_delta heap, line[:heap].to_f, 0.3
    assert_match(/, [1-9][\d.]* MB of malloc/, line[:kinds]) unless ASAN
    assert_match(/, [\d.]+ MB of VM words/, line[:kinds])
    assert_operator line[:heap].to_f, :<, line[:all].to_f
  end

  # A heap that is left alone is reported as well.
  def test_without_a_seal
    line, = line_of("Process.wait(fork { exit!(0) })", env: ON.merge("RUBY_GC_SEAL" => "off"))
    assert_equal "0", line[:sealed]
  end

  # Ways to fork; the line comes before the child, and once. A program that is started is no fork.
  def test_only_the_first_fork
    script = <<~'RUBY'
      system("true")
      `true`
      Process.wait(spawn("true"))
      $stderr.puts "none yet"
      2.times { Process.wait(fork { $stderr.puts "child"; exit!(0) }) }
      IO.popen("-") { |io| io ? io.read : exit!(0) }
      Thread.new { Process.wait(fork { exit!(0) }) }.join
    RUBY
    _, err, status = run_apart(script)
    assert status.success?, err
    assert_equal ["none yet\n", "child\n", "child\n"], err.lines.values_at(0, 2, 3)
    assert_match LINE, err.lines[1]
    assert_equal 4, err.lines.size, err
  end

  # A child has a first fork of its own, and says so under its own number.
  def test_a_fork_of_a_fork
    out, err, status = run_apart(<<~'RUBY')
      $stdout.sync = true
      puts $$
      Process.wait(fork do
        puts $$
        2.times { Process.wait(fork { exit!(0) }) }
        exit!(0)
      end)
    RUBY
    assert status.success?, err
    assert_equal out.split, err.scan(LINE).map { |found| found[0] }
    assert_equal 2, err.lines.size, err
  end

  def test_process_daemon
    err = Tempfile.create("fork-report") do |file|
      script = "Process.daemon(true, true); Process.wait(fork {}); exit!(0)"
      Process.wait(spawn(ON, RUBY, "-e", script, in: :close, out: File::NULL, err: file.path))
      Timeout.timeout(60) { sleep(0.02) until File.read(file.path).scan(LINE).size == 2 }
      File.read(file.path)
    end
    assert_equal 2, err.scan(LINE).map(&:first).uniq.size, err
  end

  # Objects that it made would lie in pages that are not sealed, and belong to both processes.
  def test_no_object_is_made
    script = <<~'RUBY'
      kept = Array.new(100_000) { +"x" }
      before = GC.stat(:total_allocated_objects)
      pid = fork { exit!(0) }
      puts GC.stat(:total_allocated_objects) - before
      Process.wait(pid)
      kept.size
    RUBY
    counts = [{}, ON].map { |env| run_apart(script, env: env).first }
    assert_equal counts[0], counts[1]
  end

  # The system denies /proc: the line says so, and the process forks.
  def test_no_right_to_read
    source = <<~'C'
      #define _GNU_SOURCE
      #include <dlfcn.h>
      #include <errno.h>
      #include <stdarg.h>
      #include <string.h>
      #include <sys/types.h>
      #define DENY(name) \
          int name(const char *path, int flags, ...) { \
              int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
              va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
              if (strncmp(path, "/proc/self/s", 12) == 0) { errno = EACCES; return -1; } \
              return next(path, flags, mode); \
          }
      DENY(open) DENY(open64)
    C
    preloading(source) do |env|
      out, err, status = run_apart("Process.wait(fork {}); puts :forked", env: ON.merge(env))
      assert_equal ["forked\n", true], [out, status.success?], err
      assert_equal 1, err.lines.size, err
      assert_includes err, " forks with memory of which /proc/self does not say how much it is " \
                           "(Permission denied): "
      assert_match(/: \d+\.\d MB in \d+ heap pages .*; to see what they do share: cowruby-memory \d+$/, err)
    end
  end

  # Nobody reads standard error any more, or nobody reads just now: no signal, no waiting, and a fork.
  def test_standard_error_that_takes_nothing
    scripts = ["reader.close", "loop { writer.write_nonblock('x' * 4096) } rescue nil"]
    scripts.each do |script|
      out, err, status = run_apart(<<~RUBY)
        reader, writer = IO.pipe
        old = $stderr.dup
        trap(:PIPE, "SYSTEM_DEFAULT")
        #{script}
        STDERR.reopen(writer)
        pid = fork { exit!(7) }
        STDERR.reopen(old)
        puts Process.wait2(pid).last.exitstatus
      RUBY
      assert_equal ["7\n", "", true], [out, err, status.success?], script
    end
  end

  # In the parent and in the child; from a fiber, whose stack is small.
  def test_the_heap_is_sound
    line, out = line_of(<<~'RUBY')
      kept = Array.new(100_000) { |i| "element #{i}, which is too long for its slot" }
      GC.stress = true
      check = lambda do
        GC.stress = false
        GC.verify_internal_consistency
        puts kept.sum(&:size)
      end
      pid = Fiber.new { fork(&check) }.resume
      check.call
      Process.wait(pid)
    RUBY
    assert_operator line[:sealed].to_i, :>, 0
    assert_equal [2, 1], [out.lines.size, out.lines.uniq.size], "two sums that are the same"
  end

  def test_beside_other_ractors
    line, = line_of(<<~'RUBY', env: ON.merge("RUBYOPT" => "-W0"))
      ractors = Array.new(2) { Ractor.new { loop { Array.new(100) { +"x" } } } }
      sleep(0.05)
      2.times { Process.wait(fork { exit!(0) }) }
      $stdout.flush
      exit!(0)
    RUBY
    assert_operator line[:pages].to_i, :>, 0
  end
end

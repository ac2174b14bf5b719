# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/measure/build")
BenchmarkTest.load("lib/measure/measured")
BenchmarkTest.load("lib/measure/progress")
BenchmarkTest.load("lib/measure/runner")
require "json"
require "stringio"

# benchmark/run as a whole, with two names for the same ruby.
class TestRun < Minitest::Test
  include BenchmarkTest

  ONE = ["--ruby", "one=#{RUBY}", "--no-glibc"].freeze
  TWO = [*ONE, "--ruby", "two=#{RUBY}"].freeze

  # The builds take turns in running first.
  def test_order_of_builds
    order = []
    benchmark = Struct.new(:options) do
      define_singleton_method(:title) { "none" }
      define_method(:ready) { nil }
      define_method(:left_out) { nil }
      define_method(:chosen_cases) { [Benchmark::Case.new(label: "a", needs: 0)] }
      define_method(:measure) { |build, _| Benchmark::Outcome.new(values: {}).tap { order << build.name } }
    end
    benchmark.const_set(:SPEED_ONLY, false)
    builds = %w[one two].map { |name| Build.new(name, RUBY) }
    progress = Progress.new(StringIO.new)
    Runner.new(builds, [benchmark], Struct.new(:quick, :runs, :minutes).new(false, 3, 1), progress).run
    assert_equal %w[one two two one one two], order
  end

  def test_each_round_takes_the_next_layout
    Dir.mktmpdir do |directory|
      1.upto(2) { |layout| File.symlink(RUBY, File.join(directory, "ruby.#{layout}")) }
      build = Build.new("one", File.join(directory, "ruby.%d")).check
      assert_equal %w[ruby.1 ruby.2 ruby.1], (1..3).map { |round| File.basename(build.of_round(round).path) }
      assert_equal [2, 1], [build, Build.new("two", RUBY)].map(&:layouts)
      error = assert_raises(Build::Unusable) { Build.new("one", File.join(directory, "none.%d")).check }
      assert_match(/no such file: .*none\.%d/, error.message)
    end
  end

  def test_quick_run
    Dir.mktmpdir do |directory|
      arguments = [*TWO, "--env", "two:EXAMPLE=1", "--quick", "--only", "call_caches,skk,gc",
                   "--dictionary", "/nowhere", "--output", directory]
      out, errors, status = command("run", *arguments)
      assert_predicate status, :success?, errors
      assert_match(/^call_caches: .*less is better, synthetic\)$/, out)
      assert_match(/^one warmup, after calling them +[\d.]+ +[\d.]+ +[\d.]+$/, out)
      assert_match(/two: ruby .* EXAMPLE=1$/, out)
      assert_match(%r{skipped: skk: no dictionary /nowhere: install Debian's package skkdic-extra}, out)
      assert_match(/skipped: gc: needs CRuby's source tree: give --source DIR/, out)
      assert_match(/\[round 1, 1 of 2, 0:\d\d\] call_caches: one warmup, one/, errors)

      raw = JSON.parse(File.read(File.join(directory, "results.json")))
      assert_equal [["one", 1], ["two", 1]], raw["samples"].map { |sample| sample.values_at("build", "run") }
      child = raw["samples"][0]["outcome"]["raw"]["looks"]["called"]["workers"][0]
      %w[Pss Private_Dirty Private_Clean Shared_Dirty Shared_Clean mappings].each do |key|
        assert_includes child, key
      end
      assert_includes raw["samples"][0]["outcome"]["raw"]["result"]["gc"], "count"
      assert_equal %w[one two], raw["builds"].map { |build| build["name"] }
      %w[date cores memory_mb kernel transparent_huge_pages commit].each do |key|
        assert_includes raw["machine"], key
      end
      _, commit, called, = File.readlines(File.join(directory, "tables.md"), chomp: true).reject(&:empty?)
      assert_match(/\A- [-\dT:]+Z, commit \S+\z/, commit)
      # The results do not hold the path of this repository.
      root = "#{File.expand_path("../..", __dir__)}/"
      assert_equal ["benchmark/run #{arguments.join(" ").gsub(root, "")}"], raw["machine"]["commands"]
      assert_equal "- #{raw["machine"]["commands"].first}", called
      assert_match(/\A(glibc|libc|\w*malloc)\z/, raw["builds"][0]["allocator"]["name"])
    end
  end

  def test_marking
    Dir.mktmpdir do |directory|
      out, errors, status = command("run", *TWO, "--quick", "--only", "marking", "--output", directory)
      none = "skipped: marking: objects in order, 1000: one measures no marking time"
      skip "a ruby before 3.3 does not report the time of marking" if out.include?(none)

      assert_predicate status, :success?, errors
      kinds = ["objects in order", "objects at random", "structs at random", "64 lists", "closures",
               "records"]
      kinds.each { |kind| assert_match(/^#{kind}, 1000 +[\d.]+ +[\d.]+ +[\d.]+$/, out) }
      assert_match(/^geometric mean +[\d.]+/, out)
      JSON.parse(File.read(File.join(directory, "results.json")))["samples"].each do |sample|
        result = sample["outcome"]["raw"]["result"]
        assert_operator result["slots"], :>, 1_000
        assert_operator result["times"], :>, 1
      end
    end
  end

  def test_large_master
    Dir.mktmpdir do |directory|
      out, errors, status = command("run", *ONE, "--quick", "--only", "large_master", "--output", directory)
      assert_predicate status, :success?, errors
      ["no warmup", "1 warmup"].each do |label|
        assert_match(/^#{label} +[\d.]+$/, out)
        assert_match(/^#{label}, after 20 requests +[\d.]+$/, out)
      end
      sample = JSON.parse(File.read(File.join(directory, "results.json")))["samples"].first
      result = sample.dig("outcome", "raw", "result")
      assert_equal [8, 3], result.values_at("gc", "other_forks").map(&:size)
      assert_operator result["live"], :>, 10_000
      assert_operator sample.dig("outcome", "values", "p99"), :>=, sample.dig("outcome", "values", "median")
    end
  end

  # benchmark/run fails if it has skipped all that it was asked for.
  def test_nothing_measured_is_a_failure
    Dir.mktmpdir do |directory|
      out, _, status = command("run", *ONE, "--only", "gc", "--output", directory)
      assert_equal 1, status.exitstatus
      assert_match(/skipped: gc/, out)
    end
  end

  def test_gc_runs_a_program_of_upstream_as_it_is
    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark/gc")
      FileUtils.mkdir_p(programs)
      File.write(File.join(programs, "null.rb"), "puts 'printed'; GC.start; File.write('left.txt', '')\n")
      File.write(File.join(programs, "hash1.rb"), "raise ArgumentError, 'on purpose'\n")
      File.write(File.join(programs, "binary_trees.rb"), "require 'no/such/library'\n")
      File.write(File.join(programs, "gcbench.rb"), "abort\n")
      out, _, status = command("run", *ONE, "--quick", "--only", "gc", "--source", directory, "--output",
                               File.join(directory, "out"))
      assert_equal 1, status.exitstatus, "a program failed"
      assert_match(/^null +[\d.]+$/, out)
      assert_match(/^failed: gc: hash1: gc on one: ended with .*on purpose \(ArgumentError\)/, out)
      assert_match(%r{^skipped: gc: binary_trees: a library is missing: .*no/such/library}, out)
      refute_match(/gcbench/, out)
      refute_path_exists File.join(programs, "left.txt")
    end
  end

  def test_gc_begins_each_round_with_another_heap
    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark/gc")
      FileUtils.mkdir_p(programs)
      seen = File.join(directory, "seen")
      File.write(File.join(programs, "null.rb"),
                 "File.write(#{seen.dump}, \"\#{Workload::BALLAST.flatten.size}\\n\", mode: 'a')\n")
      File.write(File.join(programs, "left_out.rb"), "abort\n")
      _, errors, status = command("run", *TWO, "--runs", "3", "--only", "gc", "--files", "^null", "--source",
                                  directory, "--output", File.join(directory, "out"))
      assert_predicate status, :success?, errors
      assert_equal [0, 0, 5_200, 5_200, 10_400, 10_400], File.readlines(seen).map(&:to_i)
    end
  end

  def test_chosen_cases
    Dir.mktmpdir do |directory|
      FileUtils.mkdir_p(File.join(directory, "benchmark/gc"))
      out, errors, status = command("run", *ONE, "--quick", "--only", "sweep,fork_exit", "--cases",
                                    "\\A3.*strings", "--source", directory, "--output",
                                    File.join(directory, "out"))
      assert_predicate status, :success?, errors
      assert_match(/^skipped: fork_exit: it has no case of that name/, out)
      raw = JSON.parse(File.read(File.join(directory, "out/results.json")))
      assert_equal ["30000 strings"], raw["samples"].map { |sample| sample["case"] }.uniq
    end
  end

  def test_sweep_in_one_process_and_in_several_at_once
    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark/gc")
      FileUtils.mkdir_p(programs)
      File.write(File.join(programs, "aobench.rb"), "GC.start\n")
      out, errors, status = command("run", *ONE, "--quick", "--only", "sweep", "--source", directory,
                                    "--output", File.join(directory, "out"))
      assert_predicate status, :success?, errors
      ["10000 strings", "30000 strings", "aobench", "1 process", "2 processes"].each do |label|
        assert_match(/^#{label} +[\d.]+$/, out)
      end
      raw = JSON.parse(File.read(File.join(directory, "out/results.json")))
      samples = raw["samples"].select { |sample| sample["case"].end_with?("strings") }
      assert_equal [10_000, 30_000], samples.map { |sample| sample.dig("outcome", "raw", "result", "kept") }
    end
  end

  # Where no cgroup can be made it says so.
  def test_growth_in_a_cgroup
    Dir.mktmpdir do |directory|
      out, errors, status = command("run", *ONE, "--quick", "--only", "growth", "--output", directory)
      reason = (out + errors)[/a cgroup cannot be made.*|no cgroups.*|.*no controller.*/]
      skip reason if reason
      assert_predicate status, :success?, errors
      assert_match(/^20,000 kept +[\d.]+$/, out)
      assert_match(/^drop +-?[\d.]+$/, out)
      assert_match(/^2 processes +[\d.]+$/, out)
    end
  end

  # A script in place of upstream's harness, which prints what the harness would.
  def test_programs_by_upstreams_harness
    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark")
      FileUtils.mkdir_p(programs)
      %w[app_fib.rb array_max_int.yml].each { |name| File.write(File.join(programs, name), "") }
      driver = File.join(directory, "driver")
      File.write(driver, <<~'RUBY')
        exit if ARGV == ["--version"]
        abort "broken: an Error here" if ARGV[0].end_with?("fib.rb") && ARGV[2].end_with?("--yjit")
        right = ARGV[1] == "-e" && ARGV[2].match?(/\Aone::.* --disable-gems --(yjit|disable-jit)\z/)
        raise ARGV.inspect unless right && ARGV[3..4] == %w[-r ips]
        puts "warming up....", "Iteration per second (i/s):"
        puts "#{File.basename(ARGV[0], ".*")}  1000000.0  ", "an other job  2.5e+8  "
      RUBY
      out, errors, status = command("run", *ONE, "--quick", "--only", "programs,programs_yjit", "--source",
                                    directory, "--driver", driver, "--output", File.join(directory, "out"))
      assert_equal 1, status.exitstatus, errors
      assert_match(/^app_fib +1000\.0$/, out)
      assert_match(/^array_max_int: an other job +4\.0$/, out)
      assert_match(/^failed: programs_yjit: app_fib.rb: app_fib.rb on one: broken: an Error here/, out)
      assert_equal 1, out.scan(/^app_fib /).size

      out, = command("run", *ONE, "--quick", "--only", "programs", "--source", directory, "--files",
                     "fib|xyz", "--driver", driver, "--output", File.join(directory, "out"))
      assert_match(/^app_fib/, out)
      refute_match(/^array/, out)

      out, = command("run", *ONE, "--quick", "--only", "programs", "--source", directory, "--driver",
                     "/nowhere", "--output", File.join(directory, "out"))
      none = "skipped: programs: no benchmark-driver: install the gem benchmark_driver, or give --driver FILE"
      assert_includes out, none
    end
  end

  # Of a program with a loop the instructions of one iteration are counted, whatever comes before the loop. Of
  # another program all are counted.
  def test_instructions_of_programs
    driver = File.expand_path("../../build/gems/driver/bin/benchmark-driver", __dir__)
    there = File.exist?(driver)
    skip "no benchmark-driver below build/gems (make benchmark-programs installs it)" unless there
    skip "no valgrind" unless system("valgrind", "--version", out: File::NULL, err: File::NULL)

    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark")
      FileUtils.mkdir_p(programs)
      { "few" => 10, "many" => 1_000_000 }.each do |name, before|
        File.write(File.join(programs, "hash_#{name}.yml"),
                   "prelude: '#{before}.times { }'\nloop_count: 1000000000\nbenchmark: '1.+(1)'\n")
      end
      File.write(File.join(programs, "app_once.rb"), "100_000.times { }")
      File.write(File.join(programs, "app_broken.rb"), "abort 'on purpose'")
      out, errors, status = command("run", *ONE, "--runs", "1", "--only", "programs_instructions", "--source",
                                    directory, "--driver", driver, "--output", File.join(directory, "out"))
      assert_equal 1, status.exitstatus, errors
      few, many = %w[few many].map { |name| Float(out[/^hash_#{name}: \S+ +([\d.]+)$/, 1]) }
      assert_in_delta few, many, few / 100
      assert_includes 10..10_000, few
      assert_operator Float(out[/^app_once +([\d.]+)$/, 1]), :>, 100_000 * 10
      assert_match(/^failed: programs_instructions: app_broken.rb: .*on purpose/, out)
    end
  end

  # One of several programs that run at once fails: the others come to their end, and the failure is reported.
  def test_sweep_of_which_a_process_fails
    Dir.mktmpdir do |directory|
      ruby = File.join(directory, "ruby")
      # Fails when it measures, but not when it prints its version.
      File.write(ruby,
                 "#!/bin/sh\ncase $* in *sweep.rb*) echo no good >&2; exit 3;; esac\nexec '#{RUBY}' \"$@\"\n")
      File.chmod(0o755, ruby)
      out, _, status = command("run", "--ruby", "one=#{ruby}", "--no-glibc", "--quick", "--only", "sweep",
                               "--output", directory)
      assert_equal 1, status.exitstatus
      assert_match(/^failed: sweep: 2 processes: sweep on one: ended with .*no good/, out)
      assert_match(/^skipped: sweep: aobench is CRuby's: give --source DIR/, out)
    end
  end

  # An interrupt ends benchmark/run and all processes that it has started.
  def test_interrupt_leaves_no_process_behind
    before = trap(:INT, "DEFAULT") # a job in the background and its children ignore the signal
    Dir.mktmpdir do |directory|
      errors_out, errors_in = IO.pipe
      pid = Process.spawn(RbConfig.ruby, File.join(BENCHMARK, "run"), *ONE, "--only", "fork_requests",
                          "--output", directory, err: errors_in, out: File::NULL)
      errors_in.close
      assert_match(/fork_requests/, errors_out.gets)
      family = []
      Timeout.timeout(120) { Thread.pass until (family = ProcessTable.tree(pid)).size > 3 }
      Process.kill(:INT, pid)
      Process.wait(pid)
      assert_equal 130, $?.exitstatus
      assert_match(/interrupted/, errors_out.read)
      assert_empty ProcessTable.running.keys & family
    end
  ensure
    trap(:INT, before)
  end

  # The signal is one that a job in the background does not ignore. The cases that are complete are written.
  def test_what_was_measured_before_an_interrupt_is_kept
    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark/gc")
      FileUtils.mkdir_p(programs)
      File.write(File.join(programs, "null.rb"), "GC.start\n")
      File.write(File.join(programs, "ring.rb"), "sleep\n")
      errors_out, errors_in = IO.pipe
      pid = Process.spawn(RbConfig.ruby, File.join(BENCHMARK, "run"), *ONE, "--only", "gc", "--source",
                          directory, "--output", directory, err: errors_in, out: File::NULL)
      errors_in.close
      assert_match(/gc: null, one/, errors_out.gets)
      assert_match(/gc: ring, one/, errors_out.gets)
      Process.kill(:TERM, pid)
      Process.wait(pid)
      assert_equal 130, $?.exitstatus
      assert_match(/interrupted.* what was measured is kept/, errors_out.read)
      raw = JSON.parse(File.read(File.join(directory, "results.json")))
      assert_equal %w[null], raw["samples"].map { |sample| sample["case"] }
    end
  end

  # Upstream's harness goes on when what has started it ends.
  def test_the_harness_ends_with_the_run
    Dir.mktmpdir do |directory|
      programs = File.join(directory, "benchmark")
      FileUtils.mkdir_p(programs)
      File.write(File.join(programs, "app_fib.rb"), "")
      driver = File.join(directory, "driver")
      File.write(driver, <<~'RUBY')
        exit if ARGV == ["--version"]
        File.write("#{__FILE__}.begun", Process.pid)
        sleep
      RUBY
      begun = "#{driver}.begun"
      pid = Process.spawn(RbConfig.ruby, File.join(BENCHMARK, "run"), *ONE, "--quick", "--only", "programs",
                          "--source", directory, "--driver", driver, "--output", File.join(directory, "out"),
                          %i[out err] => File::NULL)
      Timeout.timeout(120) { sleep 0.05 until File.size?(begun) }
      Process.kill(:TERM, pid)
      Process.wait(pid)
      assert_equal 130, $?.exitstatus
      refute ProcessTable.alive?(Integer(File.read(begun)))
    end
  end

  def test_a_program_that_fails_hangs_or_talks_nonsense_is_stopped_and_named
    build = Build.new("one", RUBY).check
    Dir.mktmpdir do |directory|
      {
        "raise 'broken here'" => /ended with .*broken here/,
        "$stdout.puts 'what'; $stdout.flush; gets" => /not understood: "what\\n"/,
        "fork { sleep }; sleep" => /no end after 1 s/,
        "fork { sleep }; exit!(3)" => /no end after 1 s|ended with/
      }.each do |script, message|
        File.write(File.join(directory, "bad.rb"), script)
        error = assert_raises(Measured::Failed) do
          Measured.run(build, File.join(directory, "bad"), timeout: script.include?("sleep") ? 1 : 60)
        end
        assert_match message, error.message
      end
    end
    assert_equal [Process.pid], ProcessTable.tree(Process.pid)
  end

  def test_the_allocator_in_use_is_named_not_the_one_mapped
    build = Build.new("one", RUBY).check
    assert_equal build.allocator["name"], build.with("same", {}).allocator["name"]
    if build.allocator["used"]
      assert_equal "glibc", build.with("glibc", { "LD_PRELOAD" => "libc.so.6" }).allocator["name"]
    end
    jemalloc = Dir["/usr/lib/*/libjemalloc.so.2"].first
    skip "no jemalloc to preload" unless jemalloc && build.allocator["used"]

    assert_equal "jemalloc", build.with("je", { "LD_PRELOAD" => jemalloc }).allocator["name"]
  end
end

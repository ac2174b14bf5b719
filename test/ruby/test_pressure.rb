# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "fileutils"
require "json"

# A process gives memory back when others need it (gc/pressure.c).
class TestPressure < Minitest::Test
  include CowTest

  # Ruby source for scripts. told prints, a line each, those values of GC.stat that are not 0; wait_for lets
  # objects die until its block gives true; resident gives the KB of memory that the process has.
  TOLD = <<~'RUBY'
    TOLD = GC.stat.keys.grep(/\A(pressure_|release)/)
    def told = TOLD.each { |key| puts "#{key} #{GC.stat(key)}" unless GC.stat(key).zero? }
    def resident = File.read("/proc/self/statm").split[1].to_i * 4
    def wait_for(seconds = 30)
      till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      until yield
        20_000.times { "dead" * 2 }
        sleep 0.05
        raise "waited for #{seconds} s; #{GC.stat}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > till
      end
    end
    # Keeps one in twenty of many objects, so that most pages are empty.
    def keep_few(count = 1_000_000)
      all = Array.new(count) { |i| "object #{i}" * 2 }
      Array.new(count / 20) { |i| all[i] }
    end
  RUBY

  # The system that a process sees: its files below a directory, the number of its faults in one of them.
  SYSTEM = <<~'C'
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <fcntl.h>
    #include <stdarg.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/resource.h>
    #include <unistd.h>

    static int served(const char *path)
    {
        return strncmp(path, "/proc/pressure", 14) == 0 || strncmp(path, "/sys/fs/cgroup", 14) == 0 ||
               strcmp(path, "/proc/self/cgroup") == 0 || strcmp(path, "/proc/meminfo") == 0 ||
               strcmp(path, "/proc/self/smaps_rollup") == 0;
    }

    /* Of the process's own files: it shows its memory as it is, unless a test says otherwise. */
    static int served_if_there(const char *path) { return strcmp(path, "/proc/self/statm") == 0; }

    static int opened(const char *name, const char *path, int flags, int mode)
    {
        int (*call)(const char *, int, ...) = dlsym(RTLD_NEXT, name);
        char served_path[4096];

        if ((served(path) || served_if_there(path)) && getenv("SERVED")) {
            snprintf(served_path, sizeof(served_path), "%s%s", getenv("SERVED"), path);
            if (served(path) || access(served_path, R_OK) == 0) path = served_path;
        }
        return call(path, flags, mode);
    }

    int open(const char *path, int flags, ...)
    {
        va_list rest;
        va_start(rest, flags);
        int mode = va_arg(rest, int);
        va_end(rest);
        return opened("open", path, flags, mode);
    }

    int open64(const char *path, int flags, ...)
    {
        va_list rest;
        va_start(rest, flags);
        int mode = va_arg(rest, int);
        va_end(rest);
        return opened("open64", path, flags, mode);
    }

    int getrusage(__rusage_who_t who, struct rusage *usage)
    {
        int (*call)(__rusage_who_t, struct rusage *) = dlsym(RTLD_NEXT, "getrusage");
        char path[4096];
        int result = call(who, usage);

        snprintf(path, sizeof(path), "%s/faults", getenv("SERVED") ? getenv("SERVED") : "");
        FILE *file = fopen(path, "r");
        usage->ru_majflt = 0;
        if (file) {
            if (fscanf(file, "%ld", &usage->ru_majflt) != 1) usage->ru_majflt = 0;
            fclose(file);
        }
        return result;
    }
  C

  # Runs a script where the system has these files. It sees their directory in SERVED, and has a method put.
  PUT = TOLD + <<~'RUBY'
    def put(path, text)
      path = ENV.fetch("SERVED") + path
      File.write("#{path}.new", text)
      File.rename("#{path}.new", path)
    end
  RUBY

  def with_system(script, files, env: {}, **rest)
    skip "the loader takes no double here" unless RUBY_PLATFORM.include?("linux")
    Dir.mktmpdir do |directory|
      { "/faults" => "0" }.merge(files).each do |path, text|
        FileUtils.mkdir_p(File.dirname(directory + path))
        File.write(directory + path, text)
      end
      FileUtils.mkdir_p([directory + "/proc/self", directory + "/proc/pressure"])
      preloading(SYSTEM) do |loaded|
        return run_ruby(PUT + script, env: loaded.merge("SERVED" => directory).merge(env), **rest)
      end
    end
  end

  V2 = "/sys/fs/cgroup/web"
  CGROUP = { "/proc/self/cgroup" => "0::/web\n", "#{V2}/memory.current" => "100\n",
             "#{V2}/memory.max" => "1000\n" }.freeze

  def test_the_settings_in_ruby
    out = run_ruby(<<~'RUBY')
      p GC.config.slice(:pressure, :memory_limit)
      p GC.config(pressure: :psi, memory_limit: 1 << 30).slice(:pressure, :memory_limit)
      p GC.config(pressure: "off", memory_limit: nil).slice(:pressure, :memory_limit)
      { pressure: [:some, "", nil, 1], memory_limit: [-1, "much", 1.5e300, :off] }.each do |key, values|
        values.each do |value|
          GC.config(key => value)
          puts "#{key} #{value.inspect} was taken"
        rescue ArgumentError, TypeError, RangeError
        end
      end
      p GC.config.slice(:pressure, :memory_limit)
    RUBY
    assert_equal <<~TEXT, out
      {pressure: :auto, memory_limit: 0}
      {pressure: :psi, memory_limit: 1073741824}
      {pressure: :off, memory_limit: 0}
      {pressure: :off, memory_limit: 0}
    TEXT
  end

  def test_bad_settings_are_named_and_ignored
    script = "p GC.config.values_at(:pressure, :memory_limit)"
    %w[Auto 1 psi,cgroup].each do |value|
      out, status = run_ruby_status(script, env: { "RUBY_GC_PRESSURE" => value })
      assert_predicate status, :success?, out
      assert_match(/warning: RUBY_GC_PRESSURE=#{value} is ignored: it must be auto, rusage/, out)
      assert_match(/^\[:auto, 0\]$/, out)
    end
    %w[-1 much 12q 1e9 99999999999999999999999999999g].each do |value|
      out, status = run_ruby_status(script, env: { "RUBY_GC_MEMORY_LIMIT" => value })
      assert_predicate status, :success?, out
      assert_match(/warning: RUBY_GC_MEMORY_LIMIT=#{Regexp.escape(value)} is ignored: it must be/, out)
      assert_match(/^\[:auto, 0\]$/, out)
    end
    { "0" => 0, "" => 0, "300m" => 300 << 20, "2g" => 2 << 30 }.each do |value, limit|
      assert_equal "[:rusage, #{limit}]\n",
                   run_ruby(script, env: { "RUBY_GC_MEMORY_LIMIT" => value, "RUBY_GC_PRESSURE" => "rusage" })
    end
  end

  # Without any of the system's files nothing is collected or given back for pressure.
  def test_nothing_without_files
    out = with_system("kept = keep_few\n25.times { GC.start; sleep 0.1 }\ntold\np kept.size", {})
    assert_match(/\Apressure_readings \d+\n50000\n\z/, out)
  end

  def test_off
    out = with_system("kept = keep_few\n25.times { GC.start; sleep 0.1 }\ntold\np kept.size",
                      CGROUP.merge("#{V2}/memory.current" => "2000\n"), env: { "RUBY_GC_PRESSURE" => "off" })
    assert_equal "50000\n", out
  end

  # Near the limit of the cgroup what is free is given back; nearer, full collections are made. When it is
  # over the level falls.
  def test_levels_of_a_cgroup
    out = with_system(<<~'RUBY', CGROUP, timeout: 200)
      kept = keep_few
      GC.start
      before = resident
      put("/sys/fs/cgroup/web/memory.current", "920")
      wait_for { GC.stat(:release_count) > 0 && GC.stat(:pressure_level) == 1 }
      puts GC.stat(:pressure_gc_count), GC.stat(:released_for_cgroup) > 0
      put("/sys/fs/cgroup/web/memory.current", "990")
      wait_for { GC.stat(:pressure_gc_count) > 0 && GC.stat(:pressure_level) == 2 }
      wait_for { GC.stat(:pressure_gc_count) > 1 }
      puts resident < before / 2 || "resident #{resident} of #{before} KB"
      GC.verify_internal_consistency
      put("/sys/fs/cgroup/web/memory.current", "10")
      wait_for(60) { GC.stat(:pressure_level) == 0 }
      count = GC.stat.values_at(:release_count, :pressure_gc_count)
      100.times { 20_000.times { "dead" * 2 }; sleep 0.02 }
      puts count == GC.stat.values_at(:release_count, :pressure_gc_count)
      puts GC.stat(:pressure_moderate_count), GC.stat(:pressure_critical_count)
      kept.each_with_index { |text, i| raise text unless text == "object #{i}" * 2 }
    RUBY
    assert_equal "0\ntrue\ntrue\ntrue\n1\n1\n", out
  end

  # malloc's limits are a quarter of CRuby's in a critical process and its children, with what one collection
  # may leave to the next beside the survivors; those of the user stay.
  def test_limits_of_malloc
    script = <<~'RUBY'
      LIMITS = %i[malloc_increase_bytes_limit oldmalloc_increase_bytes_limit]
      def limits = GC.stat.values_at(*LIMITS).map { |bytes| bytes >> 20 }
      GC.config(target_time: 0)
      GC.start
      calm = limits
      put("/sys/fs/cgroup/web/memory.current", "990")
      wait_for { GC.stat(:pressure_gc_count) > 0 }
      GC.start
      pressed = limits
      IO.popen("-") { |pipe| pipe ? print(pipe.read) : (GC.start; p limits) }
      put("/sys/fs/cgroup/web/memory.current", "10")
      wait_for(60) { GC.stat(:pressure_level) == 0 }
      GC.start
      p calm, pressed, limits
    RUBY
    out = with_system(script, CGROUP, timeout: 200)
    inherited, calm, pressed, after = out.lines.map { |line| JSON.parse(line) }
    assert_equal pressed, inherited
    [*calm, *after].each { |megabytes| assert_operator megabytes, :>=, 15 }
    malloc, oldmalloc = pressed
    assert_includes calm.first / 5..calm.first / 3, malloc
    assert_includes malloc..malloc + calm.last / 3, oldmalloc
    given = %w[RUBY_GC_MALLOC_LIMIT RUBY_GC_OLDMALLOC_LIMIT].to_h { |name| [name, (20 << 20).to_s] }
    with_system(script, CGROUP, env: given, timeout: 200).lines.each do |line|
      JSON.parse(line).each { |megabytes| assert_operator megabytes, :>=, 19 }
    end
  end

  # The kernel has ended a process of the cgroup: the others are critical until that is some time ago.
  def test_killed_processes
    events = "#{V2}/memory.events"
    out = with_system(<<~'RUBY', CGROUP.merge(events => "max 0\noom_kill 4\n"), timeout: 200)
      wait_for { GC.stat(:pressure_readings) > 1 }
      puts GC.stat(:pressure_level)
      put("/sys/fs/cgroup/web/memory.events", "max 0\noom_kill 5\n")
      wait_for { GC.stat(:pressure_gc_count) > 0 }
      puts GC.stat(:pressure_critical_count), GC.stat(:released_for_cgroup) > 0
      wait_for(60) { GC.stat(:pressure_level) == 0 }
    RUBY
    assert_equal "0\n1\ntrue\n", out
  end

  def test_stalls
    files = { "/proc/meminfo" => "MemTotal: 100 kB\nMemAvailable: 5 kB\n" }
    out = with_system(<<~'RUBY', files, timeout: 200)
      kept = keep_few
      Thread.new do
        loop do
          stalled = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond) / 3
          put("/proc/pressure/memory", "some avg10=0 total=#{stalled}\nfull avg10=0 total=0\n")
          sleep 0.05
        end
      end
      wait_for(60) { GC.stat(:released_for_stalls) > 0 }
      puts GC.stat(:pressure_level), GC.stat(:pressure_gc_count)
      p kept.size
    RUBY
    assert_equal "1\n0\n50000\n", out
  end

  # One fault since a page was last asked for: collect first, and give back then.
  def test_faults
    script = <<~'RUBY'
      kept = keep_few(200_000)
      put("/faults", "1")
      more = Array.new(1_000_000) { |i| "more #{i}" * 2 }
      told
      GC.verify_internal_consistency
      p kept.size + more.size
    RUBY
    out = with_system(script, {}, env: { "RUBY_GC_PRESSURE" => "rusage" })
    assert_match(/^released_for_faults 1$/, out)
    assert_match(/^release_count [1-9]/, out)
    assert_match(/^1010000$/, out)
    # Where the cgroup can be read faults say nothing.
    refute_match(/released/, with_system(script, CGROUP))
  end

  # The process alone, then with those that it has forked: all of them know when the sum is above the limit.
  def test_memory_limit
    skip "an instrumented process is bigger" if ASAN
    out = run_ruby(TOLD + <<~'RUBY', env: { "RUBY_GC_MEMORY_LIMIT" => "100000m" }, timeout: 200)
      kept = keep_few
      wait_for { GC.stat(:pressure_readings) > 1 }
      puts GC.stat(:pressure_level)
      GC.config(memory_limit: 20 << 20)
      wait_for { GC.stat(:pressure_gc_count) > 0 }
      puts GC.stat(:pressure_level), GC.stat(:released_for_limit) > 0
      p kept.size
    RUBY
    assert_equal "0\n2\ntrue\n50000\n", out
  end

  # What the kernel is seldom asked for, as that takes long, is 500 MB all the time: the anonymous memory says
  # in between that the process grows. A file of any size that it maps does not.
  def test_memory_limit_of_a_process_that_grows_between_two_looks
    files = { "/proc/self/smaps_rollup" => "Pss: 512000 kB\n", "/proc/self/statm" => "200000 128000 1000\n" }
    out = with_system(<<~'RUBY', files, env: { "RUBY_GC_MEMORY_LIMIT" => "1000m" }, timeout: 200)
      wait_for { GC.stat(:pressure_readings) > 2 }
      puts GC.stat(:pressure_level)
      put("/proc/self/statm", "900000 828000 701000\n")
      readings = GC.stat(:pressure_readings)
      wait_for { GC.stat(:pressure_readings) > readings + 3 }
      puts GC.stat(:pressure_level)
      put("/proc/self/statm", "200000 128000 1000\n")
      pages = 128_000
      wait_for(60) do
        put("/proc/self/statm", "200000 #{pages += 40_000} 1000\n")
        GC.stat(:pressure_level) > 0
      end
      puts GC.stat(:released_for_limit) > 0
    RUBY
    assert_equal "0\n0\ntrue\n", out
  end

  # A limit that no process of the tree reaches alone; the master has died, and a worker forks in turn.
  def test_memory_limit_of_a_tree
    skip "an instrumented process is bigger" if ASAN
    out = run_ruby(TOLD + <<~'RUBY', timeout: 300)
      GC.config(memory_limit: 100 << 20)
      reader, writer = IO.pipe
      held, hold = IO.pipe
      work = lambda do
        hold.close
        mine = Array.new(600_000) { |i| "mine #{i}" * 3 }
        wait_for(60) { GC.stat(:pressure_level) > 0 }
        writer.puts GC.stat(:pressure_level) > 0
        wait_for(60) { held.wait_readable(0) } # all of them have found it
        mine.size
      end
      master = fork do
        2.times { fork { work.call } }
        fork { fork { work.call }; work.call }
        exit!(0)
      end
      Process.wait(master)
      writer.close
      puts Array.new(4) { reader.gets }
      hold.close
    RUBY
    assert_equal "true\n" * 4, out
  end

  # The master has the most, and does not collect after it has forked; nor does one of its workers.
  def test_memory_limit_of_a_tree_whose_master_waits
    skip "an instrumented process is bigger" if ASAN
    out = run_ruby(TOLD + <<~'RUBY', timeout: 300)
      GC.config(memory_limit: 250 << 20)
      kept = Array.new(700_000) { |i| "master #{i}" * 20 }
      idle = fork { sleep }
      reader, writer = IO.pipe
      pid = fork do
        mine = Array.new(300_000) { |i| "worker #{i}" * 20 }
        wait_for(60) { GC.stat(:released_for_limit) > 0 }
        own = File.read("/proc/self/smaps_rollup")[/^Pss: +(\d+)/, 1].to_i
        writer.puts GC.stat(:released_for_limit) > 0, own < 250 << 10
        exit!(mine.size - 300_000)
      end
      writer.close
      print reader.read
      Process.wait(pid)
      Process.kill(:KILL, idle)
      kept.size
    RUBY
    assert_equal "true\ntrue\n", out
  end

  # A limit of a process's own is none of the others.
  def test_memory_limit_of_one_process
    out = run_ruby(TOLD + <<~'RUBY', timeout: 200)
      reader, writer = IO.pipe
      pid = fork do
        GC.config(memory_limit: 1 << 20)
        wait_for { GC.stat(:pressure_level) == 2 }
        writer.puts "pressed"
        wait_for { GC.stat(:pressure_gc_count) > 1 }
        exit!(0)
      end
      writer.close
      reader.gets
      wait_for { Process.wait(pid, Process::WNOHANG) }
      p $?.success?, GC.stat(:pressure_level), GC.stat(:release_count)
    RUBY
    assert_equal "true\n0\n0\n", out
  end

  # A reading is made wherever a collection is: also where a fiber's stack has room for a few more calls only.
  def test_readings_on_a_small_stack
    out = run_ruby(<<~'RUBY', timeout: 300, env: { "RUBY_GC_MEMORY_LIMIT" => "100g" })
      class Leaf
        def inspect
          till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 1.2
          "dead" * 50 while Process.clock_gettime(Process::CLOCK_MONOTONIC) < till
          "leaf"
        end
      end
      def nest(depth, leaf) = depth.times.inject([leaf]) { |inner, _| [inner] }
      def fits?(depth, leaf)
        Fiber.new do
          nest(depth, leaf).inspect.size > 0
        rescue SystemStackError
          false
        end.resume
      end
      deepest = (10..20_000).bsearch { |depth| !fits?(depth, 1) } || 20_000
      1.step(61, 5) { |less| fits?(deepest - less, Leaf.new) }
      p GC.stat(:pressure_readings) > 1
    RUBY
    assert_equal "true\n", out
  end

  # Pages whose memory has gone back are used again: under GC.stress, after a fork, by compaction.
  def test_pages_are_used_again
    skip "malloc's pages cannot be given back alone" if %w[alignoff binary linear].include?(LOCATOR)
    out = with_system(<<~'RUBY', CGROUP.merge("#{V2}/memory.current" => "990\n"), timeout: 300)
      kept = keep_few(300_000)
      check = lambda do
        kept.each_with_index { |text, i| raise text unless text == "object #{i}" * 2 }
        GC.verify_internal_consistency
      end
      # Builds up and drops, until memory of empty pages has gone back so many times.
      give_back = lambda do |times|
        till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 120
        while times > 0
          gone = GC.stat(:released_bytes)
          built = Array.new(100_000) { |i| "built #{i}" * 2 }
          built.clear
          wait_for { GC.stat(:release_count) > 0 } if GC.stat(:release_count).zero?
          20_000.times { "dead" * 2 }
          sleep 0.01
          times -= 1 if GC.stat(:released_bytes) > gone
          raise GC.stat.inspect if Process.clock_gettime(Process::CLOCK_MONOTONIC) > till
        end
      end
      give_back.call(2)
      check.call
      pid = fork do
        GC.stress = true
        200.times { |i| "stressed #{i}" * 2 }
        GC.stress = false
        check.call
        give_back.call(1)
        GC.compact if GC.respond_to?(:compact)
        check.call
        exit!(0)
      end
      Process.wait(pid)
      raise $?.inspect unless $?.success?
      give_back.call(1)
      check.call
      puts "sound"
    RUBY
    assert_equal "sound\n", out
  end

  # Nonsense in every file: neither a message nor a busy loop.
  def test_nonsense_in_files
    ["", "\n", "some", "max", "-1", "nan", ":::", "\0\xff", "9" * 9000].each do |text|
      files = CGROUP.keys.to_h { |path| [path, text] }
      files.merge!("/proc/self/cgroup" => "0::/web\n3:memory:/\n", "/proc/pressure/memory" => text,
                   "/proc/meminfo" => text, "/sys/fs/cgroup/memory/memory.usage_in_bytes" => text,
                   "/proc/self/smaps_rollup" => text)
      out = with_system("GC.config(memory_limit: 1 << 40); 4.times { GC.start; sleep 0.3 }; told", files)
      assert_match(/\Apressure_readings \d+\n\z/, out, text)
    end
  end
end

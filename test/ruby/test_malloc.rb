# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "objspace"

# malloc and fork (gc/allocator.h), with the allocator that is linked and with others that are preloaded.
class TestMalloc < Minitest::Test
  include CowTest

  def surroundings = CALM

  LIBRARIES = { "glibc" => "libc.so.6", "jemalloc" => "libjemalloc.so.2",
                "tcmalloc" => "libtcmalloc_minimal.so.4", "mimalloc" => "libmimalloc.so.2" }.freeze
  LINKED = GC.respond_to?(:malloc_stat) && GC.malloc_stat[:allocator]

  # Ruby source for scripts: a parent with blocks of many sizes, and holes between them; look gives the KB of
  # inherited memory that a process still shares, and the KB that it has for itself.
  PARENT = IN_CHILD + PRIVATE_DIRTY + <<~'RUBY'
    def text(i, k = 0) = "#{i} #{k} ".ljust(200 + i * 37 % 1_800, "abcdefgh")
    def shared = File.read("/proc/self/smaps_rollup")[/^Shared_Dirty:\s+(\d+)/, 1].to_i
    OBJECTS = Array.new(100_000) { Object.new } # enough for a seal
    KEPT = Array.new(60_000) { |i| text(i) }
    60_000.times { |i| KEPT[i] = nil if i % 4 == 1 }
    GC.start

    def intact(kept = KEPT)
      kept.each_with_index { |string, i| string.nil? || string == text(i) or raise "string #{i}: #{string}" }
    end

    def work(rounds = 20_000)
      window = []
      rounds.times { |i| window[i % 500] = [text(i, 1), [i] * (i % 50)] }
    end
  RUBY
  OFF = { "RUBY_GC_FORK_MALLOC" => "0" }.freeze

  def library(name) = Dir["/{usr/,}lib/{*-linux-gnu/,}#{LIBRARIES.fetch(name)}"].first

  def preload(name)
    return {} if name == LINKED
    path = library(name) or skip "#{name} is not here"
    skip "AddressSanitizer brings its own malloc" if ASAN
    { "LD_PRELOAD" => path }
  end

  TRIED = [] # by the tests that take each allocator that is here
  Minitest.after_run do
    unless TRIED.empty?
      puts "TestMalloc: #{TRIED.size} of #{LIBRARIES.size} allocators were tried: #{TRIED.join(", ")}"
    end
  end

  # Gives the block the name of each allocator that is here, and the environment that brings it.
  def each_allocator
    here = LIBRARIES.keys.select { |name| name == LINKED || (library(name) && !ASAN) }
    TRIED.replace(here)
    skip "AddressSanitizer brings its own malloc" if ASAN && here.empty?
    assert_includes here, "jemalloc", "the allocators that are here" unless ASAN
    here.each { |name| yield name, preload(name) }
  end

  def needs_an_allocator
    skip "no allocator that is known" if LINKED.nil? || LINKED == "other"
    skip "the kernel does not count shared memory here" unless File.readable?("/proc/self/smaps_rollup")
  end

  LIBRARIES.each_key do |name|
    define_method(:"test_#{name}_is_found") do
      assert_equal name, run_ruby("print GC.malloc_stat[:allocator]", env: preload(name))
    end

    # In a child, in a child of a child, and in threads of both.
    define_method(:"test_children_with_#{name}") do
      run_ruby(PARENT + <<~'RUBY', env: preload(name))
        change = lambda do
          KEPT.each { |string| string << "more" * 20 if string&.start_with?(/\d+3 /) }
          work
          8.times.map { |n| Thread.new { work(500); KEPT[n * 40] = nil; text(n) * 3 } }.each(&:join)
          KEPT.map! { |string| string&.delete_suffix("more" * 20) }
          GC.start
          intact
          GC.verify_internal_consistency
        end
        in_child { change.call; in_child { change.call; in_child(&change) }; change.call }
        change.call
        in_child(&change)
      RUBY
    end

    define_method(:"test_under_stress_with_#{name}") do
      run_ruby(IN_CHILD + <<~'RUBY', env: preload(name))
        kept = Array.new(500) { |i| "string #{i}" * (i % 40) }
        2.times do
          in_child do
            GC.stress = true
            30.times { |i| kept[i * 7] = kept[i].to_s + "x" * i * 20; kept[i] = nil }
            in_child { 30.times { |i| kept[i * 9] << "y" * 300 if kept[i * 9] } }
            GC.stress = false
          end
        end
      RUBY
    end
  end

  # KB of inherited memory that a child lost, and that it has for itself.
  def lost(env)
    numbers(run_ruby(PARENT + <<~'RUBY', env: env))
      in_child do
        before = shared
        work
        puts before - shared, private_dirty
      end
    RUBY
  end

  # A child that makes strings of all sizes leaves the holes of its parent alone. It inherits about 60 MB.
  %w[jemalloc glibc].each do |name|
    define_method(:"test_a_child_does_not_allocate_in_holes_of_#{name}") do
      needs_an_allocator
      env = preload(name)
      with, own = lost(env)
      without, own_without = lost(env.merge(OFF))
      assert_operator with, :<, 3_000, "KB lost (#{without} without)"
      assert_operator with, :<, without / 3
      assert_operator own, :<, own_without
    end
  end

  # Neither does a thread that starts in the child.
  def test_threads_of_a_child
    needs_an_allocator
    out = run_ruby(PARENT + <<~'RUBY', env: preload("jemalloc"))
      in_child do
        inherited, before = GC.malloc_stat[:inherited_bytes], shared
        64.times.map { Thread.new { work(500) } }.each(&:join)
        puts before - shared, GC.malloc_stat[:inherited_bytes] - inherited
      end
    RUBY
    lost, more = numbers(out)
    assert_operator lost, :<, 6_000, "KB lost"
    # What a thread allocates before it says which arena it wants.
    assert_operator more, :<, 64 * 1_024, "bytes allocated in arenas of the parent"
  end

  def test_blocks_that_are_left
    needs_an_allocator
    script = PARENT + <<~'RUBY'
      in_child do
        KEPT.clear
        GC.start
        work(100)
        puts GC.malloc_stat.values_at(:left_bytes, :left_blocks)
      end
      puts GC.malloc_stat[:left_bytes]
    RUBY
    left = ->(env) { numbers(run_ruby(script, env: preload("glibc").merge(env))) }
    bytes, blocks, of_parent = left.call("RUBY_GC_FORK_MALLOC_LEAVE" => "100K")
    assert_includes 50_000..102_400, bytes
    assert_includes 50..5_000, blocks
    assert_equal 0, of_parent
    assert_equal [0, 0, 0], left.call("RUBY_GC_FORK_MALLOC_LEAVE" => "0")
    assert_equal [0, 0, 0], left.call(OFF)
  end

  # For each allocator that is here: the number that the script prints is less than what the block makes
  # of the number without what gc/allocator.c does.
  def assert_below(what, script)
    needs_an_allocator
    each_allocator do |name, env|
      with, without = [env, env.merge(OFF)].map { |one| numbers(run_ruby(script, env: one)).first }
      assert_operator with, :<, yield(without), "#{what} with #{name}"
    end
  end

  # In KB, counted at once: what /proc/PID/status says of it lags behind (proc(5)).
  RESIDENT = "def resident = File.read('/proc/self/smaps_rollup')[/^Rss:\\s+(\\d+)/, 1].to_i\n"

  def test_many_forks
    needs_an_allocator
    %w[jemalloc glibc].each do |name|
      out = run_ruby(PARENT + RESIDENT + <<~'RUBY', 200, env: preload(name))
        in_child { work(50) }
        before = resident
        Integer(ARGV[0]).times { in_child { work(50) } }
        puts resident - before
      RUBY
      assert_operator numbers(out).first, :<, 300, "KB that the parent grew with #{name}"
    end
  end

  # The last of many generations has no more than without us. All of them live, and each fork takes the kernel
  # longer than the one before.
  def test_a_chain_of_forks
    script = PARENT + RESIDENT + "GENERATIONS = 30\n" + <<~'RUBY'
      generation = lambda do |left|
        work(1_000)
        left.zero? ? puts(resident) : in_child { generation.call(left - 1) }
      end
      in_child { generation.call(GENERATIONS) }
    RUBY
    assert_below("KB that the last generation has", script) { |without| without * 1.2 }
  end

  # Where malloc is not to know about fork it says what it holds, and a fork's report does, but nobody knows
  # what is inherited.
  def test_what_is_told_where_malloc_knows_of_no_fork
    tells = %w[glibc jemalloc]
    each_allocator do |name, env|
      next unless tells.include?(name)

      script = IN_CHILD + "in_child { p GC.malloc_stat.keys; p GC.malloc_stat[:allocated_bytes] > 1_000_000 }"
      with, without = [{}, OFF].map { |off| run_ruby(script, env: env.merge(off)).lines }
      assert_match(/:allocated_bytes, :own_bytes, :inherited_bytes,/, with.first)
      refute_match(/:own_bytes|:inherited_bytes/, without.first, name)
      assert_equal "true\n", without.last, "#{name}: bytes are allocated"
      report = run_ruby("Process.wait(fork { exit! })", env: env.merge(OFF, "RUBY_GC_FORK_REPORT" => "1"))
      assert_match(/MB of malloc/, report)
    end
  end

  # What a child frees of what it inherited goes back to the system, also if nobody else has it any more.
  def test_a_child_that_drops_what_it_inherited
    script = <<~'RUBY' + PARENT + <<~'RUBY'
      read, write = IO.pipe
      if fork
        write.close
        puts read.read
        exit
      end
    RUBY
      parent = $$
      exit!(0) if fork
      sleep 0.01 while Process.ppid == parent
      KEPT.clear
      GC.start
      work(2_000)
      write.puts private_dirty
      exit!(0)
    RUBY
    assert_below("KB that a child has", script) { |without| without * 1.2 }
  end

  # A parent that has forked once gets its holes back when it warms up.
  def test_a_parent_that_has_forked_once
    needs_an_allocator
    out = run_ruby(PARENT + RESIDENT + <<~'RUBY', env: preload("glibc"))
      in_child { work(50) }
      puts GC.malloc_stat[:filler_bytes], resident
      KEPT.clear
      Process.warmup
      puts GC.malloc_stat[:filler_bytes], resident
    RUBY
    filled, before, later, after = numbers(out)
    assert_operator filled, :>, 10_000_000
    assert_equal 0, later
    assert_operator after, :<, before / 2, "KB that the parent has"
  end

  # What the parent has freed since its seal, it gives back before it forks, so that no child does.
  def test_children_of_a_parent_that_works
    needs_an_allocator
    script = PARENT + <<~'RUBY'
      in_child { work(10) }
      work(5_000)
      GC.start
      in_child { puts private_dirty }
    RUBY
    assert_below("KB of the child alone", script) { |without| without + 1_000 }
  end

  # Native threads that an extension starts in a child allocate in an inherited arena.
  def test_threads_of_an_extension
    needs_an_allocator
    source = <<~'C'
      #include <pthread.h>
      #include <stdlib.h>
      #include <sys/resource.h>
      static void *work(void *count)
      {
          for (int i = 0; i < *(int *)count; i++) {
              volatile char *block = malloc(16000);
              for (int k = 0; k < 16000; k += 4096) block[k] = 1;
              free((void *)block);
          }
          return NULL;
      }
      long faults(int count)
      {
          struct rusage before, after;
          pthread_t thread;
          getrusage(RUSAGE_SELF, &before);
          if (pthread_create(&thread, NULL, work, &count) != 0) return -1;
          pthread_join(thread, NULL);
          getrusage(RUSAGE_SELF, &after);
          return after.ru_minflt - before.ru_minflt;
      }
    C
    preloading(source) do |env|
      out = run_ruby(PARENT + <<~'RUBY', env: env)
        require "fiddle"
        address = Fiddle::Handle::DEFAULT["faults"]
        faults = Fiddle::Function.new(address, [Fiddle::TYPE_INT], Fiddle::TYPE_LONG)
        in_child { puts faults.call(10_000) }
      RUBY
      assert_includes 0..500, numbers(out).first, "page faults of 10,000 blocks"
    end
  end

  # A parent that goes on working between its seals needs the holes itself.
  def test_a_parent_that_goes_on_working
    needs_an_allocator
    script = PARENT + RESIDENT + <<~'RUBY'
      random = Random.new(1)
      sizes = Array.new(8) do
        30_000.times { |i| KEPT[random.rand(60_000)] = "x" * (200 + random.rand(1_800)) }
        GC.start
        Process.warmup
        in_child { work(50) }
        resident
      end
      puts sizes.last(3).max
    RUBY
    with, without = [{}, OFF].map { |env| numbers(run_ruby(script, env: preload("glibc").merge(env))).first }
    assert_operator with, :<, without * 1.15, "KB after eight seals, #{without} without"
  end

  # What the parent fills holes with, a child does not free: it would copy each of these pages.
  def test_a_child_that_seals_and_forks
    needs_an_allocator
    script = PARENT + <<~'RUBY'
      in_child do
        Process.warmup
        in_child { work(50) }
        puts private_dirty
      end
    RUBY
    with, without = [{}, OFF].map { |env| numbers(run_ruby(script, env: preload("glibc").merge(env))).first }
    assert_operator with, :<, without + 2_000, "KB of the child alone"
  end

  # The malloc that a program is bound to may not be the one that the linker names first.
  def test_glibcs_malloc_with_checks
    env = { "LD_PRELOAD" => "libc_malloc_debug.so.0 libc.so.6", "MALLOC_CHECK_" => "3" }
    out, status = run_ruby_status("print GC.malloc_stat[:allocator]", env: env)
    skip "no libc_malloc_debug here" unless status.success? && !out.include?("LD_PRELOAD")
    skip "AddressSanitizer brings its own malloc" if ASAN

    assert_equal "other", out
    run_ruby(PARENT + "in_child { KEPT.each { |string| string << 'x' * 90 if string }; work(500) }", env: env)
  end

  def test_a_child_with_many_threads
    each_allocator do |_, env|
      run_ruby(PARENT + <<~'RUBY', env: env)
        3.times { in_child { 64.times.map { |n| Thread.new { work(200); text(n) } }.each(&:join); intact } }
        64.times { Thread.new { sleep } }
        3.times { in_child { 64.times.map { |n| Thread.new { work(200); text(n) } }.each(&:join); intact } }
      RUBY
    end
  end

  def test_settings_that_make_no_sense
    { "RUBY_GC_FORK_MALLOC" => "yes", "RUBY_GC_FORK_MALLOC_LEAVE" => "much" }.each do |name, value|
      script = IN_CHILD + "in_child { 'x' * 3000 }"
      out, status = run_ruby_status(script, env: { name => value }, options: ["-w"])
      assert status.success?, out
      assert_match(/#{name}=#{value} is ignored/, out)
    end
  end

  # jemalloc says what it does not understand, and goes on.
  def test_nonsense_for_jemalloc
    ["nonsense", "narenas:x", "dirty_decay_ms:", ":", ",,", "thp", "x" * 3_000].each do |value|
      out, status = run_ruby_status(PARENT + "in_child { work(500); intact }",
                                    env: preload("jemalloc").merge("MALLOC_CONF" => value))
      assert status.success?, "#{value[0, 20]}: #{out}"
    end
  end

  def test_the_users_configuration_wins
    needs_an_allocator
    skip "jemalloc is not linked" unless LINKED == "jemalloc"
    script = "print 1"
    conf = "stats_print:true,stats_print_opts:mdablxe"
    out, status = run_ruby_status(script, env: { "MALLOC_CONF" => conf })
    assert status.success?, out
    assert_match(/opt\.narenas: 2$/, out)
    assert_match(/opt\.dirty_decay_ms: 1000 /, out)
    assert_match(/opt\.thp: "never"/, out)
    out, status = run_ruby_status(script, env: { "MALLOC_CONF" => "narenas:3,dirty_decay_ms:77,#{conf}" })
    assert status.success?, out
    assert_match(/opt\.narenas: 3$/, out)
    assert_match(/opt\.dirty_decay_ms: 77 /, out)
  end

  # jemalloc's thread that gives memory back does not survive a fork by itself.
  def test_the_background_thread
    needs_an_allocator
    script = IN_CHILD + <<~'RUBY'
      def names = Dir["/proc/self/task/*/comm"].map { |file| File.read(file) }
      # A thread names itself when it begins to run.
      def thread? = 50.times.any? { names.any?(/\Ajemalloc/) || (sleep(0.02) && false) }
      puts thread?
      in_child { puts thread?; in_child { puts thread? } }
    RUBY
    [["background_thread:true", true], ["background_thread:false", false]].each do |conf, expected|
      out = run_ruby(script, env: preload("jemalloc").merge("MALLOC_CONF" => conf))
      assert_equal [expected.to_s] * 3, out.split
    end
  end

  # Libraries of a malloc that is the next one's.
  MALLOC = <<~'C'
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdbool.h>
    #include <stdlib.h>
    #include <sys/wait.h>
    #include <unistd.h>
    static void *(*next)(size_t);
    static void called(void);
    void *malloc(size_t size)
    {
        if (next == NULL) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
        called();
        return next(size);
    }
  C
  MALLOCS = {
    # Forks now and then, and its child allocates.
    "forks" => [MALLOC + <<~'C', "other"],
      static __thread bool inside;
      static __thread unsigned calls;
      static void called(void)
      {
          void *blocks[100];

          if (inside || ++calls % 5000) return;
          inside = true;
          pid_t child = fork();
          if (child == 0) {
              for (int i = 0; i < 100; i++) blocks[i] = malloc((size_t)i * 40);
              for (int i = 0; i < 100; i++) free(blocks[i]);
              _exit(0);
          }
          int status;
          if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) abort();
          inside = false;
      }
    C
    "has no mallctl" => [MALLOC + "static void called(void) {}", "other"],
    "has mallctl alone" => [MALLOC + <<~'C', "other"],
      static void called(void) {}
      int mallctl(const char *name, void *a, size_t *b, void *c, size_t d) { abort(); }
    C
    "has a mallctl that knows nothing" => [MALLOC + <<~'C', "other"],
      static void called(void) {}
      int mallctl(const char *name, void *a, size_t *b, void *c, size_t d) { return 2; }
      void dallocx(void *block, int flags) { free(block); }
      void *rallocx(void *block, size_t size, int flags) { return realloc(block, size); }
    C
    # Of these functions none may be called: malloc is another library's.
    "has another name" => [<<~'C', LINKED],
      #include <stdlib.h>
      void *je_malloc(size_t size) { abort(); }
      int je_mallctl(const char *name, void *a, size_t *b, void *c, size_t d) { abort(); }
      void je_dallocx(void *block, int flags) { abort(); }
      void *je_rallocx(void *block, size_t size, int flags) { abort(); }
      void mi_collect(_Bool force) { abort(); }
      void MallocExtension_ReleaseFreeMemory(void) { abort(); }
    C
    # What pthread_atfork calls, while a process forks.
    "is called at a fork" => [<<~'C', LINKED]
      #include <pthread.h>
      #include <stdlib.h>
      static void *volatile blocks[1000];
      static void exchange(void)
      {
          for (int i = 0; i < 1000; i++) {
              free(blocks[i]);
              blocks[i] = malloc((size_t)i);
              if (blocks[i] == NULL) abort();
          }
      }
      __attribute__((constructor)) static void start(void)
      {
          exchange();
          pthread_atfork(exchange, exchange, exchange);
      }
    C
  }.freeze

  MALLOCS.each do |what, (source, allocator)|
    define_method(:"test_a_malloc_that_#{what.tr(" ", "_")}") do
      needs_an_allocator
      skip "AddressSanitizer brings its own malloc" if ASAN
      preloading(source) do |env|
        assert_equal allocator, run_ruby(PARENT + <<~'RUBY', env: env)
          change = lambda do
            KEPT.each { |string| string << "more" * 20 if string&.start_with?(/\d+3 /) }
            4.times.map { |n| Thread.new { work(500); text(n) * 3 } }.each(&:join)
            KEPT.map! { |string| string&.delete_suffix("more" * 20) }
            GC.start
            intact
            GC.malloc_stat
          end
          in_child { change.call; in_child(&change) }
          change.call
          Process.warmup
          in_child(&change)
          print GC.malloc_stat[:allocator]
        RUBY
      end
    end
  end

  # An extension may free by xfree what strdup gave it, and by free what xmalloc gave.
  def test_blocks_of_extensions
    begin
      require "fiddle"
    rescue LoadError
      skip "no fiddle"
    end
    script = PARENT + <<~'RUBY'
      require "fiddle"
      at = Fiddle::Handle::DEFAULT
      function = lambda do |name, takes, gives|
        Fiddle::Function.new(at[name], takes, gives)
      end
      P, L = Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG
      XFREE = function["ruby_xfree", [P], Fiddle::TYPE_VOID]
      XMALLOC = function["ruby_xmalloc", [L], P]
      XREALLOC = function["ruby_xrealloc", [P, L], P]
      FREE = function["free", [P], Fiddle::TYPE_VOID]
      STRDUP = function["strdup", [P], P]
      made = Array.new(600) { |i| STRDUP.call("text #{i}" * (i % 300)) }
      xmade = Array.new(600) { |i| XMALLOC.call(1 + i * 7) }
      change = lambda do
        made.each_with_index do |block, i|
          block = XREALLOC.call(block, 9_000 + i) if i % 3 == 0
          block.to_s == "text #{i}" * (i % 300) or raise "text #{i}"
          XFREE.call(block)
        end
        xmade.each { |block| FREE.call(block) }
        XFREE.call(STRDUP.call("of the child"))
        FREE.call(XMALLOC.call(100))
        work(500)
        intact
      end
      in_child(&change)
      in_child { in_child(&change) }
      change.call
    RUBY
    each_allocator { |_, env| run_ruby(script, env: env) }
  end

  def test_memsize_is_as_before
    skip "no allocator that is known" if LINKED.nil?
    script = <<~'RUBY'
      require "objspace"
      kept = Array.new(1_000) { |i| "x" * (i * 10) }
      GC.start # garbage is there or not as collections come
      size = ObjectSpace.memsize_of_all(String)
      puts size
    RUBY
    sizes = [{}, OFF].map { |env| numbers(run_ruby(script, env: env)).first }
    assert_in_delta(*sizes, 1_000)
  end
end

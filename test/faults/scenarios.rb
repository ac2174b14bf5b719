# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# The programs in which calls fail. In each, calls count between the beginning and the end of a block that
# +faults+ is given; at the end of the process, and of each child, the data must be as they were made and
# the heap in order. A process that comes so far prints a line with "right" and what was raised.
module Faults
  ALIVE = <<~'RUBY'
    Process.setrlimit(:CORE, 0)
    $stdout.sync = true
    ARM, DISARM = 2_000_000_001, 2_000_000_002 # faults.c
    MEMORY = [NoMemoryError, SystemCallError, ThreadError, FiberError, LoadError, IOError].freeze

    def text(i) = "#{i} ".ljust(20 + i * 37 % 400, "abcdefgh")
    OLD = Array.new(ENV.fetch("FAULTS_OBJECTS", "66000").to_i) { Object.new }
    OLD_ID = OLD[OLD.size / 2].object_id
    TEXTS = Array.new(1_000) { |i| text(i) }
    LISTS = Array.new(1_000) { |i| [i, i.to_s, [i] * (i % 40), { "key#{i}" => i }] }
    TABLE = LISTS.to_h { |list| [list[1], list] }
    Pair = Struct.new(:left, :right)
    PAIRS = Array.new(500) { |i| Pair.new(i.to_s, LISTS[i]) }

    def wrong(what) = raise("WRONG: #{what}")

    def check
      TEXTS.each_with_index { |string, i| string == text(i) or wrong("text #{i}: #{string.inspect}") }
      LISTS.each_with_index do |list, i|
        list == [i, i.to_s, [i] * (i % 40), { "key#{i}" => i }] or wrong("list #{i}: #{list.inspect}")
        TABLE[i.to_s].equal?(list) or wrong("table #{i}")
      end
      PAIRS.each_with_index do |pair, i|
        pair.left == i.to_s && pair.right.equal?(LISTS[i]) or wrong("pair #{i}")
      end
      OLD.each { |object| object.class == Object or wrong(object.inspect) }
      OLD[OLD.size / 2].object_id == OLD_ID or wrong("object_id")
      GC.verify_internal_consistency
    end

    # The heap is in order now, and stays so when it is used on.
    def check_all
      check
      GC.start
      Array.new(3_000) { |i| [i.to_s * 30, Object.new, { i => i }] }
      GC.start(full_mark: false)
      compact
      check
    end

    # Where heap pages are malloc's, objects do not move.
    COMPACTS = GC.respond_to?(:compact)

    def compact = COMPACTS && GC.compact

    def caught
      yield
      "passed"
    rescue *MEMORY => e
      Process.kill(0, DISARM)
      "raised #{e.class}: #{e.message[/[^\n]*/]}"
    end

    def faults
      caught do
        Process.kill(0, ARM)
        begin
          yield
        ensure
          Process.kill(0, DISARM)
        end
      end
    end

    def right(name, outcome)
      check_all
      $stdout.syswrite("#{name} right, #{outcome}\n")
    end

    # The block, in which calls may fail, in a child, which checks and prints as well.
    def child(name)
      pid = fork do
        outcome = caught { yield }
        Process.kill(0, DISARM)
        right(name, outcome)
        exit!(0)
      rescue Exception => e
        Process.kill(0, DISARM)
        $stdout.syswrite("#{name} #{e.class}: #{e.message}\n#{e.backtrace.first(5).join("\n")}\n")
        exit!(9)
      end
      pid
    end

    def wait(pid)
      status = Process.wait2(pid).last
      status.success? or $stdout.syswrite("CHILD #{status.inspect}\n")
    end

    def here_and_in_a_child(name, &use)
      pid = nil
      outcome = faults do
        use.call
        pid = child("child", &use)
      end
      wait(pid) if pid
      right(name, outcome)
    end

    # Garbage and survivors, of all sizes of slots, with and without memory of malloc's.
    def work(count = 1_500)
      kept = []
      count.times do |i|
        kept << [i.to_s, "x" * (i % 700), { i => [i] }, Object.new, i.to_s.to_sym, 2**(64 + i % 70)]
        kept[i / 2] = nil if i.odd?
      end
      kept.compact.each { |list| list[0].to_i == list[2].keys[0] or wrong(list.inspect) }
      kept.size
    end
  RUBY

  SCENARIOS = {
    # From the first instruction of the process.
    boot: <<~'RUBY',
      Process.kill(0, DISARM)
      right("boot", "passed")
    RUBY

    growth: <<~'RUBY',
      right("growth", faults do
        kept = Array.new(25_000) { |i| [i.to_s, { i => i }] }
        kept << Array.new(3_000) { |i| "y" * (300 + i % 400) }
        kept << Array.new(200_000) { |i| i.to_f.to_s if i % 8 == 0 }
        kept.size
      end)
    RUBY

    collection: <<~'RUBY',
      right("collection", faults do
        work
        GC.start(full_mark: false)
        work
        GC.start
        GC.verify_internal_consistency
        ObjectSpace.each_object(Class) { |c| c.name }
        ObjectSpace::WeakMap.new.tap { |map| 200.times { |i| map[Object.new] = i.to_s } }
        GC.start
        ObjectSpace.garbage_collect(full_mark: true, immediate_sweep: false)
        work
      end)
    RUBY

    # Marking step by step, with a lazy sweep after it: the objects that are made meanwhile do both.
    incremental: <<~'RUBY',
      deep = nil
      2_000.times { |i| deep = [deep, i.to_s] }
      right("incremental", faults do
        3.times do
          GC.start(immediate_mark: false, immediate_sweep: false)
          work(4_000)
          OLD.each_slice(3_000) { |slice| slice[0].instance_variable_set(:@young, [slice.size.to_s]) }
        end
      end)
      OLD.each { |object| object.remove_instance_variable(:@young) if object.instance_variables.any? }
    RUBY

    compaction: <<~'RUBY',
      holes = Array.new(30_000) { |i| [i.to_s, Object.new] }
      holes.each_index { |i| holes[i] = nil if i % 3 != 0 }
      right("compaction", faults do
        next unless COMPACTS

        GC.compact
        work
        GC.verify_compaction_references(expand_heap: true, toward: :empty)
        GC.auto_compact = true
        GC.start
        work
        GC.auto_compact = false
      end)
      holes.each_with_index { |pair, i| (i % 3 == 0 ? pair[0] == i.to_s : pair.nil?) or wrong("hole") }
    RUBY

    # The first fork seals; the child works, collects and allocates.
    fork: <<~'RUBY',
      pid = nil
      outcome = faults do
        pid = child("child") do
          work
          GC.start(full_mark: false)
          TEXTS.each_with_index { |string, i| string << "more" if i % 5 == 0 }
          TEXTS.each_index { |i| TEXTS[i] = text(i) if i % 5 == 0 }
          GC.start
          work
        end
        work
      end
      wait(pid) if pid
      right("fork", outcome)
    RUBY

    # A child, its child, and that one's: each after its own work, and each that seals again.
    reforks: <<~'RUBY',
      fork_depth = 0
      again = lambda do
        fork_depth += 1
        kept = Array.new(9_000 * fork_depth) { |i| [i.to_s] }
        work
        if fork_depth < 3
          pid = nil
          begin
            pid = child("child #{fork_depth + 1}", &again)
            GC.start
          ensure
            if pid
              Process.wait2(pid).last.success? or $stdout.syswrite("CHILD #{$?.inspect}\n")
            end
          end
        end
        kept.each_with_index { |list, i| list[0] == i.to_s or wrong(list.inspect) }
      end
      right("reforks", faults(&again))
    RUBY

    # A master: seals, works on, seals again, collects in full; children each time.
    seals: <<~'RUBY',
      pids = []
      held = nil
      outcome = faults do
        pids << child("child 1") { work(300) }
        held = Array.new(40_000) { |i| [i.to_s] }
        pids << child("child 2") { GC.start }
        GC.start
        held = nil
        GC.start
        Process.warmup
        pids << child("child 3") { OLD[0] = Object.new; GC.start; compact }
        compact
      end
      pids.each { |pid| wait(pid) }
      right("seals", outcome)
    RUBY

    # Threads, fibers: stacks, mutexes, call caches, new classes and methods, in a child too.
    vm: <<~'RUBY',
      use = lambda do
        threads = Array.new(8) { |n| Thread.new { Mutex.new.synchronize { work(20) }; n } }
        threads.sum(&:value) == 28 or wrong("threads")
        fibers = Array.new(40) { |n| Fiber.new { Fiber.yield n; n * 2 } }
        fibers.sum(&:resume) == 780 or wrong("fibers")
        fibers.sum(&:resume) == 1560 or wrong("fibers")
        30.times do |n|
          c = Class.new { class_eval("def m#{n}(a) = a + #{n}; def call = m#{n}(1); attr_accessor :x") }
          c.const_set(:N, n)
          object = c.new
          object.call == n + 1 or wrong("method")
          object.x = n
          object.x + c::N == n * 2 or wrong("ivar")
          made = eval("proc { |v| [v, :sym#{n}, \"str#{n}\"] }").call(n)
          made == [n, :"sym#{n}", "str#{n}"] or wrong("eval")
        end
        deep = ->(n) { n == 0 ? 0 : 1 + deep.(n - 1) }
        deep.(900) == 900 or wrong("deep")
      end
      here_and_in_a_child("vm", &use)
    RUBY

    # Slices from the middles of strings, changed, given to C, in a child and before.
    substrings: <<~'RUBY',
      long = Array.new(2_000) { |i| "line #{i} " + "z" * 40 }.join("\n").freeze
      use = lambda do
        lines = long.lines(chomp: true)
        parts = long.split("\n")
        lines == parts or wrong("lines")
        slices = Array.new(400) { |i| long[i * 50, 1_000 + i] }
        slices.each_slice(3) { |a, b, _| a << "q"; b&.setbyte(0, 33) }
        slices.each_with_index do |s, i|
          expected = long[i * 50, 1_000 + i]
          expected << "q" if i % 3 == 0
          expected.setbyte(0, 33) if i % 3 == 1
          s == expected or wrong("slice #{i}")
        end
        Integer(long[5, 1]) == 0 or wrong("integer")
        slices.map { |s| s[40, 900].to_sym }.size == 400 or wrong("symbols")
        slices.each { |s| s[9, 800].unpack("C*") }
        long.scan(/line \d+/).size == 2_000 or wrong("scan")
      end
      here_and_in_a_child("substrings", &use)
    RUBY

    # Every collection reads what the machine says of memory.
    pressure: <<~'RUBY',
      settings = %i[auto psi cgroup rusage auto]
      pid = nil
      outcome = faults do
        settings.each do |setting|
          GC.config(pressure: setting) if GC.config.key?(:pressure)
          GC.config(memory_limit: 1 << 20) if GC.config.key?(:memory_limit)
          2.times { GC.start(full_mark: false); work(300) }
        end
        pid = child("child") { 3.times { GC.start(full_mark: false); work(300) } }
        GC.start
      end
      wait(pid) if pid
      right("pressure", outcome)
    RUBY

    # A rehearsal, and a worker after it.
    rehearsal: <<~'RUBY',
      require "cowruby/rehearsal"
      app = lambda do |env|
        work(50)
        [200, { "content-type" => "text/plain" }, ["page #{env["PATH_INFO"]}"]]
      end
      pid = nil
      outcome = faults do
        CowRuby::Rehearsal.of(app, ["/a", "/b?c=d", "POST /e x=1"])
        pid = child("child") { app.call({ "PATH_INFO" => "/a" })[2] == ["page /a"] or wrong("page") }
      end
      wait(pid) if pid
      right("rehearsal", outcome)
    RUBY

    # Code that YJIT makes before the fork and after, until its code is collected.
    yjit: <<~'RUBY',
      (RubyVM::YJIT.enabled? or (puts "SKIP no YJIT"; exit)) rescue (puts "SKIP no YJIT"; exit)
      class Point
        attr_accessor :x
        def initialize(x) = @x = x
        def +(other) = Point.new(@x + other.x)
        def each = yield(@x)
      end
      use = lambda do
        25.times do |n|
          m = Module.new do
            class_eval("def self.f#{n}(a, b) = a.odd? ? [a, b, #{n}] : { a => b, n: #{n} }; " \
                       "def self.g(n) = n < 2 ? n : g(n - 1) + g(n - 2)")
          end
          60.times { |i| m.public_send(:"f#{n}", i, n) or wrong("f") }
          m.g(11) == 89 or wrong("g")
        end
        point = 200.times.reduce(Point.new(0)) { |sum, i| sum + Point.new(i) }
        point.each { |x| x == 19_900 or wrong("point") }
        work(300)
        Point.class_eval { def +(other) = Point.new(other.x + @x) }
        200.times.reduce(Point.new(0)) { |sum, i| sum + Point.new(i) }.x == 19_900 or wrong("point")
      end
      pid = nil
      outcome = faults do
        use.call
        pid = child("child") do
          use.call
          RubyVM::YJIT.code_gc if RubyVM::YJIT.respond_to?(:code_gc)
          use.call
        end
      end
      wait(pid) if pid
      right("yjit", outcome)
    RUBY

    # fork with other threads, popen, system, threads start at the same time.
    forks: <<~'RUBY',
      pids = []
      outcome = faults do
        threads = Array.new(3) { Thread.new { work(200) } }
        3.times { |i| pids << child("child #{i}") { work(100) } }
        IO.popen("-") { |io| io ? io.read : exit!(0) }
        system("true")
        `true`
        pids << spawn("true")
        threads.each(&:join)
      end
      pids.each { |pid| wait(pid) }
      right("forks", outcome)
    RUBY

    # Walks of the heap, some of them with the VM's lock.
    walks: <<~'RUBY'
      require "objspace"
      Warning[:experimental] = false
      Ractor.new { nil }.take # so that locks are locks; not in the child
      here_and_in_a_child("walks") do
        ObjectSpace.memsize_of_all
        ObjectSpace.count_objects_size
        ObjectSpace.count_objects
        ObjectSpace.each_object(Class).count > 200 or wrong("classes")
        ObjectSpace.dump_all(output: File.open(File::NULL, "w")).close
        ObjectSpace.garbage_collect
      end
    RUBY
  }.freeze

  # Options of ruby.
  OPTIONS = { yjit: %w[--yjit-call-threshold=2 --yjit-exec-mem-size=1] }.freeze

  # Old objects: enough for a seal where there is a fork, and few where nothing is sealed.
  OBJECTS = Hash.new(66_000).update(boot: 2_000, growth: 2_000, collection: 6_000, incremental: 9_000,
                                    compaction: 6_000, forks: 2_000, pressure: 6_000, rehearsal: 6_000,
                                    walks: 6_000).freeze
end

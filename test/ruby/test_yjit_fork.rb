# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# YJIT in a forked process (patches 0855 to 0880): what it compiles, and that it forgets what does not hold
# any more, also where a child inherited it.
class TestYJITFork < Minitest::Test
  include CowTest

  # Ruby source for scripts: an application of as many iseqs as a process must inherit to wait before it
  # compiles.
  APPLICATION = IN_CHILD + <<~'RUBY'
    eval((0...10_500).map { |i| "def filler#{i} = #{i}\n" }.join)

    def same(want, found, what)
      want == found or raise "#{what}: expected #{want.inspect}, found #{found.inspect}"
    end
    def blocks = RubyVM::YJIT.runtime_stats(:compiled_block_count)
    def iseqs = RubyVM::YJIT.runtime_stats(:compiled_iseq_count)
    def fresh(name) = eval("def #{name}(x) = x + 1\nproc { #{name}(1) }", TOPLEVEL_BINDING)
  RUBY

  # Ruby source for scripts: methods that assume what other methods, constants and operators are. Each of the
  # CHANGES changes something that they rely on; WANT is what sum gives at first, and after each of them.
  ASSUMING = IN_CHILD + <<~'RUBY'
    module Known
      LIMIT = 3
      def self.limit = LIMIT
    end
    class Base
      def value(x) = x + 1
      def each_two
        yield 1
        yield 2
      end
    end
    class Derived < Base
      def value(x) = super + Known::LIMIT
    end
    TEXT = <<~'CODE'
      def sum%s
        sum = 0
        OBJECTS.each { |object| sum += object.value(2) if object.respond_to?(:value) }
        OBJECTS[0].each_two { |i| sum += i * Known.limit }
        local = [1, 2, 3].first + "abc".size + { a: 1 }.fetch(:a)
        sum + local + (sum > Known::LIMIT ? 1 : 2)
      end
    CODE
    OBJECTS = [Base.new, Derived.new, Base.new]
    eval TEXT % ""
    CHANGES = [
      -> { Base.class_eval { def value(x) = x + 10 } },
      -> { Known.send(:remove_const, :LIMIT); Known.const_set(:LIMIT, 5) },
      -> { Known.define_singleton_method(:limit) { 7 } },
      -> { Derived.class_eval { def value(x) = 1 } },
      -> { OBJECTS[0].define_singleton_method(:value) { |x| 100 } },
      -> { Array.class_eval { def first = 1_000 } },
      -> { String.class_eval { def size = 0 } },
      -> { Integer.class_eval { alias_method :plus, :+; def +(other) = plus(other).plus(1) } },
    ]
    WANT = ARGV.map { |text| Integer(text) }

    def check(change, what)
      want = WANT[change]
      3.times do
        found = sum
        found == want or raise "#{what}: expected #{want}, found #{found}"
      end
    end
  RUBY

  # Ruby source for scripts: methods that go three ways, and call another one that can be redefined.
  WAYS = IN_CHILD + <<~'RUBY'
    def part(x) = x + 1
    def define_ways(count)
      eval((0...count).map { |i| <<~CODE }.join, TOPLEVEL_BINDING)
        def ways#{i}(x)
          if x < 0
            part(-x) * #{i}
          elsif x > 10
            [part(x), #{i}].sum
          else
            part(x) + #{i}
          end
        end
      CODE
    end
  RUBY

  def setup
    skip "no YJIT in this build" unless defined?(RubyVM::YJIT)
  end

  # Whole numbers and file names are arguments of the script, the rest options of ruby.
  def run_yjit(script, *given, **rest)
    options, arguments = given.partition { |word| word.to_s.start_with?("--") }
    run_ruby(script, *arguments, options: ["--yjit", *options], **rest)
  end

  # Runs ASSUMING and +script+. The interpreter says what sum should give.
  def run_assuming(script, *options, **rest)
    @want ||= numbers(run_ruby(ASSUMING + "puts sum; CHANGES.each { |change| change.call; puts sum }",
                               options: %w[--disable-yjit]))
    run_ruby(ASSUMING + script, *@want, options: ["--yjit", *options], timeout: 300,
                                        **rest)
  end

  # Methods that are called equally often are not all compiled at once.
  def test_a_child_compiles_methods_one_after_the_other
    run_yjit(APPLICATION + <<~'RUBY')
      in_child do
        calls = Array.new(64) { |i| fresh("spread#{i}") }
        counts = [370, 50, 50, 50, 50, 60].map do |times|
          calls.each { |call| times.times(&call) }
          iseqs
        end
        steps = counts.each_cons(2).map { |before, after| after - before }
        raise counts.inspect unless steps.all? { |step| step >= 4 } && steps.max < steps.sum / 2
      end
    RUBY
  end

  def test_a_child_waits_before_it_compiles_a_method
    run_yjit(APPLICATION + <<~'RUBY')
      in_child do
        call = fresh("young")
        iseqs_before = iseqs
        370.times(&call)
        same(iseqs_before, iseqs, "compiled iseqs after 370 calls")
        260.times(&call)
        same(true, iseqs > iseqs_before, "more compiled iseqs after 630 calls")
      end
      call = fresh("of_the_parent")
      before = iseqs
      130.times(&call)
      same(true, iseqs > before, "more compiled iseqs of the parent after 130 calls")
    RUBY
  end

  # The counters of 10,500 methods stand in 41 OS pages of the parent. Not where memory is malloc's.
  def test_calls_are_counted_in_few_pages
    skip "no regions" if LOCATOR != "arena" || ASAN
    out = run_yjit(APPLICATION + EACH_MAPPING + <<~'RUBY', env: PLACE)
      def written = private_dirty("VM words")
      in_child do
        fillers = (0...10_500).map { |i| method(:"filler#{i}").unbind }
        before = written
        raise "no VM words are seen" if before.zero?
        fillers.each { |filler| filler.bind_call(self) }
        puts written - before
      end
    RUBY
    assert_operator out.to_i, :<, 12 * 4, "KB"
  end

  # The counter of an iseq that is gone is not another's.
  def test_counters_of_dead_methods
    run_yjit(APPLICATION + <<~'RUBY')
      in_child do
        4.times do |round|
          300.times do |i|
            eval("def passing#{i}(x) = x + #{round}")
            220.times { send(:"passing#{i}", 1) } if i < 20
          end
          GC.start
        end
        before = iseqs
        40.times do |i|
          call = fresh("late#{i}")
          370.times(&call)
          same(before, iseqs, "compiled iseqs after 370 calls")
        end
      end
    RUBY
  end

  # The branch that the parent never took is a stub in the child.
  def test_a_child_waits_before_it_compiles_a_stub
    out = run_yjit(APPLICATION + <<~'RUBY')
      def two_ways(flag)
        if flag
          "one".size + 1
        else
          "another".size * 2
        end
      end
      way = method(:two_ways)
      200.times { way.call(true) }
      in_child do
        before = blocks
        9.times { |i| same(14, way.call(false), "call #{i}") }
        same(before, blocks, "compiled blocks after 9 hits")
        1.times { |i| same(14, way.call(false), "call #{i}") }
        same(true, blocks > before, "more compiled blocks after 10 hits")
        puts two_ways(true)
      end
    RUBY
    assert_equal "4", out.chomp
  end

  # Compiled code had called it; then the interpreter does.
  def test_a_compiled_method_without_an_entry
    run_yjit(APPLICATION + <<~'RUBY')
      def called(x) = x + 1
      200.times { called(1) }
      in_child do
        before = blocks
        3.times { called(1) }
        same(true, blocks > before, "more compiled blocks, for an entry")
      end
    RUBY
  end

  WAITS = APPLICATION + <<~'RUBY'
    in_child do
      call = fresh("young")
      before = iseqs
      200.times(&call)
      puts iseqs == before
    end
  RUBY

  def test_who_waits
    assert_equal "true", run_yjit(WAITS).chomp
    assert_equal "true", run_yjit(WAITS, env: { "RUBY_YJIT_FORK_POLICY" => "auto" }).chomp
    assert_equal "false", run_yjit(WAITS, env: { "RUBY_YJIT_FORK_POLICY" => "off" }).chomp
    assert_equal "false", run_yjit(WAITS, "--yjit-call-threshold=30").chomp
    assert_equal "false", run_yjit(WAITS, "--yjit-cold-threshold=200000").chomp
    assert_equal "true", run_yjit(WAITS, "--yjit-mem-size=64").chomp
    assert_equal "false", run_yjit(WAITS.sub("10_500", "100")).chomp, "without an application"
  end

  # As Rails does in an initializer, and servers in a hook of the worker.
  def test_a_child_that_enables_it_waits
    script = WAITS.sub("in_child do", "in_child do\nRubyVM::YJIT.enable")
    assert_equal "true", run_ruby(script, options: %w[--disable-yjit]).chomp
  end

  # A program that has loaded its application and goes on in the background shares with nobody; its workers
  # do.
  def test_a_daemon_does_not_wait_and_its_workers_do
    Dir.mktmpdir do |directory|
      file = File.join(directory, "answers")
      run_yjit(APPLICATION + <<~'RUBY', file)
        Process.daemon(true, true)
        File.open("#{ARGV[0]}.new", "w") do |answers|
          answers.sync = true
          before = iseqs
          200.times(&fresh("of_the_daemon"))
          answers.puts iseqs > before
          in_child do
            before = iseqs
            200.times(&fresh("of_its_child"))
            answers.puts iseqs == before
          end
        end
        File.rename("#{ARGV[0]}.new", ARGV[0])
      RUBY
      Timeout.timeout(60) { sleep 0.05 until File.exist?(file) }
      assert_equal "true\ntrue\n", File.read(file)
    end
  end

  # As of a program that forks itself into the background before it loads its application.
  def test_a_child_that_loads_an_application_itself
    loading = APPLICATION.delete_prefix(IN_CHILD)
    script = IN_CHILD + "in_child do\n#{loading}\nRubyVM::YJIT.enable\n" + <<~'RUBY'
        before = iseqs
        200.times(&fresh("young"))
        puts iseqs > before
      end
    RUBY
    assert_equal "true", run_ruby(script, options: %w[--disable-yjit]).chomp
  end

  # Code of suspended fibers keeps its pages, so that a branch may go on in a page that is far away.
  def test_branches_over_the_end_of_a_page_after_code_gc
    run_yjit(<<~'RUBY', "--yjit-call-threshold=1", timeout: 300)
      def define(name, ways, pause = nil)
        body = (0...ways).map do |i|
          "if f > #{i}\n x += 1\nelse\n x -= f + #{i}\nend\n#{"Fiber.yield if f == 9_999\n" if i == pause}"
        end
        eval "def #{name}(x, f)\n#{body.join}x\nend"
      end
      fibers = (0...36).filter_map do |i|
        define("big#{i}", 400, 200)
        [300, 0, 100].each { |f| 20.times { send("big#{i}", 1, f) } }
        Fiber.new { send("big#{i}", 1, 9_999) }.tap(&:resume) if i % 3 == 1
      end
      RubyVM::YJIT.code_gc
      600.times do |i|
        define("small#{i}", 10 + i % 20)
        [15, 0].each { |f| 20.times { send("small#{i}", 1, f) } }
      end
      fibers.each { |fiber| fiber.resume == 401 or raise "a fiber" }
    RUBY
  end

  # Where code does not find room any more nothing is noted that is not there.
  def test_code_gc_after_no_room
    3.times do |seed|
      run_yjit(<<~'RUBY', "--yjit-mem-size=2", seed, timeout: 300)
        def define(name, ways)
          body = (0...ways).map { |i| "if f > #{i}\n x += 1\nelse\n x -= f + #{i}\nend\n" }
          eval "def #{name}(x, f)\n#{body.join}RubyVM::YJIT.code_gc if f == 9_999\nx\nend"
        end
        seed = ARGV[0].to_i
        define("first", 5 + seed)
        35.times { first(1, 10) }
        sizes = -> { RubyVM::YJIT.runtime_stats.values_at(:outlined_code_size, :code_region_size) }
        full = 0
        3_000.times do |i|
          before = sizes.call
          define("m#{i}", 3 + (i * 7 + seed) % 9)
          [10, 0].each { |f| 35.times { send("m#{i}", 1, f) } }
          full = sizes.call == before ? full + 1 : 0
          break if full > 3
        end
        full > 3 or raise "there is still room: #{sizes.call}"
        20.times do |i|
          define("late#{i}", 3)
          35.times { send("late#{i}", 1, 10) }
          send("late#{i}", 1, 9_999)
        end
      RUBY
    end
  end

  def test_at_exit_all_is_freed
    [[], %w[--yjit --yjit-call-threshold=1]].product([[], %w[--enable-gems]]) do |options, gems|
      out = run_ruby("print Ractor.new { 1 }.take", env: { "RUBY_FREE_AT_EXIT" => "1" },
                                                    options: ["-W0", *options, *gems])
      assert_match(/1\z/, out)
    end
  end

  def test_a_value_that_is_not_understood
    out, status = run_ruby_status("puts 1", env: { "RUBY_YJIT_FORK_POLICY" => "yes" },
                                            options: ["--yjit"])
    assert status.success?
    assert_match(/RUBY_YJIT_FORK_POLICY is ignored: it must be auto or off\n1\n\z/, out)
  end

  # What a child inherited and what it has compiled itself is forgotten alike; also by a child of the child,
  # and after the two parts of the tables were made one.
  def test_changes_in_a_child
    run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      10.times { sum }
      check(0, "in the parent")
      CHANGES.each_index do |last|
        in_child do
          CHANGES[0..last].each_with_index do |change, i|
            change.call
            check(i.succ, "change #{i}")
            in_child do
              check(i.succ, "change #{i}, in a child of the child")
              Process.warmup
              check(i.succ, "change #{i}, after Process.warmup")
            end
          end
          GC.verify_internal_consistency
        end
      end
      check(0, "in the parent, at the end")
    RUBY
  end

  def test_changes_after_a_child_has_sealed_its_heap
    run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      KEPT = Array.new(80_000) { |i| "kept #{i}" } # a heap that is big enough to be sealed
      10.times { sum }
      in_child do
        eval TEXT % "_own"
        20.times { sum_own }
        Process.warmup
        in_child do
          CHANGES.each_with_index do |change, i|
            change.call
            check(i.succ, "change #{i}")
            found = sum_own
            found == WANT[i.succ] or raise "change #{i}: expected #{WANT[i.succ]}, found #{found}"
          end
          GC.verify_internal_consistency
        end
      end
    RUBY
  end

  # An environment that escapes, TracePoint and Ractors invalidate code as well.
  def test_other_invalidations_in_a_child
    run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      def escaping(x)
        y = x + 1
        maybe(binding) if x == 99
        y += 1
        y
      end
      def maybe(given) = given.local_variable_set(:y, 1_000)
      10.times { |i| escaping(i) }
      10.times { sum }
      in_child do
        [escaping(1), escaping(99), escaping(1)] == [3, 1_001, 3] or raise "an environment that escaped"
        in_child { [escaping(2), escaping(99)] == [4, 1_001] or raise "likewise in a child of the child" }
      end
      in_child do
        calls = 0
        TracePoint.new(:call) { calls += 1 }.enable { check(0, "traced") }
        calls >= 3 * 6 or raise "calls: expected 18 or more, found #{calls}"
        check(0, "after tracing")
      end
      in_child do
        Ractor.new { 1 + 1 }.take == 2 or raise "a Ractor"
        check(0, "beside a Ractor")
      end
      check(0, "in the parent")
    RUBY
  end

  def test_code_gc_in_a_child
    run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      10.times { sum }
      in_child do
        2.times do |round|
          RubyVM::YJIT.code_gc
          check(0, "after code GC #{round}")
          200.times do |i|
            eval("def after_#{round}_#{i}(x) = [x, x + #{i}].sum")
            3.times { send(:"after_#{round}_#{i}", 1) }
          end
          in_child { check(0, "in a child of the child"); RubyVM::YJIT.code_gc; check(0, "likewise") }
        end
        GC.verify_internal_consistency
      end
      check(0, "in the parent")
    RUBY
  end

  # A child that compiles what inherited branches lead to changes inherited words in a table of its own, until
  # it seals its heap.
  def test_links_to_inherited_blocks
    run_yjit(WAYS + <<~'RUBY', "--yjit-call-threshold=2")
      KEPT = Array.new(80_000) { |i| "kept #{i}" } # a heap that is big enough to be sealed
      COUNT = 600
      define_ways(COUNT)
      def want(i, x, more) = x < 0 ? (-x + more) * i : x + more + i
      def check(values, more, what)
        COUNT.times do |i|
          values.each do |x|
            found = send(:"ways#{i}", x)
            found == want(i, x, more) or
              raise "#{what}: ways#{i}(#{x}): expected #{want(i, x, more)}, found #{found}"
          end
        end
      end
      def changed = RubyVM::YJIT.memory[:changed_words][:count] || 0
      def redefine(more, what)
        eval "def part(x) = x + #{more}"
        2.times { check([-3, 20, 5], more, what) }
      end

      3.times { check([5], 1, "in the parent") }
      changed == 0 or raise "a parent has changed #{changed} words of its own"
      in_child do
        2.times { check([20], 1, "a way that the parent never took") }
        changed > COUNT or raise "changed words: expected more than #{COUNT}, found #{changed}"
        in_child do
          2.times { check([-3, 20, 5], 1, "in a child of the child") }
          redefine(2, "in a child of the child, with another method")
          GC.verify_internal_consistency
        end
        GC.compact if GC.respond_to?(:compact)
        check([20, 5], 1, "after a compaction")
        Process.warmup
        changed == 0 or raise "#{changed} changed words were not written"
        2.times { check([-3, 20, 5], 1, "after a seal") }
        in_child do
          redefine(3, "after a seal, in a child of the child")
          RubyVM::YJIT.code_gc
          2.times { check([-3, 20, 5], 3, "after code GC") }
        end
        redefine(4, "after a seal")
        GC.verify_internal_consistency
      end
      in_child { redefine(5, "at once") }
      in_child do
        check([-3], 1, "first")
        TracePoint.new(:call) { }.enable { check([-3, 20, 5], 1, "traced") }
        redefine(6, "after tracing")
        GC.stress = true
        ways1(-3) == 9 && ways2(20) == 28 or raise "under stress"
      end
      check([-3, 20, 5], 1, "in the parent, at the end")
    RUBY
  end

  # A jump that is written anew over the end of a code page, when the block behind it is invalidated, is not
  # taken for one that was written over the outlined code of that page. Where blocks lie is different in each
  # child; three of them aborted.
  def test_invalidation_at_the_end_of_a_code_page
    run_yjit(WAYS + <<~'RUBY', "--yjit-call-threshold=2")
      define_ways(150)
      def check(*values) = 150.times { |i| values.each { |x| send(:"ways#{i}", x) } }
      21.times do |count|
        in_child do
          eval((0...count).map { |i| "def before#{i}(x) = x + 1\n" }.join)
          2.times { count.times { |i| send(:"before#{i}", 1) } }
          3.times { check(5) }
          2.times { check(20) }
          2.times { check(-3, 20, 5) }
          eval "def part(x) = x + 2"
          2.times { check(-3, 20, 5) }
          ways7(-3) == 35 && ways7(20) == 29 && ways7(5) == 14 or raise "after an invalidation"
        end
      end
    RUBY
  end

  # A stub that has done its work makes room for another.
  def test_stubs_are_used_again
    skip "not on this machine" unless RUBY_PLATFORM.start_with?("x86_64")
    out = run_yjit(<<~'RUBY', "--yjit-call-threshold=1")
      # Gives the bytes of outlined code that all methods need.
      def run(from, flag)
        before = RubyVM::YJIT.runtime_stats(:outlined_code_size)
        (from...from + 1_000).each do |i|
          eval("def m#{i}(x) = x ? #{i} : -#{i}") if flag
          send(:"m#{i}", flag) == (flag ? i : -i) or raise "m#{i}(#{flag.inspect})"
        end
        RubyVM::YJIT.runtime_stats(:outlined_code_size) - before
      end
      puts run(0, true)
      run(0, nil)
      puts run(1_000, true)
    RUBY
    without_free_stubs, with_free_stubs = numbers(out)
    assert_operator with_free_stubs, :<, without_free_stubs - 10_000
  end

  # Code is written until there is no room for more; then it is collected, again and again.
  def test_little_memory_for_code
    run_yjit(<<~'RUBY', "--yjit-call-threshold=1", "--yjit-exec-mem-size=1", "--yjit-code-gc", timeout: 300)
      3_000.times do |i|
        eval("def made#{i}(x) = x.to_s.size + [x, #{i}].max + { x => #{i} }.size")
        want = 1 + [1, i].max + 1
        found = send(:"made#{i}", 1)
        found == want or raise "made#{i}: expected #{want}, found #{found}"
      end
      RubyVM::YJIT.runtime_stats(:code_gc_count) > 0 or raise "no code GC"
    RUBY
  end

  def test_compaction_and_stress_in_a_child
    needs_compaction
    run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      10.times { sum }
      in_child do
        GC.compact
        check(0, "after a compaction")
        GC.verify_compaction_references(expand_heap: true, toward: :empty)
        check(0, "after all was moved")
        GC.stress = true
        CHANGES.first(3).each_with_index { |change, i| change.call; check(i.succ, "under stress") }
        GC.stress = false
        GC.verify_internal_consistency
      end
    RUBY
  end

  # What it says it holds is what Rust has allocated; what is inherited is what the parent had.
  def test_memory
    run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      eval((0...2_000).map { |i| "def m#{i}(x) = [x, x + #{i}].sum\n" }.join)
      2_000.times { |i| 3.times { send(:"m#{i}", 1) } }
      DATA = RubyVM::YJIT.memory.keys - %i[inline_code outlined_code mapped_code]
      total = ->(key) { RubyVM::YJIT.memory.values_at(*DATA).sum { |sum| sum.fetch(key) } }

      allocated = RubyVM::YJIT.runtime_stats(:yjit_alloc_size)
      (total[:bytes] - allocated).abs < 4_096 or raise "the sum of all bytes"
      total[:inherited_bytes].zero? or raise "a process that was not forked has inherited something"
      memory = RubyVM::YJIT.memory
      memory[:payloads][:count] >= 2_000 && memory[:blocks][:count] >= 2_000 or raise memory.inspect
      before = total[:bytes]
      in_child do
        eval((0...500).map { |i| "def n#{i}(x) = [x, x + #{i}].sum\n" }.join)
        500.times { |i| 3.times { send(:"n#{i}", 1) } }
        own = RubyVM::YJIT.memory.transform_values { |sum| sum[:bytes] - sum[:inherited_bytes] }
        inherited = total[:inherited_bytes]
        (inherited - before).abs < before / 10 or raise "inherited: expected #{before}, found #{inherited}"
        # 500 of 2,000 methods
        %i[payloads blocks branches versions].each do |kind|
          share = own[kind].fdiv(memory[kind][:bytes])
          share.between?(0.15, 0.45) or raise "#{kind}: the child's own share is #{share}"
        end
      end
    RUBY
    assert_equal "nil", run_ruby("p RubyVM::YJIT.memory", options: ["--disable-yjit"]).chomp
  end

  # Both parts of a code page are used.
  def test_code_pages_are_filled
    run_yjit(<<~'RUBY', "--yjit-call-threshold=1")
      eval((0...3_000).map { |i| "def m#{i}(x) = x ? [x, x.to_s, #{i}].size : nil\n" }.join)
      3_000.times { |i| send(:"m#{i}", 1) }
      stats = RubyVM::YJIT.runtime_stats
      used = stats.values_at(:inline_code_size, :outlined_code_size).sum
      used > stats[:code_region_size] * 0.75 or raise "used #{used} of #{stats[:code_region_size]} bytes"
    RUBY
  end

  # A child that compiles writes its own part of the regions, and hardly anything that it has inherited.
  def test_a_child_that_compiles_leaves_its_parents_data
    skip "not with the assertions of a check build, which read and write more" if ASSERTIONS || ASAN
    out = run_assuming(<<~'RUBY', "--yjit-call-threshold=2")
      eval((0...6_000).map { |i| "def m#{i}(x) = [x, x + #{i}].sum\n" }.join)
      6_000.times { |i| 3.times { send(:"m#{i}", 1) } }
      GC.start
      def lost
        memory = File.open("/proc/self/mem", "rb")
        region = false
        File.foreach("/proc/self/smaps").sum do |line|
          from = line[/\A(\h+)-\h+ rw-p/, 1] if line.match?(/\A\h+-\h+ /)
          region = memory.pread(8, from.to_i(16)) == "CowYjits" if from
          region && line.start_with?("Private_Dirty:") ? line[/\d+/].to_i : 0
        end
      end
      in_child do
        eval((0...300).map { |i| "def n#{i}(x) = [x, x + #{i}].sum\n" }.join)
        300.times { |i| 3.times { send(:"n#{i}", 1) } }
        memory = RubyVM::YJIT.memory.except(:inline_code, :outlined_code, :mapped_code).values
        inherited = memory.sum { |sum| sum[:inherited_bytes] }
        puts lost, (memory.sum { |sum| sum[:bytes] } - inherited) / 1024, inherited / 1024
      end
    RUBY
    lost, own, inherited = numbers(out)
    assert_operator lost, :<, own * 2 + inherited / 5, "KB of the regions that the child has for itself"
  end

  # Ruby source for scripts: what RubyVM::YJIT.memory says must be what Rust has allocated.
  SANE = <<~'RUBY'
    DATA = RubyVM::YJIT.memory.keys - %i[inline_code outlined_code mapped_code]
    def data(key) = RubyVM::YJIT.memory.values_at(*DATA).sum { |sum| sum.fetch(key) }
    def sane(what)
      allocated = RubyVM::YJIT.runtime_stats(:yjit_alloc_size)
      (data(:bytes) - allocated).abs < 4_096 or raise "#{what}: #{data(:bytes)} bytes, allocated #{allocated}"
      GC.verify_internal_consistency
    end
    # Of what is malloc's nobody knows which structure has inherited it: it counts as other.
    def inherits(before, known)
      inherited = data(:inherited_bytes)
      (inherited - before).abs < before / 10 or raise "inherited: expected #{before}, found #{inherited}"
      found = inherited - RubyVM::YJIT.memory.dig(:other, :inherited_bytes)
      known.cover?(found) or raise "inherited, known of structures: #{found}"
    end
    def compile(name, count)
      eval((0...count).map { |i| "def #{name}#{i}(x) = [x, x + #{i}].sum\n" }.join)
      count.times { |i| 3.times { send(:"#{name}#{i}", 1) == 2 + i or raise "#{name}#{i}" } }
    end
    # KB of the regions that can be used.
    def regions
      memory = File.open("/proc/self/mem", "rb")
      spans = File.readlines("/proc/self/maps").filter_map do |line|
        from, to = line.match(/\A(\h+)-(\h+) rw-p/)&.captures&.map { |text| text.to_i(16) }
        [from, to] if from && memory.pread(8, from) == "CowYjits"
      rescue Errno::EIO
        nil # malloc has given it back since; a region stays
      end
      spans.sum { |from, to| to - from } / 1024
    end
    # What a child does that its parent has not done, and a child of the child.
    def change_all(what)
      CHANGES.each_with_index do |change, i|
        change.call
        check(i.succ, "#{what}, change #{i}")
      end
      sane(what)
    end
  RUBY

  # Under a limit of address space there is no region: all is malloc's.
  def test_without_a_region
    skip "AddressSanitizer takes more addresses" if ASAN
    run_assuming(SANE + <<~'RUBY', "--yjit-call-threshold=2", env: { "COW_RUBY_TO_LIMIT" => RUBY })
      if (ruby = ENV.delete("COW_RUBY_TO_LIMIT"))
        words = File.read("/proc/self/cmdline").split(0.chr)
        exec(ruby, *words.drop(1), rlimit_as: 1_500_000_000)
      end
      10.times { check(0, "in the parent") }
      compile("m", 1_000)
      regions.zero? or raise "there is a region"
      sane("in the parent")
      before = data(:bytes)
      in_child do
        compile("n", 300)
        regions.zero? or raise "a child has got a region"
        inherits(before, 0..0)
        sane("in a child")
        in_child { compile("o", 300); change_all("in a child of the child") }
        RubyVM::YJIT.code_gc
        change_all("after code GC")
      end
      check(0, "in the parent, at the end")
      sane("in the parent, at the end")
    RUBY
  end

  # While the variable COW_REFUSE is set, which programs can change as they run, the system gives no memory of
  # regions.
  REFUSING = <<~'C'
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    enum { REGION = 64 << 20, MOST = 64 };
    typedef void *map_function(void *, size_t, int, int, int, off_t);
    static char *regions[MOST];
    static int count;
    static void *
    map(map_function *real, void *address, size_t size, int rights, int flags, int file, off_t at)
    {
        if (rights != PROT_NONE || size != REGION) return real(address, size, rights, flags, file, at);
        if (getenv("COW_REFUSE")) {
            errno = ENOMEM;
            return MAP_FAILED;
        }
        char *region = real(address, size, rights, flags, file, at);
        if (region != MAP_FAILED && count < MOST) regions[count++] = region;
        return region;
    }
    void *mmap(void *address, size_t size, int rights, int flags, int file, off_t at)
    {
        static map_function *real;
        if (!real) real = dlsym(RTLD_NEXT, "mmap");
        return map(real, address, size, rights, flags, file, at);
    }
    void *mmap64(void *address, size_t size, int rights, int flags, int file, off_t at)
    {
        return mmap(address, size, rights, flags, file, at);
    }
    int mprotect(void *address, size_t size, int rights)
    {
        static int (*real)(void *, size_t, int);
        if (!real) real = dlsym(RTLD_NEXT, "mprotect");
        for (int i = 0; i < count && getenv("COW_REFUSE"); i++) {
            if (regions[i] <= (char *)address && (char *)address < regions[i] + REGION) {
                errno = ENOMEM;
                return -1;
            }
        }
        return real(address, size, rights);
    }
  C

  # What a region has given is used on; what comes later is malloc's, until there is memory again.
  def test_memory_of_a_region_is_refused_for_a_time
    skip "AddressSanitizer has the same functions" if ASAN
    preloading(REFUSING) do |env|
      run_assuming(SANE + <<~'RUBY', "--yjit-call-threshold=2", env: env)
        10.times { check(0, "in the parent") }
        # A child inherits no region while free blocks are more than half of those in use
        # (cow_vm_words_inherit): with 800 methods they are a third, with 1,000 a bit more than half.
        compile("m", 800)
        ENV["COW_REFUSE"] = "1"
        before = regions
        before > 300 or raise "no region of a size: #{before} KB"
        compile("n", 2_000)
        regions == before or raise "the region has grown from #{before} to #{regions} KB"
        data(:bytes) / 1024 > before + 300 or raise "nothing is malloc's: #{data(:bytes)} bytes"
        check(0, "after it was refused")
        sane("in the parent")
        bytes = data(:bytes)
        in_child do
          inherits(bytes, before * 256..before * 1024)
          compile("o", 1_000)
          regions == before or raise "the region has grown in a child"
          sane("in a child")
          in_child { compile("p", 500); change_all("in a child of the child, refused") }
          ENV.delete("COW_REFUSE")
          compile("q", 1_000)
          regions >= before or raise "the region has shrunk"
          in_child { compile("r", 500); change_all("in a child of the child, given") }
          RubyVM::YJIT.code_gc
          change_all("after code GC")
        end
        ENV.delete("COW_REFUSE")
        compile("s", 2_000)
        regions > before or raise "memory that is there again is not used"
        RubyVM::YJIT.code_gc
        check(0, "in the parent, at the end")
        sane("in the parent, at the end")
      RUBY
    end
  end

  # The region itself is refused, when YJIT is enabled; nobody asks again.
  def test_a_region_that_is_refused
    skip "AddressSanitizer has the same functions" if ASAN
    preloading(REFUSING) do |env|
      run_assuming(SANE + <<~'RUBY', "--yjit-call-threshold=2", env: env.merge("COW_REFUSE" => "1"))
        10.times { check(0, "in the parent") }
        compile("m", 500)
        ENV.delete("COW_REFUSE")
        before = data(:bytes)
        in_child do
          compile("n", 500)
          regions.zero? or raise "there is a region"
          inherits(before, 0..0)
          in_child { compile("o", 500); change_all("in a child of the child") }
          change_all("in a child")
        end
        check(0, "in the parent, at the end")
        sane("in the parent, at the end")
      RUBY
    end
  end

  # CRuby lets a program that runs with RJIT enable YJIT as well; then RJIT's code is not told any more what
  # has changed. (The heap is not verified: RJIT writes into an iseq without a write barrier. Pristine does
  # both.)
  def test_rjit_beside_yjit
    script = IN_CHILD + "METHODS = #{ASSERTIONS ? 150 : 250}\n" + <<~'RUBY'
      def value(x) = [x, x + 1].sum + x.to_s.size
      def check(want, what)
        200.times { (found = value(3)) == want or raise "#{what}: #{found - want} too many" }
      end
      def make(name, count)
        count.times do |i|
          eval("def #{name}#{i}(x) = x + #{i}; 40.times { |x| #{name}#{i}(x) == x + #{i} or raise }")
        end
      end
      check(8, "in the parent")
      ARGV.empty? || RubyVM::YJIT.enable or raise "YJIT is not enabled"
      make("m", METHODS)
      check(8, "in the parent")
      compiled = RubyVM::YJIT.runtime_stats(:compiled_iseq_count)
      compiled > METHODS / 2 or raise "YJIT does not compile" if ARGV.any?
      in_child do
        check(8, "in a child")
        make("n", METHODS / 3)
        in_child do
          Integer.class_eval { def to_s = "12345" } if ARGV.empty?
          check(ARGV.empty? ? 12 : 8, "in a child of the child")
        end
        check(8, "in a child")
      end
      puts RubyVM::RJIT.enabled?
    RUBY
    out, status = run_ruby_status("p RubyVM::RJIT.enabled?", options: %w[--rjit])
    skip "no RJIT in this build" unless status.success? && out == "true\n"
    [[], [1]].each do |arguments|
      out = run_ruby(script, *arguments, options: %w[--rjit --rjit-call-threshold=10],
                                         timeout: 300)
      assert_equal "true", out.chomp
    end
  end
end

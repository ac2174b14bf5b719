# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "tmpdir"
require_relative "../helper"
require_relative "../../benchmark/lib/memory/lost_pages"

# What the VM writes into inherited memory (gc/vm_words.h, gc/young_tables.h, gc/iseq_jit.h,
# gc/regexp_uses.h, gc/hash_iterations.h).
class TestVmWords < Minitest::Test
  include CowTest

  # Classes of all sorts, a method that calls whatever they have (warm), and a heap large enough to
  # be sealed.
  PROGRAM = IN_CHILD + <<~'RUBY'
    KEPT = Array.new(100_000) { |i| "string #{i}" }
    module Named
      def name = @name ||= self.class.name.downcase
      def twice(times: 2) = name * times
    end
    CLASSES = Array.new(Integer(ENV["CLASSES"] || 32)) do |i|
      klass = Class.new do
        include Named
        attr_accessor :a, :b, :c
        const_set(:LIMIT, [i, "limit #{i}".freeze].freeze)
        define_method(:defined) { |x = 1, *rest, key: 2| x + rest.size + key + i }
        class_eval <<~CODE, __FILE__, __LINE__ + 1
          PATTERN = /(\\w+) #{i}?/
          OPTIONS = { one: 1, two: [2], three: "3" }
          def initialize(a) = (@a, @b = a, nil)
          def method_#{i}(x) = x.times.map { |y| y + a.to_i }.sum
          def matches(text) = text =~ PATTERN ? $1 : LIMIT[1]
          def options = OPTIONS.each { |key, value| return key if value == "3" }
          def <=>(other) = a.to_s <=> other.a.to_s
          def respond_to_missing?(name, all) = name == :ghost || super
          def method_missing(name, *) = name == :ghost ? name : super
          include Comparable
        CODE
      end
      Object.const_set(:"Class#{i}", klass)
      Object.const_set(:"Sub#{i}", Class.new(klass) do
        def initialize(a, c = nil) = (super(a); @c = c)
        def name = super.upcase
        def options = super()
        def method_missing(...) = super
      end)
      klass
    end
    POINT = Struct.new(:x, :y)
    MUTEXES = Array.new(1_000) { Mutex.new }

    def warm
      MUTEXES.each { |mutex| mutex.synchronize { mutex } }
      CLASSES.each_with_index.sum do |klass, i|
        [klass, Object.const_get(:"Sub#{i}")].sum do |one|
          object = one.new(i)
          object.c = object.a
          raise "name" unless object.twice.size == object.name.size * 2
          raise "times" unless object.twice(times: 1) == object.name
          raise "matches" unless object.matches("word #{i}") == "word" && object.matches("") == "limit #{i}"
          raise "options" unless object.options == :three && object.ghost == :ghost
          raise "compared" unless object == one.new(i) && object >= one.new(i)
          raise "missing" if (object.no_such_method rescue nil)
          point = POINT.new(i, object)
          point.x += object.defined(1, 2, key: 3)
          %i[a b c].each { |name| object.instance_variable_set(:"@#{name}", object.public_send(name)) }
          instance_exec(object) { |it| it.public_send(:"method_#{i}", 3) } + point.x
        end
      end
    end
    EXPECTED = warm
    def check = warm == EXPECTED || raise("the sum differs")
  RUBY

  # MB that a kind of page has lost without a difference, in a child that does what its parent did
  # before the fork. What is known to do so: the pages of the stack, and of malloc's own notes.
  BOUND = 0.3

  def lost_by_warm_child(options: [], env: {})
    script = PROGRAM + <<~'RUBY'
      30.times { check }
      at_rest, ready = IO.pipe
      pid = fork do
        10.times { check }
        ready.puts
        ready.close
        $stdin.read
        exit!(0)
      end
      at_rest.gets
      puts pid
      $stdout.flush
      Process.wait(pid)
    RUBY
    Open3.popen3(env, RUBY, *options, "-e", script, pgroup: true) do |input, output, errors, thread|
      with_limit(thread.pid) do
        line = output.gets or flunk errors.read
        lost = CowBench::LostPages.new(thread.pid, Integer(line)).to_h
        input.close
        assert thread.value.success?, errors.read
        return lost
      end
    end
  rescue CowBench::AddressSpace::Unreadable => e
    skip e.message
  end

  # The rule that finds the next store of a word that is there already.
  def test_a_warm_child_copies_no_page_without_a_difference
    skip "the kernel does not tell here who maps a page" unless File.readable?("/proc/self/pagemap")
    skip "AddressSanitizer writes notes of its own" if ASAN

    lost = lost_by_warm_child
    idle = lost.transform_values { |row| row["lost without a difference"].round(2) }
    assert_operator idle.values.sum, :<, BOUND, "MB lost without a difference: #{idle}"
    assert_operator lost["GC pages"]["lost"], :<, 0.5, "MB of inherited GC pages lost"
  end

  # Each of these in a child, in a child of a child, and in a child of that.
  CHANGES = {
    "methods_defined_anew" => <<~'RUBY',
      CLASSES.each_with_index { |klass, i| klass.define_method(:defined) { |*, **| 7 } }
      raise "old method" unless CLASSES.all? { |klass| klass.new(1).defined(1) == 7 }
      raise "old method" unless Sub3.new(1).defined(1, key: 2) == 7
    RUBY
    "methods_undefined_and_removed" => <<~'RUBY',
      Class1.undef_method(:defined)
      Class2.remove_method(:defined)
      Sub4.remove_method(:name)
      [Class1, Sub1, Class2, Sub2].each do |klass|
        raise "still there" if (klass.new(1).defined(1) || true rescue $!.class != NoMethodError)
      end
      raise "old method" unless Sub4.new(1).name == "sub4"
      Class2.define_method(:defined) { |*| 5 }
      raise "not found" unless Sub2.new(1).defined == 5
    RUBY
    "modules_included_and_prepended" => <<~'RUBY',
      Named.define_method(:name) { "of the module" }
      raise "old method" unless Class2.new(1).name == "of the module"
      CLASSES.each { |klass| klass.prepend(Module.new { def name = "before #{super}" }) }
      raise "not prepended" unless CLASSES.all? { |klass| klass.new(1).name == "before of the module" }
      raise "not prepended" unless Sub3.new(1).name == "BEFORE OF THE MODULE"
      Comparable.prepend(Module.new { def clamp(*) = :clamped })
      raise "not prepended" unless Class4.new(1).clamp(1, 2) == :clamped
    RUBY
    "refinements" => <<~'RUBY',
      RubyVM::InstructionSequence.compile(<<~CODE).eval
        using(Module.new { refine(Class4) { def matches(text) = "refined " + super } })
        raise "not refined" unless Class4.new(1).matches("word 4") == "refined word"
        raise "not refined" unless Sub4.new(1).matches("word 4") == "refined word"
      CODE
      raise "refined" unless Class4.new(1).matches("word 4") == "word"
    RUBY
    "classes_reopened" => <<~'RUBY',
      class Object; def everywhere = :object; end
      class Class4; def everywhere = :class; attr_accessor :d; def a = :a; end
      raise "not found" unless Sub4.new(1).everywhere == :class && Class3.new(1).everywhere == :object
      object = Sub4.new(1)
      object.d = 4
      raise "ivars" unless object.d == 4 && object.a == :a
      class String; def =~(_) = nil; end
      raise "old method" unless Class2.new(1).matches("word 2") == "limit 2"
    RUBY
    "constants_set_anew" => <<~'RUBY',
      $VERBOSE = nil
      point = Object.send(:remove_const, :POINT)
      begin
        warm
        raise "still there"
      rescue NameError
        Object.const_set(:POINT, point)
      end
      warm
      CLASSES.each_with_index { |klass, i| klass.const_set(:LIMIT, [nil, "new #{i}"]) }
      raise "old constant" unless CLASSES.each_index.all? { |i| CLASSES[i].new(1).matches("") == "new #{i}" }
      Object.const_set(:Class0, Class.new { const_set(:LIMIT, 1) })
      raise "old constant" unless eval("Class0::LIMIT") == 1
    RUBY
    "evals_by_the_thousand" => <<~'RUBY',
      1_000.times do |i|
        which = i % CLASSES.size
        sum = eval("[1, 2].map { |x| x + Class#{which}::LIMIT[0] }.sum + #{i}")
        raise "eval" unless sum == 3 + which * 2 + i
      end
      3.times { GC.start }
      klass = Class.new
      1_000.times { |i| klass.class_eval("def m#{i}(x = #{i}) = [x, a, LIMIT2].first; def a = 1") }
      klass.const_set(:LIMIT2, 1)
      Object.const_set(:Made, klass) unless defined?(Made)
    RUBY
    "iseqs_from_binary" => <<~'RUBY',
      code = RubyVM::InstructionSequence.compile("Array.new(3) { |i| i.to_s + Class1::LIMIT[1] }").to_binary
      100.times do
        texts = RubyVM::InstructionSequence.load_from_binary(code).eval
        raise "binary" unless texts == ["0limit 1", "1limit 1", "2limit 1"]
      end
      GC.start
    RUBY
    "iseqs_freed" => <<~'RUBY',
      CLASSES.each_with_index do |klass, i|
        klass.remove_method(:"method_#{i}", :options)
        klass.class_eval("def method_#{i}(x) = x.times.map { |y| y + a.to_i }.sum; def options = :three")
      end
      4.times { GC.start }
      GC.verify_internal_consistency
    RUBY
    "iterations" => <<~'RUBY',
      options = Class2::OPTIONS
      iterating = lambda do
        options.store(:new, 1)
        options.delete(:new)
        false
      rescue RuntimeError
        true
      end
      options.each do
        options.each_pair { raise "not iterating" unless iterating.call }
        options[:one] = 1 # a key that is there
      end
      raise "still iterating" if iterating.call
      fiber = Fiber.new { options.each { Fiber.yield } }
      fiber.resume
      raise "not iterating" unless iterating.call
      fiber.resume while fiber.alive?
      raise "still iterating" if iterating.call
      deep = lambda do |n|
        options.each { return n > 0 ? deep.(n - 1) : (options.rehash rescue :iterating) }
      end
      raise "not iterating" unless deep.(60) == :iterating
      options.rehash
      Fiber.new { Class3::OPTIONS.each { Fiber.yield } }.resume # is given up
      3.times { GC.start }
      Process.warmup
      3.times { GC.start }
      raise "options" unless Class3::OPTIONS.to_a == [[:one, 1], [:two, [2]], [:three, "3"]]
    RUBY
    "strings_and_symbols" => <<~'RUBY',
      before = KEPT.first(100).map { |text| -text }
      made = Array.new(5_000) { |i| -"made #{i}" }
      raise "twice" unless made.each_with_index.all? { |text, i| text.equal?(-"made #{i}") }
      raise "twice" unless before.each_with_index.all? { |text, i| text.equal?(-"string #{i}") }
      made = nil
      3.times { GC.start }
      5_000.times { |i| raise "dead" unless -"made #{i}" == "made #{i}" && :"made #{i}".to_s == "made #{i}" }
    RUBY
    "mutexes" => <<~'RUBY',
      raise "locked" if MUTEXES.any?(&:locked?)
      sum = 0
      threads = Array.new(4) { Thread.new { MUTEXES.each { |mutex| mutex.synchronize { sum += 1 } } } }
      threads.each(&:join)
      raise "sum" unless sum == 4_000
      MUTEXES.each(&:lock)
      raise "not locked" if Thread.new { MUTEXES.any?(&:try_lock) }.value
      in_child { raise "not locked" unless MUTEXES.all?(&:owned?) && MUTEXES.each(&:unlock) }
      MUTEXES.each(&:unlock)
      Thread.new { MUTEXES.each(&:lock); in_child { raise "not owned" unless MUTEXES.all?(&:owned?) } }.join
      raise "still locked" if MUTEXES.any?(&:locked?)
      waiting = Thread.new { MUTEXES[1].synchronize { MUTEXES[1].sleep } }
      Thread.pass until waiting.stop?
      in_child { raise "locked" unless MUTEXES[1].try_lock }
      waiting.run.join
      500.times { Mutex.new.lock } # locked by this thread, and garbage
      3.times { GC.start }
      MUTEXES.map! { Mutex.new }
      GC.start
      require "monitor"
      monitor = Monitor.new
      raise "monitor" unless monitor.synchronize { monitor.synchronize { :twice } } == :twice
    RUBY
    "regexps" => <<~'RUBY',
      patterns = CLASSES.map { |klass| klass::PATTERN }
      [Encoding::UTF_8, Encoding::EUC_JP, Encoding::Windows_31J].each do |encoding|
        patterns.each_with_index do |pattern, i|
          raise "match" unless pattern.match("\u3042 word #{i}".encode(encoding))
        end
      end
      match_all = -> { 50.times { patterns.each { |pattern| pattern.match?("word " * 50) } } }
      Array.new(4) { Thread.new(&match_all) }.each(&:join)
    RUBY
    "ractors" => <<~'RUBY',
      Warning[:experimental] = false
      ractors = Array.new(3) do
        Ractor.new do
          200.times.sum do |i|
            object = Class4.new(i)
            words = [object.matches("word 4"), object.matches(""), Sub3.new(i).name]
            object.method_4(2) + words.sum(&:size)
          end
        end
      end
      values = ractors.map(&:take)
      raise values.inspect unless values.uniq.size == 1
    RUBY
    # RJIT's respond_to? says yes of a method that is not implemented, so it is not asked here.
    "compaction" => <<~RUBY,
      if #{COMPACTS}
        GC.verify_compaction_references(expand_heap: true, toward: :empty)
        GC.compact
      end
    RUBY
    "objects_of_instruction_sequences" => <<~'RUBY'
      of = -> { CLASSES.map { |klass| RubyVM::InstructionSequence.of(klass.instance_method(:defined)) } }
      iseqs = of.call
      raise "two objects" unless iseqs.zip(of.call).all? { |one, other| one.equal?(other) }
      raise "listing" unless iseqs.all? { |iseq| iseq.disasm.include?("opt_plus") }
    RUBY
  }.freeze

  # Whether the sum of the program is the same after a change.
  SAME = %w[evals_by_the_thousand iseqs_from_binary iseqs_freed iterations strings_and_symbols mutexes regexps
            ractors compaction objects_of_instruction_sequences].freeze

  CHANGES.each do |name, change|
    define_method(:"test_#{name}") { run_change(name, change) }
  end

  # The same where all classes have young tables, in processes that were not forked as well.
  CHANGES.each do |name, change|
    define_method(:"test_#{name}_with_young_tables_for_all_classes") do
      skip "only builds with assertions do so" unless ASSERTIONS

      run_change(name, change, env: { "COWRUBY_YOUNG_CLASSES" => "all" })
    end
  end

  # The classes are alike: fewer do where all takes several times as long.
  def run_change(name, change, env: {}, options: [])
    env = { "CLASSES" => "8", **env } if ASSERTIONS
    again = SAME.include?(name) ? "check" : ""
    run_ruby(PROGRAM + <<~RUBY, timeout: 300, env: env, options: options)
      change = proc do
        #{change}
        #{again}
        GC.start
        GC.verify_internal_consistency
      end
      in_child do
        check
        in_child { in_child(&change); check }
        check
        change.call
      end
      check
      Process.warmup
      in_child { in_child { change.call } }
      check
      change.call
      in_child(&change) if #{SAME.include?(name)}
    RUBY
  end

  # A call, and a variable, of another class than the parent saw: they are found, and stored when this happens
  # again and again.
  def test_inherited_sites_keep_their_caches
    skip "no regions" if LOCATOR != "arena" || ASAN
    out = run_ruby(IN_CHILD + EACH_MAPPING + <<~'RUBY', env: PLACE)
      def written = private_dirty("VM words")
      class One; def initialize = @a = 1; def name = 1; end
      class Two < One; def initialize = (@b, @a = 2, 3); def name = super + 1; end
      SITES = (0...4_000).map { |i| eval("->(x) { x.name }") }
      One.class_eval((0...1_000).map { |i| "def read#{i} = @a" }.join("\n"))
      READERS = One.instance_methods(false).grep(/read/)
      def sum(object) = SITES.sum { |site| site.call(object) } + READERS.sum { |reader| object.send(reader) }
      def same(expected, found) = expected == found || raise("#{found} where #{expected} was expected")
      same(5_000, sum(One.new))
      written
      in_child do
        two = Two.new
        3.times { written }
        before = written
        3.times { same(11_000, sum(two)) }
        few = written
        same(5_000, sum(One.new))
        GC.start
        GC.compact if GC.respond_to?(:compact)
        14.times { same(11_000, sum(two)) }
        same(5_000, sum(One.new))
        puts few - before, written - few
        in_child { 20.times { same(11_000, sum(two)); same(5_000, sum(One.new)) } }
      end
    RUBY
    few, many = out.split.map(&:to_i)
    assert_operator few, :<, 24, "KB written by calls that are not repeated"
    assert_operator many, :>, 40, "KB"
  end

  # The same by a JIT that compiles early, so that its words are written and read.
  %w[--yjit-call-threshold=2 --rjit-call-threshold=2].each do |option|
    jit = option[/\w+jit/]
    define_method(:"test_changes_with_#{jit}") do
      _, status = run_ruby_status("1", options: [option])
      skip "no #{jit} in this build" unless status.success?
      skip "RJIT looks into the slots of freed iseqs (compiler.rb, imemo_type_p)" if ASAN && jit == "rjit"

      # A change takes some seconds; with RJIT, which is written in Ruby, half a minute in a build with
      # assertions. So each run takes some at random (by the seed), unless COWRUBY_ALL_CHANGES=1.
      env = jit == "rjit" ? { "CLASSES" => "5" } : {}
      count = { "yjit" => 5, "rjit" => ASSERTIONS ? 1 : 2 }.fetch(jit)
      changes = ENV["COWRUBY_ALL_CHANGES"] == "1" ? CHANGES : CHANGES.to_a.sample(count)
      changes.each { |name, change| run_change(name, change, options: [option], env: env) }
    end
  end

  # YJIT compiles an iseq after as many calls as it was told to, and one that is seldom called not at all.
  def test_calls_are_counted_until_an_iseq_is_compiled
    script = <<~'RUBY'
      def one = 1
      before = RubyVM::YJIT.runtime_stats(:compiled_iseq_entry)
      one
      8.times { one }
      middle = RubyVM::YJIT.runtime_stats(:compiled_iseq_entry)
      3.times { one }
      puts middle - before, RubyVM::YJIT.runtime_stats(:compiled_iseq_entry) - before > 0
    RUBY
    out, status = run_ruby_status(script, options: %w[--yjit-call-threshold=10 --yjit-stats=quiet])
    skip "no YJIT in this build" unless status.success?

    assert_equal "0\ntrue", out.strip
  end

  def test_memory_denied_to_a_region
    skip "AddressSanitizer takes more addresses" if ASAN

    script = PROGRAM + <<~'RUBY'
      check
      in_child { check; eval("1 + 1"); GC.start }
      maps = File.read("/proc/self/maps")
      raise "there is a region" if maps.include?("[anon:Ruby:VM words]")
      puts :done
    RUBY
    out, status = run_command("sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh", RUBY, "-e", script)
    assert status.success?, out
    assert_equal "done", out.lines.last.chomp
  end

  # malloc overwrites what is freed.
  JUNK = { "MALLOC_CONF" => "junk:true", "MALLOC_PERTURB_" => "165" }.freeze

  # A regexp, and a text that takes it long. in_a_match calls the block in a signal's handler while the
  # regexp is being matched, and gives where it has matched. anew compiles it once for other strings: a second
  # program would take the place of the one that is being run, and be the same.
  MATCH = BALLAST + <<~'RUBY'
    PATTERN = /((?:a|b|ab)+)+\1c|dc/
    TEXT = "\u3042" + "ab" * 9 + "dc"
    RIGHT = 19
    # A handler cannot load an encoding: the regexp would be compiled for ASCII-8BIT.
    OTHERS = ["\xA4\xA2 abc".dup.force_encoding("EUC-JP"), "\x82\xA0 abc".dup.force_encoding("Windows-31J")]
    raise "encodings" unless OTHERS.all?(&:valid_encoding?)
    PATTERN.match?("\u3042")

    def in_a_match
      done = false
      trap("USR1") do
        unless done || caller.grep(/'String#index'/).empty?
          done = true
          yield
        end
      end
      process = $$
      Thread.new { (Process.kill(:USR1, process); sleep 0.01) until done }
      found = TEXT.index(PATTERN)
      raise "the match was too short" unless done
      found
    end

    def anew(other = OTHERS.first)
      raise "a match" if PATTERN.match?(other)
      $strings = Array.new(2_000) { "x" * rand(100..900) } # where the program was
    end
  RUBY

  # The child goes on in the match that its parent was in, after it has compiled the regexp for other strings.
  # It fails where the child counts from 0.
  def test_a_fork_in_a_match
    run_ruby(MATCH + <<~'RUBY', env: JUNK)
      parent = $$
      child = nil
      found = in_a_match do
        child = fork
        if child.nil?
          sealed!
          anew
        end
      end
      exit!(found == RIGHT ? 0 : 1) if $$ != parent
      raise "child" unless Process.wait2(child).last.success?
      raise "parent: #{found}" unless found == RIGHT
    RUBY
  end

  # A child counts the matches of an inherited regexp apart from it.
  def test_an_inherited_regexp_is_compiled_anew_in_a_match
    run_ruby(IN_CHILD + MATCH + <<~'RUBY', env: JUNK)
      in_child do
        sealed!
        OTHERS.each do |other|
          found = in_a_match { anew(other) }
          raise "child: #{found}" unless found == RIGHT
        end
        in_child do
          found = in_a_match { anew }
          raise "child of the child: #{found}" unless found == RIGHT
        end
      end
    RUBY
  end

  # Each generation replaces what it has inherited, and only the last one lives.
  def test_a_chain_of_forks_does_not_grow
    skip "AddressSanitizer keeps what is freed" if ASAN
    skip "the kernel does not tell here what a process has" unless File.readable?("/proc/self/smaps_rollup")

    out = run_ruby(<<~'RUBY', timeout: 300)
      def resident_kb = File.read("/proc/self/smaps_rollup")[/^Rss:\s+(\d+)/, 1].to_i
      sizes = []
      (1..60).each do |generation|
        200.times { |i| eval("class G#{i}; def m(x) = [x, x.size, i].map { |y| y.to_s }; end") }
        Array.new(3_000) { Mutex.new }
        1_000.times { |i| eval("proc { |x| x.size + #{i} }") }
        200.times { |i| Object.send(:remove_const, :"G#{i}") }
        2.times { GC.start }
        sizes << resident_kb if generation % 20 == 0
        if fork
          exit!(Process.wait2.last.success?)
        end
      end
      puts sizes.inspect
    RUBY
    first, *, last = out.scan(/\d+/).map(&:to_i)
    assert_operator last, :<, first * 1.15, out
  end

  # Pristine CRuby aborts (0178-kept-mutexes).
  def test_a_mutex_that_a_thread_left_locked
    assert_equal "false", run_ruby(<<~'RUBY').strip
      one, other = Mutex.new, Mutex.new
      Thread.new { [one, other].each(&:lock) }.join
      Thread.new { other.lock }.join
      puts one.locked?
    RUBY
  end

  def test_free_at_exit
    out = run_ruby(PROGRAM + <<~'RUBY', env: { "RUBY_FREE_AT_EXIT" => "1" })
      check
      Process.wait(fork do
        CLASSES.each { |klass| klass.define_method(:defined) { |*, **| 7 } }
        warm
        GC.start
      end)
      puts $?.success?
    RUBY
    assert_equal "true", out.lines.last.chomp # the ruby also says that this is experimental
  end

  def test_under_stress
    run_ruby(<<~'RUBY', timeout: 600)
      kept = Array.new(70_000) { |i| i.to_s }
      module M; def m(x) = x; end
      class C
        include M
        OPTIONS = { a: 1 }
        attr_accessor :a
        def n = super rescue m(OPTIONS.map { |k, v| v }.sum)
      end
      C.new.n
      pid = fork do
        GC.stress = true
        5.times do |i|
          object = C.new
          object.a = i
          raise "n" unless object.n == 1 && object.m(i) == i && "text #{i}" =~ /(\w+) #{i}/ && $1 == "text"
          eval("class C; def n#{i}(x, y: 1) = [x, y, OPTIONS]; end; C.new.n#{i}(2)")
          -"fresh #{i}"
        end
        class C; def m(x) = x + 1; end
        raise "old" unless C.new.m(1) == 2
        GC.stress = false
        GC.verify_internal_consistency
        exit!(0)
      end
      raise unless Process.wait2(pid).last.success?
    RUBY
  end
end

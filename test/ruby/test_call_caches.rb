# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Call caches survive a major GC, and no call reads a class or a method entry that was freed.
# doc/call-caches.md gives the reasons; these tests check them.
#
# CALL_CACHE_SEEDS=1,2,3 and CALL_CACHE_STEPS=n make the torture longer.
require_relative "../helper"

class TestCallCaches < Minitest::Test
  include CowTest

  # Definitions of `collect` for scripts, by name.
  WAYS = {
    none: "def collect = nil",
    major: "def collect = GC.start",
    minor: "def collect = 4.times { GC.start(full_mark: false) }",
    lazy: "def collect = (GC.start(immediate_sweep: false); Array.new(50) { Object.new }; nil)",
    compact: "def collect = GC.compact",
    auto_compact: "GC.auto_compact = true\ndef collect = GC.start",
    # Expanding the heap is slow, so only every eighth call does it.
    verify: <<~'RUBY',
      def collect
        return GC.start if ($turn = $turn.to_i + 1) % 8 != 1
        GC.verify_compaction_references(toward: :empty, expand_heap: true)
      end
    RUBY
    fork: BALLAST + <<~'RUBY',
      # Parent and child both collect, and the script goes on in the child. Its classes are inherited, also
      # those that are new since the last fork, because Process.warmup seals them.
      def collect
        Process.warmup
        if (pid = fork)
          Process.wait(pid)
          exit!($?.success?)
        end
        sealed!
        GC.start
      end
    RUBY
  }.transform_values { |source| source + "\n" }
   .reject { |name, _| !COMPACTS && %i[compact auto_compact verify].include?(name) }.freeze

  # The number of imemos that the iseq of a method holds. Only call caches are added there or removed, so a
  # difference of two numbers counts call caches exactly.
  HELD = <<~'RUBY'
    require "objspace"
    def held(method)
      wrapper = RubyVM::InstructionSequence.of(method)
      iseq = ObjectSpace.reachable_objects_from(wrapper).grep(ObjectSpace::InternalObjectWrapper)
      iseq.flat_map { |i| ObjectSpace.reachable_objects_from(i) - iseq }
          .grep(ObjectSpace::InternalObjectWrapper).count { |o| o.type == :T_IMEMO }
    end
  RUBY

  def test_nine_call_sites_keep_their_caches
    (WAYS.keys - %i[none]).each do |way|
      run_ruby(WAYS[way] + HELD + <<~'RUBY')
        class C
          attr_accessor :a
          def b(x) = x
          def c(k:) = k
          def d = yield
          def e(*r) = r
          define_method(:f) { 1 }
          alias g b
          private def h = 1
          def site = [a, (self.a = 1), b(1), c(k: 1), d { 1 }, e(*[1]), f, g(1), h]
        end
        empty = held(C.instance_method(:site))
        object = C.new
        3.times { object.site }
        # The imemos of the method's blocks are counted as well, before and after.
        3.times { collect }
        filled = held(C.instance_method(:site))
        filled - empty == 9 or abort "#{filled - empty} of 9 call caches survived"
      RUBY
    end
  end

  def test_super_call_sites_keep_their_caches
    run_ruby(HELD + <<~'RUBY')
      class A; def m(x) = x; end
      class B < A; def m(x) = super; end
      empty = held(B.instance_method(:m))
      3.times { B.new.m(1) }
      3.times { GC.start }
      found = held(B.instance_method(:m)) - empty
      found == 1 or abort "#{found} of 1 call cache survived"
    RUBY
  end

  # This is why call caches survive: a child that collects and then calls methods still shares their pages.
  # The call data of 4,000 methods with nine call sites each takes 0.6 MB where it lies together, and is
  # spread over 6 MB where it does not. Pristine CRuby writes all of it.
  def test_a_child_writes_no_call_data
    out = run_ruby(PRIVATE_DIRTY + <<~'RUBY')
      names = %w[a b c d e f g h i]
      eval "class C; #{names.map { |n| "def #{n}() = 1;" }.join} end"
      names = Array.new(4_000) { |i| :"m#{i}" }
      calls = "(o.a; o.b; o.c; o.d; o.e; o.f; o.g; o.h; o.i)"
      eval "class M; #{names.map { |n| "def #{n}(o) = #{calls}\n" }.join} end"
      c, m = C.new, M.new
      2.times { names.each { |name| m.__send__(name, c) } }
      Process.warmup
      reader, writer = IO.pipe
      pid = fork do
        GC.start
        before = private_dirty
        names.each { |name| m.__send__(name, c) }
        writer.puts private_dirty - before
        exit!(0)
      end
      writer.close
      puts reader.read
      Process.wait(pid)
    RUBY
    assert_operator Integer(out), :<=, 200, "KB written by calls in the child"
  end

  def test_one_site_does_not_keep_the_classes_it_saw
    out = run_ruby(<<~'RUBY')
      def site(object) = object.foo
      def go(n)
        n.times do
          object = Object.new
          def object.foo = 1
          site(object)
        end
        nil
      end
      go(10)
      GC.start
      before = ObjectSpace.count_objects[:T_CLASS]
      Thread.new { go(100_000) }.join
      2.times { GC.start }
      puts ObjectSpace.count_objects[:T_CLASS] - before
    RUBY
    assert_operator Integer(out), :<=, 20, "classes kept"
  end

  # Each call site has seen one class only, so a cache that keeps its class alive is noticed. Besides plain
  # calls there are calls of super, and calls of super from one body that has two names: the cache of such a
  # call marks its class.
  def test_a_hundred_sites_do_not_keep_a_hundred_classes
    out = run_ruby(<<~'RUBY')
      SITES = Array.new(100) { eval("->(o) { [o.foo, o.bar, o.baz] }") }
      BODIES = Array.new(100) { eval("-> { super() }") }
      MODULES = Array.new(100) { eval("Module.new { def baz = super }") }
      def go
        100.times do |i|
          top = Class.new { def foo = 1; def bar = 2; def baz = 3 }
          klass = Class.new(top) do
            include MODULES[i]
            define_method(:foo, &BODIES[i])
            define_method(:bar, &BODIES[i])
          end
          3.times { SITES[i].(klass.new) == [1, 2, 3] or abort "wrong" }
        end
        nil
      end
      # Overwrites what earlier calls left on the machine stack, which would keep objects alive.
      def wipe(n) = n.zero? ? 0 : wipe(n - 1) + [n, n, n].sum
      def count = ObjectSpace.each_object(Class).count { |c| !c.name && !c.singleton_class? }
      before = count
      Thread.new { go }.join
      wipe(1_000)
      3.times { GC.start }
      puts count - before
    RUBY
    assert_operator Integer(out), :<=, 10, "classes kept"
  end

  # A class dies, and a new class gets its address. The same call site calls the same method of both.
  def test_an_address_that_is_used_again
    (WAYS.keys - %i[none fork]).each do |way|
      n = way == :verify ? 30 : ASSERTIONS ? 100 : 300
      out = run_ruby(WAYS[way] + <<~'RUBY', n)
        require "objspace"
        # There is one call site for each address, so the last class that it cached had that address.
        sites = Hash.new { |h, address| h[address] = eval("->(o) { o.foo }") }
        seen = Hash.new(0)
        r = Random.new(1)
        kept = []
        ARGV[0].to_i.times do |i|
          Thread.new do
            20.times do |j|
              # So that the new method entry does not get the address of the old one.
              kept[r.rand(500)] = Array.new(r.rand(5)) { Object.new }
              klass = Class.new
              o = klass.new
              s = Object.new
              r.rand(4).times { |n| klass.define_method(:"x#{n}") { } }
              klass.define_method(:foo) { [i, j] }
              s.define_singleton_method(:foo) { [j, i] }
              at = klass.inspect[/0x\h+/]
              seen[at] += 1
              sites[at].(o) == [i, j] or abort "wrong method"
              at = s.singleton_class.then { |c| ObjectSpace.dump(c)[/0x\h+/] }
              seen[at] += 1
              sites[at].(s) == [j, i] or abort "wrong singleton method"
            end
          end.join
          collect
        end
        puts seen.values.max
      RUBY
      assert_operator Integer(out), :>, 1, "no address was used twice (#{way})"
    end
  end

  # All changes after which a warm call site must call another method. The script calls `site`, makes the
  # change and calls `site` again, and collects before the change, after it, or at both times.
  CHANGES = <<~'RUBY'
    $log = []
    def expect(got, wanted)
      got == wanted or abort "#{caller(1, 1)[0]}: expected #{wanted.inspect}, found #{got.inspect}"
    end
    def try
      yield
    rescue NoMethodError, NotImplementedError => e
      e.class
    end
    # Calls +site+ until its cache is filled, makes the change and calls it again. The bits of $when say when
    # it collects.
    def change(site, object, from, to, &block)
      3.times { expect(try { site.(object) }, from) }
      collect if $when & 1 != 0
      expect(try { site.(object) }, from)
      block.call
      collect if $when & 2 != 0
      2.times { expect(try { site.(object) }, to) }
      collect if $when & 4 != 0
      expect(try { site.(object) }, to)
    end
    def site = eval("->(o) { o.m }", TOPLEVEL_BINDING.dup)

    def all
      a = Class.new { def m = 1 }
      change(site, a.new, 1, 2) { a.class_eval { def m = 2 } }
      change(site, a.new, 2, NoMethodError) { a.class_eval { undef m } }
      change(site, a.new, NoMethodError, 3) { a.class_eval { def m = 3 } }
      change(site, a.new, 3, NoMethodError) { a.class_eval { remove_method :m } }

      a = Class.new { def m = 1 }
      b = Class.new(a)
      c = Class.new(b)
      change(site, c.new, 1, 2) { a.class_eval { def m = 2 } }
      change(site, c.new, 2, 3) { b.class_eval { def m = 3 } }
      change(site, c.new, 3, NoMethodError) { b.class_eval { undef m } }
      change(site, c.new, NoMethodError, 2) { b.class_eval { def m = 0; remove_method :m } }
      change(site, c.new, 2, 4) { c.include(Module.new { def m = 4 }) }
      change(site, c.new, 4, 5) { c.prepend(Module.new { def m = 5 }) }
      change(site, c.new, 5, 6) do
        b.prepend(Module.new { def m = 6 })
        c.prepend(Module.new { def m = super + 1 })
      end
      o = c.new
      change(site, o, 6, 7) { def o.m = 7 }
      change(site, o, 7, 8) { o.extend(Module.new { def m = 8 }); o.singleton_class.remove_method(:m) }
      mod = o.singleton_class.ancestors[1]
      change(site, o, 8, 9) { mod.module_eval { def m = 9 } }
      change(site, o, 9, 6) { mod.module_eval { remove_method :m } }
      change(site, o, 6, NoMethodError) do
        mod.module_eval { undef_method(:m) rescue nil; def m = 1; undef m }
      end

      # Visibility.
      a = Class.new { def m = 1; def n = self.m; def f = m }
      o = a.new
      change(site, o, 1, NoMethodError) { a.send(:private, :m) }
      change(->(x) { x.f }, o, 1, 1) { a.send(:protected, :m) }
      change(site, o, NoMethodError, 1) { a.send(:public, :m) }
      b = Class.new(a)
      change(site, b.new, 1, NoMethodError) { b.send(:private, :m) }
      change(site, b.new, NoMethodError, 1) { b.send(:public, :m) }
      change(->(x) { x.n }, o, 1, 1) { a.send(:protected, :m) }

      # Kinds of methods.
      a = Class.new { def initialize = (@m = 1) ; def m = 0 }
      change(site, a.new, 0, 1) { a.attr_reader(:m) }
      change(site, a.new, 1, 2) { a.define_method(:m) { 2 } }
      change(site, a.new, 2, 3) { a.class_eval { def n = 3; alias m n } }
      change(site, a.new, 3, 3) { a.class_eval { def n = 4 } }
      change(site, a.new, 3, 0) do
        a.class_eval { alias_method :m, :zero?; def zero? = 0; alias_method :m, :zero? } rescue
          a.class_eval { def m = 0 }
      end
      s = Struct.new(:m, :n)
      change(site, s.new(1, 2), 1, 2) { s.class_eval { alias m n } }
      set = eval("->(o) { o.m = 5; o.m }")
      change(set, s.new(1, 2), 2, [5]) { s.class_eval { def m=(v); @v = v; end; def m = [@v] } }
      a = Class.new { attr_accessor :m }
      change(set, a.new, 5, 6) { a.class_eval { def m=(v); @m = v + 1; end } }

      # super.
      a = Class.new { def m = 1 }
      b = Class.new(a) { def m = [super] }
      c = Class.new(b) { def m = [super] }
      change(site, c.new, [[1]], [[2]]) { a.class_eval { def m = 2 } }
      change(site, c.new, [[2]], [3]) { b.class_eval { def m = 3 } }
      change(site, c.new, [3], [2]) { b.class_eval { remove_method :m } }
      change(site, c.new, [2], [4]) { b.include(Module.new { def m = 4 }) }
      change(site, c.new, [4], [5]) { c.include(Module.new { def m = 5 }) }
      change(site, c.new, [5], NoMethodError) { c.include(Module.new { def m = 1; undef m }) }
      body = -> { [super()] }
      a = Class.new { def m = 1; def n = 2 }
      b = Class.new(a) { define_method(:m, &body); define_method(:n, &body) }
      two = eval("->(o) { [o.m, o.n] }")
      change(two, b.new, [[1], [2]], [[1], [3]]) { a.class_eval { def n = 3 } }
      change(two, b.new, [[1], [3]], NoMethodError) { a.class_eval { undef m } }

      # method_missing and respond_to?.
      a = Class.new
      change(site, a.new, NoMethodError, [:m]) { a.class_eval { def method_missing(n) = [n] } }
      change(site, a.new, [:m], [:m, 2]) { a.class_eval { def method_missing(n) = [n, 2] } }
      change(site, a.new, [:m, 2], 3) { a.class_eval { def m = 3 } }
      change(site, a.new, 3, NoMethodError) { a.class_eval { remove_method :m, :method_missing } }
      asks = eval("->(o) { o.respond_to?(:m) }")
      change(asks, a.new, false, true) { a.class_eval { def m = 1 } }
      change(asks, a.new, true, false) { a.class_eval { private :m } }
      change(asks, a.new, false, true) { a.class_eval { def respond_to?(*) = true } }
      change(asks, a.new, true, false) { a.class_eval { remove_method :respond_to?; remove_method :m } }
      change(asks, a.new, false, true) { a.class_eval { def respond_to_missing?(*) = true } }

      # Forwarded arguments, send, procs of symbols, C calls.
      a = Class.new { def m(*a, k: 0, &b) = [1, a, k, b&.call]; def fwd(...) = m(...) }
      args = eval("->(o) { [o.fwd, o.fwd(1), o.fwd(2, k: 3), o.fwd { 4 }, o.send(:m, 5), [o].map(&:m)] }")
      one = lambda do |n|
        [[n, [], 0, nil], [n, [1], 0, nil], [n, [2], 3, nil], [n, [], 0, 4], [n, [5], 0, nil],
         [[n, [], 0, nil]]]
      end
      change(args, a.new, one[1], one[2]) { a.class_eval { def m(*a, k: 0, &b) = [2, a, k, b&.call] } }
      text = eval('->(o) { "#{o}" + [o].join }')
      a = Class.new { def to_s = "1" }
      change(text, a.new, "11", "22") { a.class_eval { def to_s = "2" } }

      # Builtin classes. These methods have a second iseq for calls with the mandatory arguments alone.
      three = eval("->(o) { [3.7.floor, 3.7.floor(0), Time.at(0).to_i, 15.ceildiv(2)] }")
      change(three, nil, [3, 3, 0, 8], [-1, -1, 0, 8]) do
        Float.class_eval { alias old_floor floor; def floor(*) = -1 }
      end
      change(three, nil, [-1, -1, 0, 8], [3, 3, 0, 8]) do
        Float.class_eval { alias floor old_floor; remove_method :old_floor }
      end

      # Refinements: used after the first call, changed, and with methods removed.
      $a = a = Class.new { def m = 1; def n = 1 }
      $refinement = r = Module.new { refine($a) { def m = 2 } }
      $n = ($n || 0) + 1
      mod = eval <<~MOD
        module Refined#{$n}
          def self.plain(o) = o.m
          using $refinement
          def self.call(o) = o.m
          def self.n(o) = o.n
          self
        end
      MOD
      change(mod.method(:plain), a.new, 1, 1) { }
      inner = r.refinements[0]
      change(mod, a.new, 2, 3) { inner.module_eval { def m = 3 } }
      change(mod, a.new, 3, [1]) { inner.module_eval { def m = [super] } }
      change(mod, a.new, [1], [4]) { a.class_eval { def m = 4 } }
      change(mod, a.new, [4], 4) { inner.module_eval { remove_method :m } }
      change(mod.method(:n), a.new, 1, 5) { inner.module_eval { def n = 5 } }
      change(mod.method(:n), a.new, 5, NoMethodError) { inner.module_eval { undef n } }
      change(mod, Class.new(a).new, 4, 6) { r.module_eval { refine($a) { def m = 6 } } }
      change(mod, Class.new(a).new, 6, NoMethodError) do
        a.class_eval { undef m }
        r.module_eval { refine($a) { remove_method(:m) } }
      end
    end

    (ARGV[0] || "0,1,2,4,7").split(",").each { |i| $when = i.to_i; all }
    puts "done"
  RUBY

  # When the slow ways collect; a fork before each change, so that a child changes what it has inherited.
  WHEN = { verify: "2,7", fork: "1" }.freeze

  WAYS.each_key do |way|
    define_method(:"test_changes_#{way}") do
      assert_equal "done\n", run_ruby(WAYS[way] + CHANGES, *WHEN[way], timeout: 300)
    end

    define_method(:"test_changes_#{way}_yjit") do
      out = run_ruby(WAYS[way] + CHANGES, *(WHEN[way] && WHEN[way][-1]), options: yjit, timeout: 300)
      assert_equal "done\n", out
    end
  end

  def test_changes_in_a_child
    assert_equal "done\n", run_ruby(BALLAST + WAYS[:major] + CHANGES.sub("(ARGV", <<~RUBY + "(ARGV"))
      $when = 1
      all
      if (pid = fork)
        Process.wait(pid)
        exit!($?.success?)
      end
      sealed!
    RUBY
  end

  def test_changes_under_stress
    script = WAYS[:none] + CHANGES.sub('(ARGV[0]', 'GC.stress = true; (ARGV[0]')
    assert_equal "done\n", run_ruby(script, "0", timeout: 600)
  end

  # The torture is a random run: a seed chooses definitions, calls and collections, and the calls must give
  # the same answers with and without the collections. Some seeds cannot be used: with 303 pristine CRuby
  # itself gives other answers after a collection (doc/call-caches.md, note 8).
  TORTURE = <<~'RUBY'
    seed, steps, way = Integer(ARGV[0]), Integer(ARGV[1]), ARGV[2]
    $VERBOSE = nil
    R = Random.new(seed)
    G = Random.new(seed + 1) # for collections only, so that they do not change the steps
    way == "off" ? GC.disable : nil
    GC.auto_compact = true if way == "auto_compact"
    COMPACTS = GC.respond_to?(:compact)
    NAMES = %i[m0 m1 m2 m3 m4]
    $token = 0
    $classes = []
    $modules = []
    $objects = []
    $sites = []

    def pick(list) = list[R.rand(list.size)]

    # Calls of all kinds. Each answer is a value or the name of an error's class.
    SITES = [
      "o.%s", "o.%s", "o.%s()", "o&.%s", "o.%s { 1 }", "o.%s(*[])", "o.%s(**{})",
      "o.__send__(:%s)", "o.public_send(:%s)", "o.respond_to?(:%s)", "[o].map(&:%s)",
      "o.method(:%s).call", "o.instance_eval { %s }", "(o.%s = 1)", "o.then { _1.%s }",
      "1.then { o.%s }", "fwd(o)", "o.%s + 0",
    ]
    def new_site
      name = pick(NAMES)
      calls = Array.new(1 + R.rand(4)) { pick(SITES).sub("%s", name.to_s) }
      $token += 1
      use = $refining && R.rand(3) == 0 ? "using $refining" : ""
      # Pristine CRuby stops with [BUG] if such a call finds a refined method that is undefined.
      calls.delete_if { |c| c.include?("&:") } unless use.empty?
      eval <<~SITE
        module Site#{$token}
          #{use}
          def self.fwd(...) = fwd2(...)
          def self.fwd2(o) = o.#{name}
          def self.call(o)
            [#{calls.map { |c| "ask { #{c} }" }.join(", ")}]
          end
          def self.ask
            answer = yield
            plain = answer.is_a?(Array) || answer.is_a?(Integer) || answer == true || answer == false
            plain ? answer : answer.class.name
          rescue NameError, TypeError, ArgumentError, FrozenError, SystemStackError => e
            e.class.name
          end
          self
        end
      SITE
    end

    def define(target)
      name = pick(NAMES)
      t = ($token += 1)
      case R.rand(14)
      when 0..2 then target.class_eval "def #{name}(*) = #{t}"
      when 3 then target.class_eval "def #{name}(*) = [#{t}, super]"
      when 4 then target.class_eval "def #{name}(*, &b) = [#{t}, b&.call]"
      when 5 then target.define_method(name) { |*| t }
      when 6 then target.define_method(name) { |*| [t, super()] }
      when 7 then target.attr_accessor(name)
      when 8 then target.alias_method(name, pick(NAMES))
      when 9 then target.undef_method(name)
      when 10 then target.remove_method(name)
      when 11 then target.send(pick(%i[public private protected]), name)
      when 12 then target.class_eval "def method_missing(n, *) = n == :to_ary ? super : #{t}"
      when 13
        body = eval("->(*) { [#{t}, super()] }")
        NAMES.sample(2, random: R).each { |n| target.define_method(n, &body) }
      end
    rescue NameError, TypeError
      nil
    end

    def new_class
      parent = R.rand(3) == 0 || $classes.empty? ? Object : pick($classes)
      # A long chain of ancestors makes each step slow.
      parent = Object if parent.ancestors.size > 14
      Class.new(parent).tap { |c| 2.times { define(c) } }
    end

    def step
      case R.rand(24)
      when 0 then $classes[R.rand(8)] = new_class
      when 1 then $modules[R.rand(6)] = Module.new.tap { |m| 2.times { define(m) } }
      when 2..4 then define(pick($classes))
      when 5 then define(pick($modules))
      when 6 then define(pick($objects).singleton_class)
      when 7 then pick($classes).include(pick($modules))
      when 8 then pick($classes).prepend(pick($modules))
      when 9 then pick($objects).extend(pick($modules))
      when 10, 11 then $objects[R.rand(12)] = pick($classes).new
      when 12 then $objects[R.rand(12)] = pick($objects).clone
      when 13 then $sites[R.rand(20)] = new_site
      when 14
        target = pick($classes)
        t = ($token += 1)
        name = pick(NAMES)
        body = t.odd? ? "#{t}" : "[#{t}, super]"
        $refining = Module.new { refine(target) { eval("def #{name}(*) = #{body}") } }
      when 15 then $refining && define($refining.refinements[0])
      else
        site, object = pick($sites), pick($objects)
        (1 + R.rand(3)).times { answer(site.call(object)) }
      end
    rescue TypeError, ArgumentError, NameError, SystemStackError => e
      answer(e.class.name)
    end

    def answer(x)
      $sum = ($sum * 31 + x.inspect.sum(32)) % (1 << 61)
      $trace&.puts "#{$step} #{x.inspect}"
    end
    $sum = 0
    $trace = File.open(ENV["CALL_CACHE_TRACE"], "w") if ENV["CALL_CACHE_TRACE"]

    def collect(way)
      case way
      when "off" then nil
      when "stress" then GC.stress = G.rand(20) == 0
      else
        case G.rand(way == "mixed" ? 40 : 20)
        when 0..2 then GC.start
        when 3, 4 then GC.start(full_mark: false)
        when 5 then GC.start(immediate_sweep: false)
        when 6 then GC.start(full_mark: false, immediate_sweep: false)
        when 7 then way == "off" || COMPACTS && GC.compact
        when 8
          COMPACTS && G.rand(8) == 0 && GC.verify_compaction_references(toward: :empty, expand_heap: true)
        when 9 then Array.new(2_000) { Object.new }
        when 10 then Array.new(50) { Class.new { def m0 = 0 }.new.m0 }
        end
      end
    end

    8.times { $classes << new_class }
    6.times { $modules << Module.new.tap { |m| 2.times { define(m) } } }
    12.times { $objects << pick($classes).new }
    20.times { $sites << new_site }
    steps.times do |i|
      $step = i
      step
      collect(way)
    end
    GC.stress = false
    puts $sum
  RUBY

  def torture(seed, steps, way, options: [], env: {})
    run_ruby(TORTURE, seed, steps, way, options: options, env: env, timeout: 900)
  end

  SEEDS = (ENV["CALL_CACHE_SEEDS"] || "1,2,3").split(",").map { |s| Integer(s) }
  STEPS = Integer(ENV["CALL_CACHE_STEPS"] || (ASSERTIONS ? 500 : 1_500))

  SEEDS.each do |seed|
    define_method(:"test_torture_#{seed}") do
      wanted = torture(seed, STEPS, "off")
      (["mixed"] + (COMPACTS ? ["auto_compact"] : [])).each do |way|
        assert_equal wanted, torture(seed, STEPS, way), "#{way}, seed #{seed}"
      end
      assert_equal torture(seed, STEPS / 5, "off"), torture(seed, STEPS / 5, "stress"), "stress, seed #{seed}"
    end

    define_method(:"test_torture_#{seed}_yjit") do
      wanted = torture(seed, STEPS, "off")
      assert_equal wanted, torture(seed, STEPS, "mixed", options: yjit), "YJIT, seed #{seed}"
    end

    # Every class has its call caches in two tables, as an inherited class has in a child (gc/young_tables.h).
    define_method(:"test_torture_#{seed}_with_young_tables") do
      skip "only builds with assertions do so" unless ASSERTIONS

      wanted = torture(seed, STEPS, "off")
      (["mixed"] + (COMPACTS ? ["auto_compact"] : [])).each do |way|
        young = torture(seed, STEPS, way, env: { "COWRUBY_YOUNG_CLASSES" => "all" })
        assert_equal wanted, young, "#{way}, seed #{seed}"
      end
    end
  end

  # All Ractors call through the same call sites while classes die, methods change and the heap is collected
  # and compacted. No Ractor redefines a method that another one calls: pristine CRuby may go on calling the
  # old method then, whatever the collector does. No Ractor makes a class either: no lock protects a class's
  # list of its subclasses (with the flags of the debug build, pristine crashed of that in GC.compact in one
  # of a hundred runs).
  def test_ractors
    [[], (yjit if defined?(RubyVM::YJIT))].compact.each do |options|
      out = run_ruby(<<~'RUBY', options: options)
        $VERBOSE = nil
        Warning[:experimental] = false
        class Shared; def foo = 1; end
        def site(object) = object.foo
        ractors = Array.new(3) do |r|
          Ractor.new(r, Array.new(200) { Class.new }) do |r, classes|
            200.times do |i|
              klass = classes.shift
              klass.class_eval "def foo = #{i}"
              o = klass.new
              found = [site(o), site(o)]
              raise "expected #{i} twice, found #{found}" unless found == [i, i]
              klass.class_eval "def foo = -#{i}"
              raise "wrong after redefinition" unless site(o) == -i
              raise "wrong in shared" unless site(Shared.new) == 1
              GC.start if i % 40 == r
            end
            r
          end
        end
        30.times do |i|
          raise "wrong in main" unless site(Shared.new) == 1
          Shared.class_eval "def foo#{i} = #{i}"
          i.odd? || !GC.respond_to?(:compact) ? GC.start : GC.compact
        end
        p ractors.map(&:take)
      RUBY
      assert_equal "[0, 1, 2]\n", out
    end
  end

  # A cache whose class is dead stays until its iseq is marked again. Its method entry is freed before that,
  # so nothing may read the entry.
  def test_dump_of_caches_whose_class_is_dead
    run_ruby(<<~'RUBY')
      require "objspace"
      GC.disable # All classes shall die in the one collection below.
      sites = Array.new(1_000) { |i| eval("def site#{i}(o) = o.foo") }
      Thread.new { sites.each { |site| send(site, Class.new { define_method(:foo) { 1 } }.new) } }.join
      # Calls from C fill caches in the VM's own table.
      Thread.new { 1_000.times { Class.new { def to_str = "a" }.new.then { |o| "a" + o } } }.join
      GC.start
      kept = Array.new(60_000) { |i| "\xff" * (20 + i % 60) }
      dump = ObjectSpace.dump_all(output: :file)
      caches = File.foreach(dump.path, mode: "rb").grep(/"imemo_type":"callcache"/)
      dead = caches.grep_v(/"receiver_class"/)
      dead.empty? and abort "no cache of a dead class was found, so the test checks nothing"
      named = dead.grep(/"called_id"/)
      named.empty? or abort "#{named.size} of #{dead.size} freed method entries were read: #{named[0]}"
    RUBY
  end

  def test_tracing_reaches_caches_that_survived
    run_ruby(<<~'RUBY')
      class C; attr_accessor :a; end
      def site(o) = (o.a = 1; o.a)
      o = C.new
      3.times { site(o) }
      GC.start
      seen = []
      TracePoint.new(:c_call) { |tp| seen << tp.method_id }.enable { site(o) }
      (%i[a= a] - seen).empty? or abort "expected calls of a= and a, found #{seen.inspect}"
    RUBY
  end

  private

  def yjit
    skip "this ruby has no YJIT" unless defined?(RubyVM::YJIT)
    ["--yjit", "--yjit-call-threshold=1"]
  end
end

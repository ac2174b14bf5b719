# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Patches 0093 and 0094: changes of upstream's development branch that save memory. The tests that count
# objects or bytes fail on pristine 3.4.5. The others check that programs behave as before, and pass there.
class TestBackports < Minitest::Test
  include CowTest

  # Each class has a singleton class of its own, so a cached call of a hook takes a call cache for each class.
  # The hooks here are method_added, const_added and, for a subclass, inherited.
  CLASSES = 300

  def test_hooks_leave_no_call_caches
    out = run_ruby(<<~RUBY)
      require "objspace"
      def call_caches = ObjectSpace.count_imemo_objects[:imemo_callcache]
      def define(name) = eval("class \#{name}; def one = 1; TWO = 2; end; class Sub\#{name} < \#{name}; end")
      define("First")
      call_caches
      GC.disable
      before = call_caches
      #{CLASSES}.times { |i| define("C\#{i}") }
      p call_caches - before
    RUBY
    assert_operator Integer(out), :<, CLASSES / 10,
                    "call caches of #{CLASSES} classes that define a method and a constant and are inherited"
  end

  # Each hook is called once and with the right argument, also after a redefinition.
  def test_hooks_are_called
    out = run_ruby(<<~'RUBY')
      $calls = []
      module Log
        %i[method_added method_removed method_undefined const_added inherited].each do |hook|
          define_method(hook) { |arg| $calls << [hook, arg]; super(arg) }
        end
      end
      class Base
        extend Log
        def self.singleton_method_added(name) = $calls << [:singleton, name]
        private_class_method :singleton_method_added
      end
      module Mod
        %i[included extended prepended append_features prepend_features extend_object].each do |hook|
          define_singleton_method(hook) { |arg| $calls << [hook, arg.class]; super(arg) }
        end
      end
      $calls.clear
      2.times do
        child = Class.new(Base) do
          def one = 1
          def two = 2
          remove_method :one
          undef_method :two
          const_set(:THREE, 3)
        end
        child.define_singleton_method(:four) { 4 }
        child.include(Mod)
        child.prepend(Mod)
        Object.new.extend(Mod)
        calls, $calls = $calls, []
        p calls.map { |hook, arg| [hook, arg.is_a?(Class) && arg == child ? :child : arg] }
        # From here on other methods are the hooks.
        Log.define_method(:inherited) { |arg| $calls << [:again, arg] }
        Base.define_singleton_method(:method_added) { |name| $calls << [:own, name] }
        $calls.clear
      end
    RUBY
    first, second = out.lines.map(&:chomp)
    assert_equal "[[:inherited, :child], [:method_added, :one], [:method_added, :two], " \
                 "[:method_removed, :one], [:method_undefined, :two], [:const_added, :THREE], " \
                 "[:singleton, :four], [:append_features, Class], [:included, Class], " \
                 "[:prepend_features, Class], [:prepended, Class], [:extend_object, Object], " \
                 "[:extended, Object]]", first
    assert_equal first.sub("[:inherited, :child]", "[:again, :child]").gsub(":method_added", ":own"), second
  end

  # A class whose hook is undefined gets method_missing instead.
  def test_hook_that_is_undefined
    out = run_ruby(<<~'RUBY')
      class Base
        class << self
          undef_method :inherited
        end
      end
      begin
        Class.new(Base)
      rescue NoMethodError => e
        puts e.message
      end
      def Base.method_missing(*args) = puts(args.first)
      Class.new(Base)
    RUBY
    assert_equal "undefined method 'inherited' for class Base\ninherited\n", out
  end

  # Values that few instruction sequences need are allocated apart, and the others have only a pointer. One of
  # them is the object of class RubyVM::InstructionSequence; six words are allocated for the first.
  def test_rare_values_of_an_iseq_are_allocated_when_needed
    out = run_ruby(<<~'RUBY')
      require "objspace"
      1_000.times { |i| eval("def same_#{i} = 1") }
      objects = Array.new(500) { |i| RubyVM::InstructionSequence.of(method(:"same_#{i}")) }
      iseqs = ObjectSpace.dump_all(output: :string).lines.grep(/"imemo_type":"iseq"/)
      sizes = iseqs.map { |line| line[/"memsize":(\d+)/, 1].to_i }.tally.max_by(2) { |_, count| count }
      puts sizes.map(&:last).min >= 500, sizes.map(&:first).minmax.reduce(:-).abs, objects.size
    RUBY
    assert_equal ["true", "48", "500"], out.split
  end

  # Checks these values before and after a compaction, and of a loaded iseq: the number of flip-flops (an eval
  # goes on counting from it), the lines of the script, coverage and the original code.
  def test_rare_values_of_an_iseq
    run_ruby(<<~'RUBY')
      require "coverage"
      require "tempfile"
      def flips(from, to) = (1..5).select { |i| true if (i == from)..(i == to) }
      def nested(binding) = binding.eval("(1..5).select { |i| true if (i == 2)..(i == 3) }")
      source = "def loaded = (1..6).select { |i| true if (i == 2)..(i == 4) }"
      RubyVM::InstructionSequence.load_from_binary(RubyVM::InstructionSequence.compile(source).to_binary).eval
      kept = RubyVM.keep_script_lines
      RubyVM.keep_script_lines = true
      lines = eval("-> do\n  1\nend", nil, "kept")
      RubyVM.keep_script_lines = kept
      file = Tempfile.create(%w[covered .rb])
      file.write("def covered(a)\n  a ? 1 : 2\nend\ncovered(1)\ncovered(1)\ncovered(nil)\n")
      file.close
      Coverage.start(lines: true, branches: true)
      load file.path
      check = lambda do
        flipped = [flips(2, 4), loaded, nested(binding)]
        raise "wrong flip-flops: #{flipped}" unless flipped == [[2, 3, 4], [2, 3, 4], [2, 3]]
        of = RubyVM::InstructionSequence.method(:of)
        raise "wrong script lines" unless of[lines].script_lines == ["-> do\n", "  1\n", "end"]
        raise "script lines that were not kept" if of[method(:flips)].script_lines
        raise "disasm without getspecial" unless of[method(:flips)].disasm.include?("getspecial")
      end
      check.call
      GC.start
      GC.compact if GC.respond_to?(:compact)
      check.call
      covered(1)
      result = Coverage.result.fetch(file.path)
      File.unlink(file.path)
      raise "wrong lines: #{result}" unless result[:lines] == [1, 4, nil, 1, 1, 1]
      raise "wrong branches: #{result}" unless result[:branches].values.map(&:values) == [[3, 1]]
      covered(2)
      check.call
      GC.start
    RUBY
  end
end

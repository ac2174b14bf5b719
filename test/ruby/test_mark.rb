# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# What marking an object must reach: its variables, in whatever form it has them, and its
# class, also where it looks at either only briefly (0440-mark-briefly).
class TestMark < Minitest::Test
  include CowTest

  # objects(n) gives pairs: an object, and what its variables should be. Classes and values
  # are known to nobody else.
  OBJECTS = IN_CHILD + COLLECT + <<~'RUBY'
    require "objspace"

    def fill(object, count, i)
      count.times { |n| object.instance_variable_set("@v#{n}", "value #{i} #{n}".dup) }
      object
    end

    FORMS = {
      bare: ->(i) { Class.new.new },
      embedded: ->(i) { fill(Class.new.new, 3, i) },
      # The second has room for what the first one grew to.
      roomy: ->(i) { c = Class.new; fill(c.new, 12, i); fill(c.new, 12, i) },
      grown: ->(i) { fill(Class.new.new, 40, i) },
      shrunk: ->(i) { fill(Class.new.new, 20, i).tap { |o| 15.times { |n| o.remove_instance_variable("@v#{n}") } } },
      frozen: ->(i) { fill(Class.new.new, 4, i).freeze },
      singleton: ->(i) { fill(Object.new, 4, i).tap { |o| o.singleton_class.const_set(:KEPT, "kept #{i}".dup) } },
      # A class has eight variations of shape, then its objects keep their variables in a table.
      complex: ->(i) { c = Class.new; Array.new(12) { |n| c.new.tap { |o| o.instance_variable_set("@own#{n}", n) } }.last.then { |o| fill(o, 5, i) } }
    }

    def variables(object)
      object.instance_variables.to_h { |name| [name, object.instance_variable_get(name).inspect] }
    end

    def objects(count)
      FORMS.values.flat_map { |make| Array.new(count) { |i| make.(i) } }
           .map { |object| [object, variables(object)] }
    end

    def check(pairs)
      pairs.each do |object, values|
        found = variables(object)
        raise "#{found} in place of #{values}" unless found == values
        raise "#{object.class.inspect} is no class" unless object.class.instance_of?(Class) && object.is_a?(object.class)
        kept = object.singleton_class.const_get(:KEPT) if object.instance_of?(Object)
        raise "#{kept} of a singleton class" if kept && !kept.start_with?("kept ")
      end
    end

    def collect_and_check
      GC.start(full_mark: false)
      check(@pairs)
      collect(4)
      check(@pairs)
    end
  RUBY

  def run_objects(script, **options)
    run_ruby(OBJECTS + script, **options)
  end

  def test_variables_and_classes
    run_objects("@pairs = objects(200); collect_and_check; in_child { collect_and_check; @pairs.concat(objects(50)); collect_and_check }; collect_and_check")
  end

  def test_under_stress
    run_objects("GC.stress = true; @pairs = objects(2); check(@pairs); GC.stress = false; collect_and_check")
  end

  # Collections begin at any time here, and go on in steps.
  def test_while_the_program_runs
    run_objects(<<~'RUBY')
      @pairs = []
      40.times do |i|
        @pairs.concat(objects(20))
        @pairs.shift(100) if i % 3 == 2
        Array.new(3_000) { |n| [n.to_s] }
      end
      collect_and_check
    RUBY
  end

  def test_moved
    needs_compaction
    run_objects("@pairs = objects(100); collect_and_check; 2.times { GC.compact; check(@pairs) }; collect_and_check")
  end

  # Who walks the references comes by the same way as marking.
  def test_walked
    run_objects(<<~'RUBY')
      @pairs = objects(20)
      @pairs.each do |object, values|
        reached = ObjectSpace.reachable_objects_from(object)
        raise "#{object} without its class" unless reached.any? { |found| found.equal?(object.class) || found == object.singleton_class }
        missing = object.instance_variables.map { |name| object.instance_variable_get(name) }
                        .reject { |value| Integer === value || reached.any? { |found| found.equal?(value) } }
        raise "#{missing} are not reached" unless missing.empty?
      end
      collect_and_check
    RUBY
  end
end

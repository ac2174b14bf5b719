# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Marking an object must reach its class and its variables, in whatever form it has them. It asks
# the object's shape only once (0440-mark-briefly).
class TestMark < Minitest::Test
  include CowTest

  # Ruby source for scripts. objects(n) gives pairs of an object and the values that its variables
  # must have. Nothing else refers to the classes and the values.
  OBJECTS = IN_CHILD + COLLECT + <<~'RUBY'
    require "objspace"

    def fill(object, count, i)
      count.times { |n| object.instance_variable_set("@v#{n}", "value #{i} #{n}".dup) }
      object
    end

    FORMS = {
      bare: ->(i) { Class.new.new },
      embedded: ->(i) { fill(Class.new.new, 3, i) },
      # The second object has room for as many variables as the first one got.
      roomy: ->(i) { c = Class.new; fill(c.new, 12, i); fill(c.new, 12, i) },
      grown: ->(i) { fill(Class.new.new, 40, i) },
      shrunk: lambda do |i|
        fill(Class.new.new, 20, i).tap { |o| 15.times { |n| o.remove_instance_variable("@v#{n}") } }
      end,
      frozen: ->(i) { fill(Class.new.new, 4, i).freeze },
      singleton: lambda do |i|
        fill(Object.new, 4, i).tap { |o| o.singleton_class.const_set(:KEPT, "kept #{i}".dup) }
      end,
      # When a class has eight variations of shape, further objects keep their variables in a table.
      complex: lambda do |i|
        c = Class.new
        Array.new(12) { |n| c.new.tap { |o| o.instance_variable_set("@own#{n}", n) } }
             .last.then { |o| fill(o, 5, i) }
      end
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
        whole = object.class.instance_of?(Class) && object.is_a?(object.class)
        raise "#{object.class.inspect} is not the object's class" unless whole
        kept = object.singleton_class.const_get(:KEPT) if object.instance_of?(Object)
        raise "a singleton class has the constant #{kept}" if kept && !kept.start_with?("kept ")
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
    run_objects(<<~'RUBY')
      @pairs = objects(200)
      collect_and_check
      in_child { collect_and_check; @pairs.concat(objects(50)); collect_and_check }
      collect_and_check
    RUBY
  end

  def test_under_stress
    run_objects("GC.stress = true; @pairs = objects(2); check(@pairs); GC.stress = false; collect_and_check")
  end

  # The program makes objects while collections begin at any time and mark in steps.
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

  # A full marking that GC.start has begun goes on as one where full collections are switched off: old objects
  # stay old, and what they refer to lives.
  def test_full_collections_switched_off_meanwhile
    run_ruby(<<~'RUBY')
      kept = Array.new(1_000) { |i| [["keep #{i}".dup]] }
      holder = Class.new { const_set(:HELD, Array.new(1_000) { |i| ["held #{i}".dup] }) }
      5.times { GC.start }
      2.times do
        GC.config(rgengc_allow_full_mark: false)
        GC.start(immediate_mark: false, immediate_sweep: false)
        200_000.times { Object.new }
        GC.verify_internal_consistency
        3.times { GC.start(full_mark: false) }
        3_000.times { |i| "other #{i}" * 3 }
        kept.each_with_index { |list, i| raise list.inspect unless list == [["keep #{i}"]] }
        holder::HELD.each_with_index { |list, i| raise list.inspect unless list == ["held #{i}"] }
        GC.config(rgengc_allow_full_mark: true)
      end
    RUBY
  end

  def test_moved_objects
    needs_compaction
    run_objects(<<~'RUBY')
      @pairs = objects(100)
      collect_and_check
      2.times { GC.compact; check(@pairs) }
      collect_and_check
    RUBY
  end

  # ObjectSpace.reachable_objects_from finds the references as marking does (rb_gc_mark_children).
  def test_reachable_objects
    run_objects(<<~'RUBY')
      @pairs = objects(20)
      @pairs.each do |object, values|
        reached = ObjectSpace.reachable_objects_from(object)
        class_reached = reached.any? { |found| found.equal?(object.class) || found == object.singleton_class }
        raise "the class of #{object} is not reached" unless class_reached
        missing = object.instance_variables.map { |name| object.instance_variable_get(name) }
                        .reject { |value| Integer === value || reached.any? { |found| found.equal?(value) } }
        raise "#{missing} are not reached" unless missing.empty?
      end
      collect_and_check
    RUBY
  end
end

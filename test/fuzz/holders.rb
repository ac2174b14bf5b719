# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "values"

module Fuzz
  # holders: objects that hold eight values, each kind in another way, so that the collector must find them
  # in another way and every write needs its write barrier.
  module Holders
    PLACES = 8

    class Base
      attr_reader :token

      def initialize(serial)
        @token = Values::Token.new(serial)
        prepare
      end

      def prepare; end
      # Another holder of the same values.
      def copy = nil
      def churn(_random) = nil
      # Does it live on in a forked child?
      def inherited? = true
      # Is it of the thread that made it?
      def fiber? = false
      def release; end
    end

    class List < Base
      def prepare = @list = Array.new(PLACES)
      def store(place, value) = @list[place] = value
      def fetch(place) = @list[place]
      def churn(random) = Values.churn_array(@list, random)
      def copy = dup.tap { |other| other.instance_variable_set(:@list, @list[0..]) }
    end

    # In an array that grows and shrinks at both ends.
    class Stretched < Base
      def prepare = @list = Array.new(PLACES * 20)
      def store(place, value) = @list[place * 20] = value
      def fetch(place) = @list[place * 20]

      def churn(random)
        random.rand(100).times { @list.unshift(random) }
        @list.shift while @list[0].equal?(random)
        @list = @list.dup if random.rand(3).zero?
      end
    end

    class Table < Base
      def prepare = @table = {}
      def store(place, value) = @table["key #{place}"] = value
      def fetch(place) = @table["key #{place}"]
      def churn(random) = Values.churn_hash(@table, random)
      def copy = dup.tap { |other| other.instance_variable_set(:@table, @table.to_a.to_h) }
    end

    # Its keys are found by their addresses, or by what stands for them.
    class Identity < Base
      def prepare
        @keys = Array.new(PLACES) { |place| place.even? ? Object.new : place.to_s }
        @table = {}.compare_by_identity
      end

      def store(place, value) = @table[@keys[place]] = value
      def fetch(place) = @table[@keys[place]]
      def churn(random) = Values.churn_hash(@table, random)
    end

    # Its keys are objects whose hash is that of their ids.
    class Keyed < Base
      def prepare
        @keys = Array.new(PLACES) { Object.new }
        @table = {}
      end

      def store(place, value) = @table[@keys[place]] = value
      def fetch(place) = @table[@keys[place]]
      def churn(_random) = @table.rehash
    end

    class Short < Base
      Eight = Struct.new(*(0..7).map { |i| :"m#{i}" })

      def prepare = @struct = Eight.new
      def store(place, value) = @struct[place] = value
      def fetch(place) = @struct[place]
      def copy = dup.tap { |other| other.instance_variable_set(:@struct, @struct.dup) }
    end

    class Ivars < Base
      def prepare = @extra = 0
      def store(place, value) = instance_variable_set(:"@p#{place}", value)
      def fetch(place) = instance_variable_get(:"@p#{place}")
      def copy = clone

      # Another shape each time, in the end a hash.
      def churn(random)
        name = :"@x#{random.rand(30)}"
        return remove_instance_variable(name) if instance_variable_defined?(name)

        instance_variable_set(name, [name.to_s])
      end
    end

    # Of an object that has no room for them.
    class Generic < Base
      def store(place, value) = @object.instance_variable_set(:"@p#{place}", value)
      def fetch(place) = @object.instance_variable_get(:"@p#{place}")
      def churn(random) = @object.instance_variable_set(:"@x#{random.rand(5)}", random)

      def prepare
        kinds = [+"a string", [1], {}, /x#{@token.serial}/.dup, Class.new, proc { 1 }]
        @object = kinds[@token.serial % kinds.size]
      end
    end

    class Klass < Base
      def prepare = @class = Class.new(@token.serial.odd? ? Object : Class.new)

      def store(place, value)
        case place % 3
        when 0 then @class.instance_variable_set(:"@p#{place}", value)
        when 1 then @class.class_variable_set(:"@@p#{place}", value)
        when 2
          @class.send(:remove_const, :"P#{place}") if @class.const_defined?(:"P#{place}", false)
          @class.const_set(:"P#{place}", value)
        end
      end

      def fetch(place)
        case place % 3
        when 0 then @class.instance_variable_get(:"@p#{place}")
        when 1
          name = :"@@p#{place}"
          @class.class_variable_get(name) if @class.class_variable_defined?(name)
        when 2 then @class.const_get(:"P#{place}") if @class.const_defined?(:"P#{place}", false)
        end
      end

      def churn(random)
        @class.class_eval { define_method(:"m#{random.rand(9)}") { random } }
        (@below ||= []) << Class.new(@class)
        @below.shift if @below.size > 3
      end
    end

    # Through the cache of each place where the constant is written.
    class Constants < Base
      def prepare
        @module = Module.new
        reads = Array.new(PLACES) { |place| "when #{place} then P#{place}" }.join("\n")
        PLACES.times { |place| @module.const_set(:"P#{place}", nil) }
        @module.module_eval("def self.fetch(place)\ncase place\n#{reads}\nend\nend", __FILE__, __LINE__)
      end

      def store(place, value)
        @module.send(:remove_const, :"P#{place}")
        @module.const_set(:"P#{place}", value)
      end

      def fetch(place) = @module.fetch(place)
    end

    class Closure < Base
      def prepare
        a = b = c = d = e = f = g = h = nil
        @get = ->(place) { [a, b, c, d, e, f, g, h][place] }
        @set = lambda do |place, value|
          case place
          when 0 then a = value
          when 1 then b = value
          when 2 then c = value
          when 3 then d = value
          when 4 then e = value
          when 5 then f = value
          when 6 then g = value
          when 7 then h = value
          end
        end
      end

      def store(place, value) = @set.call(place, value)
      def fetch(place) = @get.call(place)
    end

    class Bound < Base
      def prepare = @binding = instance_eval { binding }
      def store(place, value) = @binding.local_variable_set(:"p#{place}", value)

      def fetch(place)
        @binding.local_variable_defined?(:"p#{place}") ? @binding.local_variable_get(:"p#{place}") : nil
      end
    end

    # In methods that are defined anew, through the caches of the places that call them.
    class Methods < Base
      def prepare
        @class = Class.new { PLACES.times { |place| define_method(:"p#{place}") { nil } } }
        @object = @class.new
      end

      def store(place, value)
        target = @token.serial % 3 == 0 ? @object.singleton_class : @class
        target.define_method(:"p#{place}") { value }
      end

      def fetch(place)
        o = @object
        case place
        when 0 then o.p0
        when 1 then o.p1
        when 2 then o.p2
        when 3 then o.p3
        when 4 then o.p4
        when 5 then o.p5
        when 6 then o.p6
        when 7 then o.p7
        end
      end
    end

    # Each value behind the one before it.
    class Chain < Base
      Link = Struct.new(:value, :following)

      def prepare = @first = PLACES.times.reduce(nil) { |link, _| Link.new(nil, link) }
      def link(place) = place.times.reduce(@first) { |link, _| link.following }
      def store(place, value) = link(place).value = value
      def fetch(place) = link(place).value

      # Other links.
      def churn(random)
        values = Array.new(PLACES) { |place| fetch(place) }
        @first = values.reverse.reduce(nil) { |following, value| Link.new(value, following) }
        random
      end
    end

    # On the stack of a fiber.
    class Suspended < Base
      def prepare
        @fiber = Fiber.new do |place|
          a = b = c = d = e = f = g = h = nil
          while place
            if place < 100
              place = Fiber.yield([a, b, c, d, e, f, g, h][place])
            else
              value = Fiber.yield
              case place - 100
              when 0 then a = value
              when 1 then b = value
              when 2 then c = value
              when 3 then d = value
              when 4 then e = value
              when 5 then f = value
              when 6 then g = value
              when 7 then h = value
              end
              value = nil
              place = Fiber.yield
            end
          end
        end
      end

      def store(place, value)
        @fiber.resume(100 + place)
        @fiber.resume(value)
        nil
      end

      def fetch(place) = @fiber.resume(place)
      def fiber? = true
      def release = @fiber.resume(nil)
    end

    # On the stack of a thread, which a forked child has not.
    class Waiting < Base
      def prepare
        @asked = Queue.new
        @told = Queue.new
        asked, told = @asked, @told
        @thread = Thread.new do
          values = Array.new(PLACES)
          while (place, value = asked.pop)
            place < 100 ? told << values[place] : told << (values[place - 100] = value) && nil
            value = nil
          end
        end
      end

      def store(place, value)
        @asked << [100 + place, value]
        @told.pop
        nil
      end

      def fetch(place)
        @asked << [place]
        @told.pop
      end

      def inherited? = false

      def release
        @asked.close
        @thread.join
      end
    end

    # In a thread that has ended.
    class ThreadLocals < Base
      def prepare = @thread = Thread.new { nil }.join

      def store(place, value)
        place.even? ? @thread[:"p#{place}"] = value : @thread.thread_variable_set(:"p#{place}", value)
      end

      def fetch(place) = place.even? ? @thread[:"p#{place}"] : @thread.thread_variable_get(:"p#{place}")
    end

    # What a map holds weakly is held elsewhere as well.
    class Weak < Base
      def prepare
        @map = ObjectSpace::WeakMap.new
        @keys = Array.new(PLACES) { Object.new }
        @values = Array.new(PLACES)
      end

      def store(place, value)
        @values[place] = value
        @map[@keys[place]] = value
      end

      def fetch(place)
        found = @map[@keys[place]]
        raise "a weak map gives another object" unless found.equal?(@values[place])

        found
      end

      # Keys and values that die.
      def churn(random)
        random.rand(20).times { |i| @map[Object.new] = i.to_s }
        @map.size
        @map.each { |key, value| key.hash ^ value.hash }
      end
    end

    class WeakKeys < Base
      def prepare
        @map = ObjectSpace::WeakKeyMap.new
        @keys = Array.new(PLACES) { |place| "weak key #{place}" }
      end

      def store(place, value) = @map[@keys[place]] = value

      def fetch(place)
        key = @map.getkey("weak key #{place}")
        raise "a weak map gives another key" unless key.nil? || key.equal?(@keys[place])

        @map["weak key #{place}"]
      end

      def churn(random)
        random.rand(20).times { |i| @map["dies #{i}"] = i.to_s }
        @map.inspect
      end
    end

    class Line < Base
      def prepare
        @queue = Queue.new
        PLACES.times { @queue << nil }
      end

      # All pass through it.
      def each_passing
        PLACES.times do |place|
          value = @queue.pop
          @queue << yield(place, value)
        end
      end

      def store(place, value) = each_passing { |at, old| at == place ? value : old }

      def fetch(place)
        found = nil
        each_passing { |at, value| at == place ? found = value : value }
        found
      end
    end

    # In a frozen object that is made anew.
    class Fixed < Base
      Eight = Data.define(*(0..7).map { |i| :"m#{i}" })

      def prepare = @data = Eight.new(*[nil] * 8)
      def store(place, value) = @data = @data.with("m#{place}": value)
      def fetch(place) = @data.public_send(:"m#{place}")
    end

    class Singleton < Base
      def prepare = @object = Object.new

      def store(place, value)
        @object.define_singleton_method(:"p#{place}") { value }
      end

      def fetch(place) = @object.respond_to?(:"p#{place}") ? @object.public_send(:"p#{place}") : nil
      def copy = dup.tap { |other| other.instance_variable_set(:@object, @object.clone) }
    end

    # An argument of a method, in an enumerator that waits for the next call.
    class Enumerated < Base
      def prepare = rebuild(Array.new(PLACES))
      def fiber? = true

      def rebuild(values)
        @values = values
        @enumerator = values.each_entry
        @enumerator.next
      end

      def store(place, value) = rebuild(@values.dup.tap { |values| values[place] = value })

      def fetch(place)
        @enumerator.rewind
        place.times { @enumerator.next }
        @enumerator.next
      end
    end

    # What an exception remembers, with its cause.
    class Raised < Base
      class Kept < StandardError
        attr_accessor :values
      end

      def prepare
        @error = begin
          begin
            raise "cause"
          rescue StandardError
            raise Kept, "kept"
          end
        rescue Kept => e
          e.values = Array.new(PLACES)
          e
        end
      end

      def store(place, value) = @error.values[place] = value

      def fetch(place)
        raise "an exception has lost its cause" unless @error.cause.message == "cause"

        @error.values[place]
      end
    end

    # Global variables are never collected, so it has few.
    class Globals < Base
      NAMES = Array.new(PLACES) { |place| :"$fuzz_#{place}" }
      PLACES.times { |place| eval("$fuzz_#{place} = {}", TOPLEVEL_BINDING, __FILE__, __LINE__) }
      READ = eval("->(i) { [#{NAMES.join(", ")}][i] }", TOPLEVEL_BINDING, __FILE__, __LINE__)

      def store(place, value) = READ.call(place)[@token.serial] = value
      def fetch(place) = READ.call(place)[@token.serial]
      def release = PLACES.times { |place| READ.call(place).delete(@token.serial) }
    end

    KINDS = [
      List, Stretched, Table, Identity, Keyed, Short, Ivars, Generic, Klass, Constants, Closure, Bound,
      Methods, Chain, Suspended, Waiting, ThreadLocals, Weak, WeakKeys, Line, Fixed, Singleton, Enumerated,
      Raised, Globals
    ].freeze
  end
end

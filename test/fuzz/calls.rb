# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module Fuzz
  # calls: methods that are defined, undefined and removed in the layers of some classes, and calls of them
  # through caches. What a call must give is computed of the numbers in the shadow.
  class Calls
    LAYERS = 4
    NAMES = 6
    CLASSES = 2
    # What the number of a method says: it is not there, it is undefined, it adds what super gives.
    NONE, UNDEFINED = 0, -1

    # Objects of classes with the same methods pass here, so that the caches have several entries.
    CALLS = Array.new(NAMES) do |i|
      [eval("->(o) { o.m#{i} }", nil, __FILE__, __LINE__),
       eval("->(o) { o.m#{i}(*[]) }", nil, __FILE__, __LINE__),
       ->(o) { o.public_send(:"m#{i}") },
       ->(o) { o.method(:"m#{i}").call },
       ->(o) { [o].map(&:"m#{i}").first },
       ->(o) { o.instance_eval("m#{i}", __FILE__, __LINE__) }]
    end.freeze

    def initialize(shadow)
      @shadow = shadow
      @families = Array.new(CLASSES) { build }
    end

    # In the order in which a method is looked for.
    def build
      base = Class.new
      included = Module.new
      prepended = Module.new
      sub = Class.new(base) do
        include included
        prepend prepended
      end
      [[prepended, sub, included, base], sub.new]
    end

    # Other classes and objects with nothing defined.
    def renew(family)
      @families[family] = build
      LAYERS.times { |layer| NAMES.times { |name| @shadow.set_method(index(family, layer, name), NONE) } }
    end

    def index(family, layer, name) = (family * LAYERS + layer) * NAMES + name

    def change(family, layer, name, number, random)
      place = @families[family].first[layer]
      method = :"m#{name}"
      case number
      when NONE
        return if @shadow.method(index(family, layer, name)) == UNDEFINED # that cannot be removed

        place.remove_method(method) if place.method_defined?(method, false)
      when UNDEFINED
        return unless place.method_defined?(method)

        place.undef_method(method)
      else define(place, method, number, random)
      end
      @shadow.set_method(index(family, layer, name), number)
    end

    # An odd number adds what super gives.
    def define(place, method, number, random)
      value = "super_value = defined?(super) ? super() : 0; #{number} + super_value"
      value = number.to_s if number.even?
      if random.rand(3).zero? && number.even?
        place.define_method(method) { number }
      else
        place.class_eval("def #{method} = (#{value})", __FILE__, __LINE__)
      end
    end

    # nil: there is no such method.
    def expected(family, name, layer = 0)
      (layer...LAYERS).each do |at|
        number = @shadow.method(index(family, at, name))
        next if number == NONE
        return if number == UNDEFINED
        return number if number.even?

        return number + (expected(family, name, at + 1) || 0)
      end
      nil
    end

    def check(family, name, way)
      object = @families[family].last
      found = begin
        CALLS[name][way].call(object)
      rescue NameError # from public_send and method as well
        nil
      end
      wanted = expected(family, name)
      return if found == wanted

      raise "m#{name} of family #{family} gives #{found.inspect} in place of #{wanted.inspect} (way #{way})"
    end

    def check_all
      CLASSES.times { |family| NAMES.times { |name| check(family, name, name % CALLS[0].size) } }
    end
  end
end

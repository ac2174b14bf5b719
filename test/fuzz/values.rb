# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "date"
require "digest"
require "objspace"
require "set"
require "stringio"
require "strscan"

module Fuzz
  # values: objects that a number says completely. Values.make(n) makes the one of the number n, Values.same?
  # says whether an object is still that one. So a shadow of the heap needs numbers only.
  module Values
    Pair = Struct.new(:first, :second)
    Point = Data.define(:x, :y)

    # With few instance variables, with many, and in an order of its own.
    class Few
      def initialize(n) = (@a = n; @b = n.to_s; @c = [n])
      def parts = [@a, @b, @c]
    end

    class Many
      def initialize(n) = 40.times { |i| instance_variable_set(:"@v#{i}", n + i) }
      def parts = Array.new(40) { |i| instance_variable_get(:"@v#{i}") }
    end

    class Disordered
      def initialize(n)
        names = (0..9).to_a.rotate(n % 10)
        names.reverse! if n.odd?
        names.each { |i| instance_variable_set(:"@w#{i}", "#{n} #{i}") }
        remove_instance_variable(:"@w#{n % 7}")
      end

      def parts = (0..9).map { |i| instance_variable_get(:"@w#{i}") }
    end

    # What a holder is known by, wherever it is referred to.
    class Token
      attr_reader :serial

      def initialize(serial)
        @serial = serial
        @text = Values.text(serial, 100)
      end

      def whole?(serial) = @serial == serial && @text == Values.text(serial, 100)
    end

    class << self
      # A text of about +size+ bytes that is another one for another number.
      def text(n, size)
        word = "#{n.to_s(36)}/#{(n * 2_654_435_761 & 0xffffffff).to_s(16)};"
        word * (size / word.size + 1)
      end

      def middle(n)
        long = text(n, 300 + n % 3_000)
        [long, n % 50, 40 + n % 400]
      end

      def make(n) = MAKERS[n % KINDS].call(n)

      # nil is of the number 0.
      def same?(object, n)
        return object.nil? if n.zero?

        kind = n % KINDS
        READERS.key?(kind) ? READERS[kind].call(object) == READERS[kind].call(make(n)) : object == make(n)
      end

      def kind_of(n) = n.zero? ? :nil : NAMES[n % KINDS]

      # May Marshal write it?
      def marshals?(n) = n.zero? || !UNMARSHALLED.include?(NAMES[n % KINDS])

      # Is it of the thread that made it?
      def fiber?(n) = n.positive? && NAMES[n % KINDS] == :enumerator

      # Is it a number for which make may be called?
      def makes?(n) = n.positive? && NAMES[n % KINDS] != :token

      def token_number(serial) = serial * KINDS + NAMES.index(:token)
      def token?(n) = n.positive? && NAMES[n % KINDS] == :token
      def serial_of(n) = n / KINDS

      # Changes an object and changes it back.
      def churn(object, random)
        case object
        when String then churn_string(object, random) if !object.frozen? && object.encoding.ascii_compatible?
        when Array then churn_array(object, random) unless object.frozen?
        when Hash then churn_hash(object, random)
        when Set then object.add(:churn).delete(:churn)
        when StringIO then object.rewind; object.read(random.rand(50)); object.rewind
        when Few, Many, Disordered then churn_ivars(object, random)
        end
      end

      def churn_string(string, random)
        case random.rand(8)
        when 0 then string.delete_suffix!("no such end")
        when 1
          length = string.bytesize
          string << "tail" * 20
          string.bytesplice(length, string.bytesize - length, "")
        when 2 then string.setbyte(0, string.getbyte(0)) unless string.empty?
        when 3 then string.replace(string.dup)
        when 4 then string.force_encoding(string.encoding)
        when 5 then string.insert(0, "head"); string.bytesplice(0, 4, "")
        when 6 then string.prepend("p"); string.slice!(0)
        when 7 then copy = string.byteslice(0..); copy << "z"; string.hash
        end
      end

      def churn_array(array, random)
        case random.rand(6)
        when 0 then random.rand(1..40).tap { |k| k.times { |i| array.push(i) }; array.pop(k) }
        when 1 then array.unshift(:a, "b"); array.shift(2)
        when 2 then array.replace(array.dup)
        when 3 then array.rotate!(1); array.rotate!(-1)
        when 4 then other = array[0..]; other << 1; array.concat([7]).pop
        when 5 then array.map! { |item| item }
        end
      end

      def churn_hash(hash, random)
        added = Array.new(random.rand(1..30)) { |i| "churn #{i}" }
        added.each { |key| hash[key] = key.size }
        hash.find { |key, _| hash.find { |other, _| other.equal?(key) } } # one iteration ends in another
        hash.rehash if random.rand(4).zero?
        added.shuffle!(random: random)
        added.each { |key| hash.delete(key) }
      end

      def churn_ivars(object, random)
        name = :"@churn#{random.rand(20)}"
        object.instance_variable_set(name, [name.to_s])
        object.remove_instance_variable(name)
      end
    end

    MAKE = {
      fixnum: ->(n) { n },
      float: ->(n) { (n + 1) * 1e290 },
      bignum: ->(n) { 2**70 + n },
      long_bignum: ->(n) { 3**400 + n },
      short: ->(n) { "s#{n}" },
      embedded: ->(n) { text(n, n % 500) },
      long: ->(n) { text(n, 1_000 + n % 4_000) },
      middle: lambda do |n|
        long, from, length = middle(n)
        long.byteslice(from, length)
      end,
      middle_of_changed: lambda do |n|
        long, from, length = middle(n)
        part = long[from, length]
        case n / KINDS % 4
        when 0 then long << "changed"
        when 1 then long.clear
        when 2 then long.setbyte(from, 33)
        when 3 then long.replace("other" * 100)
        end
        part
      end,
      middle_of_middle: lambda do |n|
        long, = middle(n)
        long.byteslice(10, 250).byteslice(5, 200).byteslice(3..)
      end,
      parts: ->(n) { "#{text(n, 90)},#{n},#{text(n, 200)},#{n}".split(",") },
      matched: ->(n) { text(n, 700).match(%r{(/[^;]+;)+?.{100}})&.[](0) || "none" },
      substituted: ->(n) { text(n, 400).gsub("/", "::").tr(";", ".").sub(/\A./) { |c| c * 30 } },
      wide: ->(n) { "\u3042\u{1f600}#{n}".encode("UTF-16LE") },
      symbol: ->(n) { :"fuzz_#{n}" },
      long_symbol: ->(n) { text(n, 120).to_sym },
      interned: ->(n) { -text(n, 80) },
      array: ->(n) { [n, n.to_s, [n]] },
      long_array: ->(n) { Array.new(30 + n % 200) { |i| n + i } },
      shifted: ->(n) { Array.new(100) { |i| n ^ i }.tap { |list| list.shift(20) } },
      hash: ->(n) { { n => n.to_s, "k" => [n] } },
      long_hash: ->(n) { (0..(10 + n % 60)).to_h { |i| ["#{i} #{n}", i] } },
      identity: ->(n) { { n => 1 }.compare_by_identity },
      set: ->(n) { Set[n, n.to_s, :set] },
      rational: ->(n) { Rational(n + 1, 7_919) },
      complex: ->(n) { Complex(n, 2**65) },
      range: ->(n) { ("a#{n}".."b#{n}") },
      struct: ->(n) { Pair.new(n.to_s, [n]) },
      data: ->(n) { Point.new(x: n, y: "y#{n}") },
      few: ->(n) { Few.new(n) },
      many: ->(n) { Many.new(n) },
      disordered: ->(n) { Disordered.new(n) },
      named_string: ->(n) { "named #{n}".dup.tap { |s| s.instance_variable_set(:@name, [n]) } },
      time: ->(n) { Time.at(n) },
      date: ->(n) { Date.jd(2_000_000 + n % 900_000) },
      regexp: ->(n) { Regexp.new("x#{n}(y|z)*") },
      match: ->(n) { /(\d+)-(\d+)/.match("at #{n}-#{n + 1} #{text(n, 200)}") },
      proc: ->(n) { [n].then { |list| proc { list.first } } },
      method: ->(n) { n.to_s.method(:+) },
      binding: ->(n) { [n].then { |list| list.instance_eval { binding } } },
      io: ->(n) { StringIO.new(text(n, 300)) },
      scanner: ->(n) { StringScanner.new(text(n, 300)).tap { |s| s.scan(/[^;]+;/) } },
      buffer: ->(n) { IO::Buffer.for(text(n, n.odd? ? 8_000 : 50)) },
      own_buffer: ->(n) { IO::Buffer.new(n.odd? ? 70_000 : 64).tap { |b| b.set_value(:U64, 8, n) } },
      digest: ->(n) { Digest::SHA256.new.update(n.to_s) },
      error: ->(n) { RuntimeError.new("error #{n}") },
      klass: ->(n) { Class.new { const_set(:N, n.to_s); define_method(:n) { n } } },
      singleton: ->(n) { Object.new.tap { |o| o.define_singleton_method(:n) { n } } },
      enumerator: ->(n) { [n, n + 1].each.tap(&:next) },
      lazy: ->(n) { (n..).lazy.map { |i| i.to_s } },
      packed: ->(n) { [n, n.to_s, 1.5].pack("Q>A*E") },
      loaded: ->(n) { Marshal.load(Marshal.dump([n.to_s, { a: text(n, 60) }])) },
      token: ->(n) { raise "no token is made of its number: #{n}" }
    }.freeze

    # How what == does not compare is compared.
    READ = {
      few: :parts.to_proc, many: :parts.to_proc, disordered: :parts.to_proc,
      named_string: ->(s) { [s, s.instance_variable_get(:@name)] },
      match: ->(m) { [m[0], m[1], m[2], m.post_match, m.pre_match] },
      proc: ->(p) { p.call },
      method: ->(m) { m.call("x") },
      binding: ->(b) { b.eval("list.first") },
      io: ->(io) { io.string },
      scanner: ->(s) { [s.rest, s.matched] },
      buffer: ->(b) { b.get_string },
      own_buffer: ->(b) { b.get_value(:U64, 8) },
      digest: ->(d) { d.hexdigest },
      error: ->(e) { e.message },
      klass: ->(k) { [k::N, k.new.n] },
      singleton: ->(o) { o.n },
      enumerator: ->(e) { e.peek },
      lazy: ->(l) { l.first(2) },
      identity: ->(h) { h.to_a },
      long_symbol: ->(s) { [s, s.to_s] },
      symbol: ->(s) { [s, s.name] }
    }.freeze

    UNMARSHALLED = %i[
      match proc method binding io scanner buffer own_buffer digest klass singleton enumerator lazy token
    ].freeze

    NAMES = MAKE.keys.freeze
    KINDS = NAMES.size
    MAKERS = MAKE.values.freeze
    READERS = READ.transform_keys { |name| NAMES.index(name) }.freeze
  end
end

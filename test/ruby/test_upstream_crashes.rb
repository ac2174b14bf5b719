# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Crashes, hangs and wrong results of the core that upstream has fixed since 3.4.5 and that are no
# vulnerabilities (doc/upstream-fixes.md). On pristine CRuby each test failed in 3 of 3 runs, unless a comment
# says otherwise. In most of them a callback changes the object that the method works on. Where
# libc_malloc_debug is installed it overwrites freed memory, so that the method reads garbage; large blocks
# are unmapped when they are freed.
class TestUpstreamCrashes < Minitest::Test
  include CowTest

  MALLOC_DEBUG = Dir["/{lib,usr/lib}{,64}/{,*/}libc_malloc_debug.so.0"].first
  CHECKS = { "LD_PRELOAD" => MALLOC_DEBUG, "MALLOC_CHECK_" => "3", "MALLOC_PERTURB_" => "165" }.freeze
  CHECKED = !ASAN && MALLOC_DEBUG ? CHECKS : {}

  # Ruby source for scripts. same(expected, got) raises unless the two are equal; with(:to_int) { } makes an
  # object whose to_int runs the block; must_raise(error) { } raises unless the block raises +error+.
  TOOLS = <<~'RUBY'
    def same(expected, got)
      return if expected == got

      raise "expected #{expected.inspect[0, 200]}, found #{got.inspect[0, 200]}"
    end

    def with(*names, &block)
      Object.new.tap { |object| names.each { |name| object.define_singleton_method(name, &block) } }
    end

    def must_raise(error)
      result = yield
    rescue error
      nil
    else
      raise "expected #{error}, found the result #{result.inspect[0, 80]}"
    end
  RUBY

  def run_tried(script, timeout: 60)
    run_ruby(TOOLS + script, env: CHECKED, options: %w[-W0], timeout: timeout)
  end

  def needs_malloc_checks
    skip "neither AddressSanitizer nor libc_malloc_debug is there" unless ASAN || MALLOC_DEBUG
  end

  # Bug #22318
  def test_flatten_of_an_array_that_to_ary_empties
    run_tried(<<~'RUBY')
      array = (1..100_000).to_a
      array << with(:to_ary) { array.clear; [1, 2, 3] }
      same [1, 2, 3], array.flatten
      array = [with(:to_ary) { array.clear; nil }, 2, 3]
      same [], array.flatten
      array = [1, 2, with(:to_ary) { array.concat([4]); [3] }]
      same [1, 2, 3, 4], array.flatten
      array = (1..1000).to_a
      array << with(:to_ary) { array.clear; [1] }
      array.flatten!
      same [1], array
    RUBY
  end

  # Bug #22319
  def test_zip_with_an_argument_that_empties_the_array
    run_tried(<<~'RUBY')
      array = (1..100_000).to_a
      same [], array.zip(with(:to_ary) { array.clear; [1, 2, 3] })
      array = [1, 2, 3]
      same [[1, 1]], array.zip(with(:to_ary) { array.replace([1]); [1, 2, 3] })
    RUBY
  end

  # Pull request 18870
  def test_values_at_of_a_range_that_empties_the_array
    needs_malloc_checks
    run_tried(<<~'RUBY')
      array = (0..100_000).to_a
      range = with(:begin) { array.clear; 0 }
      def range.end = 10_000
      def range.exclude_end? = false
      same [nil] * 10_001, array.values_at(range)
    RUBY
  end

  # Pull request 18472
  def test_concat_of_a_longer_array_with_the_same_buffer
    run_tried(<<~'RUBY')
      long = Array.new(200) { |i| "s#{i}" }
      [->(a) { a.concat(long) }, ->(a) { a.push(*long) }, ->(a) { a[199, 0] = long }].each do |append|
        short = long.dup
        short.pop
        append[short]
        same long[0, 199] + long, short
      end
      short = long.dup
      short.pop
      short[1, 2] = long
      same [long[0], *long, *long[3, 196]], short
      GC.start
    RUBY
  end

  # Bug #21304
  def test_hash_of_an_array_that_an_element_empties
    needs_malloc_checks
    run_tried(<<~'RUBY')
      array = (1..100_000).to_a
      array[1] = with(:hash) { array.clear; GC.start; 1 }
      array.hash
      same [], array
      same [1, [2, "x"]].hash, [1, [2, "x"]].hash
      same({ [1, 2] => 3 }, { [1, 2] => 3 }.merge({ [1, 2] => 3 }))
      one, two = 1, "two"
      same [one, two].hash, Array.new([one, two]).hash
    RUBY
  end

  # Pull request 18931
  def test_format_with_an_array_that_to_s_empties
    run_tried(<<~'RUBY')
      array = [with(:to_s) { array.replace([]); GC.start; "x" }, *Array.new(999) { "y" }]
      same "x" + "y" * 999, "%s" * 1000 % array
      array = [with(:to_s) { array.clear; "x" }, 1]
      same "x1", "%s%d" % array
    RUBY
  end

  # Pull request 18898
  def test_aset_of_a_match_in_a_string_that_to_str_empties
    run_tried(<<~'RUBY')
      string = "hello" * 100
      must_raise(RuntimeError) { string[/o\z/] = with(:to_str) { string.replace(""); "x" } }
      string = "hello" * 100
      must_raise(RuntimeError) { string[/(o)\z/, with(:to_int) { string.replace(""); 1 }] = "x" }
      string = "hello"
      string[/l+/] = with(:to_str) { "L" }
      same "heLo", string
    RUBY
  end

  # Pull request 18906
  def test_slice_of_a_match_in_a_string_that_to_int_empties
    run_tried(<<~'RUBY')
      string = "x" + "l" * 3999
      must_raise(RuntimeError) { string.slice!(/l+$/, with(:to_int) { string.clear; 0 }) }
      string = "hello"
      same "ll", string.slice!(/(l+)/, with(:to_int) { 1 })
      same "heo", string
    RUBY
  end

  # Pull request 18878
  def test_setbyte_in_a_string_that_to_int_shortens
    needs_malloc_checks
    run_tried(<<~'RUBY')
      string = "a" * 10_000_000
      must_raise(IndexError) { string.setbyte(9_999_996, with(:to_int) { string.replace("x" * 50); 0 }) }
      same "x" * 50, string
      string.setbyte(-1, with(:to_int) { 65 })
      same "x" * 49 + "A", string
    RUBY
  end

  # Pull request 18942
  def test_byteindex_in_a_string_that_to_int_shortens
    needs_malloc_checks
    run_tried(<<~'RUBY')
      %i[byteindex byterindex].each do |name|
        string = "h\u00e9llo" * 1_000_000
        string.public_send(name, "l", with(:to_int) { string.replace("\u00e9" * 1000); 4_500_000 })
      end
      same 2, "hello".byteindex("l", with(:to_int) { -5 })
      same 3, "hello".byterindex("l", with(:to_int) { 9 })
    RUBY
  end

  # Pull request 18925
  def test_each_line_with_a_separator_that_the_block_empties
    needs_malloc_checks
    run_tried(<<~'RUBY')
      separator = "x" * 1_000_000
      lines = []
      "a#{separator}b#{separator}c".each_line(separator, chomp: true) do |line|
        lines << line
        separator.clear
      end
      same %w[a b c], lines
    RUBY
  end

  # With a block unpack reads a frozen copy (patch 0060), so @ and X must count from there. The copy of an
  # embedded string has bytes of its own.
  def test_unpack_that_moves_with_a_block
    run_tried(<<~'RUBY')
      ["abcdefgh", "abcdefgh" * 200].each do |string|
        %w[a2@0a3 a4X2a1 @3a2X4a2 a2@*a1 a3x2a1@1a2 a2@0a* @1a*X3a2 @2a9X2a*].each do |format|
          found = []
          string.unpack(format) { |part| found << part; Array.new(20) { |i| "x" * i } }
          same string.unpack(format), found
        end
      end
    RUBY
  end

  # Bug #22315
  def test_unpack_of_a_string_that_the_block_empties
    needs_malloc_checks
    run_tried(<<~'RUBY')
      string = "C" * 4_000_000
      count = 0
      string.unpack("L*") { count += 1; string.clear }
      same 1_000_000, count
      format = "C" * 1_000_000
      count = 0
      ("C" * 1_000_000).unpack(format) { count += 1; format.clear }
      same 1_000_000, count
    RUBY
  end

  # Bug #22336
  def test_io_buffer_that_the_name_of_an_encoding_resizes
    run_tried(<<~'RUBY')
      buffer = IO::Buffer.new(2 << 20)
      string = buffer.get_string(0, 1 << 20, with(:to_str) { buffer.resize(64 << 20); "UTF-8" })
      same [1 << 20, Encoding::UTF_8], [string.size, string.encoding]
    RUBY
  end

  # Pull request 18956
  def test_time_of_a_string_that_the_precision_empties
    needs_malloc_checks
    run_tried(<<~'RUBY')
      string = "2000-01-01 00:00:00." + "0" * 10_000_000
      must_raise(ArgumentError) { Time.new(string, precision: with(:to_int) { string.clear; 9 }) }
      same 2000, Time.new("2000-01-01 00:00:00.5", precision: with(:to_int) { 3 }).year
    RUBY
  end

  # Bug #22086 and pull request 18368
  def test_marshal_of_a_source_that_gives_more_than_asked
    run_tried(<<~'RUBY')
      # getbyte gives the first four bytes. read gives pieces of the lengths +sizes+, then all the rest.
      class Source
        def initialize(data, *sizes) = (@first, @data, @sizes = data[0, 4], data[4..], sizes)
        def getbyte = @first.slice!(0)&.ord
        def read(_count) = @data.slice!(0, @sizes.shift || @data.size)
      end
      value = [1, [2, "x" * 100], 3]
      data = Marshal.dump(value).b + "z" * 1_000_000
      same value, Marshal.load(Source.new(data))
      same value, Marshal.load(Source.new(data, 20))
      20.times { |size| same value, Marshal.load(Source.new(data, size + 1)) }
      must_raise(ArgumentError) { Marshal.load(Source.new(data, 0)) }
      GC.start
    RUBY
  end

  # Bug #22120
  def test_small_hash_that_eql_turns_into_a_large_one
    run_tried(<<~'RUBY')
      class Key
        attr_accessor :action
        def hash = 1
        def eql?(other) = (action, @action = @action, nil; action&.call; equal?(other))
      end
      def made(count)
        hash = {}
        keys = Array.new(count) { Key.new }
        keys.each { |key| hash[key] = true }
        [hash, keys]
      end
      grow = ->(hash) { 100.times { |i| hash["k#{i}"] = i } }
      [:[], :key?, :delete, :store].each do |name|
        hash, keys = made(5)
        sought = Key.new
        sought.action = -> { grow[hash] }
        result = hash.public_send(name, sought, *(:new if name == :store))
        same({ :[] => nil, :key? => false, :delete => nil, :store => :new }[name], result)
        same 105 + (name == :store ? 1 : 0), hash.size
        keys.each { |key| same true, hash[key] }
      end
      # eql? deletes the entry that is compared and adds another one in its place.
      hash, keys = made(3)
      sought = Key.new
      twin = keys[2]
      def twin.eql?(other) = true
      def sought.eql?(other)
        return false unless other.equal?($twin)
        $hash.clear
        $hash[:other] = 1
        true
      end
      $twin, $hash = twin, hash
      same nil, hash[sought]
      hash, keys = made(3)
      $twin, $hash = keys[2], hash
      same nil, hash.delete(sought)
      same({ other: 1 }, hash)
    RUBY
  end

  # Bug #21819
  def test_data_without_members_is_frozen
    run_tried(<<~'RUBY')
      empty = Data.define
      same true, empty.new.frozen?
      same true, Ractor.shareable?(empty.new)
      same true, empty[].frozen?
    RUBY
  end

  # Bug #21814
  def test_pow_with_a_remainder_of_zero
    run_tried(<<~'RUBY')
      large = 9_999_999_999_999_999_990
      same 0, 0.pow(2, -large)
      same 0, large.pow(2, -large)
      same 4 - large, 2.pow(2, -large)
      same 0, 0.pow(2, large)
    RUBY
  end

  # Bug #21955, and #22196
  def test_fibers_that_end_after_a_transfer_hold_no_stack
    skip "takes more memory with AddressSanitizer" if ASAN
    # Without the fix so many take more mappings than a process may have; with assertions that takes a minute.
    run_tried(<<~'RUBY', timeout: 120) unless ASSERTIONS
      GC.disable
      fibers = Array.new(40_000) { Fiber.new { 1 }.tap(&:transfer) }
      same true, fibers.none?(&:alive?)
    RUBY
    run_tried(<<~RUBY)
      #{ASSERTIONS ? 50 : 200}.times do
        parent = Fiber.new do
          child = Fiber.new { parent.transfer; :ended }
          child.transfer
          child = nil
          Fiber.new { GC.start(full_mark: true); Array.new(100) { "x" * 100 } }.resume
        end
        parent.transfer
      end
    RUBY
  end

  # Bug #22181. It happens if the number of a label equals the code of the branch instruction.
  def test_branch_before_a_label_with_the_number_of_an_instruction
    run_tried(<<~'RUBY')
      ["(a || b) in ^(Integer('1') rescue 2)", "(a && b) in ^(Integer('1') rescue 2)",
       "(a&.b) in ^(Integer('1') rescue 2)"].each do |test|
        # Each line before the test takes one number of a label.
        (40..100).each { |lines| eval("->(a, b) do\n#{"x = a && b\n" * lines}#{test}\nend") }
      end
    RUBY
  end

  # Bug #21996
  def test_inspect_that_removes_instance_variables
    run_tried(<<~'RUBY')
      def filled(object, value)
        20.times { |i| object.instance_variable_set("@a#{i}", value) }
        object
      end

      def emptied(object)
        object.instance_variables.each { |name| object.remove_instance_variable(name) }
        GC.start
        Array.new(100) { "x" * 100 }
      end
      object = Object.new
      value = with(:inspect) { emptied(object); "it" }
      same 20, filled(object, value).inspect.scan("it").size
      [Object.new, +"string"].each do |object|
        value = Class.new do
          define_method(:marshal_dump) { emptied(object); 1 }
        end.new
        Value = value.class
        filled(object, value)
        must_raise(RuntimeError) { Marshal.dump(object) }
        Object.send(:remove_const, :Value)
      end
    RUBY
  end

  # Prism's issue 3740
  def test_syntax_error_in_a_block_with_an_implicit_parameter
    run_tried(<<~'RUBY')
      ["a{|1|.=it}", "a{|1|.=[1, it]}", "a{.=_1}", "a{|x|.=_1 + _2}"].each do |code|
        must_raise(SyntaxError) { eval(code) }
      end
      same 4, eval("[1].sum { it + 3 }")
    RUBY
  end

  # Prism's issues 3497 and 3751
  def test_syntax_error_at_a_string_beside_a_command_or_a_symbol
    run_tried(<<~'RUBY')
      ["<<`EOC` \"bar\"\necho foo\nEOC\n", "case    in el\"\"Q !\"\"\"\#{in el\"\":Q"].each do |code|
        must_raise(SyntaxError) { eval(code) }
      end
      same "a1b", eval("<<A \"1b\"\na\nA\n").delete("\n")
    RUBY
  end

  # Bug #21460
  def test_call_in_a_pattern
    run_tried(<<~'RUBY')
      ["1 => -1**2", "case 1\nin -1**2\nend", "1 in [-1**2]"].each do |code|
        must_raise(SyntaxError) { eval(code) }
      end
      same true, eval("-1 in -1")
      same true, eval("1 in -1..2")
    RUBY
  end

  # Pull request 18841
  def test_tcp_socket_with_test_settings_that_are_no_hashes
    run_tried(<<~'RUBY')
      require "socket"
      server = TCPServer.new("localhost", 0)
      [{ delay: 1 }, { error: 1 }, { delay: "x", error: [] }].each do |settings|
        TCPSocket.new("localhost", server.local_address.ip_port, test_mode_settings: settings).close
      rescue SystemCallError, SocketError
        nil
      end
    RUBY
  end

  # We know of no ticket of upstream.
  def test_io_buffer_that_a_block_resizes
    needs_malloc_checks
    run_tried(<<~'RUBY')
      %i[each each_byte].each do |name|
        buffer = IO::Buffer.new(4 << 20)
        count = 0
        must_raise(ArgumentError) do
          buffer.public_send(name, *(:U8 if name == :each)) { count += 1; buffer.resize(64) }
        end
        same 64, count
        buffer = IO::Buffer.new(4 << 20)
        must_raise(StandardError) { buffer.public_send(name, *(:U8 if name == :each)) { buffer.free } }
      end
    RUBY
  end

  # We know of no ticket of upstream.
  def test_encode_of_a_string_that_its_fallback_empties
    needs_malloc_checks
    run_tried(<<~'RUBY')
      string = "\u{1F600}" * 100_000
      same "?" * 100_000, string.encode("EUC-JP", fallback: ->(_) { string.clear; "?" }).encode("UTF-8")
      string = "\u{1F600}" * 100_000
      string.encode!("EUC-JP", fallback: ->(_) { string.clear; "?" })
      same "?" * 100_000, string.encode("UTF-8")
    RUBY
  end

  # A native thread may still be in its Ractor when the main one is the last.
  def test_ractors_that_are_left_at_exit
    10.times do
      run_tried(<<~'RUBY')
        echo = Ractor.new { loop { Ractor.yield(Ractor.receive) } }
        20.times { |i| echo.send(i); same i, echo.take }
        fork { Ractor.new { 1 }.take }
        Process.wait
        same true, $?.success?
      RUBY
    end
  end

  # Bugs #20255, #20267 and #20271
  def test_objects_that_are_moved_to_another_ractor
    run_tried(<<~'RUBY')
      Many = Struct.new(:a, :b, :c, :d, :e, :f)
      class Plain
        def initialize = 8.times { |i| instance_variable_set("@a#{i}", "value #{i}" * 20) }
        def values = instance_variables.map { |name| instance_variable_get(name) }
      end
      echo = Ractor.new { loop { Ractor.yield(Ractor.receive, move: true) } }
      there_and_back = lambda do |object|
        echo.send(object, move: true)
        got = echo.take
        GC.start
        Array.new(1000) { "x" * 100 }
        must_raise(Ractor::MovedError) { object.inspect }
        got
      end
      values = Plain.new.values
      [-> { { a: 1, b: "c" * 200, c: [1] } }, -> { Array.new(40) { |i| "s#{i}" } },
       -> { [1, [2, [3, "x" * 50]]] }, -> { "embedded" * 10 },
       -> { Many.new(1, "2" * 100, [3], 4, 5, { 6 => 7 }) }, -> { Array.new(30) { |i| [i.to_s, i] }.to_h },
       -> { (1..100).to_a[3, 90] }, -> { ("x" * 1000)[10..] }].each do |make|
        20.times { same make[], there_and_back[make[]] }
      end
      20.times do
        same values, there_and_back[Plain.new].values
        same ["bc", "c"], there_and_back["abcd".match(/b(.)/)].to_a
        string = +"with"
        string.instance_variable_set(:@more, ["it"])
        same ["it"], there_and_back[string].instance_variable_get(:@more)
      end
      GC.start
      GC.verify_internal_consistency
    RUBY
  end

  # Not known upstream: what is frozen and refers to more than itself is moved, too.
  def test_frozen_objects_that_are_moved_to_another_ractor
    needs_malloc_checks
    run_tried(<<~'RUBY')
      there_and_back = lambda do |object|
        ractor = Ractor.new { Ractor.receive }
        ractor.send(object, move: true)
        ractor.take
      end
      array = Array.new(200_000) { Object.new }.freeze
      part = array.dup
      same 200_000, there_and_back[array].size
      GC.start
      must_raise(Ractor::MovedError) { array.size }
      must_raise(Ractor::MovedError) { part[199_999].inspect }

      string = +"x" * 1_000_000
      string.instance_variable_set(:@more, [["it"]])
      copy = string.freeze.dup
      got = there_and_back[string]
      same [["it"]], got.instance_variable_get(:@more)
      same 1_000_000, got.size
      got = nil
      GC.start
      same "x" * 1_000_000, copy
      must_raise(Ractor::MovedError) { string.size }

      # What stops in the middle leaves the array. No method is called.
      ractor = Ractor.new { Ractor.receive }
      array = [Object.new, Mutex.new].freeze
      must_raise(Ractor::Error) { ractor.send(array, move: true) }
      same 2, array.size
      named = Class.new(Array) { def initialize_copy(_) = raise("called") }.new([[1]]).freeze
      ractor.send(named, move: true)
      same [true, [[1]]], ractor.take.then { |got| [got.frozen?, got.to_a] }

      [[1, +"a"].freeze, Struct.new(:a).new(+"b").freeze, { c: +"c" }.freeze].each do |twice|
        expected = Marshal.load(Marshal.dump(twice.to_a))
        first, second = there_and_back[[twice, twice]]
        same true, first.equal?(second)
        same [expected, true], [first.to_a, first.frozen?]
      end
      GC.verify_internal_consistency
    RUBY
  end

  # Not known upstream.
  def test_string_that_a_system_call_writes_is_not_moved
    run_tried(<<~'RUBY')
      reader, writer = IO.pipe
      string = +"x" * 1000
      thread = Thread.new { reader.readpartial(100_000, string) }
      Thread.pass until thread.stop?
      ractor = Ractor.new { Ractor.receive.size }
      must_raise(RuntimeError) { ractor.send(string, move: true) }
      writer << "written"
      thread.join
      same "written", string
      ractor.send(string, move: true)
      same 7, ractor.take
    RUBY
  end

  # Not known upstream: the collector keeps what the table of moved objects refers to.
  def test_many_objects_that_are_moved_while_the_collector_runs
    run_tried(<<~'RUBY', timeout: 120)
      array = Array.new(30) { |i| [["element #{i}" * 5], { i => [+"value"] }] }
      expected = Marshal.load(Marshal.dump(array))
      ractor = Ractor.new { Ractor.receive }
      GC.stress = true
      ractor.send(array, move: true)
      GC.stress = false
      same expected, ractor.take
    RUBY
  end

  # Not known upstream.
  def test_permutation_of_an_array_that_to_int_shortens
    run_tried(<<~'RUBY')
      %i[permutation repeated_permutation].each do |name|
        array = (0..200_000).to_a
        shorter = with(:to_int) { array.replace([1, 2]); GC.start; 2 }
        found = []
        array.public_send(name, shorter) { |part| found << part }
        same [1, 2].public_send(name, 2).to_a, found
      end
      same [[1, 2], [2, 1]], [1, 2].permutation.to_a
      same [[1, 2], [2, 1]], [1, 2].permutation(nil).to_a
      same [], [1, 2].permutation(-1).to_a
    RUBY
  end

  # Not known upstream.
  def test_io_buffer_that_the_value_frees
    run_tried(<<~'RUBY')
      buffer = IO::Buffer.new(4 << 20)
      frees = with(:to_int) { buffer.free; 7 }
      must_raise(ArgumentError) { buffer.set_value(:U32, 1 << 20, frees) }
      buffer = IO::Buffer.new(4 << 20)
      must_raise(ArgumentError) { buffer.set_values(%i[U8 U8], 1 << 20, [1, frees]) }
      buffer = IO::Buffer.new(16)
      same 12, buffer.set_values(%i[U8 u16 F64 S8], 0, [1, 2, 3.5, -4])
      same [1, 2, 3.5, -4], buffer.get_values(%i[U8 u16 F64 S8], 0)
      must_raise(ArgumentError) { buffer.set_value(:U8, 16, 1) }
      must_raise(IO::Buffer::AccessError) { IO::Buffer.for("abc").set_value(:U8, 0, 1) }
    RUBY
  end

  # Not known upstream.
  def test_io_buffer_and_offsets_that_wrap
    run_tried(<<~'RUBY')
      buffer = IO::Buffer.new(1 << 20)
      last = 2**64 - 1
      must_raise(ArgumentError) { buffer.get_value(:U8, last) }
      must_raise(ArgumentError) { buffer.get_value(:U64, last - 6) }
      must_raise(ArgumentError) { buffer.set_value(:U32, last - 2, 1) }
      must_raise(ArgumentError) { buffer.get_string(last, 1) }
      must_raise(ArgumentError) { buffer.get_string(1, last) }
      must_raise(ArgumentError) { buffer.set_string("abc", last, 2) }
      must_raise(ArgumentError) { buffer.set_string("abc", 0, last, 2) }
      must_raise(ArgumentError) { buffer.copy(IO::Buffer.for("abc"), 0, last, 2) }
      must_raise(ArgumentError) { buffer.slice(last, 2) }
      must_raise(ArgumentError) { buffer.clear(0, last, 2) }
      same 0, buffer.get_value(:U8, (1 << 20) - 1)
      same "", buffer.get_string(1 << 20, 0)
    RUBY
  end

  # Not known upstream.
  def test_io_buffer_that_to_io_shrinks
    run_tried(<<~'RUBY')
      require "tempfile"
      Tempfile.create(binmode: true) do |file|
        file.write("x" * (4 << 20))
        file.flush
        %i[read write pread pwrite].each do |name|
          buffer = IO::Buffer.new(4 << 20)
          from = name.start_with?("p") ? [0] : []
          to_io = with(:to_io) { buffer.resize(16); file }
          to_io.define_singleton_method(:fileno) { file.fileno }
          must_raise(ArgumentError) { buffer.public_send(name, to_io, *from, 1 << 20, 2 << 20) }
          buffer = IO::Buffer.new(4 << 20)
          same 4 << 20, buffer.public_send(name, with(:to_io) { file }, *from, 0, 0) if name.start_with?("p")
        end
      end
    RUBY
  end

  # Not known upstream: 16 KB that are not ASCII counted as ASCII, as those before them were.
  def test_copy_stream_to_an_object
    out = run_ruby(<<~'RUBY')
      require "tempfile"
      writer = Object.new
      def writer.write(text) = (puts text.ascii_only?; text.bytesize)
      Tempfile.create(binmode: true) do |file|
        file.write("a" * 16_384 + "\xe3".b * 16_384 + "b" * 16_384)
        file.rewind
        IO.copy_stream(file, writer)
      end
    RUBY
    assert_equal %w[true false true], out.split
  end

  # Bug #21832. On pristine CRuby the first method got wrong arguments, and the others crashed with a
  # segmentation fault. The results that are expected are those of --parser=parse.y.
  def test_bug_21832_splat_before_forwarded_arguments
    script = <<~'RUBY'
      def all(*list, **names, &block) = [list, names, block&.call]
      def after_a_splat(a, ...) = all(*a, ...)
      def after_a_splat_and_more(a, b = 2, ...) = all(*a, b, ...)
      def after_two_splats(a, b, ...) = all(*a, *b, ...)
      def around(...) = all(1, *[2], 3, ...)
      def twice(...) = [all(*[1], ...), all(...)]
      class Under; def call(*list, **names) = [list, names]; end
      class Over < Under; def call(...) = super(*[9], 8, ...); end
      3.times do
        p after_a_splat([1, 2], 3, k: 4) { 5 }, after_a_splat([1, 2])
        p after_a_splat_and_more([7], 8, 9, q: 1), after_a_splat_and_more([7])
        p after_two_splats([1], [2, 3], 4, k: 5), around(4, z: 1), around { 2 }, twice(5)
        p Over.new.call(1, x: 2)
      end
    RUBY
    expected = <<~'OUT' * 3
      [[1, 2, 3], {k: 4}, 5]
      [[1, 2], {}, nil]
      [[7, 8, 9], {q: 1}, nil]
      [[7, 2], {}, nil]
      [[1, 2, 3, 4], {k: 5}, nil]
      [[1, 2, 3, 4], {z: 1}, nil]
      [[1, 2, 3], {}, 2]
      [[[1, 5], {}, nil], [[5], {}, nil]]
      [[9, 8, 1], {x: 2}]
    OUT
    assert_equal expected, run_ruby(script)
  end
end

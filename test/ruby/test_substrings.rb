# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Slices from the middle of a string that share its bytes (gc/substrings.c), and code that must not see them
# (gc/foreign.c).
class TestSubstrings < Minitest::Test
  include CowTest

  # The bytes of a string of the test; shared?(string): does it share them with another?
  TOOLS = IN_CHILD + <<~'RUBY'
    require "objspace"
    BYTES = ("aaa".."zzz").to_a.join

    def shared?(string) = ObjectSpace.dump(string).include?('"shared":true')
    # Shares, and no NUL follows.
    def slice(from = 1_000, length = 5_000) = BYTES[from, length]

    def same(expected, found)
      raise "expected #{expected.inspect}, found #{found.inspect}" unless expected == found
    end
  RUBY

  # ./configure --disable-shared-middle builds a ruby that shares nothing so.
  IGNORED = "is ignored: this ruby cannot share the middle of strings"
  SHARES = !Open3.capture2e({ "RUBY_STRING_SHARE_MIDDLE" => "1" }, RUBY, "--disable-gems", "-e", "")
                 .first.include?(IGNORED)

  def needs_sharing = SHARES || skip("built with --disable-shared-middle")

  def run_shared(script, *args, env: {}, options: [], timeout: 120)
    run_ruby(TOOLS + script, *args, env: { "RUBY_STRING_SHARE_MIDDLE" => nil, **env }, options: options,
                                    timeout: timeout)
  end

  def test_which_slices_share
    needs_sharing
    run_shared(<<~'RUBY')
      frozen = "x".b * 100_000
      frozen.freeze
      {
        "of a KB" => [true, ("y" * 9_000)[5, 1_024]],
        "of less" => [false, ("y" * 9_000)[5, 1_023]],
        "by bytes" => [true, BYTES.byteslice(7, 3_300)],
        "by a range" => [true, BYTES[7...4_000]],
        "of a frozen string" => [true, frozen[9, 7_000]],
        "of a slice" => [true, slice(9, 9_000)[8, 8_000]],
        "the beginning" => [true, BYTES[0, 5_000]],
        "less than a sixteenth" => [false, frozen[9, 6_000]],
        "by a match" => [true, BYTES[/m.{4000}n/m]],
        "before a match" => [true, BYTES =~ /mmm/ && $~.pre_match],
        "of an embedded string" => [false, ("x" * 500)[3, 400]],
      }.each { |name, (wanted, string)| same([name, wanted], [name, shared?(string)]) }
      lines = Array.new(4) { |i| i.to_s * 3_000 + "\n" }.join
      same([true] * 3, lines.each_line.map { |line| shared?(line) }.first(3))
      same([true, true], lines.split("\n").first(2).map { |line| shared?(line) })
      same("0" * 3_000, lines.split("\n").first)
    RUBY
  end

  # A string that is appended to would be copied after each slice.
  def test_a_string_that_changes_shares_once
    run_shared(<<~'RUBY')
      buffer = +""
      counts = Array.new(300) do |i|
        buffer << i.to_s * 1_000
        same(buffer.getbyte(2), buffer[2, buffer.size / 2].getbyte(0))
        shared?(buffer[2, buffer.size / 2])
      end.count(true)
      raise "#{counts} of 300 were shared" if counts > 30
      exact = "y" * 8_000
      first = exact[1, 4_000]
      exact << "z"
      exact = exact.dup
      same("y" * 4_000, first)
    RUBY
  end

  # What else would share with it gets bytes of its own, and so does what is frozen or locked.
  def test_what_terminates
    run_shared(<<~'RUBY')
      def sent
        reader, writer = IO.pipe
        yield writer
        writer.close
        reader.read
      end
      expected = BYTES.byteslice(1_000, 5_000).b
      {
        dup: ->(s) { s.dup }, clone: ->(s) { s.clone }, plus: ->(s) { +s }, minus: ->(s) { -s },
        new: ->(s) { String.new(s) }, replace: ->(s) { (+"").replace(s) }, freeze: ->(s) { s.freeze },
        shareable: ->(s) { Ractor.make_shareable(s) }, intern: ->(s) { s.to_sym.name }, b: ->(s) { s.b },
        key: ->(s) { { s => 1 }.keys.first }, interpolated: ->(s) { "#{s}" }, tail: ->(s) { s[0, 5_000] },
        sub: ->(s) { s.sub("none", "") }, written: ->(s) { sent { |io| io.write(s) } },
        syswritten: ->(s) { sent { |io| io.syswrite(s) } }, subclass: ->(s) { Class.new(String).new(s) },
      }.each do |name, change|
        same([name, expected], [name, change.(slice).b])
        same([name, false], [name, shared?(slice.tap(&:freeze))])
      end
      %i[upcase! capitalize! squeeze! clear reverse! succ! rstrip! chop! unicode_normalize!].each do |name|
        copy = slice.b.force_encoding("UTF-8")
        same([name, copy.tap(&name).b], [name, slice.tap(&name).b])
      end
      same(expected, BYTES[1_000, 5_000].b)
    RUBY
  end

  # C code that writes to a string without asking: what was sliced of it before stays as it was.
  def test_bytes_that_others_write
    needs_sharing
    run_shared(<<~'RUBY')
      require "fiddle"
      require "zlib"
      require "stringio"
      include Fiddle
      def function(name, *types) = Function.new(Handle::DEFAULT[name], types, TYPE_VOIDP)
      MEMCPY = function("memcpy", TYPE_VOIDP, TYPE_VOIDP, TYPE_SIZE_T)
      MEMSET = function("memset", TYPE_CONST_STRING, TYPE_INT, TYPE_SIZE_T)
      SIZE = 8_000

      slices = {
        byteslice: ->(s) { s.byteslice(0, 4_000) }, slice: ->(s) { s[10, 4_000] },
        range: ->(s) { s[5..4_004] }, dup: ->(s) { s.dup.byteslice(0, 4_000) },
        nested: ->(s) { s[0, 6_000][8, 4_000] }, regexp: ->(s) { s[/\A.{4000}/m] },
        match: ->(s) { s =~ /.{4000}/mn; $& }, group: ->(s) { s =~ /\A.{9}(.{4000})/mn; $1 },
        pre_match: ->(s) { s =~ /.{4000}\z/mn; $` },
        captures: ->(s) { s.match(/(.{4000})(.*)/mn).captures.first },
        lines: ->(s) { s.lines("\n").first[0, 4_000] }, each_line: ->(s) { s.each_line.first[0, 4_000] },
        scan: ->(s) { s.scan(/.{4000}/mn).first }, b: ->(s) { s.b[0, 4_000] },
        partition: ->(s) { s.partition(/.{2000}\z/mn).first[0, 4_000] },
        new: ->(s) { String.new(s)[0, 4_000] },
        forced: ->(s) { s.dup.force_encoding("BINARY")[1, 4_000] }, frozen: ->(s) { s.dup.freeze[1, 4_000] },
        tail: ->(s) { s[1..].byteslice(0, 4_000) },
        sub: ->(s) { kept = nil; s.sub(/.{4000}/mn) { kept = $& }; kept },
        chop: ->(s) { s.chop[0, 4_000] }, split: ->(s) { s.split("z", 2).first[0, 4_000] },
      }

      # Each puts a letter into all of a string.
      writers = {
        memcpy: ->(s, letter) { MEMCPY.call(s, letter * SIZE, SIZE) },
        memset: ->(s, letter) { MEMSET.call(s, letter.ord, SIZE) },
        pointer: ->(s, letter) { Fiddle::Pointer[s][0, SIZE] = letter * SIZE },
        kept_pointer: lambda { |s, letter|
          @pointers ||= {}.compare_by_identity
          (@pointers[s] ||= Fiddle::Pointer[s])[0, SIZE] = letter * SIZE
        },
        packed: lambda { |s, letter|
          @packed ||= {}.compare_by_identity
          Fiddle::Pointer.new((@packed[s] ||= [s].pack("P")).unpack1("J"))[0, SIZE] = letter * SIZE
        },
        zlib: lambda { |s, letter|
          @zlib ||= {}.compare_by_identity
          packed = Zlib.gzip(("a".."j").map { |l| l * SIZE }.join)
          reader = (@zlib[s] ||= Zlib::GzipReader.new(StringIO.new(packed)))
          reader.readpartial(SIZE, s)
          same(letter, s[0])
        },
        locked: ->(s, letter) { IO::Buffer.for(s) { |buffer| buffer.set_string(letter * SIZE) } },
        stringio: ->(s, letter) { StringIO.new(letter * SIZE).read(SIZE, s) },
        pread: ->(s, letter) { StringIO.new(letter * SIZE).pread(SIZE, 0, s) },
      }
      writers.each do |writer, write|
        slices.each do |name, take|
          buffer = "-" * SIZE
          parts = ("a".."e").map { |letter| write.(buffer, letter); take.(buffer) }
          same([writer, name, ("a".."e").map { |letter| letter * 4_000 }], [writer, name, parts.map(&:b)])
          same([writer, name, "e" * SIZE], [writer, name, buffer.b])
        end
      end
      GC.verify_internal_consistency

      buffer = "a" * SIZE
      part = buffer[1, 4_000]
      same(true, shared?(part))
      MEMSET.call(buffer, "b".ord, SIZE)
      same([false, "a" * 4_000, "b" * SIZE], [shared?(part), part, buffer])
      same(false, shared?(buffer[1, 4_000]))
      frozen = ("f" * SIZE).freeze
      part = frozen[1, 4_000]
      Fiddle::Pointer[frozen].to_s
      same([true, true], [shared?(part), shared?(frozen[1, 4_000])])
      # The address is kept of a string that is short, or empty, and shares or gets longer afterwards.
      buffer = String.new(capacity: SIZE)
      pointer = Fiddle::Pointer[buffer]
      buffer << "a" * SIZE
      part = buffer.byteslice(0, 4_000)
      Fiddle::Pointer.new(pointer.to_i)[0, SIZE] = "z" * SIZE
      same("a" * 4_000, part)
      whole = "a" * SIZE
      tail = whole[-1_000..]
      pointer = Fiddle::Pointer[tail]
      part = whole.byteslice(2_000, SIZE - 2_010)
      pointer[0, 1_000] = "z" * 1_000
      same("a" * (SIZE - 2_010), part)
      # While it is locked.
      buffer = "a" * SIZE
      kept = IO::Buffer.for(buffer) { |b| buffer =~ /\A(a{4000})/; $1.tap { b.set_string("z" * SIZE) } }
      same("a" * 4_000, kept)
    RUBY
  end

  # A NUL that follows is no terminator of the slice's own: whoever has the address keeps it.
  def test_a_slice_before_a_nul
    run_shared(<<~'RUBY')
      require "fiddle"
      require "zlib"
      text = "q" * 4_000 + "\0" + "w" * 4_000
      part = text.byteslice(0, 4_000)
      types = [Fiddle::TYPE_CONST_STRING, Fiddle::TYPE_INT]
      strchr = Fiddle::Function.new(Fiddle::Handle::DEFAULT["strchr"], types, Fiddle::TYPE_VOIDP)
      pointer = strchr.call(part, "q".ord)
      text.clear
      10.times { Zlib.crc32(part); part.dup; GC.start; Array.new(20) { "w" * 8_001 } }
      same("q" * 4_000, pointer.to_s)
      same(pointer.to_i, Fiddle::Pointer[part].to_i)
    RUBY
  end

  # What a method calls while it changes its string may slice it.
  def test_slices_taken_while_a_string_is_changed
    run_shared(<<~'RUBY')
      text = "a" * 4_000 + "b" * 4_000
      kept = nil
      from = Object.new
      from.define_singleton_method(:to_int) { kept = text.byteslice(2_000, 4_000); 1_000 }
      text.slice!(from, 1_000)
      same("a" * 2_000 + "b" * 2_000, kept)
      same("a" * 3_000 + "b" * 4_000, text)
      text = "x" + "a" * 4_000 + "b" * 4_000
      text.slice!(/a{3000}/)
      same("a" * 1_000 + "b" * 4_000, $~.post_match)
    RUBY
  end

  # A frozen string of a class of its own is the root of its slices, also where a String of it is wanted.
  def test_a_frozen_string_of_another_class
    run_shared(<<~'RUBY')
      klass = Class.new(String)
      big = klass.new << "x" * 8_000
      big.freeze
      part = big.byteslice(0, 3_000)
      tail = big[5_000..]
      big.gsub("x") { "y" }
      GC.verify_internal_consistency
      $~ = nil
      -big
      3.times { GC.start; Array.new(50) { "w" * 8_000 } }
      same(["x" * 3_000, "x" * 3_000], [part, tail])
    RUBY
  end

  # Extensions set the length of what they have written to.
  def test_lengths_that_extensions_set
    run_shared(<<~'RUBY')
      require "zlib"
      packed = Zlib::Deflate.deflate(Random.new(1).bytes(40_000))
      whole = Zlib::Inflate.inflate(packed)
      inflate = Zlib::Inflate.new
      buffer = +""
      out = [packed[0, 15_000], packed[15_000, 15_000], packed[30_000..]].flat_map do |part|
        inflate.inflate(part, buffer: buffer)
        [buffer.dup, buffer.byteslice(1, 12_000)].first
      end
      same(whole.byteslice(0, out.sum(&:bytesize)), out.join.b)
      # What was appended so is read anew.
      parts = ["a" * 15_500, "\u00e9" * 300]
      deflate = Zlib::Deflate.new
      packed = parts.map { |part| deflate.deflate(part, Zlib::SYNC_FLUSH) }
      inflate = Zlib::Inflate.new
      buffer = +""
      inflate.inflate(packed[0], buffer: buffer) { nil }
      same(true, buffer.ascii_only?)
      buffer.byteslice(0, 5_000)
      inflate.inflate(packed[1], buffer: buffer) { nil }
      same(buffer.b.ascii_only?, buffer.ascii_only?)
      same(String.new(buffer.b, encoding: buffer.encoding).size, buffer.size)
    RUBY
  end

  # A tail of a literal is no reason to write to the literal, which has its hash in it.
  def test_a_literal_keeps_its_hash
    run_shared(<<~'RUBY')
      require "fiddle"
      require "zlib"
      literal = "0123456789012345678901234567890123456789012345678901234567890123456789"
      flags = -> { Fiddle::Pointer.new(Fiddle.dlwrap(literal))[0, 8].unpack1("Q") }
      tail = literal[5..]
      before = flags.()
      Zlib.crc32(tail)
      same(before, flags.())
      same({ literal => 1 }, { literal.dup => 1 })
    RUBY
  end

  # More strings than the list is looked through for.
  def test_many_strings
    needs_sharing
    run_shared(<<~'RUBY')
      require "zlib"
      texts = Array.new(5_000) { |i| i.to_s.ljust(2_500, "x") }
      parts = texts.map { |text| text[1, 2_000] }
      same(true, shared?(parts.last))
      sums = texts.map { |text| Zlib.crc32(text) }
      same(texts.map { |text| text.dup[1, 2_000] }, parts)
      same(false, shared?(parts.first))
      same(5_000, sums.size)
    RUBY
  end

  # Sockets send strings without the interpreter's lock.
  def test_slices_that_are_sent
    run_shared(<<~'RUBY')
      require "socket"
      here, there = UNIXSocket.pair(:DGRAM)
      text = "s" * 9_000
      churn = Thread.new { loop { GC.start(full_mark: false); text.dup[3, 5_000].freeze; sleep(0.0001) } }
      200.times do |i|
        here.send(part = text[i, 5_000], 0)
        same(part, there.recv(9_000))
      end
      churn.kill.join
      GC.verify_internal_consistency
    RUBY
  end

  def test_code_that_keeps_the_address_of_bytes
    run_shared(<<~'RUBY', env: { "RUBY_STRING_SHARE_MIDDLE" => "poison" })
      text = "key=value; other=thing; last=one; " * 40
      20.times do |i|
        part = -> { text[i + 3, 400 + i] }
        copy = part.().b.force_encoding("UTF-8")
        others = -> { 10.times { { "a" => [1] }.to_a.inspect.hash } }
        same(copy.gsub(/e./) { others.(); $&.upcase }, part.().gsub(/e./) { others.(); $&.upcase })
        same(copy.sub("key") { others.(); "k" }, part.().sub("key") { others.(); "k" })
        same(copy.scan(/\w+/), [].tap { |found| part.().scan(/\w+/) { |word| others.(); found << word } })
        same(copy.split("; "), [].tap { |found| part.().split("; ") { |word| others.(); found << word } })
        same(copy.each_line("; ").to_a, part.().each_line("; ").map { |line| others.(); line })
        same(copy.each_grapheme_cluster.to_a, part.().each_grapheme_cluster.map { |c| others.(); c })
        threes = []
        part.().unpack("a3" * 20) { |c| others.(); threes << c }
        same(copy.unpack("a3" * 20), threes)
        broken = ->(s) { s.b.tap { |bytes| bytes[70] = "\xff".b }.force_encoding("UTF-8") }
        same(broken.(copy).scrub("?"), broken.(part.()).scrub { others.(); "?" })
        same(eval("[#{i}, '#{copy.delete("'")}']"), eval("[#{i}, '#{copy.delete("'")}']#{" " * 40}#"[0..-2]))
        wide = copy + "\u3042" + copy
        fallback = ->(c) { others.(); "<" }
        same(wide.encode("US-ASCII", fallback: fallback), wide[0..-1].encode("US-ASCII", fallback: fallback))
      end
    RUBY
  end

  def test_collections
    run_shared(<<~'RUBY', COMPACTS ? 1 : 0)
      expected = BYTES.byteslice(1_000, 5_000)
      kept = Array.new(500) { |i| BYTES[i, 5_000 + i] }
      check = -> { kept.each_with_index { |s, i| same(BYTES.byteslice(i, 5_000 + i), s) } }
      3.times { GC.start; check.() }
      10_000.times { slice }
      GC.verify_compaction_references(expand_heap: true, toward: :empty) if ARGV[0] == "1"
      check.()
      in_child { GC.start; GC.compact if ARGV[0] == "1"; check.(); kept.each(&:freeze); check.(); GC.start }
      check.()
      GC.stress = true
      5.times { kept << slice(kept.size, 5_000 + kept.size); kept.last.dup; slice.freeze }
      GC.stress = false
      check.()
      2_000.times do |i|
        kept[i % 500] = BYTES[i % 500, 5_000 + i % 500]
        GC.start(full_mark: false) if i % 100 == 0
      end
      check.()
      GC.verify_internal_consistency
    RUBY
  end

  def test_ractors_get_strings_of_their_own
    needs_sharing
    run_shared(<<~'RUBY', options: %w[-W0])
      same(true, shared?(mine = slice))
      taken = Ractor.new(slice) { |s| [s, s.size] }.take
      same(BYTES.byteslice(1_000, 5_000), taken.first)
      same(BYTES.byteslice(1_000, 5_000), mine)
      same([false, false], [shared?(mine), shared?(slice)])
    RUBY
  end

  # While there are Ractors nobody notes it; afterwards nothing shares.
  def test_an_address_that_was_given_away_beside_ractors
    needs_sharing
    run_shared(<<~'RUBY')
      require "fiddle"
      in_child do
        Ractor.new { nil }.take
        in_child { same(true, shared?(slice)) }
        text = "a" * 8_000
        pointer = Fiddle::Pointer[text]
        in_child do
          part = text[1, 4_000]
          pointer[0, 8_000] = "z" * 8_000
          same("a" * 4_000, part)
        end
      end
    RUBY
  end

  # What was read ahead is put into the buffer after what is to be written has been flushed, while others run.
  def test_parts_of_a_buffer_that_is_read_into
    needs_sharing
    run_shared(<<~'RUBY')
      require "socket"
      nonblock = IO.instance_method(:read_nonblock) # a socket has another one
      reads = [
        ->(io, buffer) { io.readpartial(5_000, buffer) },
        ->(io, buffer) { nonblock.bind_call(io, 5_000, buffer) }
      ]
      parts = [->(buffer) { buffer[100, 3_000] }, ->(buffer) { buffer.dup }, ->(buffer) { buffer[2_000..] }]
      reads.product(parts) do |read, part|
        a, b = UNIXSocket.pair
        a.sync = false
        b.write("y" * 8_000)
        a.getc
        begin
          loop { a.write_nonblock("x" * 65_536) }
        rescue IO::WaitWritable
          nil
        end
        a.write("z" * 100)
        buffer = "-" * 5_000
        reader = Thread.new { read.(a, buffer) }
        Thread.pass until reader.stop?
        found = part.(buffer)
        drain = Thread.new { loop { b.readpartial(1 << 20) } }
        reader.join
        same("y" * 5_000, buffer)
        same("-" * found.bytesize, found)
        drain.kill.join
        [a, b].each(&:close)
      end
    RUBY
  end

  # It lets go of the bytes that it shared before it has room for both.
  def test_a_string_appended_to_itself
    junk = { "MALLOC_CONF" => "junk:true" } # jemalloc overwrites what is freed
    [%w[--disable-jit], %w[--yjit --yjit-call-threshold=2]].each do |options|
      run_shared(<<~'RUBY', env: junk, options: options)
        def twice(string) = string << string
        3.times { twice(+"ab") }
        # The only one that shares with its root, in the middle and to the end.
        def part(from, length) = ("xyz" * 3_000).byteslice(from, length)
        def again(from, length)
          string = part(from, length)
          GC.stress = true
          twice(string)
          GC.stress = false
          same(("xyz" * 3_000)[from, length] * 2, string)
        end
        [[0, 9_000], [10, 5_000], [0, 6_000]].each { |from, length| 10.times { again(from, length) } }
      RUBY
    end
  end

  def test_settings
    needs_sharing
    script = TOOLS + "p shared?(slice)"
    { nil => "true\n", "" => "true\n", "1" => "true\n", "0" => "false\n" }.each do |value, wanted|
      assert_equal wanted, run_ruby(script, env: { "RUBY_STRING_SHARE_MIDDLE" => value }), value.inspect
    end
    out, = run_ruby_status(script, env: { "RUBY_STRING_SHARE_MIDDLE" => "yes" })
    assert_match(/RUBY_STRING_SHARE_MIDDLE=yes is ignored: it must be 0, 1 or poison\ntrue\n\z/, out)
  end

  def test_a_ruby_that_was_built_without
    skip "this ruby shares" if SHARES
    { nil => "", "0" => "", "1" => IGNORED, "poison" => IGNORED }.each do |value, wanted|
      out, = run_ruby_status(TOOLS + "p shared?(slice)", env: { "RUBY_STRING_SHARE_MIDDLE" => value })
      assert_equal "false", out.lines.last.chomp
      assert_equal 1 + [wanted].grep(/./).size, out.lines.size, out
      assert_includes out, wanted
    end
  end

  # Inherited strings stay the parent's, however many slices of them a child takes.
  def test_a_child_that_slices_inherited_strings
    needs_sharing
    out = run_shared(PRIVATE_DIRTY + <<~'RUBY')
      strings = Array.new(2) { ("0123456789abcdef" * 64 + "\n") * 20_000 }
      strings.last.freeze
      # A heap that is worth a seal (gc/seal_policy.h): then it is known what was inherited.
      objects = Array.new(80_000) { Object.new }
      strings.each do |big|
        in_child do
          before = private_dirty
          parts = Array.new(200) { |i| big[i * 100_000, 100_000] }
          puts private_dirty - before, parts.sum(&:size)
          objects.size
        end
      end
    RUBY
    numbers(out).each_slice(2) do |grown, size|
      assert_equal 20_000_000, size
      assert_operator grown, :<, 1_024, "KB"
    end
  end

  # The bytes are the child's own, although the master made the object: a small part does not keep them all.
  def test_new_bytes_of_an_inherited_string
    needs_sharing
    out = run_shared(<<~'RUBY')
      require "objspace"
      buffer = +"".b
      objects = Array.new(80_000) { Object.new }
      in_child do
        zeros = File.open("/dev/zero")
        size = 1_000_000
        ways = [-> { buffer.replace("1" * size) }, -> { buffer.gsub!("1", "2") },
                -> { buffer.clear << "3" * size }, -> { buffer.clear.insert(0, "4" * size) },
                -> { zeros.read(size, buffer.clear) }, -> { zeros.readpartial(size, buffer.clear) },
                -> { buffer.send(:initialize, "5" * size, capacity: 2 * size) }]
        kept = (ways * 2).map do |way|
          way.call
          buffer[4_096, 2_000]
        end
        kept << buffer.clear.replace("6" * size).gsub!("6", "7").freeze[4_096, 2_000]
        puts kept.sum { |part| ObjectSpace.reachable_objects_from(part).grep(String).sum(&:size) }
      end
      objects.size
    RUBY
    assert_equal 0, numbers(out).first, "bytes of other strings that the parts keep"
  end

  # The copy of a string's bytes may fail: the string that is replaced keeps its own.
  def test_replace_without_memory
    needs_sharing
    out = run_shared(<<~'RUBY')
      big = ("x" * 300_000_000).freeze
      part = big[10, 250_000_000]
      string = "y" * 2_000
      size = File.read("/proc/self/status")[/VmSize:\s+(\d+)/, 1].to_i * 1024
      Process.setrlimit(:AS, size + 100_000_000)
      begin
        string.replace(part)
        puts "replaced"
      rescue NoMemoryError
        puts string.size
      end
      string << "z"
      puts string.size
    RUBY
    assert_equal %w[2000 2001], out.split
  end

  # Code that was compiled without our headers: it sees the bytes as they are. check notes whether a NUL
  # follows those of $slice.
  FOREIGN = <<~'C'
    #define COWRUBY_CORE 1
    #include <unistd.h>
    #include "ruby/ruby.h"
    #include "ruby/debug.h"
    #include "ruby/thread.h"

    static int seen, unterminated;

    static VALUE
    check(void)
    {
        VALUE str = rb_gv_get("$slice");
        seen++;
        if (RB_TYPE_P(str, T_STRING) && RSTRING_PTR(str)[RSTRING_LEN(str)]) unterminated++;
        return Qnil;
    }

    static VALUE
    results(VALUE self)
    {
        VALUE found = rb_assoc_new(INT2FIX(seen), INT2FIX(unterminated));
        seen = unterminated = 0;
        return found;
    }

    static VALUE plain(VALUE self) { return check(); }
    static VALUE block(RB_BLOCK_CALL_FUNC_ARGLIST(arg, data)) { return check(); }
    static VALUE make_proc(VALUE self) { return rb_proc_new(block, Qnil); }
    static VALUE allocate(VALUE klass) { check(); return rb_obj_alloc(rb_cObject); }
    static VALUE allocate_data(VALUE klass) { check(); return rb_data_object_wrap(klass, 0, 0, 0); }
    static VALUE get(ID id, VALUE *data) { return check(); }
    static void set(VALUE value, ID id, VALUE *data) { check(); }
    static void hook(rb_event_flag_t event, VALUE data, VALUE self, ID id, VALUE klass) { check(); }

    static VALUE
    hooked(VALUE self)
    {
        rb_add_event_hook(hook, RUBY_EVENT_CALL, Qnil);
        return Qnil;
    }

    static VALUE
    unhooked(VALUE self)
    {
        rb_remove_event_hook(hook);
        return Qnil;
    }

    static void point(VALUE tracepoint, void *data) { check(); }
    static VALUE make_point(VALUE self) { return rb_tracepoint_new(Qnil, RUBY_EVENT_CALL, point, NULL); }
    static rb_postponed_job_handle_t job;
    static void run_job(void *data) { check(); }
    static VALUE later(VALUE self) { rb_postponed_job_trigger(job); return Qnil; }
    static VALUE size(VALUE self, VALUE args, VALUE enumerator) { check(); return INT2FIX(1); }

    static VALUE
    sized(VALUE self)
    {
        RETURN_SIZED_ENUMERATOR(self, 0, 0, size);
        return rb_yield(Qnil);
    }

    static VALUE in_thread(void *data) { return check(); }
    static VALUE make_thread(VALUE self) { return rb_thread_create(in_thread, NULL); }
    static void at_end(VALUE data) { check(); printf("%d %d\n", seen, unterminated); fflush(stdout); }
    static VALUE end(VALUE self) { rb_set_end_proc(at_end, Qnil); return Qnil; }
    static VALUE dump(VALUE object) { check(); return rb_str_new_cstr("dumped"); }
    static VALUE load(VALUE object, VALUE dumped) { check(); return object; }
    static void *wait_for(void *data) { usleep(200000); return NULL; }

    static VALUE
    unlocked(VALUE self)
    {
        rb_thread_call_without_gvl(wait_for, NULL, RUBY_UBF_IO, NULL);
        return check();
    }

    static VALUE calls(VALUE self, VALUE proc) { rb_funcall(proc, rb_intern("call"), 0); return check(); }
    static VALUE resumes(VALUE self, VALUE fiber) { rb_fiber_resume(fiber, 0, NULL); return check(); }
    static VALUE yields(VALUE self) { rb_yield(Qnil); return check(); }
    static VALUE raises(VALUE self) { rb_raise(rb_eArgError, "raised"); return Qnil; }

    static VALUE
    many(int argc, VALUE *argv, VALUE self)
    {
        check();
        return rb_ary_new_from_values(argc, argv);
    }

    static VALUE listed(VALUE self, VALUE list) { check(); return list; }
    static void made(VALUE point, void *data) { seen++; }

    static VALUE
    make_made(VALUE self)
    {
        return rb_tracepoint_new(Qnil, RUBY_INTERNAL_EVENT_NEWOBJ, made, NULL);
    }

    static void *locked(void *data) { check(); return NULL; }
    static void *unlock(void *data) { usleep(1000); return rb_thread_call_with_gvl(locked, NULL); }

    static VALUE
    locks(VALUE self)
    {
        rb_thread_call_without_gvl(unlock, NULL, RUBY_UBF_IO, NULL);
        return check();
    }

    /* As an extension may that reads into a buffer. */
    static VALUE
    writes(VALUE self, VALUE buffer, VALUE letter)
    {
        rb_str_resize(buffer, RSTRING_LEN(buffer));
        memset(RSTRING_PTR(buffer), RSTRING_PTR(letter)[0], RSTRING_LEN(buffer));
        rb_str_set_len(buffer, RSTRING_LEN(buffer) - 1);
        return buffer;
    }

    void
    Init_foreign(void)
    {
        check();
        VALUE mod = rb_define_module("Foreign"), old, klass = rb_define_class("ForeignClass", rb_cObject);
        rb_define_singleton_method(mod, "results", results, 0);
        rb_define_singleton_method(mod, "plain", plain, 0);
        rb_define_singleton_method(mod, "make_proc", make_proc, 0);
        rb_define_alloc_func(klass, allocate_data);
        rb_define_hooked_variable("$hooked", NULL, get, set);
        rb_define_singleton_method(mod, "hooked", hooked, 0);
        rb_define_singleton_method(mod, "unhooked", unhooked, 0);
        rb_define_singleton_method(mod, "make_point", make_point, 0);
        job = rb_postponed_job_preregister(0, run_job, NULL);
        rb_define_singleton_method(mod, "later", later, 0);
        rb_define_singleton_method(mod, "sized", sized, 0);
        rb_define_singleton_method(mod, "make_thread", make_thread, 0);
        rb_define_singleton_method(mod, "end", end, 0);
        old = rb_define_class("ForeignOld", rb_cObject);
        klass = rb_define_class("ForeignNew", rb_cObject);
        rb_define_alloc_func(klass, allocate_data);
        rb_marshal_define_compat(klass, old, dump, load);
        rb_define_singleton_method(mod, "unlocked", unlocked, 0);
        rb_define_singleton_method(mod, "calls", calls, 1);
        rb_define_singleton_method(mod, "resumes", resumes, 1);
        rb_define_singleton_method(mod, "yields", yields, 0);
        rb_define_singleton_method(mod, "raises", raises, 0);
        rb_define_singleton_method(mod, "many", many, -1);
        rb_define_singleton_method(mod, "listed", listed, -2);
        rb_define_method(klass, "many", many, -1);
        rb_define_singleton_method(mod, "make_made", make_made, 0);
        rb_define_singleton_method(mod, "locks", locks, 0);
        rb_define_singleton_method(mod, "writes", writes, 2);
        (void)allocate;
    }
  C

  SOURCES = File.expand_path("../../src", File.dirname(RUBY))
  OBJECTS = File.expand_path("..", File.dirname(RUBY))

  # Yields the directory of the library; +text+ is added to its source.
  def with_foreign(text = "", &block) = with_extension("cc", "foreign.c", FOREIGN + text, "-w", &block)

  # Compiles an extension with the headers of this build and yields its directory.
  def with_extension(compiler, name, text, *flags)
    config = Dir["#{OBJECTS}/.ext/include/*/ruby/config.h"].first
    skip "no headers beside this ruby" unless config && File.directory?(SOURCES)

    Dir.mktmpdir do |directory|
      source = File.join(directory, name)
      File.write(source, text)
      includes = ["#{SOURCES}/include", File.expand_path("../..", config).sub(%r{/ruby\z}, ""),
                  File.dirname(File.dirname(config))].flat_map { |path| ["-I", path] }
      out, status = Open3.capture2e(compiler, "-shared", "-fPIC", *flags, *includes,
                                    "-o", source.sub(/\.\w+\z/, ".so"), source)
      assert_predicate status, :success?, out
      yield directory
    end
  end

  # door(name) { ... }: within it foreign code was entered, and $slice, unterminated before, was terminated.
  DOORS = <<~'RUBY'
    $slice = slice
    require "foreign"
    same([1, 0], Foreign.results)

    class ForeignHeir < ForeignNew
      def many(*list, **names, &block) = super
    end

    def door(name)
      $slice = slice
      same([name, true], [name, shared?($slice)])
      yield
      seen, unterminated = Foreign.results
      raise "#{name}: it was not entered" if seen == 0
      raise "#{name}: #{unterminated} of #{seen} saw an unterminated string" if unterminated > 0
      same([name, true], [name, shared?(slice)])
    end
  RUBY

  def test_doors
    script = DOORS + <<~'RUBY'
      proc = Foreign.make_proc
      def called = nil
      ($slice = slice) && Foreign.results
      rounds = Integer(ARGV[0])
      rounds.times do
        door(:method) { Foreign.plain }
        door(:send) { Foreign.__send__(:plain) }
        door(:public_send) { Foreign.public_send(:plain) }
        door(:method_object) { Foreign.method(:plain).call }
        door(:to_proc) { [Foreign].each(&:plain) }
        door(:proc) { proc.call }
        door(:block) { [1].each(&proc) }
        door(:allocate) { ForeignClass.allocate }
        door(:new) { ForeignClass.new }
        door(:variable) { $hooked }
        door(:set_variable) { $hooked = 1 }
        door(:size) { Foreign.to_enum(:sized).size; Foreign.sized.size }
        door(:dump) { Marshal.dump(ForeignNew.allocate) }
        door(:raise) { Foreign.plain; begin; Foreign.raises; rescue ArgumentError; nil; end }
        door(:yield) { Foreign.yields { $slice = slice } }
        door(:break) { Foreign.plain; Foreign.yields { break } }
        door(:throw) { Foreign.plain; catch(:out) { Foreign.yields { throw :out } } }
        door(:next) { Foreign.yields { next } }
        list = [1, 2, 3]
        door(:splat) { same(list, Foreign.many(*list)) }
        door(:splat_and_more) { same([0, 1, 2, 3, { a: 1 }], Foreign.many(0, *list, a: 1, &:itself)) }
        door(:list) { same(list, Foreign.listed(*list)) }
        door(:super) { same([1, 2, 3, { a: 1 }], ForeignHeir.new.many(*list, a: 1)) }
        same(Thread.main, Thread.current)
        door(:calls) { Foreign.calls(-> { $slice = slice }) }
        door(:fiber) { Foreign.resumes(Fiber.new { $slice = slice; same(true, shared?($slice)) }) }
        door(:fiber_left) do
          Foreign.plain
          fiber = Fiber.new { Foreign.yields { Fiber.yield; $slice = slice } }
          fiber.resume
          $slice = slice
          fiber.resume
        end
      end
      door(:thread) { Foreign.make_thread.join }
      door(:unlocked) do
        thread = Thread.new { sleep(0.05); $slice = slice; raise "it is not shared" unless shared?($slice) }
        Foreign.unlocked
        thread.join
      end
      door(:locks) do
        ended = false
        thread = Thread.new { ($slice = slice) && sleep(0.0002) until ended }
        50.times { Foreign.locks }
        ended = true
        thread.join
      end
      queue = Queue.new
      waits = { queue: -> { queue.pop }, sleep: -> { sleep(0.1) },
                join: -> { Thread.new { sleep(0.1) }.join } }
      waits.each do |name, wait|
        door(:"waits_for_#{name}") do
          thread = Thread.new { sleep(0.02); same(true, shared?($slice = slice)); queue << 1 }
          Foreign.calls(wait)
          thread.join
        end
        queue.clear
      end
      # A fiber that was made within foreign code and is resumed outside of it shares.
      fiber = nil
      Foreign.calls(-> { fiber = Fiber.new { Fiber.yield(shared?(slice)) }; $slice = nil })
      Foreign.results
      door(:fiber_of_it) { Foreign.plain; same(true, fiber.resume) }
      # What is traced leaves YJIT's code, and the function all the same.
      door(:traced) do
        Foreign.calls(-> { TracePoint.new(:c_return) { nil }.enable; $slice = slice })
        same(true, shared?(slice))
      end
      made = Foreign.make_made
      made.enable
      nested = Array.new(50) { |i| slice(i, 20_000)[i, 15_000][i, 9_000] }
      GC.start
      20_000.times { "a" * 700 }
      made.disable
      nested.each_with_index { |part, i| same(BYTES.byteslice(i * 3, 9_000), part) }
      Foreign.results
      in_child do
        buffer = "a" * 8_000
        parts = "bcd".each_char.map { |letter| Foreign.writes(buffer, letter); buffer[1, 4_000] }
        same(%w[b c d].map { |letter| letter * 4_000 }, parts)
        same(7_997, buffer.size)
      end
      if ARGV[1] == "callcc"
        require "continuation"
        Foreign.results
        door(:callcc) do
          back, times = nil, 0
          Foreign.calls(-> { callcc { |here| back = here }; $slice = slice })
          times += 1
          back.call if times < 3
        end
      end
      in_child { Foreign.calls(-> { in_child { $slice = slice; Foreign.plain } }) }
      Foreign.results
      door(:later) { Foreign.later; $slice = slice; 10.times { nil } }
      door(:hook) { Foreign.hooked; $slice = slice; called; Foreign.unhooked }
      point = Foreign.make_point
      door(:tracepoint) { point.enable; $slice = slice; called; point.disable }
      in_child { door(:child) { Foreign.plain } }
      Foreign.end
      at_exit { Foreign.results; $slice = slice }
    RUBY
    with_foreign do |directory|
      [[], %w[--yjit --yjit-call-threshold=2]].product([nil, "1"]).each do |options, threads|
        next unless run_ruby_status("1", options: options).last.success?

        # A build with AddressSanitizer has no callcc.
        callcc = "callcc" unless threads || ASAN
        out = run_shared(script, options.empty? ? 2 : 20, *callcc,
                         options: ["-W0", "-I", directory, *options], env: { "RUBY_MN_THREADS" => threads })
        assert_equal "1 0\n", out, "#{options.join(" ")} #{threads}"
      end
    end
  end

  def test_extensions_of_this_ruby_have_the_mark
    directory = run_ruby(<<~'RUBY').chomp
      puts File.dirname($LOAD_PATH.map { |path| "#{path}/rbconfig.rb" }.find { |path| File.exist?(path) })
    RUBY
    extensions = Dir["#{directory}/**/*.so"]
    refute_empty extensions
    marked = symbols("-D", "-A", *extensions).scan(/^(.+?): *\h+ V cowruby_terminates_strings$/).flatten
    assert_empty extensions - marked
  end

  # Where the interpreter is a library of its own (--enable-shared), the program calls this in it.
  def test_the_program_tells_that_it_is_ours
    program = run_ruby("puts File.readlink('/proc/self/exe')").chomp
    assert_match(/ [TU] rb_foreign_main$/, symbols("-D", program))
  end

  def symbols(*arguments)
    out, status = Open3.capture2e("nm", *arguments)
    assert_predicate status, :success?, out
    out
  end

  # An extension of ours says that it terminates; one that knows nothing of it is foreign.
  def test_a_library_with_the_mark
    with_foreign("const char cowruby_terminates_strings = 1;") do |directory|
      out = run_shared(<<~'RUBY', options: ["-I", directory])
        $slice = slice
        require "foreign"
        same([1, 0], Foreign.results)
        $slice = slice
        Foreign.plain
        same([1, 1], Foreign.results)
      RUBY
      assert_equal "", out
    end
  end

  # follows(how, string): the byte behind the end, as one of the ways to the bytes shows it; nothing else has
  # looked at the string before.
  CPP = <<~'CPP'
    #include <ruby.h>
    static VALUE follows(VALUE self, VALUE how, VALUE str) {
        const char *bytes;
        long length = RSTRING_LEN(str);
        switch (NUM2INT(how)) {
          case 0: bytes = RSTRING_PTR(str); break;
          case 1: return INT2FIX(*RSTRING_END(str));
          case 2: RSTRING_GETMEM(str, bytes, length); break;
          case 3: bytes = StringValuePtr(str); break;
          case 4: bytes = StringValueCStr(str); break;
          case 5: bytes = rb_string_value_ptr(&str); break;
          case 6: rb_str_locktmp(str); bytes = RSTRING(str)->as.heap.ptr; rb_str_unlocktmp(str); break;
          default: rb_raise(rb_eArgError, "no such way");
        }
        return INT2FIX(bytes[length]);
    }
    extern "C" void Init_cpp() {
        rb_define_global_function("follows", (VALUE(*)(VALUE, VALUE, VALUE))follows, 2);
    }
  CPP

  # Each way of the headers to the bytes; in the oldest C++ that CRuby's headers take, and in a newer one.
  def test_ways_to_the_bytes
    versions = %w[11 20].select do |version|
      system("c++", "-std=c++#{version}", "-fsyntax-only", "-x", "c++", File::NULL,
             out: File::NULL, err: File::NULL)
    end
    skip "no C++ compiler" if versions.empty?
    versions.each do |version|
      flags = %W[-std=c++#{version} -Wno-register]
      with_extension("c++", "cpp.cc", CPP, *flags) do |directory|
        run_shared(<<~'RUBY', options: ["-I", directory])
          require "cpp"
          7.times do |how|
            part = slice
            same([how, 0], [how, follows(how, part)])
            same([how, BYTES.byteslice(1_000, 5_000)], [how, part])
          end
        RUBY
      end
    end
  end
end

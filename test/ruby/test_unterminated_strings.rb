# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Patches 0101 to 0123: code that took a String for a C string. A String that shares its bytes with a longer
# one and ends before it has no NUL at its end. CRuby makes such Strings with SHARABLE_MIDDLE_SUBSTRING alone;
# an extension of its own tests makes them in any build.
class TestUnterminatedStrings < Minitest::Test
  include CowTest

  EXTENSION = begin
    require "-test-/string"
    Bug::String.method_defined?(:unterminated_substring)
  rescue LoadError
    false
  end

  # Requires +library+ when a test needs it.
  def self.with(library, &block)
    lambda do |text|
      begin
        require library
      rescue LoadError
        skip "no #{library} here"
      end
      instance_exec(text, &block)
    end
  end

  # A time zone whose abbreviation is given.
  Zone = Struct.new(:abbr_) do
    def local_to_utc(time) = time
    def utc_to_local(time) = time
    def abbr(_time) = abbr_
  end

  # A source for Marshal.load; its read gives what +part+ makes of each part of the data.
  Source = Struct.new(:data, :place, :part) do
    def getbyte = data.getbyte((self.place += 1) - 1)

    def read(length)
      self.place += length
      part.call(data.byteslice(place - length, length))
    end
  end

  # A format is copied by who reads it if it is shorter.
  LONG = "a" * 700

  INTEGER = ->(s) { Integer(s) }
  FORMAT = ->(s) { format(s, 5) }
  LONG_STRFTIME = ->(s) { Time.at(0).utc.strftime(s)[-4..] }
  STRPTIME = with("date") { |s| Date._strptime("20010203", s) }
  UNESCAPE = with("cgi/escape") { |s| CGI.unescapeHTML(s) }
  JSON_PARSE = with("json") { |s| JSON.parse(s) }
  TIMESTAMP = with("openssl") do |s|
    name = s.match?(/[A-Z]/) ? :algorithm : :policy_id
    OpenSSL::Timestamp::Request.new.tap { |request| request.public_send(:"#{name}=", s) }.public_send(name)
  end

  TCP = with("socket") do |s|
    server = TCPServer.new(s, 0)
    TCPSocket.new(s, server.local_address.ip_port).close
    server.close
  end
  ADDRESS = with("socket") { |s| Addrinfo.tcp(s, 80).ip_address }
  PORT = with("socket") { |s| Addrinfo.tcp("127.0.0.1", s).ip_port }
  UDP = with("socket") do |s|
    socket = UDPSocket.new
    socket.connect(s, 9)
    socket.remote_address.ip_address
  ensure
    socket.close
  end
  UNIX = with("socket") { |s| Socket.unpack_sockaddr_un(Socket.pack_sockaddr_un(s)) }

  # What is done with a string, the string, the bytes behind it, and what comes out with a NUL there:
  # a result, or a Regexp that the class and message of an exception match.
  CASES = {
    # 0101
    pack_count: [->(s) { ["abcdef"].pack(s) }, "a3", "4", "abc"],
    pack_star: [->(s) { ["abcdef"].pack(s) }, "a", "*", "a"],
    pack_modifier: [->(s) { [1].pack(s) }, "s", ">", [1].pack("s")],
    pack_wrong_modifier: [->(s) { ["abc"].pack(s) }, "a", "_", "a"],
    unpack_count: [->(s) { ("abc" * 30).unpack(s) }, "a3", "4", ["abc"]],
    unpack_modifier: [->(s) { "\x01\x02\x03\x04".unpack(s) }, "S>", ">", [0x0102]],
    # 0102
    base64_second: [->(s) { s.unpack1("m") }, "Y", "QQQQ", ""],
    base64_third: [->(s) { s.unpack1("m") }, "YQ", "AA", "a"],
    # 0103
    integer_zeros: [INTEGER, "0" * 20, "5", 0],
    integer_zeros_base: [INTEGER, "0x00", "f", 0],
    integer_prefix: [->(s) { Integer(s, 2) }, "", "0b11\0",
                     /\AArgumentError: invalid value for Integer\(\): ""/],
    # 0104
    format_flag: [FORMAT, "#{LONG}%-", "d", /\AArgumentError: malformed format string\z/],
    format_space: [FORMAT, "#{LONG}% ", "d", /\AArgumentError: malformed format string\z/],
    format_zero: [FORMAT, "#{LONG}%0", "d", /\AArgumentError: malformed format string\z/],
    # 0105
    strftime_zone: [->(s) { Time.new(2000, 1, 1, 0, 0, 0, Zone.new(s)).strftime("%Z") }, "ABC", "DEF", "ABC"],
    strftime_zone_utf8: [->(s) { Time.new(2000, 1, 1, 0, 0, 0, Zone.new(s)).strftime("%Z").size },
                         "é" * 8, "é", 8],
    strftime_e: [LONG_STRFTIME, "#{LONG}%E", "Y", "aa%E"],
    strftime_o: [LONG_STRFTIME, "#{LONG}%O", "d", "aa%O"],
    # 0111
    crypt_salt: [->(s) { "secret".crypt(s) }, "$6$abcdef", "ghij", "secret".crypt("$6$abcdef")],
    # 0112
    undump_unicode: [->(s) { s.undump }, '"\u12', '34"', /\ARuntimeError: invalid Unicode escape/],
    undump_hex: [->(s) { s.undump }, '"\x1', '2"', /\ARuntimeError: invalid hex escape/],
    # 0113; AddressSanitizer sees the read beyond the longer string
    index: [->(s) { s.index("いいいい") }, "あ" * 300, "\xF0", nil],
    # 0114
    set_encoding: [->(s) { File.open(File::NULL) { |f| f.set_encoding(s) && f.internal_encoding } },
                   "UTF-8", ":EUC-JP\0", nil],
    set_encoding_nul: [->(s) { File.open(File::NULL) { |f| f.set_encoding(s) } }, "UTF-8\0", "x",
                       /\AArgumentError: string contains null byte/],
    # 0115
    date_strftime: [with("date") { |s| Date.new(2001, 2, 3).strftime(s) }, "%Y", "-%m", "2001"],
    date_strptime_percent: [STRPTIME, "%", "Y", nil],
    date_strptime_digits: [STRPTIME, "%Y", "%m", { year: 20_010_203 }],
    date_strptime_e: [STRPTIME, "%E", "Y", nil],
    date_strptime_o: [STRPTIME, "%O", "d", nil],
    date_strptime_colon: [with("date") { |s| Date._strptime("+09:00", s) }, "%:", "z", nil],
    date_zone: [with("date") { |s| DateTime.new(2001, 1, 1, 0, 0, 0, s).offset },
                "+9", ":30", Rational(9, 24)],
    # 0116
    prism_filepath: [with("prism") { |s| Prism.parse("__FILE__", filepath: s).value.inspect[/\w+\.rb\w*/] },
                     "foo.rb", "SECRET", "foo.rb"],
    prism_filepath_nul: [with("prism") { |s| Prism.parse("1", filepath: s) }, "foo\0rb", "x",
                         /\AArgumentError: string contains null byte/],
    prism_command_line: [with("prism") { |s| Prism.parse("1", command_line: s).success? }, "p", "xZ", true],
    prism_parse_file: [with("prism") { |s| Prism.parse_file(s).success? }, __FILE__, "x", true],
    prism_pack: [with("prism") { |s| Prism::Pack.parse(:v3_2_0, :pack, s).directives.map(&:length) },
                 "a3", "4", [3]],
    # 0117
    unescape_decimal: [UNESCAPE, "#{"a" * 40}&#65", ";bcd", "#{"a" * 40}&#65"],
    unescape_hexadecimal: [UNESCAPE, "&#x41", ";bcd", "&#x41"],
    # 0118
    socket_domain: [with("socket") { |s| Socket.new(s, :STREAM) }, "NOSUCH", "SECRET",
                    /\ASocketError: unknown socket domain: NOSUCH/],
    # 0119
    json_value: [JSON_PARSE, "[nope", "SECRET", /\AJSON::ParserError: unexpected /],
    json_end: [JSON_PARSE, "[1] x", "SECRET", /\AJSON::ParserError: unexpected /],
    json_array: [JSON_PARSE, "[1 2", "SECRET", /\AJSON::ParserError: unexpected /],
    json_infinity: [JSON_PARSE, "-Infinity", "SECRET", /\AJSON::ParserError: unexpected /],
    json_nan: [JSON_PARSE, "NaN", "SECRET", /\AJSON::ParserError: unexpected token at 'NaN'/],
    # 0121
    timestamp_algorithm: [TIMESTAMP, "SHA256", "x", "SHA256"],
    timestamp_policy: [TIMESTAMP, "1.2.3.4", ".5", "1.2.3.4"],
    # 0122
    fiddle_pointer: [with("fiddle") { |s| Fiddle::Pointer[s].to_s }, "abc", "d", "abc"],
    # A NUL is no fault.
    fiddle_nul: [with("fiddle") { |s| Fiddle::Pointer[s].to_s }, "abc\0def", "g", "abc"],
    # The fourth seed's failure: names of hosts and ports.
    tcp_host: [TCP, "127.0.0.1", "X", nil],
    address: [ADDRESS, "127.0.0.1", "1", "127.0.0.1"],
    address_v6: [ADDRESS, "::ffff:127.0.0.1", "1", "::ffff:127.0.0.1"],
    port: [PORT, "80", "8", 80],
    udp_host: [UDP, "127.0.0.1", "2", "127.0.0.1"],
    unix_path: [UNIX, "/tmp/a", "b", "/tmp/a"],
    # 0123
    class_name: [->(s) { [1].pack("C", buffer: Class.new.set_temporary_name(s).new) }, "f " * 400, "SECRET",
                 /\ATypeError: buffer must be String, not #{"f " * 400}/],
  }.freeze

  CASES.each do |name, (action, text, hostile, good)|
    define_method(:"test_#{name}") do
      expected = outcome(action, text.dup)
      assert_operator good, :===, expected, "with a NUL behind the end"
      assert_equal [expected], [outcome(action, slice(text, hostile))], "with #{hostile.dump} behind the end"
    end
  end

  # Patch 0106.
  def test_marshal_float
    dump = Marshal.dump([1.5, Float::INFINITY, -Float::INFINITY, Float::NAN])
    source = Source.new(dump, 0, ->(part) { slice(part, "e9") })
    floats = Marshal.load(source) # rubocop:disable Security/MarshalLoad
    assert_equal "[1.5, Infinity, -Infinity, NaN]", floats.inspect
  end

  # Patch 0107. The bytes that are kept apart here are a dup's, so this needs no other string.
  def test_marshal_regexp
    text = "\\ga#{"x" * 997}".b
    dump = "\x04\x08/\x02\xE8\x03#{text}\x00".b
    shared = text * 1
    source = Source.new(dump, 0, ->(part) { part.size == 1000 ? shared.dup : part })
    regexp = Marshal.load(source) # rubocop:disable Security/MarshalLoad
    assert_equal "ga#{"x" * 997}", regexp.source
    assert_equal text, shared
  end

  # Patch 0108.
  def test_stringio_pread
    require "stringio"
    before = "x" * 1000
    buffer = before.dup
    assert_same buffer, StringIO.new("y" * 1000).pread(1000, 0, buffer)
    assert_equal ["y" * 1000, "x" * 1000], [buffer, before]
    assert_raises(FrozenError) { StringIO.new("y" * 1000).pread(1000, 0, before.dup.freeze) }
    assert_raises(TypeError) { StringIO.new("y" * 1000).pread(1000, 0, :buffer) }
  end

  # Patch 0108: the buffer is the string that is read.
  def test_stringio_read_into_its_own_string
    require "stringio"
    %i[read pread].each do |name|
      [[995, 5], [10, 100], [0, 1000]].each do |place, length|
        string = ("abcdefghij" * 100).b
        io = StringIO.new(string)
        io.pos = place if name == :read
        assert_same string, io.public_send(name, length, *(place if name == :pread), string)
        assert_equal ("abcdefghij" * 100)[place, length], string, "#{name} of #{length} at #{place}"
      end
    end
    [[3, 7], [5000, 5004], [5000, 2**40]].each do |size, place|
      io = StringIO.new(string = "b" * size)
      io.pos = place
      assert_equal "", io.read(0, string)
    end
    assert_equal "", StringIO.new(nil).read(0, +"c")
    assert_raises(EOFError) { StringIO.new(nil).pread(1, 0) }
    string = "a" * 40_000_000
    StringIO.new(string).pread(5, 39_999_990, string)
    assert_equal "aaaaa", string
  end

  # Patch 0131: GzipReader#read and #readpartial wrote into bytes that the buffer shared.
  def test_zlib_buffer
    require "zlib"
    require "stringio"
    text = ("a".."z").map { |letter| letter * 4096 }.join
    %i[read readpartial].each do |name|
      reader = Zlib::GzipReader.new(StringIO.new(Zlib.gzip(text)))
      buffer = +""
      parts = []
      while parts.sum(&:size) < text.size
        reader.public_send(name, 4096, buffer)
        parts << buffer.dup
      end
      assert_equal text, parts.join, name
    end
  end

  # Patch 0132: the bytes of a string that is lent to a reader came back to it although a dup shared them.
  def test_dup_of_a_string_whose_bytes_are_lent
    format = "%s#{"x" * 5000}"
    copy = nil
    object = Object.new
    object.define_singleton_method(:to_s) { (copy = format.dup) && "" }
    assert_equal "x" * 5000, format % object
    format.replace("y")
    Array.new(300) { "z" * 5002 }
    assert_equal "%s#{"x" * 5000}", copy
  end

  # Patch 0905: a warning runs Ruby code, after which the part may have been copied, and its string freed.
  def test_float_of_a_part_with_a_warning
    out = run_ruby(<<~'RUBY', options: %w[-W2])
      SIZE = 4204
      $whole = "0." + "0" * 1200 + "1" + "\0" + "x" * (SIZE - 1204)
      $part = $whole[0, 1203]
      module Warning
        def self.warn(message, **)
          $part.freeze
          $whole = nil
          clear(50)
          GC.start
          $kept = Array.new(300) { String.new("7.25" + "7" * (SIZE - 4)) }
        end
        def self.clear(depth) = depth == 0 ? [nil] * 20 : clear(depth - 1)
      end
      puts Float($part)
    RUBY
    assert_equal "0.0\n", out
  end

  # Patch 0109: without it this does not end.
  def test_pathname_sub_ext
    slice("", "")
    out = run_ruby(<<~'RUBY', timeout: 20)
      require "-test-/string"
      require "pathname"
      paths = { "a/foo.r" => "b.c/d", "a/foo" => ".c", "a/." => "c", "a/foo." => "b", "あ/い.r" => "う" }
      paths.each do |text, hostile|
        path = Bug::String.new(text + hostile + "Q" * 700).unterminated_substring(0, text.bytesize)
        puts [text, path].map { |name| Pathname.new(name).sub_ext(".x") }.join("\t")
      end
    RUBY
    names = out.lines(chomp: true).map { |line| line.split("\t") }
    assert_equal ["a/foo.x", "a/foo.x", "a/..x", "a/foo..x", "あ/い.x"], names.map(&:first)
    assert_equal names.map(&:first), names.map(&:last)
  end

  # Patch 0112: the bytes that the slice shared are given back while it is read.
  def test_undump_keeps_no_address
    slice("", "")
    out = run_ruby(<<~'RUBY', env: { "MALLOC_CONF" => "dirty_decay_ms:0,muzzy_decay_ms:0" })
      require "-test-/string"
      text = "a" * 4_000_000
      dump = Thread.new { Bug::String.new("#{text.dump}QQQQ").unterminated_substring(0, text.size + 2) }.value
      GC.stress = true
      read = dump.undump
      GC.stress = false
      print read == text
    RUBY
    assert_equal "true", out
  end

  private

  # +text+ with the bytes +hostile+ behind its end.
  def slice(text, hostile)
    skip "no -test-/string, which makes unterminated strings" unless EXTENSION
    longer = [text, hostile, "Q" * 700].map(&:b).join.force_encoding(text.encoding)
    Bug::String.new(longer).unterminated_substring(0, text.bytesize)
  end

  # What +action+ gives for +text+; an exception as its class and message.
  def outcome(action, text)
    instance_exec(text, &action)
  rescue StandardError => e
    "#{e.class}: #{e.message}"
  end
end

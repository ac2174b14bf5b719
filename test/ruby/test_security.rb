# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# One test for each vulnerability of CRuby 3.4.5 that has a number (SECURITY.md). A test does what a hostile
# input would do, and no more. A write beyond a block and a block that is freed twice end the process: glibc's
# malloc finds them by its checks, and a build with AddressSanitizer by itself.
# On pristine CRuby each test failed in 3 of 3 runs, and on 2222f26 in one of one. The exception is the test
# for which only AddressSanitizer finds the fault: it failed in 3 of 3 runs of 2222f26 built with it.
class TestSecurity < Minitest::Test
  include CowTest

  # libc_malloc_debug puts a mark behind each block and checks it. AddressSanitizer has checks of its own.
  MALLOC_DEBUG = Dir["/{lib,usr/lib}{,64}/{,*/}libc_malloc_debug.so.0"].first
  CHECKED = !ASAN && MALLOC_DEBUG ? { "LD_PRELOAD" => MALLOC_DEBUG, "MALLOC_CHECK_" => "3" } : {}

  def run_checked(script)
    skip "neither AddressSanitizer nor libc_malloc_debug is there" unless ASAN || MALLOC_DEBUG
    run_ruby(script, env: CHECKED, options: %w[-W0], timeout: 30)
  end

  # In a build tree the bundled gems lie beside the sources. Elsewhere RubyGems finds them.
  def gem_options(*names)
    source = File.expand_path("../../../src/.bundle/gems", RUBY)
    ["-W0", *names.flat_map { |name| Dir["#{source}/#{name}-[0-9]*/lib"] }.map { |path| "-I#{path}" }]
  end

  def test_cve_2026_27820_zlib_unget
    run_checked(<<~'RUBY')
      require "zlib"
      require "stringio"
      data = Random.new(1).bytes(100_000)
      [1, 10, 100, 2048, 5000, 20_000].product([1, 7, 100, 4096, 70_000]) do |chunk, size|
        gz = Zlib::GzipReader.new(StringIO.new(Zlib.gzip(data)), external_encoding: Encoding::BINARY)
        got = "".b
        3.times do
          got << gz.read(chunk)
          gz.ungetc(("x" * size).b)
          raise "read gives other data than ungetc put back" unless gz.read(size) == "x" * size
          gz.ungetbyte(65)
          raise "getbyte gives another byte than ungetbyte put back" unless gz.getbyte == 65
        end
        got << gz.read
        raise "the data that was read differs" unless got == data
      end
    RUBY
  end

  def test_cve_2026_41316_erb_of_marshal
    out = run_ruby(<<~'RUBY')
      require "erb"
      erb = ERB.allocate
      erb.instance_variable_set(:@src, "print :ran; _erbout = ''")
      erb.instance_variable_set(:@lineno, 0)
      erb = Marshal.load(Marshal.dump(erb))
      [[:def_module], [:def_class], [:def_method, Module.new, "name"], [:result], [:run]].each do |call|
        erb.public_send(*call)
        print :taken
      rescue ArgumentError => e
        raise unless e.message == "not initialized"
      end
      module Made; end
      ERB.new("<%= 1 + 1 %>").def_method(Made, "two")
      print Class.new { include Made }.new.two
    RUBY
    assert_equal "2", out
  end

  # RubyGems and Bundler have copies of their own.
  def test_cve_2025_61594_uri_password
    { "uri" => "URI", "bundler/vendor/uri/lib/uri" => "Bundler::URI",
      "rubygems/vendor/uri/lib/uri" => "Gem::URI" }.each do |file, name|
      run_ruby(<<~RUBY, options: %w[--enable-gems])
        module Bundler; end
        require #{file.inspect}
        uri = #{name}
        base = uri.parse("http://alice:secret@a.example/x")
        merged = base + "//b.example/"
        raise "+ gives another host the userinfo \#{merged.userinfo}" if merged.user || merged.password
        userinfo = (base + "//bob@b.example/").userinfo
        raise "expected the userinfo bob, found \#{userinfo}" unless userinfo == "bob"
        joined = uri.join(base.to_s, "//b.example/").to_s
        raise "join gives another host the password: \#{joined}" if joined.include?("secret")
        (changed = base.dup).merge!("//b.example/")
        raise "merge! gives another host the userinfo \#{changed.userinfo}" if changed.userinfo
        raise "+ with a path drops the userinfo" unless (base + "/y").userinfo == "alice:secret"
        (changed = base.dup).merge!("/z")
        raise "merge! with a path gives \#{changed}" unless changed.to_s == "http://alice:secret@a.example/z"
      RUBY
    end
  end

  # Ruby source for scripts: both copies of resolv.
  RESOLV = <<~'RUBY'
    require "resolv"
    require "rubygems/vendor/resolv/lib/resolv"
    BOTH = [Resolv::DNS, Gem::Resolv::DNS]
    def must_raise(error)
      result = begin
        yield
      rescue error
        return
      end
      raise "expected #{error}, found the result #{result.inspect[0, 80]}"
    end
    def header(answers) = [1, 0x8180, 0, answers, 0, 0].pack("n6")
  RUBY

  def test_cve_2026_80212_resolv_classes
    run_ruby(RESOLV + <<~'RUBY', options: %w[--enable-gems])
      BOTH.each do |dns|
        places = [dns::Resource, dns::Resource::Generic, dns::SvcParam::Generic]
        count = -> { places.sum { |place| place.constants.size } }
        before = count.call
        records = Array.new(200) { |i| "\0" + [60_000 + i, 1, 0, 4].pack("nnNn") + "abcd" }
        params = (1000...1100).map { |key| [key, 1].pack("nn") + "v" }.join
        records << "\0" + [65, 1, 0, 3 + params.size].pack("nnNn") + [1].pack("n") + "\0" + params
        message = dns::Message.decode(header(records.size) + records.join)
        decoded = message.answer.size
        raise "#{decoded} of #{records.size} records were decoded" unless decoded == records.size
        raise "the first record has other data" unless message.answer[0][2].data == "abcd"
        raise "expected 100 parameters" unless message.answer[-1][2].params.count == 100
        raise "#{count.call - before} constants were kept" unless count.call == before
        asked = dns::Resource::Generic.create(61_234, 1)
        raise "a class that was created is not found" unless dns::Resource.get_class(61_234, 1).equal?(asked)
      end
    RUBY
  end

  def test_cve_2026_80213_resolv_labels
    run_ruby(RESOLV + <<~'RUBY', options: %w[--enable-gems])
      BOTH.each do |dns|
        encoder = dns::Message::MessageEncoder
        encode = ->(name) { encoder.new { |message| message.put_name(dns::Name.create(name)) }.to_s }
        size = encode.call("a" * 63 + ".example.").bytesize
        raise "expected 73 bytes, found #{size}" unless size == 1 + 63 + 1 + 7 + 1
        [64, 192, 256, 257, 300].each do |size|
          must_raise(dns::EncodeError) { encode.call("a" * size + ".example.") }
        end
        must_raise(dns::EncodeError) { encode.call(Array.new(5, "a" * 60).join(".") + ".") }
        must_raise(dns::EncodeError) { encoder.new { |message| message.put_string("a" * 256) } }
      end
    RUBY
  end

  # Each of five names is a label and a pointer to the name before: the last one has 5 * 64 octets.
  def test_cve_2025_24294_resolv_compressed_name
    run_ruby(RESOLV + <<~'RUBY', options: %w[--enable-gems])
      packet = header(5)
      name = nil
      5.times do
        before, name = name, packet.bytesize
        packet << 63.chr + "a" * 63 << (before ? [0xc000 | before].pack("n") : "\0")
        packet << [16, 1, 0, 2].pack("nnNn") << "\1x"
      end
      BOTH.each { |dns| must_raise(dns::DecodeError) { dns::Message.decode(packet) } }
    RUBY
  end

  def test_cve_2026_54696_json_to_io
    run_checked(<<~'RUBY')
      require "json"
      require "stringio"
      [10, 100, 400, 500].product((16_300..16_400).to_a) do |first, second|
        object = ["a" * first, "b" * second, "c" * first]
        JSON.dump(object, io = StringIO.new)
        raise "wrong JSON for the sizes #{first} and #{second}" unless JSON.parse(io.string) == object
      end
    RUBY
  end

  # The IO runs Ruby code in the middle of a string that is longer than the buffer.
  def test_json_of_a_string_that_the_io_changes
    out = run_ruby(<<~'RUBY', options: gem_options("json"))
      require "json"
      long = "x" * 2_000_000
      written = +""
      io = Object.new
      io.define_singleton_method(:write) do |text|
        written << text
        long.replace("")
        GC.start
        $kept = Array.new(8) { "Q" * 2_000_000 }
        text.bytesize
      end
      def io.flush = self
      JSON.dump(["a" * 17_000, long], io)
      puts written == "[\"#{"a" * 17_000}\",\"#{"x" * 2_000_000}\"]"
    RUBY
    assert_equal "true\n", out
  end

  def test_cve_2025_58767_rexml_declarations
    run_ruby(<<~'RUBY', options: gem_options("rexml"))
      require "rexml/document"
      declaration = '<?xml version="1.0" encoding="UTF-8"?>'
      name = REXML::Document.new("#{declaration}<a/>").root.name
      raise "expected the root a, found #{name}" unless name == "a"
      begin
        REXML::Document.new("#{declaration * 3}<a/>")
      rescue REXML::ParseException
      else
        raise "three declarations were accepted"
      end
    RUBY
  end

  # Ruby source for scripts: serve { |imap, lines| } starts an IMAP server on the loopback interface that
  # answers each command with OK. +imap+ is connected to it, and +lines+ are all lines that were sent to it.
  IMAP = <<~'RUBY'
    require "net/imap"
    def serve(before = "")
      lines = []
      server = TCPServer.new("127.0.0.1", 0)
      thread = Thread.new do
        socket = server.accept
        socket.write("* OK ready\r\n#{before}")
        while (line = socket.gets("\r\n"))
          lines << line
          tag = line[/\A\S+(?= )/]
          while line =~ /\{(\d+)\}\r\n\z/
            socket.write("+ go\r\n")
            socket.read($1.to_i)
            lines << (line = socket.gets("\r\n"))
          end
          socket.write("#{tag} OK done\r\n") if tag
        end
      end
      imap = Net::IMAP.new("127.0.0.1", port: server.addr[1])
      yield imap, lines
    ensure
      imap&.disconnect rescue nil
      thread&.kill
    end
  RUBY

  # CVE-2026-42257 (lines), -47240 and -47241 (literals), -42258 (symbols), -47242 (ENABLE, ID).
  def test_cve_2026_42257_imap_arguments
    run_ruby(IMAP + <<~'RUBY', options: gem_options("net-imap", "net-protocol"))
      serve do |imap, lines|
        more = "\r\nX9 DELETE inbox"
        raise unless imap.search("SUBJECT {5} ALL").empty?
        imap.store(1, "+FLAGS.SILENT", [:Seen])
        imap.setquota("inbox", 12)
        imap.enable(:utf8, "X-A X-B")
        sent = lines.join
        ["SEARCH SUBJECT {5} ALL\r", "STORE 1 +FLAGS.SILENT (\\Seen)\r", "SETQUOTA inbox (STORAGE 12)\r",
         "ENABLE UTF8=ACCEPT X-A X-B\r"].each do |command|
          raise "#{command} was not sent: #{sent}" unless sent.include?(command)
        end
        {
          search: ["ALL#{more}"], uid_search: ["X {3+}\r\nabc"], sort: [["DATE"], "SUBJECT {0}", "UTF-8"],
          thread: ["REFERENCES", "SUBJECT {0+}", "UTF-8"],
          fetch: [1, "FLAGS#{more}"], uid_fetch: [1, ["FLAGS", "X\0"]],
          store: [1, "FLAGS#{more}", [:Seen]], uid_store: [1, "+FLAGS", [:"Seen#{more}"]],
          setquota: ["inbox", "1)#{more}"], enable: ["UTF8=ACCEPT#{more}"]
        }.each do |command, arguments|
          imap.public_send(command, *arguments)
          raise "#{command} was sent" unless command == :enable
        rescue Net::IMAP::DataFormatError, ArgumentError
        end
        imap.id("name" => "a#{more}")
        injected = lines.select { |line| line.start_with?("X9") }
        raise "an argument became a command: #{injected.inspect}" unless injected.empty?
      end
    RUBY
  end

  def test_cve_2026_42246_imap_starttls
    run_ruby(IMAP + <<~'RUBY', options: gem_options("net-imap", "net-protocol"))
      serve("RUBY0001 OK early\r\n") do |imap, _|
        Thread.pass until imap.instance_variable_get(:@tagged_responses).key?("RUBY0001")
        begin
          imap.starttls
        rescue Net::IMAP::Error
          raise "still connected" unless imap.disconnected?
        else
          raise "starttls succeeded without TLS: tls_verified? is #{imap.tls_verified?.inspect}"
        end
      end
    RUBY
  end

  # A time limit for regular expressions shows how much of the buffer is searched: 100 MB of "{1" take longer
  # than a hundredth of a second, a few bytes do not.
  def test_cve_2026_42245_imap_literals
    run_ruby(<<~'RUBY', options: gem_options("net-imap", "net-protocol"))
      require "net/imap"
      reader = Net::IMAP::ResponseReader.new(nil, nil)
      reader.instance_variable_set(:@buff, "{1" * 50_000_000 + "{123}\r\n")
      Regexp.timeout = 0.01
      size = reader.send(:get_literal_size)
      raise "expected the size 123, found #{size.inspect}" unless size == 123
      ["{7}\r\n", "* {18446744073709551615}\r\n", "x}\r\n", "{1}\r\n "].each do |buffer|
        reader.instance_variable_set(:@buff, buffer.b)
        size = reader.send(:get_literal_size)
        wrong = (size || nil) != buffer[/\{(\d+)\}\r\n\z/, 1]&.to_i
        raise "found the size #{size.inspect} in #{buffer.inspect}" if wrong
      end
    RUBY
  end

  def test_cve_2026_42256_imap_iterations
    run_ruby(<<~'RUBY', options: gem_options("net-imap", "net-protocol"))
      require "net/imap"
      require "openssl"
      asked = []
      OpenSSL::KDF.define_singleton_method(:pbkdf2_hmac) do |*, iterations:, **|
        asked << iterations
        "k" * 32
      end
      offer = lambda do |iterations, **options|
        scram = Net::IMAP::SASL::ScramSHA256Authenticator.new("user", "password", cnonce: "nonce", **options)
        scram.process(nil)
        scram.process("r=nonceS,s=QUJD,i=#{iterations}")
      end
      offer.call(600_000)
      [[2_000_000_000, {}], [5_000, { max_iterations: 4_999 }]].each do |iterations, options|
        offer.call(iterations, **options)
        raise "#{iterations} iterations were accepted"
      rescue Net::IMAP::SASL::Error, Net::IMAP::Error
      end
      raise "keys were derived with #{asked} iterations" unless asked.uniq == [600_000]
    RUBY
  end

  ONE_BYTE = %w[ISO-8859-1 ISO-8859-2 ISO-8859-3 ISO-8859-4 ISO-8859-9 ISO-8859-10 ISO-8859-13 ISO-8859-14
                ISO-8859-15 ISO-8859-16 Windows-1250 Windows-1252 Windows-1254 Windows-1257].freeze

  def test_cve_2026_132825_casemap
    run_checked(<<~RUBY)
      #{ONE_BYTE}.each do |name|
        (21..64).each do |count|
          string = ("\\xDF".b * count).force_encoding(name)
          raise "wrong upcase: \#{name}, \#{count}" unless string.upcase.b == "SS" * count
          raise "wrong downcase(:fold): \#{name}, \#{count}" unless string.downcase(:fold).b == "ss" * count
          string.swapcase
          string.capitalize
        end
      end
    RUBY
  end

  # 1,100,000,000 bytes become twice as many, a number that does not fit into an int.
  def test_ghsa_87fm_7w84_j2px_casemap_length
    skip "takes 6 GB of memory: COW_HUGE_TESTS=1" unless ENV["COW_HUGE_TESTS"]
    out = run_ruby(<<~'RUBY', timeout: 300)
      string = ("\xDF".b * 1_100_000_000).force_encoding("ISO-8859-1").upcase
      print string.bytesize, " ", string.byteslice(-2, 2)
    RUBY
    assert_equal "2200000000 SS", out
  end

  def test_cve_2026_89078_regexp_alternation
    out = run_checked(<<~'RUBY')
      ["|{2,1}", "a|b|{1000000}", "(?:|{2,1})", "x(|(|{2,1}))"].each do |source|
        Regexp.new(source)
        puts "accepted: #{source}"
      rescue RegexpError
        puts :refused
      end
    RUBY
    assert_equal %w[refused] * 4, out.split("\n")
  end

  # The intersection of two classes of 5,400 ranges each has more than 10,000 ranges, which is the limit. Only
  # the class that the parser keeps for ASCII exceeds it: the parser does not add (?u)\w to that one.
  def test_ghsa_7x2q_68qv_6p8x_regexp_class
    run_checked(<<~'RUBY')
      ranges = lambda do |first|
        (0..5400).map { |i| [0x20000 + 4 * i + first, 45, 0x20002 + 4 * i + first].pack("U3") }.join
      end
      3.times do
        Regexp.new("(?u)[\\w#{ranges.call(0)}&&#{ranges.call(2)}&&c]", Regexp::IGNORECASE)
        raise "too many ranges were accepted"
      rescue RegexpError => e
        raise unless e.message.start_with?("too many multibyte code ranges")
      end
    RUBY
  end

  # Memory is limited: an expression that is compiled although it should be refused then fails with "failed to
  # allocate memory".
  def test_cve_2026_93577_regexp_program_size
    run_ruby(<<~RUBY, options: %w[-W0], timeout: 60)
      unless #{ASAN}
        size = File.read("/proc/self/status")[/VmSize:\\s*(\\d+)/, 1].to_i * 1024
        Process.setrlimit(:AS, size + (800 << 20))
      end
      # As an int 21,475 * 100,000 is negative, which must not count as 50 or less.
      long = Regexp.new("(?:" + "." * 21_475 + "){100000,}").match?("a" * 10)
      raise "2,147,500,000 characters were found in ten" if long
      whole = Regexp.new("\\\\A(?:" + "." * 60 + "){3,}\\\\z").match?("a" * 240)
      raise "four times 60 characters were not found" unless whole
      # As an int 4,300,043,000 is 5,075,704, and 2,200,022,000 is negative.
      [43_000, 22_000].each do |count|
        Regexp.new("(?:" + ".{100000,}" * count + ")*")
        raise "\#{count} repetitions were accepted"
      rescue RegexpError => e
        raise e.message[0, 100] unless e.message.start_with?("too large when compiled")
      end
    RUBY
  end

  def test_cve_2026_97229_regexp_repetitions
    run_ruby(<<~'RUBY', options: %w[-W0])
      ["(?:ab|c){2,30}", "(?:a*|b)*"].each do |group|
        Regexp.new(group * 32_768)
        begin
          Regexp.new(group * 32_769)
          raise "32,769 groups were accepted"
        rescue RegexpError => e
          raise unless e.message.start_with?("too many repetitions of groups")
        end
      end
    RUBY
  end

  # Pristine CRuby reads memory behind the pattern. Only AddressSanitizer finds that.
  def test_ghsa_wpqw_5qxg_m68r_regexp_ignore_case
    run_ruby(<<~'RUBY', options: %w[-W0])
      texts = (0xdf..0xffff).reject { |code| (0xd800..0xdfff) === code }.map { |code| [code].pack("U") }
      texts.select! { |text| text.downcase(:fold).size > 1 }
      raise "only #{texts.size} characters become several" if texts.size < 100
      forms = ["%s", "%s\\z", "x|%s", "\\A(?:%s)"]
      %w[s f ff ffi st h j t w y a i ι υ ՙ ʼ].product(forms) do |letters, form|
        pattern = Regexp.new(form % letters, Regexp::IGNORECASE)
        texts.each { |text| pattern.match?(text * 2) }
      end
      right = "Maße".match?(/masse/i) && "MASSE".match?(/maße/i) && !"Maße".match?(/\Amas\z/i)
      raise "ß is not folded to ss" unless right
    RUBY
  end

  # KELVIN SIGN matches k without regard to case and is two bytes longer. The NUL behind the end of the text
  # does not belong to it.
  def test_ghsa_pvgc_g7gj_pv6h_regexp_backreference
    run_ruby(<<~'RUBY', options: %w[-W0])
      kelvin = "\u212A"
      raise "\\1 matched beyond the end" if "kkk\0#{kelvin * 3}".match?(/\A(kkk\0)\1/i)
      raise "\\k matched beyond the end" if "kkk\0#{kelvin * 3}".match?(/\A(?<a>kkk\0)\k<a+0>/i)
      raise "\\1 did not match" unless "kkk\0#{kelvin * 3}\0".match?(/\A(kkk\0)\1\z/i)
      ("k" * 3000 + "\0" * 500 + kelvin * 3000).match?(/\A(k{3000}\0{500})\1/i)
    RUBY
  end

  # Regexp.new takes "[]" for a class and "#" for the beginning of a comment, so it does not check the escape
  # that follows. For the compiler both are in a class that goes on.
  def test_ghsa_7whj_cfh7_xgm4_regexp_to_s
    run_ruby(<<~'RUBY', options: %w[-W0])
      %w[EUC-JP EUC-TW Windows-31J GB18030 UTF-8].each do |name|
        ["[]#]\\x{7fffffff}", "[]#][\\xA3\\xA1\\x{7fffffff}\\xD3"].each do |source|
          regexp = Regexp.new("(?ix:#{source}\n])".encode(name))
          regexp.to_s
          regexp.inspect
          Regexp.union(regexp, /b/)
        end
      end
      raise "wrong to_s" unless /(?i:a\u3042)/.to_s == "(?i-mx:a\\u3042)" && /(?x:a # b
        )/.to_s.start_with?("(?x-mi:a # b")
    RUBY
  end
end

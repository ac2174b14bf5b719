# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("workloads/skk_server")

class TestSkk < Minitest::Test
  DICTIONARY = { "0010000" => "/北海道札幌市北区/", "1000001" => "/東京都千代田区千代田/a;b/" }
               .transform_values { |text| text.encode(SkkDictionary::ENCODING) }

  # Runs the loop of one server process in a thread. Gives the block the server and a lambda that connects to
  # it.
  def with_server
    listener = TCPServer.new("127.0.0.1", 0)
    stop, tell = IO.pipe
    server = SkkServer.new(DICTIONARY, listener)
    thread = Thread.new { server.serve(stop) }
    Timeout.timeout(30) { yield server, -> { TCPSocket.new("127.0.0.1", listener.local_address.ip_port) } }
    assert_predicate thread, :alive?, "the server ended before it was asked to"
  ensure
    tell.puts
    thread.join(10) || flunk("the server did not end within 10 s")
    [listener, stop, tell].each(&:close)
  end

  def ask(client, request)
    client.write(request)
    client.gets.force_encoding(SkkDictionary::ENCODING)
  end

  def assert_serving(connect)
    client = connect.call
    assert_equal "1/東京都千代田区千代田/a;b/\n", ask(client, "11000001 \n").encode("UTF-8")
    client.close
  end

  def test_known_and_unknown_codes
    with_server do |server, connect|
      client = connect.call
      assert_equal "1/北海道札幌市北区/\n", ask(client, "10010000 \n").encode("UTF-8")
      assert_equal "1/北海道札幌市北区/\n", ask(client, "10010000\n").encode("UTF-8"), "without the space"
      assert_equal "1/北海道札幌市北区/\n", ask(client, "10010000 \r\n").encode("UTF-8"),
                   "with the end of line that telnet sends"
      assert_equal "49999999 \n", ask(client, "19999999 \n")
      assert_equal "4\u5317 \n".encode(SkkDictionary::ENCODING),
                   ask(client, "1\u5317 \n".encode(SkkDictionary::ENCODING))
      assert_equal 5, server.answered
    end
  end

  def test_malformed_lines_are_answered_with_an_error
    with_server do |_, connect|
      client = connect.call
      ["\n", "\r\n", "1\n", "1 \n", "9\n", "hello\n", "1\xff\xff \n".b, "\x00\n",
       " 10010000 \n"].each do |line|
        assert_equal "0\n", ask(client, line), line.inspect
      end
      assert_equal "cow-skk.1 \n", ask(client, "2\n")
      assert_equal "#{Process.pid} \n", ask(client, "3\n")
      assert_equal "1/北海道札幌市北区/\n", ask(client, "10010000 \n").encode("UTF-8"),
                   "the connection does not go on after the errors"
    end
  end

  def test_many_requests_at_once_and_one_in_pieces
    with_server do |_, connect|
      client = connect.call
      client.write("10010000 \n" * 50)
      answers = Array.new(50) { client.gets.force_encoding(SkkDictionary::ENCODING).encode("UTF-8") }
      assert_equal ["1/北海道札幌市北区/\n"], answers.uniq
      other = connect.call
      "1100000".each_char { |char| client.write(char) and ask(other, "2\n") }
      assert_equal "1/東京都千代田区千代田/a;b/\n", ask(client, "1 \n").encode("UTF-8")
    end
  end

  def test_zero_ends_the_connection
    with_server do |_, connect|
      client = connect.call
      client.write("0\n10010000 \n")
      assert_nil client.gets
      assert_serving(connect)
    end
  end

  def test_clients_that_disconnect
    with_server do |_, connect|
      connect.call.close
      connect.call.tap { |client| client.write("10010000 \n") }.close
      connect.call.tap { |client| client.write("1001") }.close
      connect.call.tap { |client| client.write("1001") and client.close_write and assert_nil(client.gets) }
      assert_serving(connect)
    end
  end

  def test_clients_that_reset_the_connection
    with_server do |_, connect|
      ["", "1001", "10010000 \n" * 100].each do |sent|
        client = connect.call
        client.write(sent)
        client.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
        client.close
        assert_serving(connect)
      end
    end
  end

  def test_a_huge_line_ends_its_connection_only
    with_server do |_, connect|
      client = connect.call
      begin
        client.write("1#{"9" * 1_000_000}")
      rescue Errno::EPIPE, Errno::ECONNRESET
        nil # the server closed the connection before it had read the whole line
      end
      answer = begin
        client.gets
      rescue Errno::ECONNRESET
        nil
      end
      assert_includes ["0\n", nil], answer
      whole = connect.call
      assert_equal "0\n", ask(whole, "1#{"9" * 2_000}\n")
      assert_serving(connect)
    end
  end

  def test_a_client_that_does_not_read_hinders_nobody
    with_server do |_, connect|
      client = connect.call
      begin
        20_000.times { client.write_nonblock("10010000 \n" * 50) }
      rescue IO::WaitWritable, Errno::EPIPE, Errno::ECONNRESET
        nil
      end
      assert_serving(connect)
    end
  end

  def test_a_dictionary_that_is_damaged_is_refused_with_its_line
    Dir.mktmpdir do |directory|
      path = File.join(directory, "dictionary")
      { "0010000 /a/\n1\xff\xff /b/\n".b => /:2: not EUC-JIS-2004/,
        "; fine\n0010000\n" => /:2: not an entry/ }.each do |text, message|
        File.binwrite(path, text)
        assert_match message, assert_raises(SkkDictionary::Malformed) { SkkDictionary.load(path) }.message
      end
    end
  end

  def test_every_line_of_the_real_dictionary_is_valid
    path = "/usr/share/skk/SKK-JISYO.zipcode"
    skip "no #{path}: install Debian's package skkdic-extra" unless File.exist?(path)

    assert_match(/coding: euc-jis-2004/, File.open(path, &:readline))
    lines = File.foreach(path, encoding: SkkDictionary::ENCODING).reject { |line| line.start_with?(";") }
    assert lines.all?(&:valid_encoding?), "a line is not valid EUC-JIS-2004"
    dictionary = SkkDictionary.load(path)
    # Each code is in the file only once.
    assert_equal lines.size, dictionary.size
    assert_operator dictionary.size, :>, 100_000
    assert_equal "/東京都千代田区千代田/", dictionary["1000001"].encode("UTF-8")
  end
end

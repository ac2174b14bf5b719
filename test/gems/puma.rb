# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "puma"
require "puma/server"
require "puma/events"
require "puma/log_writer"
require "puma/puma_http11"
require "socket"

class TestPuma < GemTest
  extension(%r{puma/puma_http11\.so\z})

  REQUEST = "POST /path/%C3%A9?a=1&b=2#f HTTP/1.1\r\nHost: x\r\nX-Long: #{"v" * 300}\r\nAccept: */*\r\n" \
            "Content-Length: 4\r\n\r\nbody"

  APP = lambda do |env|
    body = env["rack.input"].read.to_s
    case env["PATH_INFO"]
    when "/raise" then raise "asked for"
    when "/collect" then GC.start
    end
    text = "#{env["REQUEST_METHOD"]} #{env["PATH_INFO"]} #{body.size} #{env["HTTP_X_ID"]}"
    [200, { "content-type" => "text/plain" }, [text]]
  end

  work(:parser) do
    parser = Puma::HttpParser.new
    env = {}
    parser.execute(env, REQUEST.dup, 0)
    [env.sort, parser.finished?, parser.error?, parser.body]
  end

  work(:parser_in_parts) do
    parser = Puma::HttpParser.new
    env = {}
    text = +""
    read = 0
    REQUEST[/.*\r\n\r\n/m].scan(/.{1,11}/m) do |part|
      text << part
      read = parser.execute(env, text, read)
    end
    [env.sort, parser.finished?, read]
  end

  work(:many_parsers) do
    parsers = Array.new(30) { Puma::HttpParser.new }
    parsers.each { |parser| parser.execute({}, REQUEST.dup, 0) }.count(&:finished?)
  end

  def test_parser_errors
    ["GET / HTTP/1.1\r\nbad header\r\n\r\n", "\0\0\0", "GET / HTTP/1.1\r\nA: \0\r\n\r\n"].each do |text|
      assert_raises(Puma::HttpParserError, text) { Puma::HttpParser.new.execute({}, text.dup, 0) }
    end
    assert_raises(Puma::HttpParserError) do
      Puma::HttpParser.new.execute({}, "GET /#{"x" * 20_000} HTTP/1.1\r\n\r\n", 0)
    end
  end

  def test_serves
    serving do |port|
      assert_equal "GET /a 0 7", get(port, "/a", "X-Id: 7").last
      assert_equal "POST /b 5 ", get(port, "/b", "Content-Length: 5", method: "POST", body: "12345").last
      assert_match(/ 500 /, get(port, "/raise").first)
      assert_match(/ 400 /, get(port, "/", "bad header").first)
    end
  end

  def test_serves_many_at_once_while_collecting
    serving do |port|
      threads = Array.new(8) do |t|
        Thread.new do
          Array.new(25) { |i| get(port, i % 10 == 5 ? "/collect" : "/x", "X-Id: #{t}-#{i}").last[/\S+\z/] }
        end
      end
      answers = threads.map(&:value)
      assert_equal(Array.new(8) { |t| Array.new(25) { |i| "#{t}-#{i}" } }, answers)
    end
  end

  def test_serves_in_a_forked_worker
    Process.warmup
    2.times do
      in_child do
        serving do |port|
          50.times { |i| assert_equal "GET /a 0 #{i}", get(port, "/a", "X-Id: #{i}").last }
        end
      end
    end
  end

  def test_serves_while_objects_move
    in_child do
      serving do |port|
        GC.auto_compact = true
        30.times { |i| assert_equal "GET /collect 0 #{i}", get(port, "/collect", "X-Id: #{i}").last }
        move
        assert_equal "GET /a 0 1", get(port, "/a", "X-Id: 1").last
      end
    end
  end

  private

  def serving
    server = Puma::Server.new(APP, nil, log_writer: Puma::LogWriter.null, min_threads: 2, max_threads: 4)
    port = server.add_tcp_listener("127.0.0.1", 0).addr[1]
    server.run
    yield port
  ensure
    server&.stop(true)
  end

  # Sends a request; gives the head and the body of the answer.
  def get(port, path, *headers, method: "GET", body: "")
    Timeout.timeout(30) do
      TCPSocket.open("127.0.0.1", port) do |socket|
        head = ["#{method} #{path} HTTP/1.1", "Host: x", "Connection: close", *headers].join("\r\n")
        socket.write("#{head}\r\n\r\n#{body}")
        socket.read.split("\r\n\r\n", 2)
      end
    end
  end
end

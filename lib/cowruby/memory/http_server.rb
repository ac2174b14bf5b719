# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require "socket"
require_relative "../memory"
require_relative "prometheus"

module CowRuby
  module Memory
    # Answers GET and HEAD of /metrics, and nothing else, over HTTP/1.1. A connection is for one request.
    class HttpServer
      # Bytes and seconds that a request may take, seconds for its answer, and requests that are read at a
      # time: a further one waits.
      REQUEST = 8 * 1024
      SECONDS = 5
      CONNECTIONS = 8
      # Seconds until a connection is accepted again, where the system lacks something for it.
      PAUSE = 1
      REASONS = { 200 => "OK", 400 => "Bad Request", 404 => "Not Found", 405 => "Method Not Allowed",
                  408 => "Request Timeout", 421 => "Misdirected Request", 431 => "Request Header Fields Too Large",
                  500 => "Internal Server Error" }.freeze
      # A request that is not answered by a page.
      Refused = Class.new(StandardError) do
        attr_reader :status

        def initialize(status)
          @status = status
          super()
        end
      end

      # The block gives the text of a page. +any_host+: whatever name the client has for this machine.
      def initialize(host, port, seconds: SECONDS, any_host: false, &page)
        @server = TCPServer.new(host, port)
        @any_host = any_host
        @seconds = seconds
        @page = page
        @places = SizedQueue.new(CONNECTIONS)
        @turn = Mutex.new
      end

      def port
        @server.addr[1]
      end

      # Until the process is interrupted.
      def run
        loop do
          client = accept
          @places << client
          start(client)
        end
      ensure
        @server.close
      end

      private

      def accept
        @server.accept
      rescue Errno::ECONNABORTED, Errno::EPROTO, Errno::EINTR
        retry
      rescue Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM => e
        say(SystemCallError.new(nil, e.errno).message)
        sleep(PAUSE)
        retry
      end

      def start(client)
        Thread.new { serve(client) }
      rescue ThreadError => e
        say(e.message)
        client.close
        @places.pop
      end

      # Not by warn, which -W0 silences.
      def say(message)
        $stderr.puts "cowruby-memory: #{message}"
      rescue SystemCallError
        nil
      end

      # A client that goes away is no fault.
      def serve(client)
        send_all(client, answer(client))
        client.close_write
        # A connection that is closed with something unread is reset, and the answer may be lost.
        client.read_nonblock(REQUEST * 8, exception: false) if client.wait_readable(1)
      rescue SystemCallError, IOError
        nil
      ensure
        client.close
        @places.pop
      end

      # As far as the client takes it.
      def send_all(client, text)
        deadline = Memory.now + @seconds
        until text.empty?
          sent = client.write_nonblock(text, exception: false)
          return if sent == :wait_writable && !client.wait_writable([deadline - Memory.now, 0].max)

          text = text.byteslice(sent..) if sent.is_a?(Integer)
        end
      end

      def answer(client)
        head = read_head(client)
        check(head)
        without_body(head, response(200, page, Prometheus::TYPE))
      rescue Refused => e
        without_body(head, refusal(e.status))
      end

      # For HEAD, which asks for the rest of an answer.
      def without_body(head, text)
        head&.start_with?("HEAD ") ? text[/.*?\r\n\r\n/m] : text
      end

      # One at a time.
      def page
        @turn.synchronize { @page.call }
      rescue StandardError => e
        say(e.message)
        raise Refused, 500
      end

      def refusal(status)
        response(status, "#{REASONS[status]}\n", "text/plain; charset=utf-8",
                 *("Allow: GET, HEAD\r\n" if status == 405))
      end

      def response(status, body, type, *headers)
        "HTTP/1.1 #{status} #{REASONS[status]}\r\nContent-Type: #{type}\r\n" \
          "Content-Length: #{body.bytesize}\r\nConnection: close\r\n#{headers.join}\r\n#{body}"
      end

      # The request line and the headers.
      def read_head(client)
        deadline = Memory.now + @seconds
        head = +""
        until head.match?(/\r?\n\r?\n/)
          raise Refused, 431 if head.bytesize >= REQUEST
          raise Refused, 408 unless client.wait_readable([deadline - Memory.now, 0].max)

          head << client.readpartial(REQUEST - head.bytesize)
        end
        head
      end

      def check(head)
        method, target, version = head.lines.first.split
        raise Refused, 400 unless version&.match?(%r{\AHTTP/1\.[01]\z})
        raise Refused, 405 unless %w[GET HEAD].include?(method)
        raise Refused, 421 unless @any_host || to_this_machine?(head)
        raise Refused, 404 unless target.split("?").first == "/metrics"
      end

      # A site whose name leads to 127.0.0.1 could read the page through a browser here: it asks by its name.
      def to_this_machine?(head)
        host = head[/^host:[ \t]*(.*?)[ \t]*\r?$/i, 1]
        host.nil? || host.match?(/\A(localhost|[\d.]+|\[[\h:.]+\])(:\d+)?\z/i)
      end
    end
  end
end

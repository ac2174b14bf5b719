# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require "socket"
require_relative "../processes/clock"

module CowBench
  # Clients of a server for HTTP, threads of this process. Each plays requests of a list one after the other,
  # every one on a connection of its own as wrk does here (wrk.rb). Slower than wrk, they can keep to a rate,
  # go on while a server is away, and know of every request what became of it.
  class Clients
    NUMBER = 4
    # Seconds in which an answer must have come.
    PATIENCE = 120
    # Seconds of requests that are made up for after a delay; what is later is left out.
    LATE = 1
    # Seconds after which a client that could not connect tries again.
    AGAIN = 0.25
    SESSIONS = 16
    # A request that got no answer, or a bad one: when it was sent and when that was known, and what it was:
    # "refused" (nobody listened), "cut" (the connection ended early), "late", or "status 500".
    Failure = Struct.new(:sent, :known, :kind)
    Cut = Class.new(StandardError)
    Late = Class.new(StandardError)

    attr_reader :sent, :answered, :failures

    # +list+ is a file, +rate+ how many requests a second are sent at most.
    def initialize(port, list, rate: nil, number: NUMBER)
      @port = port
      @requests = File.readlines(list, chomp: true).map { |line| line.split(" ", 3) }
      @pause = rate ? 1.0 / rate : 0
      @number = number
      @sent = @answered = @left_out = @slowest = 0
      @failures = []
      @sessions = []
      @made = []
      @lock = Mutex.new
    end

    def start
      @due = Clock.now
      @threads = Array.new(@number) { Thread.new { ask(*turn) until @ends } }
      self
    end

    # Raises what a client has ended with.
    def check
      @threads.each { |thread| thread.join(0) }
    end

    # Waits for the last answers.
    def stop
      @ends = true
      @threads&.each(&:join)
    end

    # How many requests can be on their way at once.
    def at_once
      @number
    end

    # Asks for all records that were made: each whose making was answered must be there. A hash for JSON, with
    # the seconds of the slowest answer, and how many requests were too late to be made up for.
    def finish
      lost = @made.reject do |path|
        answer_to(text(0, "GET", path, "")).first < 400
      rescue Cut, Late, SystemCallError
        false
      end
      { made: @made.size, lost: lost.size, slowest: @slowest.round(2), left_out: @left_out.round }
    end

    private

    # Waits until it is time for the next request; gives its number and its words.
    def turn
      number, due = @lock.synchronize do
        due = [@due, Clock.now - LATE].max
        @left_out += (due - @due) / @pause if @pause.positive?
        @due = due
        @due += @pause
        [(@sent += 1) - 1, due]
      end
      pause = due - Clock.now
      sleep pause if pause.positive?
      [number, *@requests[number % @requests.size]]
    end

    def ask(number, method, path, body = "")
      began = Clock.now
      status, cookie, record = answer_to(text(number, method, path, body))
      @lock.synchronize do
        @answered += 1
        @slowest = [@slowest, Clock.now - began].max
        @made << record if method == "POST" && record
        @sessions[number % SESSIONS] = cookie if cookie
        failed(began, "status #{status}") if status >= 400
      end
    rescue Errno::ECONNREFUSED
      not_answered(began, "refused")
      sleep AGAIN
    rescue Cut, SystemCallError
      not_answered(began, "cut")
    rescue Late
      not_answered(began, "late")
    end

    def not_answered(began, kind)
      @lock.synchronize { failed(began, kind) }
    end

    def failed(began, kind)
      @failures << Failure.new(began, Clock.now, kind)
    end

    def text(number, method, path, body)
      head = ["#{method} #{path} HTTP/1.1", "Host: 127.0.0.1:#{@port}", "Connection: close"]
      cookie = @sessions[number % SESSIONS]
      head << "Cookie: #{cookie}" if cookie
      unless body.empty?
        head << "Content-Type: application/x-www-form-urlencoded" << "Content-Length: #{body.bytesize}"
      end
      "#{head.join("\r\n")}\r\n\r\n#{body}"
    end

    # Where a record is that was made or changed: with its number.
    RECORD = %r{^location: \S*?(/\w+/\d+)\r?$}i

    # Status, cookie, and the path of a record. Raises Cut unless all of it has come.
    def answer_to(text)
      head, body = read(text).split("\r\n\r\n", 2)
      raise Cut unless body && whole?(head, body)

      [Integer(head[/\AHTTP\S+ (\d+)/, 1] || raise(Cut)), head[/^set-cookie: ([^;\r]*)/i, 1],
       head[RECORD, 1]]
    end

    def whole?(head, body)
      length = head[/^content-length: (\d+)/i, 1]
      return body.bytesize >= Integer(length) if length

      !head.match?(/^transfer-encoding: chunked/i) || body.end_with?("0\r\n\r\n")
    end

    # All that comes until the server closes the connection.
    def read(text)
      deadline = Clock.now + PATIENCE
      socket = TCPSocket.new("127.0.0.1", @port, connect_timeout: PATIENCE)
      socket.write(text)
      answer = "".b
      while socket.wait_readable([deadline - Clock.now, 0].max)
        part = socket.read_nonblock(1 << 16, exception: false)
        return answer unless part

        answer << part unless part == :wait_readable
      end
      raise Late
    rescue Errno::ETIMEDOUT
      raise Late
    ensure
      socket&.close
    end
  end
end

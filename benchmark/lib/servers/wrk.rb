# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require "json"
require "open3"
require_relative "../processes/supervised"

module CowBench
  # Drives a server with wrk: a fixed part of a fixed list of requests.
  class Wrk
    Failed = Class.new(StandardError)
    SCRIPT = File.expand_path("../../servers/requests.lua", __dir__)
    # As many as there are workers: no request waits in a queue.
    CONNECTIONS = 4
    # Seconds, a bound only.
    LONGEST = 900
    # It ends with us, even if we are killed: it would keep a processor busy until LONGEST.
    ENDS_WITH_US = %w[setpriv --pdeathsig KILL].freeze

    # What one part of the list gave.
    Result = Struct.new(:requests, :errors, :seconds, :p50, :p99, :bytes, :complaint, keyword_init: true) do
      def rate
        requests / seconds
      end
    end

    def self.missing
      Open3.capture2e("wrk", "-v")
      nil
    rescue Errno::ENOENT
      "wrk is not installed (Debian package wrk)"
    end

    # Plays +count+ requests from the +first+ on. Yields when the first of them was answered.
    def self.play(port, list, first, count, connections: CONNECTIONS, &under_load)
      pipes = Array.new(2) { IO.pipe }
      (output, errors), ends = pipes.transpose
      wrk = Supervised.new(*command(port, list, first, count, connections),
                           in: File::NULL, out: ends[0], err: ends[1])
      ends.each(&:close)
      last = follow(wrk, errors, under_load)
      text = output.read
      line = text[/^\{"answered".*\}$/]
      raise Failed, "wrk: #{[last, *errors, *text.lines].compact.last&.chomp || wrk.wait(1)}" unless line

      parse(line, count)
    ensure
      wrk&.kill
      pipes.flatten.each(&:close)
    end

    def self.command(port, list, first, count, connections)
      [*ENDS_WITH_US, "wrk", "--threads", "1", "--connections", connections.to_s, "--duration", "#{LONGEST}s",
       "--timeout", "30s",
       "--script", SCRIPT, "http://127.0.0.1:#{port}", "--", list, first.to_s, count.to_s]
    end

    # What the script says: "begun", then "answered" at the end of the list, when wrk sleeps until it is
    # interrupted. Gives any other line, which is an error, or nil.
    def self.follow(wrk, errors, under_load)
      while (line = errors.gets)
        case line
        when "begun\n" then under_load&.call
        when "answered\n" then interrupt(wrk, errors)
        else return line
        end
      end
    end

    # A signal that comes before wrk sleeps does not end its sleep, so it is sent until wrk ends.
    def self.interrupt(wrk, errors)
      loop do
        wrk.signal(:INT)
        break if errors.wait_readable(0.2)
      end
    end
    private_class_method :command, :follow, :interrupt

    def self.parse(line, count)
      found = JSON.parse(line)
      # An answer that did not come is an error too.
      kinds = found.slice("failed", "connect", "read", "write", "timeout")
                   .merge("missing" => [count - found["answered"], 0].max)
      found_kinds = kinds.reject { |_, number| number.zero? }
      complaint = found_kinds.map { |kind, number| "#{number} #{kind}" }.join(", ")
      complaint += ", status #{found["status"]}" unless found["status"].empty?
      Result.new(requests: found["answered"], errors: kinds.values.sum, seconds: found["microseconds"] / 1e6,
                 p50: found["p50"], p99: found["p99"], bytes: found["bytes"], complaint: complaint)
    end
  end
end

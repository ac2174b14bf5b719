# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require "json"
require "open3"
require_relative "../processes/supervised"
require_relative "latencies"

module CowBench
  # Drives a server with wrk: a fixed part of a fixed list of requests.
  class Wrk
    Failed = Class.new(StandardError)
    SCRIPT = File.expand_path("../../servers/requests.lua", __dir__)
    # As many as there are workers: no request waits in a queue.
    CONNECTIONS = 4
    # Seconds, a bound only.
    LONGEST = 900
    # Seconds in which an answer must have come.
    PATIENCE = 30
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
      # What wrk prints at its end does not fit into a pipe.
      printed = Thread.new { output.read }
      last = follow(wrk, errors, under_load)
      text = printed.value
      line = text[/^\{"answered".*\}$/]
      raise Failed, "wrk: #{[last, *errors, *text.lines].compact.last&.chomp || wrk.wait(1)}" unless line

      parse(line, count, connections)
    ensure
      wrk&.kill
      printed&.join
      pipes.flatten.each(&:close)
    end

    def self.command(port, list, first, count, connections)
      [*ENDS_WITH_US, "wrk", "--threads", "1", "--connections", connections.to_s, "--duration", "#{LONGEST}s",
       "--timeout", "#{PATIENCE}s", "--script", SCRIPT, "http://127.0.0.1:#{port}", "--", list, first.to_s,
       count.to_s]
    end

    # What the script says: "begun", then "answered" at the end of the list, when wrk sleeps until it is
    # interrupted, and "done". Gives any other line, which is an error, or nil.
    def self.follow(wrk, errors, under_load)
      while (line = errors.gets)
        case line
        when "begun\n" then under_load&.call
        when "answered\n" then interrupt(wrk, errors)
        when "done\n" then next
        else return line
        end
      end
    end

    # A signal that comes before wrk sleeps does not end its sleep, so it is sent until wrk says that it did.
    def self.interrupt(wrk, errors)
      loop do
        wrk.signal(:INT)
        break if errors.wait_readable(0.2)
      end
    end
    private_class_method :command, :follow, :interrupt

    def self.parse(line, count, connections)
      found = JSON.parse(line)
      # An answer that did not come is an error too.
      kinds = found.slice("failed", "connect", "read", "write", "timeout")
                   .merge("missing" => [count - found["answered"], 0].max)
      found_kinds = kinds.reject { |_, number| number.zero? }
      complaint = found_kinds.map { |kind, number| "#{number} #{kind}" }.join(", ")
      complaint += ", status #{found["status"]}" unless found["status"].empty?
      p50, p99 = percentiles(found, connections)
      Result.new(requests: found["answered"], errors: kinds.values.sum, seconds: found["microseconds"] / 1e6,
                 p50: p50, p99: p99, bytes: found["bytes"], complaint: complaint)
    end

    # Of all answers, in milliseconds. wrk takes each answer's time down, or counts it as a timeout: such a
    # one has here what it took at least. Raises Failed where the times are not as many as the answers.
    def self.percentiles(found, connections)
      complete, timeouts, microseconds = found.values_at("complete", "timeout", "microseconds")
      counts = found["latencies"].each_slice(2).to_h
      latencies = Latencies.restored(counts, microseconds, complete, connections)
      taken = latencies.values.sum
      if latencies.values.any?(&:negative?) || taken + timeouts != complete
        raise Failed, "wrk: #{complete} answers and #{timeouts} timeouts, but #{taken} times without those " \
                      "that wrk adds: no percentile can be told"
      end

      latencies[PATIENCE * 1_000_000] = timeouts if timeouts.positive?
      [50, 99].map { |percent| Latencies.percentile(latencies, percent)&.fdiv(1_000) }
    end
    private_class_method :percentiles
  end
end

# frozen_string_literal: true

require "json"
require "open3"
require_relative "clock"

# Drives a server with wrk: a fixed part of a fixed list of requests.
class Wrk
  Failed = Class.new(StandardError)
  SCRIPT = File.expand_path("../servers/requests.lua", __dir__)
  # As many as there are workers: nobody waits in a queue.
  CONNECTIONS = 4
  # Seconds, a bound only.
  LONGEST = 900

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

  # Plays +count+ requests from the +first+ on.
  def self.play(port, list, first, count)
    command = ["wrk", "--threads", "1", "--connections", CONNECTIONS.to_s, "--duration", "#{LONGEST}s", "--timeout", "30s", "--script", SCRIPT,
               "http://127.0.0.1:#{port}", "--", list, first.to_s, count.to_s]
    Open3.popen3(*command, pgroup: true) do |input, output, errors, wrk|
      input.close
      # Its end, or the end of the list: wrk sleeps until it is interrupted.
      word = errors.gets
      Process.kill(:INT, wrk.pid) if word == "answered\n"
      text = output.read
      line = text[/^\{"answered".*\}$/] or raise Failed, "wrk: #{[word, *errors, *text.lines].compact.last&.chomp || wrk.value}"
      parse(line, count)
    ensure
      kill(wrk)
    end
  end

  def self.kill(wrk)
    Process.kill(:KILL, wrk.pid) if wrk.alive?
  rescue Errno::ESRCH
    nil
  end

  def self.parse(line, count)
    found = JSON.parse(line)
    # An answer that did not come is an error too.
    kinds = found.slice("failed", "connect", "read", "write", "timeout").merge("missing" => [count - found["answered"], 0].max)
    complaint = kinds.reject { |_, number| number.zero? }.map { |kind, number| "#{number} #{kind}" }.join(", ")
    complaint += ", status #{found["status"]}" unless found["status"].empty?
    Result.new(requests: found["answered"], errors: kinds.values.sum, seconds: found["microseconds"] / 1e6, p50: found["p50"],
               p99: found["p99"], bytes: found["bytes"], complaint: complaint)
  end
end

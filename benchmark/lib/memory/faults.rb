# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require "open3"
require_relative "../processes/supervised"
require_relative "address_space"

module CowBench
  # Records the page faults of a process with perf. After a fork the inherited
  # anonymous pages are mapped for reading, so the first fault on one is its
  # first write.
  class Faults
    Impossible = Class.new(StandardError)
    PARANOID = "/proc/sys/kernel/perf_event_paranoid"
    LINE = /^\s*(?<address>\h+)(?: \S.*?)?\s+\h+ (?<function>\S.*?)(?: \((?<object>[^()]*)\))?$/

    # Raises Impossible, with the reason in one line, where perf cannot be used.
    def self.check
      Open3.capture2e("perf", "--version")
      level = File.read(PARANOID).to_i
      return if Process.euid.zero? || level <= 2

      raise Impossible, "kernel.perf_event_paranoid is #{level}: run as root, or lower it with " \
                        "sysctl kernel.perf_event_paranoid=2"
    rescue Errno::ENOENT
      raise Impossible, "perf is not installed (Debian package linux-perf)"
    end

    # Returns when perf watches +pid+.
    def initialize(pid, file)
      Faults.check
      control, @orders = IO.pipe
      @answers, answers = IO.pipe
      @log, log = IO.pipe
      @perf = Supervised.new("perf", "record", "--quiet", "--event", "page-faults:u", "--count", "1",
                             "--data", "--pid", pid.to_s, "--delay", "-1", "--control", "fd:3,4",
                             "--output", file, 3 => control, 4 => answers, in: File::NULL, out: log, err: log)
      [control, answers, log].each(&:close)
      order("enable")
    rescue StandardError, Interrupt
      @perf&.kill
      raise
    end

    # Seconds that perf may take to write its file.
    WRITING = 300

    # Ends the record, if it goes on, and waits until its file is written.
    def finish
      return if @perf.ended?

      order("stop") unless ended?(0)
      @perf.wait(WRITING)
    ensure
      @perf.kill
    end

    # Whether the recorded process ended by itself within +seconds+.
    def ended?(seconds)
      !@answers.wait_readable(seconds).nil?
    end

    # { address of a page => function that faulted on it first }. A function that has no name is told by its
    # library; machine code that was made while the process ran is "[unknown]".
    def self.first_writers(file)
      script, errors, status = Open3.capture3("perf", "script", "--input", file, "--fields",
                                              "addr,ip,sym,dso")
      raise Impossible, "perf script: #{errors.lines.first&.chomp || status}" unless status.success?

      parse(script)
    end

    def self.parse(script)
      script.each_line.with_object({}) do |line, writers|
        found = LINE.match(line) or next
        writers[found[:address].to_i(16) & -AddressSpace::PAGE] ||= function(found[:function], found[:object])
      end
    end

    def self.function(name, object)
      name == "[unknown]" && object.to_s.match?(%r{\A/[^/]}) ? "a function of #{File.basename(object)}" : name
    end
    private_class_method :function

    private

    # An answer ends with a zero byte: nothing of it may stay behind, or it
    # would be taken for the end of the pipe.
    def order(word)
      @orders.syswrite("#{word}\n")
      @answers.readpartial(64)
    rescue Errno::EPIPE, EOFError
      raise Impossible, "perf record: #{@log.read.lines.map(&:strip).reject(&:empty?).first || "ended early"}"
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "io/wait"
require "json"
require "tmpdir"
require_relative "../memory/memory"
require_relative "../processes/supervised"

module CowBench
  # A program of workloads/ while it runs: it stops at points, where its processes are looked at.
  class Measured
    Failed = Class.new(StandardError)
    # Seconds from the last word of a program to its end.
    LAST_WAIT = 10
    WORKLOADS = File.expand_path("../../workloads", __dir__)
    # Files of programs are kept in memory where there is plenty: on a disk's file system what a
    # program writes slows down the next one (benchmark/gc/rdoc, by a quarter).
    MEMORY = "/dev/shm"
    PLENTY = 4 * 1024 * 1024 # KB

    # One look at the process tree: the first process, and the others.
    # +seconds+ is when, counted from the start.
    Look = Struct.new(:seconds, :parent, :workers, keyword_init: true) do
      def mean(field)
        workers.sum { |worker| worker[field] }.fdiv(workers.size)
      end

      def sum(field, of: [parent, *workers])
        of.sum { |process| process[field] }
      end
    end

    # +ended+: when the program had ended, by Clock; +wall+: seconds from its start to then.
    attr_reader :looks, :result, :wall, :ended

    def pid
      @program.pid
    end

    # The highest resident size of the first process, at the last look.
    def peak
      @looks.values.last.parent["peak"]
    end

    # Runs a workload to its end and gives it back. At every point the program
    # stops at, the tree is sampled, then the block (if any) is called.
    def self.run(build, workload, *arguments, timeout: 600)
      measured = new(build, workload, arguments, timeout)
      measured.follow { |point| yield measured, point if block_given? }
      measured
    ensure
      measured&.stop
    end

    def initialize(build, workload, arguments, timeout)
      @name = "#{workload} on #{build.name}"
      @deadline = Clock.now + timeout
      @timeout = timeout
      @looks = {}
      @result = {}
      @buffer = +""
      @directory = Dir.mktmpdir("benchmark", place)
      @log = File.join(@directory, "stderr")
      input, @orders = IO.pipe
      @events, output = IO.pipe
      @started = Clock.now
      program = [build.path, File.expand_path("#{workload}.rb", WORKLOADS), *arguments.map(&:to_s)]
      @program = Supervised.new(*program, environment: build.environment.merge("TMPDIR" => @directory),
                                in: input, out: output, err: @log, chdir: @directory)
    ensure
      input&.close
      output&.close
    end

    def follow
      while (line = next_line)
        kind, rest = line.chomp.split(" ", 2)
        case kind
        when "at"
          @looks[rest] = look
          yield rest
          answer
        when "is" then @result.update(JSON.parse(rest))
        else raise Failed, "#{@name}: not understood: #{line.inspect}"
        end
      end
      status = @program.wait([@deadline - Clock.now, LAST_WAIT].max)
      @ended = Clock.now
      @wall = @ended - @started
      raise Failed, "#{@name}: ended with #{status || "no status"}: #{complaint}" unless status&.success?
    end

    # Stops what is left.
    def stop
      @program.kill
      [@orders, @events].each(&:close)
      FileUtils.remove_entry(@directory)
    end

    private

    # nil: as usual.
    def place
      MEMORY if File.writable?(MEMORY) && Memory.available > PLENTY
    end

    def look
      seconds = Clock.now - @started
      parent, *workers = ProcessTable.tree(pid).map do |process|
        Memory.sample(process).merge("pid" => process)
      end
      parent["peak"] = Memory.peak(pid)
      Look.new(seconds: seconds, parent: parent, workers: workers)
    rescue Errno::ENOENT, Errno::ESRCH
      raise Failed, "#{@name}: a process ended early: #{complaint}"
    end

    def answer
      @orders.syswrite("go\n")
    rescue Errno::EPIPE
      raise Failed, "#{@name}: ended early: #{complaint}"
    end

    def next_line
      until (line = @buffer.slice!(/\A.*\n/))
        rest = @deadline - Clock.now
        raise Failed, "#{@name}: no end after #{@timeout} s" if rest <= 0 || !@events.wait_readable(rest)

        @buffer << @events.readpartial(1 << 16)
      end
      line
    rescue EOFError
      nil
    end

    # What it said last, or first of an error.
    def complaint
      lines = File.read(@log).lines.map(&:strip).reject(&:empty?)
      (lines.grep(/Error\)|error:/i).first(1) + lines.last(1)).uniq.join(" | ")
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require "socket"

module CowBench
  # The queue that job workers take their work from: a TCP server in the
  # observer, the same for all builds. A worker says "next" and gets a job, one
  # line of JSON, or "none"; "done ID SUM" is its answer.
  class JobQueue
    KINDS = %w[mail report import].freeze
    # Jobs that differ; they come again and again.
    DIFFERENT = 200
    # Rows of a job, some 100 bytes each: most jobs are small, some are large.
    MOST_ROWS = 512

    def initialize(jobs, wait: 0)
      @left = jobs
      @wait = wait
      random = Random.new(1)
      @jobs = Array.new(DIFFERENT) { |id| job(id, random) }
      @done = Hash.new(0)
      @wrong = []
      @lock = Mutex.new
      @listener = TCPServer.new("127.0.0.1", 0)
      @clients = []
      @thread = Thread.new { loop { serve(@listener.accept) } }
      @thread.report_on_exception = false
    end

    def port
      @listener.local_address.ip_port
    end

    # How many jobs came back, and the first answer that was wrong.
    def done
      @lock.synchronize { @done.values.sum }
    end

    def wrong
      @lock.synchronize { @wrong.first }
    end

    def close
      [@thread, *@clients].each(&:kill).each(&:join)
      @listener.close
    end

    private

    def job(id, random)
      rows = Array.new((MOST_ROWS**random.rand).round) do |row|
        { "sku" => "item-#{random.rand(20_000)}", "amount" => random.rand(1_000),
          "note" => "row #{row} of job #{id} " * (1 + random.rand(3)) }
      end
      text = JSON.generate("id" => id, "kind" => KINDS[id % KINDS.size], "rows" => rows)
      [text, rows.sum { |row| row["amount"] }]
    end

    def serve(client)
      thread = Thread.new do
        while (line = client.gets)
          client.write(answer(line.chomp))
        end
      rescue Errno::ECONNRESET, Errno::EPIPE
        nil # a worker that was stopped
      ensure
        client.close
      end
      @clients << thread
    end

    def answer(line)
      return take if line == "next"

      id, sum = line[/\Adone (.*)/, 1]&.split&.map(&:to_i)
      @lock.synchronize do
        @done[id] += 1
        @wrong << line unless sum && @jobs[id]&.last == sum
      end
      "ok\n"
    end

    # The wait is in place of the network and of what else a job waits for.
    def take
      sleep(@wait) if @wait.positive?
      number = @lock.synchronize { @left -= 1 }
      number.negative? ? "none\n" : "#{@jobs[number % DIFFERENT].first}\n"
    end
  end
end

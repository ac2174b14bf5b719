# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Programs whose allocations are recorded (record). Each does the same steps in each run. From step REPEATS on
# it can be played again and again: a program that is played on drops what it has beyond what it had then.
module Recorded
  WORDS = %w[river valley harbour bridge market tower garden station island forest meadow temple].freeze

  # A worker of a server: it loads records, then it answers requests. It puts one of five pages into a cache,
  # which drops the oldest.
  class Server
    SUMMARY = "loads records, then answers requests and keeps some pages in a cache"
    STEPS = 140
    BOOT = 15
    REPEATS = 80
    RECORDS = 4_000 # a step, while it loads
    REQUESTS = 300  # a step
    CACHED = 3_000

    def initialize
      @random = Random.new(1)
      @records = []
      @cache = {}
    end

    def step(number)
      number < BOOT ? load_records : REQUESTS.times { answer }
    end

    private

    def load_records
      RECORDS.times do
        id = @records.size
        @records << { id: id, name: "#{WORDS[id % WORDS.size]} #{id}", text: WORDS.rotate(id).join(", ") }
      end
    end

    def answer
      rows = Array.new(12) { row(@records[@random.rand(@records.size)]) }
      page = "<table>#{rows.join("\n")}</table>"
      return page.size unless @random.rand(5).zero?

      @cache.shift if @cache.size >= CACHED
      @cache[@random.bytes(8)] = page
    end

    def row(record)
      cells = record.values.map { |value| "<td>#{value.to_s.gsub("a", "&#97;")}</td>" }
      "<tr>#{cells.join}</tr>"
    end
  end

  # Builds up many strings, works with them, drops them, and works on; again and again.
  class Waves
    SUMMARY = "builds up strings, works with them, drops them and works on, five times"
    REPEATS = 0
    SIZES = [200_000, 320_000, 120_000, 400_000, 250_000].freeze
    BUILDING = 8
    WITH = 6
    WITHOUT = 10
    STEPS = SIZES.size * (BUILDING + WITH + WITHOUT)

    def initialize
      @strings = []
    end

    def step(number)
      wave, part = number.divmod(BUILDING + WITH + WITHOUT)
      if part < BUILDING then build(SIZES[wave] / BUILDING)
      else
        @strings.clear if part == BUILDING + WITH
        work
      end
    end

    private

    def build(number)
      number.times { |i| @strings << "#{WORDS[i % WORDS.size]} #{i} of #{number}, as it was built up" }
    end

    def work
      30_000.times { |i| "request #{i}".upcase }
    end
  end

  # Reads lines, and keeps for each name what it has found: it grows until it ends.
  class Batch
    SUMMARY = "reads lines and keeps more and more of them until it ends"
    STEPS = 110
    REPEATS = 0
    LINES = 3_000 # a step

    def initialize
      @random = Random.new(1)
      @found = Hash.new { |hash, name| hash[name] = [] }
    end

    def step(number)
      LINES.times do |i|
        word = "#{WORDS[@random.rand(WORDS.size)]}-#{@random.rand(20_000)}"
        line = "#{word};#{number};#{i};#{@random.rand(1e6)}"
        name, *figures = line.split(";")
        next if i.even?

        @found[name] << figures.map(&:to_i).sum.to_s.rjust(60, "0")
      end
    end
  end

  ALL = { "server" => Server, "waves" => Waves, "batch" => Batch }.freeze
end

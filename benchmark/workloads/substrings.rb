# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Programs that take parts of strings: those of the fourth seed, and what parsers do. Each keeps what it says
# or drops it at once.
require_relative "workload"

name, times = ARGV[0], Integer(ARGV[1])
KB = 1024
MB = 1024 * 1024

# Of its own bytes, with no more room.
def letters(size) = "".ljust(size, "0123456789abcdefghijklmnopqrstuvwxyz")

def in_parts(times)
  times.times { |i| yield i }
  nil
end

# Resident memory that this process has for itself alone, KB.
def private_memory
  File.read("/proc/self/smaps_rollup")[/^Private_Dirty:\s+(\d+)/, 1].to_i
end

PROGRAMS = {
  "dup" => lambda { |n|
    data = letters(10 * MB)
    -> { Array.new(n) { data.dup } }
  },
  "dup and change" => lambda { |n|
    data = letters(10 * MB)
    -> { Array.new(n) { data.dup.tap { |copy| copy[0] = "a" } } }
  },
  "first 1 MB of 10" => lambda { |n|
    data = letters(10 * MB)
    -> { Array.new(n) { data[0, MB] } }
  },
  "last 1 MB of 10" => lambda { |n|
    data = letters(10 * MB)
    -> { Array.new(n) { data[-MB, MB] } }
  },
  "5 KB of 50, dropped" => lambda { |n|
    data = ("aaa".."zzz").to_a.join
    -> { in_parts(n) { data[1_000, 5_000] } }
  },
  "100 bytes of 50 KB, dropped" => lambda { |n|
    data = ("aaa".."zzz").to_a.join
    -> { in_parts(n) { data[1_000, 100] } }
  },
  "append 100 bytes, slice 5 KB" => lambda { |n|
    part = letters(100)
    lambda {
      data = +""
      in_parts(n) do
        data << part
        data[data.size / 2, 5_000]
        data = +"" if data.size > MB
      end
    }
  },
  "1 KB of 1 MB each, kept" => lambda { |n|
    -> { Array.new(n) { |i| letters(MB)[i, KB] } }
  },
  "100 KB each of inherited 20 MB, kept" => lambda { |n|
    data = letters(20 * MB).freeze
    # Enough for a seal (gc/seal_policy.h).
    objects = Array.new(80_000) { Object.new }
    -> { [Array.new(n) { |i| data[i * 100_000, 100_000] }, objects] }
  },
  "lines of 80 bytes, kept" => lambda { |n|
    text = "#{letters(79)}\n" * n
    -> { text.each_line.to_a }
  },
  "lines of 4 KB, kept" => lambda { |n|
    text = "#{letters(4 * KB - 1)}\n" * n
    -> { text.each_line.to_a }
  },
  "HTTP head and 64 KB body" => lambda { |n|
    message = "POST / HTTP/1.1\r\n#{"X-Field: #{letters(40)}\r\n" * 20}\r\n#{letters(64 * KB)}\r\n"
    lambda {
      in_parts(n) do
        head_end = message.index("\r\n\r\n")
        fields = message[0, head_end].split("\r\n").drop(1).to_h { |line| line.split(": ", 2) }
        body = message[head_end + 4...-2]
        raise "the head was not read" unless fields["X-Field"] && body.size == 64 * KB
      end
    }
  },
  "CSV, 10 fields" => lambda { |n|
    line = Array.new(10) { |i| "field #{i}" }.join(",")
    text = "#{line}\n" * n
    -> { text.each_line(chomp: true).map { |record| record.split(",") } }
  },
  "frames of 16 KB" => lambda { |n|
    frame = [16 * KB].pack("N") + letters(16 * KB)
    data = (frame * 32).freeze
    lambda {
      in_parts(n) do
        at = 0
        while at < data.bytesize
          size = data.byteslice(at, 4).unpack1("N")
          payload = data.byteslice(at + 4, size)
          raise "a frame was not read" unless payload.bytesize == size

          at += 4 + size
        end
      end
    }
  }
}.freeze

program = PROGRAMS.fetch(name).call(times)
run = lambda do
  GC.start
  before = private_memory
  begun = Workload.now
  kept = program.call
  seconds = Workload.now - begun
  # What is kept counts, not garbage.
  GC.start
  Workload.result(seconds: seconds, kb: private_memory - before, kept: kept&.size)
end
name.include?("inherited") ? Workload.child(&run) : run.call

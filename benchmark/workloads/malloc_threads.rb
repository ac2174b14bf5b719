# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# One process of many threads that fetch data of random sizes, work on it, keep some of it for a while and
# drop the rest. One request in a hundred is a report on many rows. The minutes are simulated: in each, every
# thread makes a number of requests.
require_relative "workload"
require "objspace"

class Client
  KEPT = 60

  def initialize(number, shared)
    @random = Random.new(number)
    @network = File.open("/dev/zero", "rb")
    @shared = shared
    @kept = Array.new(KEPT)
    @served = 0
  end

  # As the network: waits without the GVL, and gives chunks of 200 bytes to 60 KB, small ones more often.
  def fetch
    sleep(@random.rand * 0.002)
    Array.new(1 + @random.rand(6)) { @network.readpartial((200 * 300**@random.rand).to_i) }
  end

  def report
    rows = Array.new(5_000 + @random.rand(10_000)) { |i| "row #{i}".ljust(300 + @random.rand(1_500)) }
    sleep(@random.rand * 0.002)
    @kept[@random.rand(KEPT)] = [rows.sample(30, random: @random)]
  end

  def request
    @served += 1
    return report if @random.rand(100).zero?

    body = fetch.join
    rows = body.unpack("a#{50 + @random.rand(400)}" * 20).map.with_index do |text, i|
      { "id" => i, "text" => text, "note" => "row #{i} of request #{@served} " * (1 + @random.rand(8)) }
    end
    answer = rows.map { |row| row.map { |key, value| "#{key}=#{value}" }.join("&") }.join("\n")
    @kept[@random.rand(KEPT)] = [answer, rows.sample(3, random: @random)]
    @shared[@random.rand(2_000)] = answer.byteslice(0, 100 + @random.rand(3_000))
  end
end

minutes, threads, requests = ARGV.map(&:to_i)
shared = {}
orders = Array.new(threads) { Queue.new }
done = Queue.new
crew = Array.new(threads) do |number|
  Thread.new do
    client = Client.new(number, shared)
    while orders[number].pop
      requests.times { client.request }
      done << true
    end
  end
end

seconds = 0.0
minutes.times do |minute|
  started = Workload.now
  orders.each { |queue| queue << true }
  threads.times { done.pop }
  seconds += Workload.now - started
  Workload.at(Workload.point("after #{minute + 1} minutes"))
end
stat = GC.stat
live = ObjectSpace.memsize_of_all
orders.each(&:close)
crew.each(&:join)
Workload.result(requests: minutes * threads * requests, seconds: seconds, live_slots: stat[:heap_live_slots],
                slots: stat[:heap_available_slots], pages: stat[:heap_allocated_pages],
                empty_pages: stat[:heap_empty_pages], live_bytes: live)

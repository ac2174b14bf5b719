# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "socket"

module CowBench
  class Skk < Benchmark
    SUMMARY = "a SKK server as in the bitmap marking paper: 5 processes share a dictionary of 120,000 " \
              "postal codes, 10 clients look up"
    SYNTHETIC = false
    metric :gc, "longest collection", "ms", :less, 0
    metric :collections, "collections while serving, all processes", "count", :less, 0
    metric :total, "total memory of the 5 processes (sum of Pss)", "MB", :less, 1
    metric :private, "private dirty memory of the 5 processes", "MB", :less, 1
    metric :shared, "shared memory, summed over the 5 processes", "MB", :more, 1
    metric :answer, "mean time to an answer", "µs", :less, 0
    DICTIONARY = "/usr/share/skk/SKK-JISYO.zipcode"
    WORKERS = 5
    CLIENTS = 10

    def ready
      return if File.readable?(dictionary)

      raise Skip, "no dictionary #{dictionary}: install Debian's package skkdic-extra, or give --dictionary"
    end

    def cases
      (quick? ? [200] : [200, 10_000]).product([0, 1]).map do |number, times|
        Case.new(label: "#{number} look-ups, #{warmups(times)}", arguments: [number, times], needs: 500)
      end
    end

    def measure(build, kase)
      number, times = kase.arguments
      seconds = nil
      measured = Measured.run(build, "skk", dictionary, times, WORKERS) do |server, point|
        seconds = answers(server.result["port"], number) if point == "serving"
      end
      collections = measured.result["served"].sum { |log| log["collections"] }
      values = memory(kase.label, measured.looks).merge(gc: {}, collections: collections,
                                                        answer: seconds.sum.fdiv(seconds.size) * 1_000_000)
      { "served" => "longest while serving", "collected" => "one full GC" }.each do |part, name|
        %w[time marking_time sweeping_time].zip(["", ", mark", ", sweep"]) do |key, suffix|
          longest = measured.result[part].filter_map { |worker| worker[key] }.max
          values[:gc]["#{kase.label}, #{name}#{suffix}"] = longest
        end
      end
      Outcome.new(values: values, raw: raw(measured))
    end

    private

    def dictionary
      options.dictionary || DICTIONARY
    end

    def memory(label, looks)
      values = { total: {}, private: {}, shared: {} }
      { "served" => "after the look-ups", "collected" => "after a full GC" }.each do |point, name|
        look = looks[point]
        values[:total]["#{label}, #{name}"] = mb(look.sum("Pss", of: look.workers))
        values[:private]["#{label}, #{name}"] = mb(look.sum("Private_Dirty", of: look.workers))
        shared = %w[Shared_Clean Shared_Dirty].sum { |field| look.sum(field, of: look.workers) }
        values[:shared]["#{label}, #{name}"] = mb(shared)
      end
      values
    end

    # The seconds of each look-up. The clients are threads of the observer, the
    # same for all builds.
    def answers(port, number)
      sockets = connect(port)
      clients = sockets.each_with_index.map { |socket, i| Thread.new { ask(socket, number, Random.new(i)) } }
      clients.each { |client| client.report_on_exception = false }
      clients.flat_map(&:value)
    rescue SystemCallError => e
      raise Measured::Failed, "skk: #{e.message}"
    ensure
      clients&.each(&:kill)
      sockets&.each(&:close)
    end

    # As the processes race for a connection, one might get many clients: those
    # too many try again, so that all builds are measured with the same share.
    def connect(port)
      taken = Hash.new { |hash, worker| hash[worker] = [] }
      1_000.times do
        socket = TCPSocket.new("127.0.0.1", port)
        socket.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, true)
        socket.write("3\n")
        worker = socket.gets
        taken[worker].size < CLIENTS / WORKERS ? taken[worker] << socket : socket.close
        return taken.values.flatten if taken.values.sum(&:size) == CLIENTS
      end
      raise Measured::Failed, "skk: some of the #{WORKERS} processes take no clients"
    end

    def ask(socket, number, random)
      Array.new(number) do
        code = codes[random.rand(codes.size)]
        started = Clock.now
        socket.write("1#{code} \n")
        answer = socket.gets
        seconds = Clock.now - started
        raise Measured::Failed, "skk: #{code} was answered #{answer.inspect}" unless answer&.start_with?("1/")

        seconds
      end
    end

    def codes
      @codes ||= File.binread(dictionary).scan(/^(\d+) /n).flatten
    end
  end
end

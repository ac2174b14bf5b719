# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../measure/table"
require_relative "../measure/writers_table"
require_relative "../memory/faults"
require_relative "../memory/lost_pages"
require_relative "../processes/supervised"
require_relative "app"

module CowBench
  # What YJIT holds in a master and a worker that serve requests of the Rails application, by structure, and
  # what the worker shares, has lost and has for itself, by kind of page.
  class YJITMap
    Failed = Class.new(StandardError)
    WORKLOAD = File.expand_path("../../workloads/yjit_requests.rb", __dir__)
    # Seconds that a stop may take to come.
    PATIENCE = 600
    STATS = %w[compiled_iseq_count compiled_block_count compiled_branch_count invalidation_count].freeze
    CODE = %w[inline_code outlined_code mapped_code].freeze
    # The kinds of pages whose writers are told.
    WRITTEN = ["YJIT data", "JIT code", "VM words"].freeze

    # Why nobody knows who wrote first, in one line; nil: it was recorded.
    attr_reader :no_faults

    # +build+: an installed ruby. +place+: where the application and gems are, or will be.
    def initialize(build, place, rehearsed, stops)
      @app = App.new("rails", place)
      @app.prepare(build)
      @build = build
      @last = stops.last
      # Before its first request the worker waits until its page faults are recorded.
      @arguments = [rehearsed, 0, *stops].map(&:to_s)
      @lost = [] # of each stop: its name, who wrote lost pages first, and who wrote own ones
    end

    # Runs it to its end; gives the tables.
    def tables
      stops = []
      Dir.mktmpdir("yjit") do |directory|
        record = File.join(directory, "perf.data")
        follow(directory) { |stop, master| look(stop, master, record) && stops << stop }
      ensure
        @faults&.finish
      end
      of_worker = stops.select { |stop| stop["pages"] }
      [summary(stops), *(structures(stops) if stops.first["map"]), pages(of_worker), *writers]
    end

    private

    # Adds to what a process says of itself. false: this stop is only there to begin the record.
    def look(stop, master, record)
      return true if stop["pid"] == master

      note(record)
      lost = LostPages.new(master, stop["pid"], @first_writers) unless stop["served"].zero?
      watch(stop["pid"], record) unless @no_faults || stop["served"] == @last
      return false unless lost

      @lost << [stop["name"], lost.writers, lost.own_writers] if @first_writers
      stop["pages"] = lost.to_h
    end

    # Records who writes until the next stop.
    def watch(worker, record)
      @faults = Faults.new(worker, record)
    rescue Faults::Impossible => e
      @no_faults = e.message
    end

    # Ends the record, if there is one, and adds what it says to what is known.
    def note(record)
      return unless @faults

      @faults.finish
      found = Faults.first_writers(record)
      @first_writers = @first_writers ? found.merge(@first_writers) : found
    rescue Faults::Impossible => e
      @no_faults = e.message
      @first_writers = nil
    ensure
      @faults = nil
    end

    def writers
      names = @lost.map(&:first)
      titles = ["Which function wrote a lost page first (MB)", "The same, of the worker's own pages (MB)"]
      titles.each_with_index.filter_map do |title, i|
        found = @lost.map { |stop| stop[i + 1].select { |(kind, _), _| WRITTEN.include?(kind) } }
        WritersTable.of_stops(title, names, found)
      end
    end

    def follow(directory)
      orders_out, orders = IO.pipe
      answers, answers_in = IO.pipe
      bundle = File.join(File.dirname(@build.path), "bundle")
      program = Supervised.new(@build.path, bundle, "exec", @build.path, WORKLOAD, *@arguments,
                               environment: @app.environment(@build, directory), chdir: @app.directory,
                               in: orders_out, out: answers_in)
      [orders_out, answers_in].each(&:close)
      while (line = answers.wait_readable(PATIENCE) && answers.gets)
        stop = JSON.parse(line)
        yield stop, program.pid
        orders.puts
      end
      raise Failed, "#{@build.name}: the program failed" unless program.wait(PATIENCE)&.success?
    ensure
      [orders, answers].each { |pipe| pipe&.close }
      program&.kill
    end

    def mb(bytes)
      format("%.2f", bytes / 1e6)
    end

    def summary(stops)
      rows = stops.map do |stop|
        stats = stop["stats"] || {}
        [stop["name"], format("%.1f", stop["private_kb"] / 1000.0), format("%.2f", stop["cpu"]),
         *%w[yjit_alloc_size code_region_size].map { |key| stats[key] ? mb(stats[key]) : "" },
         *STATS.map { |key| stats[key].to_s }]
      end
      Table.new("YJIT in a master and its worker", ["", "private MB", "CPU s", "data MB", "code MB", *STATS],
                rows, note: "private: Private_Dirty of the process; CPU: its user and system time so far")
    end

    def structures(stops)
      rows = stops.last["map"].keys.map do |kind|
        [kind, *stops.flat_map { |stop| cells(stop["map"][kind]) }]
      end
      rows << ["all data", *stops.flat_map { |stop| cells(sum(stop["map"].except(*CODE).values)) }]
      Table.new("What YJIT holds, by structure: MB, and of that inherited",
                ["", *stops.flat_map { |stop| [stop["name"], "inherited"] }], rows)
    end

    def cells(entry)
      [mb(entry["bytes"]), mb(entry["inherited_bytes"])]
    end

    def sum(entries)
      %w[bytes inherited_bytes].to_h { |key| [key, entries.sum { |entry| entry[key] }] }
    end

    def pages(stops)
      kinds = stops.last["pages"].keys
      Table.new("Pages of the worker: MB shared with the master, lost, its own",
                ["", *stops.flat_map { |stop| [stop["name"], "lost", "own"] }],
                kinds.map do |kind|
                  [kind, *stops.flat_map { |stop| stop["pages"][kind].values_at("shared", "lost", "own") }
                    .map { |size| format("%.2f", size) }]
                end)
    end
  end
end

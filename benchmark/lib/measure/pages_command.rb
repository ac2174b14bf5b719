# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "io/wait"
require "json"
require_relative "../memory/census"
require_relative "../memory/faults"
require_relative "../memory/lost_pages"
require_relative "../servers/yjit_map"
require_relative "command_line"
require_relative "measured"
require_relative "table"
require_relative "writers_table"

module CowBench
  # benchmark/pages.
  class PagesCommand < CommandLine
    NAME = "benchmark/pages"
    ERRORS = [AddressSpace::Unreadable, Census::Unreadable, Faults::Impossible, Measured::Failed,
              App::Missing, YJITMap::Failed].freeze
    BANNER = <<~TEXT
      Usage: benchmark/pages compare MASTER WORKER [--faults FILE] [--census FILE] [--json]
               which pages the worker (a process number) shares with its master, lost, or has for itself
             benchmark/pages record WORKER FILE
               records who writes which page first, until the worker ends or Enter is pressed
             benchmark/pages try RUBY [options]
               does both on a worker of the benchmark fork_requests
             benchmark/pages yjit RUBY [--rehearsed N] [--stops N,N,...]
               what YJIT holds in a master and a worker that serve requests of the Rails application, and
               who wrote the worker's pages of it first

    TEXT
    # Rows of the table of structures.
    MOST_STRUCTURES = 40

    def initialize(arguments)
      super
      @env = {}
      @warmups = 1
      @requests = 2_000
      @rehearsed = 0
      @stops = [100, 1_000, 4_000, 20_000]
    end

    private

    def work(rest)
      command, *rest = rest
      case [command, rest.size]
      when ["compare", 2] then compare(*rest.map { |text| number(text) })
      when ["record", 2] then record(number(rest[0]), rest[1])
      when ["try", 1] then try(rest[0])
      when ["yjit", 1] then yjit(rest[0])
      else raise Bad, "not understood: see --help"
      end
      0
    end

    def define(options)
      options.on("--faults FILE",
                 "a record made with `record`: also say which functions wrote first") do |file|
        @faults = file
      end
      options.on("--census FILE",
                 "what the master has written there (COWRUBY_CENSUS): also say which structures " \
                 "differ") do |file|
        @census = file
      end
      options.on("--json", "print JSON in place of tables") { @json = true }
      options.on("--warmups N", Integer,
                 "for try: calls of Process.warmup before the fork (default 1)") do |n|
        @warmups = n
      end
      options.on("--requests N", Integer, "for try: requests a worker serves (default 2000)") do |n|
        @requests = n
      end
      options.on("--rehearsed N", Integer, "for yjit: requests before the fork (default 0)") do |n|
        @rehearsed = n
      end
      options.on("--stops LIST", Array,
                 "for yjit: after how many requests to look (default #{@stops.join(",")})") do |list|
        @stops = list.map { |text| number(text) }
      end
      options.on("--env KEY=VALUE",
                 "for try and yjit: an environment variable of the ruby; may be given again") do |text|
        key, value = text.split("=", 2)
        value ? @env[key] = value : raise(Bad, "--env wants KEY=VALUE, not #{text}")
      end
    end

    def number(text)
      Integer(text, 10, exception: false) || raise(Bad, "not a process number: #{text}")
    end

    def compare(master, worker)
      raise Bad, "no such file: #{@faults}" if @faults && !File.exist?(@faults)

      writers = Faults.first_writers(@faults) if @faults
      census = Census.load(@census) if @census
      show(LostPages.new(master, worker, writers, census), master, worker)
    end

    def show(lost, master, worker)
      if @json
        puts JSON.pretty_generate(pages: lost.to_h, first_writers: listed(lost.writers),
                                  first_writers_without_a_difference: listed(lost.idle_writers),
                                  first_writers_of_own_pages: listed(lost.own_writers),
                                  structures: lost.structures.map do |(kind, name), row|
                                    { kind: kind, structure: name, **row.transform_keys(&:to_sym) }
                                  end)
      else
        puts [pages_table(lost, master, worker),
              WritersTable.of("Which function wrote a lost page first", lost.writers),
              WritersTable.of("The same, of lost pages without a difference", lost.idle_writers),
              WritersTable.of("The same, of the worker's own pages", lost.own_writers),
              structures_table(lost.structures)].compact.map(&:to_text).join("\n")
      end
    end

    def pages_table(lost, master, worker)
      kinds = lost.to_h
      rows = kinds.merge("all" => kinds.values.reduce { |a, b| a.merge(b) { |_, x, y| x + y } })
      Table.new("Pages of worker #{worker} that were in master #{master}, and its own",
                ["MB", *rows["all"].keys],
                rows.map { |kind, row| [kind, *row.values.map { |mb| format("%.2f", mb) }] },
                note: ("No GC pages were recognised: they are counted as malloc." if lost.gc_pages_unknown?))
    end

    def listed(writers)
      writers.map { |(kind, function), mb| { kind: kind, function: function, mb: mb } }
    end

    # nil where there was no census.
    def structures_table(structures)
      return if structures.empty?

      rows = structures.map { |(kind, name), row| [name, kind, *row.values.map { |mb| format("%.2f", mb) }] }
      Table.new("Which structures' words differ from the master's",
                ["structure", "kind", *structures.values.first.keys], rows.first(MOST_STRUCTURES),
                note: "alone: no other structure's word differs on the page")
    end

    def record(worker, file)
      raise Bad, "no process #{worker}" unless ProcessTable.stat(worker)

      faults = Faults.new(worker, file)
      warn "recording process #{worker}: press Enter to end"
      until $stdin.wait_readable(0)
        break if faults.ended?(0.2)
      end
    rescue Interrupt
      nil # ends the record like Enter
    ensure
      faults&.finish
    end

    # Two workers, so that a page which one of them alone wrote to is still
    # shared by the others.
    def try(path)
      build = Build.new("ruby", path, env: @env).check
      watch_faults = faults_possible?
      Dir.mktmpdir("pages") do |directory|
        file = File.join(directory, "perf.data")
        faults = nil
        Measured.run(build, "fork_requests", 120, @warmups, 2, 0, @requests) do |server, point|
          worker = server.looks[point].workers.first["pid"]
          case point
          when "after 0 requests" then faults = Faults.new(worker, file) if watch_faults
          when "after #{@requests} requests"
            faults&.finish
            show(LostPages.new(server.pid, worker, faults && Faults.first_writers(file)), server.pid, worker)
          end
        end
      ensure
        faults&.finish
      end
    end

    # An installed ruby: the application's gems are installed for it.
    def yjit(path)
      raise Bad, "--stops wants numbers that grow" unless @stops == @stops.uniq.sort && @stops.any?

      name = path[%r{([\w.-]+)/bin/[^/]+\z}, 1] || "ruby" # a directory of gems for each
      build = Build.new(name, path, env: @env).check
      map = YJITMap.new(build, File.join(ROOT, "build"), @rehearsed, @stops)
      puts map.tables.map(&:to_text).join("\n")
      who_wrote_is_unknown(map.no_faults) if map.no_faults
    end

    def faults_possible?
      Faults.check
      true
    rescue Faults::Impossible => e
      who_wrote_is_unknown(e.message)
      false
    end

    def who_wrote_is_unknown(reason)
      warn "#{NAME}: who wrote first cannot be said: #{reason}"
    end
  end
end

# frozen_string_literal: true

require "io/wait"
require "json"
require "optparse"
require_relative "build"
require_relative "faults"
require_relative "lost_pages"
require_relative "measured"

# benchmark/pages.
class PagesCommandLine
  Bad = Class.new(StandardError)
  USAGE = <<~TEXT
    Usage: benchmark/pages compare MASTER WORKER [--faults FILE] [--json]
             which pages the worker (a process number) shares with its master, lost, or has for itself
           benchmark/pages record WORKER FILE
             records who writes which page first, until the worker ends or Enter is pressed
           benchmark/pages try RUBY [options]
             does both on a worker of the benchmark fork_requests
  TEXT

  def initialize(arguments)
    @arguments = arguments
    @env = {}
    @warmups = 1
    @requests = 2_000
  end

  # Gives the exit status.
  def run
    command, *rest = parser.parse(@arguments)
    return puts(parser) || 0 if @help

    case [command, rest.size]
    when ["compare", 2] then compare(*rest.map { |text| number(text) })
    when ["record", 2] then record(number(rest[0]), rest[1])
    when ["try", 1] then try(rest[0])
    else raise Bad, "not understood: see --help"
    end
    0
  rescue Bad, OptionParser::ParseError, Build::Unusable, AddressSpace::Unreadable, Faults::Impossible, Measured::Failed => e
    warn "benchmark/pages: #{e.message}"
    2
  rescue Interrupt
    warn "\nbenchmark/pages: interrupted"
    130
  end

  private

  def parser
    @parser ||= OptionParser.new(USAGE + "\n") do |options|
      options.on("--faults FILE", "a record made with `record`: also say which functions wrote first") { |file| @faults = file }
      options.on("--json", "print JSON in place of tables") { @json = true }
      options.on("--warmups N", Integer, "for try: calls of Process.warmup before the fork (default 1)") { |n| @warmups = n }
      options.on("--requests N", Integer, "for try: requests a worker serves (default 2000)") { |n| @requests = n }
      options.on("--env KEY=VALUE", "for try: an environment variable of the ruby; may be given again") do |text|
        key, value = text.split("=", 2)
        value ? @env[key] = value : raise(Bad, "--env wants KEY=VALUE, not #{text}")
      end
      options.on("-h", "--help", "say this") { @help = true }
    end
  end

  def number(text)
    Integer(text, 10, exception: false) || raise(Bad, "not a process number: #{text}")
  end

  def compare(master, worker)
    raise Bad, "no such file: #{@faults}" if @faults && !File.exist?(@faults)

    show(LostPages.new(master, worker, @faults && Faults.first_writers(@faults)))
  end

  def show(lost)
    if @json
      puts JSON.pretty_generate(pages: lost.to_h, first_writers: lost.writers.map { |(kind, function), mb| { kind: kind, function: function, mb: mb } })
    else
      puts lost.tables.map(&:to_text).join("\n")
    end
  end

  def record(worker, file)
    raise Bad, "no process #{worker}" unless File.exist?("/proc/#{worker}")

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
          show(LostPages.new(server.pid, worker, faults && Faults.first_writers(file)))
        end
      end
    ensure
      faults&.finish
    end
  end

  def faults_possible?
    Faults.check
    true
  rescue Faults::Impossible => e
    warn "benchmark/pages: who wrote first cannot be said: #{e.message}"
    false
  end
end

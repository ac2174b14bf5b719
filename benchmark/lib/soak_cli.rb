# frozen_string_literal: true

require "fileutils"
require "json"
require "optparse"
require_relative "app"
require_relative "build"
require_relative "chart"
require_relative "machine"
require_relative "soak"
require_relative "table"

# The command line of benchmark/soak. Status 1 where an error was served or a
# process was lost, 2 where the command is not understood.
class SoakCommandLine
  TOP = File.expand_path("../..", __dir__)
  MINUTES = 30

  def initialize(arguments)
    @arguments = arguments
    @servers = %w[unicorn puma pitchfork-reforking]
    @app = "rails"
    @minutes = MINUTES
    @place = File.join(TOP, "build")
    @settings = { warmup: true, yjit: true }
  end

  def run
    rest = parser.parse(@arguments)
    raise OptionParser::InvalidArgument, rest.first if rest.any?
    return summary if @summary
    raise OptionParser::MissingArgument, "--ruby NAME=PATH" unless @build

    missing = Wrk.missing
    return refuse(missing) if missing

    warn "benchmark/soak: no upgrades: a new master cannot be adopted" unless Server.adopt
    @app = App.new(@app, @place)
    @app.prepare(@build)
    fine = @servers.map { |name| soak(Server.find(name)) }
    fine.all? ? 0 : 1
  rescue OptionParser::ParseError, Build::Unusable, App::Missing => e
    refuse("#{e.message} (see --help)")
  end

  private

  def refuse(message)
    warn "benchmark/soak: #{message}"
    2
  end

  def parser
    OptionParser.new do |options|
      options.banner = "Usage: benchmark/soak --ruby NAME=PATH [options]\n" \
                       "Loads servers for a long time, disturbs them, and reports whether memory levels off.\n\n"
      options.on("--ruby NAME=PATH", "an installed ruby (make rubies)") { |text| @build = Build.new(*Build.name_and_path(text)).check }
      options.on("--servers NAMES", Array, "of #{Soak::EVENTS.keys.join(", ")}", "(default #{@servers.join(",")})") { |names| @servers = known(names) }
      options.on("--app NAME", App::NAMES, "one of #{App::NAMES.join(", ")} (default #{@app})") { |name| @app = name }
      options.on("--minutes N", Float, "for each server (default #{MINUTES})") { |number| @minutes = number }
      options.on("--[no-]warmup", "call Process.warmup before the first fork (default: yes)") { |on| @settings[:warmup] = on }
      options.on("--[no-]yjit", "(default: yes)") { |on| @settings[:yjit] = on }
      options.on("--oob-gc", "workers collect between requests (Unicorn's middleware, Puma's out_of_band,", "Pitchfork's after_request_complete)") { @settings[:oob_gc] = true }
      options.on("--summary", "a table of all soaks that were made, and nothing else") { @summary = true }
      options.on("--place DIR", "where applications, gems and results go (default build)") { |path| @place = File.expand_path(path) }
    end
  end

  # One row a soak, from the files that report wrote.
  def summary
    files = Dir[File.join(@place, "soak/*/soak.json")].sort
    return refuse("no soak was made yet below #{@place}") if files.empty?

    rows = files.map { |file| summary_row(File.basename(File.dirname(file)), JSON.parse(File.read(file), symbolize_names: true)) }
    puts Table.new("soak: all", ["server, application, ruby", "minutes", "requests", "events", "errors", "excused", "after the quiet part (MB a worker)", "growth"],
                   rows).to_markdown
    0
  end

  def summary_row(name, soak)
    rounds = soak[:rounds]
    quiet = rounds.take_while { |round| !round[:event] }.last
    excused = rounds.sum { |round| [round[:errors], round[:excused]].min }
    [name.tr("-", " "), format("%d", rounds.last[:seconds] / 60), rounds.sum { |round| round[:requests] }.to_s, rounds.count { |round| round[:event] }.to_s,
     (rounds.sum { |round| round[:errors] } - excused).to_s, excused.to_s, quiet ? format("%.1f", quiet[:private]) : "-",
     soak[:growth] ? format("%+.1f %%", soak[:growth] * 100) : "-"]
  end

  def known(names)
    unknown = names - Soak::EVENTS.keys
    raise OptionParser::InvalidArgument, unknown.first if unknown.any?

    names
  end

  # Says whether no error was served and nothing was lost.
  def soak(kind)
    if (missing = kind.missing)
      warn "skipped: #{kind.title}: #{missing}"
      return true
    end
    directory = File.join(@place, "soak", "#{kind.title}-#{@app.name}#{"-oob_gc" if @settings[:oob_gc]}-#{@build.name}")
    FileUtils.rm_rf(directory)
    server = kind.new(@app, @build, directory, @settings)
    server.start
    soak = Soak.new(server, @app.requests, @minutes * 60)
    soak.run { |round| say(kind, round) }
    report(kind, soak, directory)
    soak.errors.zero?
  rescue Server::Failed, Soak::Failed, Wrk::Failed => e
    warn "failed: #{kind.title}: #{e.message}"
    false
  ensure
    server&.stop
  end

  def say(kind, round)
    warn format("[%s, %d:%02d] %.1f MB a worker, %d errors%s%s", kind.title, *round.seconds.divmod(60), round.private, round.errors,
                round.complaint.to_s.empty? ? "" : " (#{round.complaint})", round.event && ", #{round.event}")
  end

  def report(kind, soak, directory)
    rows = soak.rounds.map do |round|
      [format("%d:%02d", *round.seconds.divmod(60)), round.event || "", *[round.private, round.tree].map { |mb| format("%.1f", mb) }, round.errors.to_s,
       round.excused.to_s, round.workers.to_s]
    end
    table = Table.new("soak: #{kind.title}, #{@app.name}, #{@build.name}", ["time", "event", "private a worker (MB)", "Pss (MB)", "errors", "excused", "workers"],
                      rows, note: verdict(soak))
    puts table.to_text
    File.write(File.join(directory, "soak.md"), table.to_markdown)
    File.write(File.join(directory, "soak.json"),
               JSON.pretty_generate(machine: Machine.facts(TOP), ruby: @build.to_h, settings: @settings, rounds: soak.rounds.map(&:to_h), growth: soak.growth))
    points = soak.rounds.map { |round| [round.seconds / 60.0, round.private] }
    Chart::Lines.new("soak", "Private dirty memory of a worker (less is better)", "minutes", "MB", [[kind.title, points]]).draw(directory) if Chart.available?
  end

  def verdict(soak)
    growth = soak.growth
    memory = growth ? format("memory %s: %+.1f %% from the middle third to the last", soak.level? ? "levels off" : "GROWS", growth * 100) : "too short to judge memory"
    "#{soak.rounds.sum(&:requests)} requests, #{soak.errors} errors that nothing excuses; #{memory}"
  end
end

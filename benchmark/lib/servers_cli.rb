# frozen_string_literal: true

require "fileutils"
require "json"
require "optparse"
require_relative "machine"
require_relative "progress"
require_relative "server_matrix"
require_relative "server_report"
require_relative "server_run"

# benchmark/run-servers. Each run is a file; one that is there already is not
# repeated, so that an interrupted measurement goes on where it was.
class ServersCommandLine
  ROOT = File.expand_path("../..", __dir__)
  MINUTES = 55
  Bad = Class.new(StandardError)
  SWITCH = { "on" => true, "off" => false }.freeze

  def initialize(arguments)
    @arguments = arguments
    @rubies = {}
    @axes = {}
    @rounds = 1
    @minutes = MINUTES
  end

  # Gives the exit status.
  def run
    rest = parser.parse(@arguments)
    raise Bad, "not understood: #{rest.first}" unless rest.empty?
    return puts(parser) || 0 if @instead == :help
    return puts(settings.map(&:id)) || 0 if @instead == :list

    measure
  rescue Bad, OptionParser::ParseError, Build::Unusable, SystemCallError => e
    warn "benchmark/run-servers: #{e.message}"
    2
  rescue Interrupt
    warn "\nbenchmark/run-servers: interrupted; the server is stopped, finished runs are kept"
    130
  end

  private

  def parser
    @parser ||= OptionParser.new do |options|
      options.banner = "Usage: benchmark/run-servers --ruby NAME=PATH --ruby NAME=PATH [options]\n" \
                       "Measures installed rubies under real servers, in turn; the first is the base.\n" \
                       "A run that was made is kept and not repeated: call it again to go on.\n\n"
      options.on("--ruby NAME=PATH", "a ruby to measure; may be given again") { |text| add_ruby(text) }
      options.on("--quick", "each server once, with a few requests") { @quick = true }
      options.on("--whole", "all combinations (many hours)") { @whole = true }
      options.on("--runs N", Integer, "rounds (default 1)") { |n| @rounds = positive("--runs", n) }
      options.on("--minutes N", Integer, "begin no run after so many minutes (default #{MINUTES})") { |n| @minutes = positive("--minutes", n) }
      axis(options, :server, "NAMES", ServerMatrix::AXES[:server])
      axis(options, :app, "NAMES", ServerMatrix::AXES[:app])
      axis(options, :malloc, "NAMES", ServerMatrix::AXES[:malloc])
      axis(options, :measure, "WHAT", ServerMatrix::AXES[:measure].map(&:to_s), &:to_sym)
      axis(options, :warmup, "on,off", SWITCH.keys) { |word| SWITCH[word] }
      axis(options, :yjit, "on,off", SWITCH.keys) { |word| SWITCH[word] }
      axis(options, :rehearsed, "on,off", SWITCH.keys) { |word| SWITCH[word] }
      options.on("--output DIR", "where runs and tables go (default build/benchmark/servers)") { |path| @output = path }
      options.on("--list", "say which settings would be measured") { @instead = :list }
      options.on("-h", "--help", "say this") { @instead = :help }
    end
  end

  def axis(options, name, what, known)
    options.on("--#{name} #{what}", Array, "only these, the other axes as usual: #{known.join(", ")}") do |words|
      unknown = words - known
      raise Bad, "--#{name}: no such: #{unknown.first} (there are #{known.join(", ")})" if unknown.any? || words.empty?

      @axes[name] = words.map { |word| block_given? ? yield(word) : word }
    end
  end

  def add_ruby(text)
    name, path = Build.name_and_path(text)
    raise Bad, "--ruby: two are named #{name}" if @rubies.key?(name)

    @rubies[name] = path
  end

  def positive(option, number)
    number.positive? ? number : raise(Bad, "#{option} wants a number above 0")
  end

  def settings
    return ServerMatrix.product if @whole
    return ServerMatrix.only(@axes) if @axes.any?

    @quick ? ServerMatrix.quick : ServerMatrix.chosen
  end

  def measure
    raise Bad, "no ruby to measure: give --ruby NAME=PATH, the base first" if @rubies.empty?
    raise Bad, Wrk.missing if Wrk.missing

    @builds = @rubies.map { |name, path| Build.new(name, path).check }
    @output = File.expand_path(@output || File.join(ROOT, "build/benchmark", @quick ? "servers-quick" : "servers"))
    FileUtils.mkdir_p(File.join(@output, "runs"))
    @apps = App::NAMES.to_h { |name| [name, App.new(name, File.join(ROOT, "build"))] }
    @omissions = []
    @progress = Progress.new
    run_all
    report
  end

  def run_all
    started = Clock.now
    1.upto(@rounds) do |round|
      left = settings.product(@builds).reject { |setting, build| kept(setting, build, round) }
      @progress.round(round, left.size)
      left.each_with_index do |(setting, build), i|
        if Clock.now - started > @minutes * 60
          return @progress.say("#{left.size - i} runs of round #{round} are left after #{@minutes} minutes; call it again to go on")
        end

        run_one(setting, build, round)
      end
    end
  ensure
    @progress.finish
  end

  def run_one(setting, build, round)
    @progress.start("#{setting.app}: #{setting.label}#{", pages" if setting.measure == :pages}, #{build.name}")
    outcome = ServerRun.new(setting, build, @apps.fetch(setting.app), quick: @quick).call
    keep(file(setting, build, round), { setting: setting.to_h, build: build.name, stamp: stamp(build), round: round,
                                        machine: Machine.facts(ROOT), **outcome })
  rescue App::Missing, Server::Missing, Build::Unusable => e
    omit("skipped", setting, build, e)
  rescue Server::Failed, Wrk::Failed, AddressSpace::Unreadable, Faults::Impossible => e
    omit("failed", setting, build, e)
  end

  def omit(word, setting, build, error)
    @omissions << Runner::Omission.new(word, "#{setting.app}: #{setting.label}, #{build.name}", error.message)
    @progress.say(@omissions.last.to_s)
  end

  def file(setting, build, round)
    File.join(@output, "runs", "#{setting.id}-#{build.name}-#{round}.json")
  end

  # Whole or not at all.
  def keep(path, run)
    File.write("#{path}.new", JSON.generate(run) << "\n")
    File.rename("#{path}.new", path)
  end

  # A run that was made already, with this very ruby.
  def kept(setting, build, round)
    run = JSON.parse(File.read(file(setting, build, round)))
    run if run["stamp"] == stamp(build)
  rescue Errno::ENOENT, JSON::ParserError
    nil
  end

  # Tells a ruby that was built anew.
  def stamp(build)
    status = File.stat(build.path)
    "#{build.version}, #{status.size} bytes, #{status.mtime.to_i}"
  end

  # Over all runs that are there, of whatever call.
  def report
    runs = Dir[File.join(@output, "runs", "*.json")].sort.map { |path| JSON.parse(File.read(path)) }
    runs = runs.select { |run| (build = @builds.find { |candidate| candidate.name == run["build"] }) && run["stamp"] == stamp(build) }
    order = (ServerMatrix.chosen + ServerMatrix.product).map(&:id).uniq.each_with_index.to_h
    runs = runs.sort_by { |run| [order.fetch(ServerMatrix::Setting.new(**run["setting"].transform_keys(&:to_sym)).id), run["round"]] }
    report = ServerReport.of(Machine.facts(ROOT), @builds, runs, @omissions)
    puts report.text
    files = report.write(@output) { |line| @progress.say(line) }
    puts "written: #{files.join(", ")}", "took #{@progress.elapsed}"
    report.failed? ? 1 : 0
  end
end

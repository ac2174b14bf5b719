# frozen_string_literal: true

require "optparse"
require_relative "build"

# The command line of benchmark/run. A mistake is an OptionParser::ParseError
# or Build::Unusable, whose message is one line for the user.
class Options
  Bad = Class.new(OptionParser::ParseError) do
    def message
      args.join
    end
  end

  RUNS = 5
  MINUTES = 14

  attr_reader :quick, :runs, :minutes, :output, :source, :dictionary, :driver, :files

  def initialize(arguments, benchmarks)
    @benchmarks = benchmarks
    @rubies = {}
    @env = Hash.new { |hash, name| hash[name] = {} }
    @glibc = true
    @runs = RUNS
    @minutes = MINUTES
    rest = parser.parse(arguments)
    raise Bad, "not understood: #{rest.first}" unless rest.empty?
  end

  def help
    parser.to_s
  end

  # What to do in place of measuring: :help, :list or nil.
  attr_reader :instead

  # The chosen benchmarks, in their own order.
  def chosen
    @benchmarks.select { |benchmark| @only ? @only.include?(benchmark.title) : !benchmark::BY_NAME }
  end

  # The builds, ready to run; the first is the base.
  def builds
    raise Bad, "no ruby to measure: give --ruby NAME=PATH, the base first" if @rubies.empty?

    unknown = @env.keys - @rubies.keys
    raise Bad, "--env names no build: #{unknown.first} (there are #{@rubies.keys.join(", ")})" if unknown.any?

    builds = @rubies.map { |name, path| Build.new(name, path, env: @env.fetch(name, {})).check }
    @glibc ? [builds.first, builds.first.with("glibc", glibc_environment(builds.first)), *builds.drop(1)] : builds
  end

  # Makes the directory for the results.
  def prepare_output(default)
    @output = File.expand_path(@output || default)
    FileUtils.mkdir_p(@output)
    raise Bad, "--output: cannot write to #{@output}" unless File.writable?(@output)
  rescue SystemCallError => e
    raise Bad, "--output: #{e.message}"
  end

  def to_h
    { quick: quick || false, runs: runs, minutes: minutes, source: source, dictionary: dictionary, files: files&.source, only: @only }
  end

  private

  # glibc's malloc as careful users set it up. Preloading the C library puts
  # its malloc before that of a library the ruby is linked with.
  def glibc_environment(base)
    { "MALLOC_ARENA_MAX" => "2" }.merge(base.allocator["name"] == "glibc" ? {} : { "LD_PRELOAD" => "libc.so.6" })
  end

  def parser
    OptionParser.new do |options|
      options.banner = "Usage: benchmark/run --ruby NAME=PATH --ruby NAME=PATH [options]\n" \
                       "Measures rubies side by side; the first is the base the others are compared with.\n\n"
      options.on("--ruby NAME=PATH", "a build to measure; may be given again; %d in PATH: 1, 2, ...,", "another of tool/layouts' in each round") { |text| add_ruby(text) }
      options.on("--env NAME:KEY=VALUE", "an environment variable for a build; may be given again") { |text| add_env(text) }
      options.on("--[no-]glibc", "also measure the memory of the base with glibc's malloc", "and MALLOC_ARENA_MAX=2 (default: yes)") { |on| @glibc = on }
      options.on("--only NAMES", Array, "only these benchmarks, with commas between them") { |names| @only = known(names) }
      options.on("--quick", "each benchmark once and small, to see that it works") { @quick = true }
      options.on("--runs N", Integer, "at most so many runs of a case on each build (default #{RUNS})") { |n| @runs = positive("--runs", n) }
      options.on("--minutes N", Integer, "begin no further run after so many minutes, once every case was run", "(default #{MINUTES})") { |n| @minutes = positive("--minutes", n) }
      options.on("--source DIR", "CRuby's source tree, for gc, sweep and programs") { |path| @source = directory(path) }
      options.on("--driver FILE", "the command benchmark-driver, for programs (default: that in PATH)") { |path| @driver = File.expand_path(path) }
      options.on("--files REGEXP", "of gc and programs only the files whose names match") { |text| @files = pattern("--files", text) }
      options.on("--dictionary FILE", "the dictionary for the benchmark skk") { |path| @dictionary = path }
      options.on("--output DIR", "where the results go (default build/benchmark)") { |path| @output = path }
      options.on("--list", "say what benchmarks there are") { @instead = :list }
      options.on("-h", "--help", "say this") { @instead = :help }
    end
  end

  def add_ruby(text)
    name, path = Build.name_and_path(text)
    raise Bad, "--ruby: two builds are named #{name}" if @rubies.key?(name)

    @rubies[name] = path
  end

  def add_env(text)
    name, setting = text.split(":", 2)
    key, value = setting&.split("=", 2)
    raise Bad, "--env wants NAME:KEY=VALUE, not #{text}" unless value && key.match?(/\A\w+\z/)

    @env[name][key] = value
  end

  def known(names)
    unknown = names - @benchmarks.map(&:title)
    raise Bad, "no such benchmark: #{unknown.first} (see --list)" if unknown.any?
    raise Bad, "--only names no benchmark" if names.empty?

    names
  end

  def positive(option, number)
    number.positive? ? number : raise(Bad, "#{option} wants a number above 0")
  end

  def pattern(option, text)
    Regexp.new(text)
  rescue RegexpError => e
    raise Bad, "#{option}: #{e.message}"
  end

  def directory(path)
    File.directory?(path) ? File.expand_path(path) : raise(Bad, "--source: no such directory: #{path}")
  end
end

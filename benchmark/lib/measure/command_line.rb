# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "optparse"
require_relative "build"

module CowBench
  # What the commands of benchmark/ share: a parser with --help, one line for a mistake, the exit
  # status. A subclass has NAME and BANNER, adds its options in +define+ and does its work in +work+,
  # which gets the arguments that are no options and gives the exit status.
  class CommandLine
    # A mistake of the user: its message is one line that says what to do.
    Bad = Class.new(OptionParser::ParseError) do
      def message
        args.join
      end
    end
    ROOT = File.expand_path("../../..", __dir__)
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
    # Further errors whose message is one line for the user.
    ERRORS = [].freeze

    def self.run(arguments)
      new(arguments).run
    end

    def initialize(arguments)
      @arguments = arguments.dup.freeze
    end

    # Gives the exit status.
    def run
      rest = parser.parse(@arguments)
      return say(parser) if @help

      work(rest)
    rescue OptionParser::ParseError, Build::Unusable, *self.class::ERRORS => e
      $stderr.puts "#{self.class::NAME}: #{e.message}" # warn says nothing under -W0
      USAGE
    rescue Interrupt
      interrupted
    end

    def help
      parser.to_s
    end

    # Words that a shell does not change.
    PLAIN = %r{\A[\w.,:=%/+@-]+\z}

    # As it was called, for results; the path of this repository is left out.
    def to_s
      words = @arguments.map { |word| word.match?(PLAIN) ? word : "'#{word.gsub("'", "'\\\\''")}'" }
      CommandLine.without_root([self.class::NAME, *words].join(" "))
    end

    # +text+ with the paths of this repository's files made relative to its top.
    def self.without_root(text)
      text.gsub("#{ROOT}/", "")
    end

    private

    def parser
      @parser ||= OptionParser.new(self.class::BANNER) do |options|
        define(options)
        options.on("-h", "--help", "say this") { @help = true }
      end
    end

    def say(text)
      puts text
      0
    end

    def interrupted
      $stderr.puts "\n#{self.class::NAME}: interrupted#{self.class::AFTER_INTERRUPT}"
      INTERRUPTED
    end
    # What is said of it beside that.
    AFTER_INTERRUPT = ""

    # --ruby NAME=PATH, which may be given again.
    def define_rubies(options, *text)
      @rubies = {}
      options.on("--ruby NAME=PATH", *text) do |ruby|
        name, path = Build.name_and_path(ruby)
        raise Bad, "--ruby: two builds are named #{name}" if @rubies.key?(name)

        @rubies[name] = path
      end
    end

    # --env NAME:KEY=VALUE, which may be given again.
    def define_env(options)
      @env = Hash.new { |hash, name| hash[name] = {} }
      options.on("--env NAME:KEY=VALUE", "an environment variable for a build; may be given again") do |text|
        name, setting = text.split(":", 2)
        key, value = setting&.split("=", 2)
        raise Bad, "--env wants NAME:KEY=VALUE, not #{text}" unless value && key.match?(/\A\w+\z/)

        @env[name][key] = value
      end
    end

    # The builds of --ruby, each with its --env, ready to run.
    def given_builds
      needs_rubies
      unknown = (@env.keys - @rubies.keys).first
      raise Bad, "--env names no build: #{unknown} (there are #{@rubies.keys.join(", ")})" if unknown

      @rubies.map { |name, path| Build.new(name, path, env: @env.fetch(name, {})).check }
    end

    def needs_rubies
      raise Bad, "no ruby to measure: give --ruby NAME=PATH, the base first" if @rubies.empty?
    end

    def no_arguments(rest)
      raise Bad, "not understood: #{rest.first}" unless rest.empty?
    end

    def positive(option, number)
      number.positive? ? number : raise(Bad, "#{option} wants a number above 0")
    end

    # The number that +text+ is, if it is a whole one and in +range+.
    def whole(option, text, range)
      value = Integer(text, 10, exception: false)
      return value if value && range.cover?(value)

      raise Bad, "#{option} wants a whole number from #{range.first} to #{range.last}, not #{text}"
    end

    # +names+, if all are +known+.
    def known(option, names, known)
      raise Bad, "#{option} names nothing" if names.empty?

      unknown = names - known
      raise Bad, "#{option}: no such: #{unknown.first} (there are #{known.join(", ")})" if unknown.any?

      names
    end

    # Makes the directory for the results.
    def output(path)
      File.expand_path(path).tap do |directory|
        FileUtils.mkdir_p(directory)
        raise Bad, "--output: cannot write to #{directory}" unless File.writable?(directory)
      end
    rescue SystemCallError => e
      raise Bad, "--output: #{e.message}"
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require "open3"
require_relative "command_line"
require_relative "machine"

module CowBench
  # benchmark/store: copies what a run wrote to results/DATE-COMMIT/NAME, unchanged.
  class StoreCommand < CommandLine
    NAME = "benchmark/store"
    ERRORS = [SystemCallError, JSON::ParserError].freeze
    BANNER = <<~TEXT
      Usage: benchmark/store DIR [options]
      Copies tables.md, results.json and the pictures of a finished run to results/DATE-COMMIT/NAME.
      A run of uncommitted changes or of an unknown commit is refused, nothing is overwritten.

    TEXT
    # Digits of a commit in the name of a directory.
    DIGITS = 7
    # Paths in a command.
    PATH = %r{(?:^|[ ='])(/[^ ']+)}
    # A text of JSON that is a path; a quote within a text ends none.
    NAME_OF_FILE = %r{(?<!\\)"(/[^"]+)"}
    # Directories that other machines have as well.
    COMMON = %r{\A/(usr|opt|tmp|dev)/}

    def initialize(arguments)
      super
      @results = File.join(ROOT, "results")
    end

    private

    def define(options)
      options.on("--name NAME", "in place of the name that the run has") { |name| @name = name }
      options.on("--results DIR", "in place of this repository's results") do |path|
        @results = File.expand_path(path)
      end
    end

    def work(rest)
      directory, *more = rest
      raise Bad, "which run? give the directory that it wrote" unless directory

      no_arguments(more)
      run = read(directory)
      target = File.join(@results, "#{run["machine"]["date"][0, 10]}-#{commit(run)[0, DIGITS]}", name(run))
      copy(directory, target)
      say("stored: #{CommandLine.without_root(target)}")
    end

    def read(directory)
      file, tables = %w[results.json tables.md].map { |name| File.join(directory, name) }
      raise Bad, "no finished run in #{directory}: results.json is missing" unless File.exist?(file)
      raise Bad, "no finished run in #{directory}: tables.md is missing" unless File.exist?(tables)

      JSON.parse(File.read(file)).tap { |run| check(run) }
    end

    # Refuses what cannot be measured again from the repository alone. A build that is a link to another place
    # shows in the names of what its processes have mapped.
    def check(run)
      commands = run.dig("machine", "commands")
      raise Bad, "the run does not say which command made it: measure again" unless commands&.any?

      paths = commands.flat_map { |command| command.scan(PATH).flatten }
      paths += JSON.generate(run).scan(NAME_OF_FILE).flatten
      path = paths.find { |file| file.start_with?("/") && !file.match?(COMMON) } or return
      raise Bad, "#{path} is outside this repository: measure rubies below build/, and write there"
    end

    def commit(run)
      commit = run.dig("machine", "commit").to_s
      dirty = commit.include?(Machine::DIRTY)
      raise Bad, "the run was made with uncommitted changes: commit and measure again" if dirty
      raise Bad, "the runs are of several commits (#{commit}): measure them on one" if commit.include?(",")

      _, status = Open3.capture2e("git", "-C", ROOT, "cat-file", "-e", "#{commit}^{commit}")
      return commit if status.success?

      raise Bad, "this repository has no commit #{commit.empty? ? "of that run" : commit}"
    end

    def name(run)
      name = @name || run["machine"]["name"].to_s
      return name if name.match?(/\A\w[\w.-]*\z/)

      raise Bad, "--name wants letters, digits, . _ and -, not #{name.inspect}"
    end

    def copy(directory, target)
      shown = CommandLine.without_root(target)
      raise Bad, "#{shown} is there already: remove it, or give --name" if File.exist?(target)

      FileUtils.mkdir_p(target)
      FileUtils.cp(%w[tables.md results.json].map { |file| File.join(directory, file) }, target)
      FileUtils.cp(Dir[File.join(directory, "*.svg")].sort, target)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "digest"
require "fileutils"
require "open3"

module CowBench
  # An application of benchmark/apps: written below build/ by its own `generate`,
  # its gems installed for each ruby into a directory of its own.
  class App
    Missing = Class.new(StandardError)
    SOURCES = File.expand_path("../../apps", __dir__)
    # Those that answer requests; "jobs" is rails with jobs.
    NAMES = %w[rails rack].freeze
    # What is made from more than its own directory.
    MADE_FROM = { "jobs" => %w[jobs rails] }.freeze
    # For Rails, with a key that is no secret.
    PRODUCTION = { "RAILS_ENV" => "production", "SECRET_KEY_BASE" => "0" * 64 }.freeze

    # What keeps its queue in a database that is made with the others.
    QUEUE = { "jobs" => "solid_queue" }.freeze

    attr_reader :name, :directory

    # +place+: the directory that everything made here goes to.
    def initialize(name, place)
      @name = name
      @place = place
      @directory = File.join(place, "apps", name)
      @ready = {}
    end

    def requests
      File.join(directory, "requests.txt")
    end

    # Writes those GET requests of the list that differ by more than numbers to +file+, the first of each
    # form, and gives its name.
    def write_forms(file)
      paths = File.readlines(requests).filter_map { |line| line[/\AGET (\S+)/, 1] }
      File.write(file, paths.uniq { |path| path.gsub(/\d+/, "0") }.map { |path| "GET #{path}\n" }.join)
      file
    end

    # Writes the application and installs its gems for +build+; once in a process, and while no other
    # process does so in the same place.
    def prepare(build)
      @ready[[build.name, build.path]] ||= locked do
        generate
        bundle(build)
        seed(build)
        true
      end
    end

    # What the servers of one run get; its files go to +run_directory+.
    def environment(build, run_directory)
      settings = bundle_environment(build).merge(PRODUCTION, "RACK_ENV" => "production")
      return settings unless seeded?

      database = File.join(run_directory, "database.sqlite3")
      databases.each do |suffix|
        FileUtils.cp(seed_file + suffix, database + suffix) unless File.exist?(database + suffix)
      end
      settings.merge("DATABASE" => database)
    end

    def bundle_environment(build)
      gems = File.join(@place, "gems")
      path = [File.dirname(build.path), ENV["PATH"]].join(File::PATH_SEPARATOR)
      build.environment.merge("BUNDLE_GEMFILE" => File.join(directory, "Gemfile"),
                              "BUNDLE_PATH" => File.join(gems, build.name.split("+").first),
                              "BUNDLE_APP_CONFIG" => File.join(gems, ".bundle"), "PATH" => path)
    end

    private

    def locked
      FileUtils.mkdir_p(@place)
      File.open(File.join(@place, "apps.lock"), File::RDWR | File::CREAT) do |file|
        file.flock(File::LOCK_EX)
        yield
      end
    end

    # Once, and again where what it is made from has changed: another process may
    # run what is there.
    def generate
      sources = MADE_FROM.fetch(name, [name]).join(",")
      files = Dir[File.join(SOURCES, "{{#{sources}}/**/*,*.gemfile}")].select { |file| File.file?(file) }
      make(requests, files.sort) do
        run(ENV.to_h, RbConfig.ruby, File.join(SOURCES, name, "generate"), directory)
        FileUtils.mkdir_p([File.join(directory, "public"), File.join(directory, "tmp")])
      end
    end

    # Yields unless +path+ was made from +files+ as they are.
    def make(path, files)
      made_from = "#{path}.made-from"
      digest = Digest::SHA256.hexdigest(files.map { |file| File.read(file) }.join("\0"))
      return if [path, made_from].all? { |file| File.exist?(file) } && File.read(made_from) == digest

      yield
      File.write(made_from, digest)
    end

    def bundle(build)
      unless File.exist?(bundler(build))
        raise Missing, "#{build.name}: no bundle beside #{build.path}: an installed ruby is needed " \
                       "(make rubies)"
      end

      environment = bundle_environment(build)
      return if try(environment, build.path, bundler(build), "check").last

      output, fine = try(environment, build.path, bundler(build), "install", "--jobs", "2")
      return if fine

      reason = output.lines.map(&:strip).reject(&:empty?).last
      raise Missing, "the gems of #{name} cannot be installed for #{build.name}: #{reason}"
    end

    def bundler(build)
      File.join(File.dirname(build.path), "bundle")
    end

    # The same database for all: a copy of it is made for each run.
    def seed(build)
      return unless seeded?

      make(seed_file, %w[Gemfile seed.rb db/schema.rb].map { |file| File.join(directory, file) }) do
        FileUtils.rm_f(Dir["#{seed_file}*"] - ["#{seed_file}.made-from"])
        run(bundle_environment(build).merge(PRODUCTION, "DATABASE" => seed_file, "QUEUE" => QUEUE[name]),
            build.path, bundler(build), "exec", build.path, "seed.rb")
      end
    end

    def seeded?
      File.exist?(File.join(directory, "seed.rb"))
    end

    # What is put behind the name of each database; the queue's may be another one.
    def databases
      ["", "-queue"].select { |suffix| File.exist?(seed_file + suffix) }
    end

    def seed_file
      File.join(directory, "seed.sqlite3")
    end

    def run(environment, *command)
      output, fine = try(environment, *command)
      return if fine

      reason = output.lines.grep(/error/i).first || output.lines.last
      raise Missing, "#{name}: #{command.last(2).join(" ")} failed: #{reason&.strip}"
    end

    def try(environment, *command)
      directory = File.directory?(@directory) ? @directory : "."
      output, status = Open3.capture2e(environment, *command, chdir: directory, stdin_data: "")
      [output, status.success?]
    end
  end
end

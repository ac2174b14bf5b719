# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "open3"
require "rbconfig"

module CowBench
  # A ruby under measurement: its name, where it is, and the environment that is
  # part of it. A path with %d names several linkings of one ruby
  # (tool/layouts), and each round takes the next.
  class Build
    Unusable = Class.new(StandardError)

    # What the observer's own environment must not pass on.
    FOREIGN = /\A(RUBY|GEM_|BUNDLE|MALLOC_|JE_MALLOC|LD_PRELOAD\z|LD_LIBRARY_PATH\z)/

    # Splits the argument of --ruby. A name with a plus sign, as cow+off, is for the same ruby in another
    # environment.
    def self.name_and_path(text)
      name, path = text.split("=", 2)
      good = path && !path.empty? && name.match?(/\A[\w.+-]+\z/)
      raise Unusable, "--ruby wants NAME=PATH, not #{text}" unless good

      [name, path]
    end

    attr_reader :name, :env, :version, :allocator, :round

    def initialize(name, path, env: {}, memory_only: false)
      @name = name
      @path = File.expand_path(path)
      @env = env
      @memory_only = memory_only
      @round = 1
      @layouts = @path.include?("%d") ? linkings : [@path]
    end

    def path
      @layouts.first || @path
    end

    def layouts
      @layouts.size
    end

    # This ruby as a round runs it; the first round is 1.
    def of_round(round)
      dup.tap { |build| build.take(round) }
    end

    # Measured where memory is the question, not speed.
    def memory_only?
      @memory_only
    end

    # The same ruby in another environment.
    def with(suffix, env)
      Build.new("#{name}+#{suffix}", @path, env: self.env.merge(env), memory_only: true).check
    end

    # Runs it once, to learn what it is.
    def check
      unusable "no such file: #{path}" unless File.exist?(path)
      unusable "not an executable file: #{path}" unless File.file?(path) && File.executable?(path)

      output, status = capture("-v")
      unusable "#{path} -v failed: #{output.lines.first&.chomp || status}" unless status.success?
      unusable "not a ruby: #{path}" unless output.match?(/^\w*ruby \d/i)

      @version = output[/^\w*ruby \d.*/i]
      output, status = capture("-e", "fork { exit!(0) }; Process.wait; require 'json'")
      unusable "#{path} cannot fork or load json: #{output.lines.first&.chomp}" unless status.success?

      @allocator = find_allocator
      self
    rescue SystemCallError => e
      unusable "#{path} does not start: #{e.message}"
    end

    # For Process.spawn.
    def environment
      ENV.keys.grep(FOREIGN).to_h { |key| [key, nil] }.merge(env)
    end

    def to_h
      { name: name, path: @path, layouts: layouts, env: env, version: version, allocator: allocator,
        memory_only: memory_only? }
    end

    protected

    def take(round)
      @round = round
      @layouts = @layouts.rotate(round - 1)
    end

    private

    def unusable(reason)
      raise Unusable, "#{name}: #{reason}"
    end

    def linkings
      1.step.lazy.map { |layout| @path.sub("%d", layout.to_s) }.take_while { |file| File.exist?(file) }.to_a
    end

    def capture(*arguments, extra: {})
      Open3.capture2e(environment.merge(extra), path, *arguments, stdin_data: "")
    end

    # Which library the program's own malloc comes from: a library may be mapped
    # and not be used (preloading another one), so the dynamic linker is asked.
    # Where it does not answer, the mapped libraries are named.
    def find_allocator
      log, = capture("-e", "0", extra: { "LD_DEBUG" => "bindings", "LD_BIND_NOW" => "1" })
      maps, = capture("-e", "puts File.read('/proc/self/maps')")
      mapped = maps.scan(%r{/\S*(?:malloc|/libc[.-])\S*}).uniq
      used = log.scan(/binding file (\S+) \[\d+\] to (\S+) \[\d+\]: normal symbol `malloc'/)
                .reverse.find { |file, _| file.match?(/ruby/) }&.last
      used = File.realpath(used) if used && File.exist?(used)
      { "used" => used, "mapped" => mapped, "name" => allocator_name(used, mapped) }
    end

    def allocator_name(used, mapped)
      return File.basename(used)[/jemalloc|tcmalloc|mimalloc/] || "glibc" if used

      mapped.map { |path| File.basename(path)[/jemalloc|tcmalloc|mimalloc/] }.compact.first || "libc"
    end
  end
end

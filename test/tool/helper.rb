# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

ENV["MT_NO_PLUGINS"] = "1" # of minitest, from whatever gems this ruby has
require "minitest/autorun"
require "digest"
require "fileutils"
require "open3"
require "timeout"
require "tmpdir"

# A small repository of the shape of ours: the real tools, a source of a few
# files in place of CRuby's, its checksum pinned. No network, no build.
module ToolTest
  TOP = File.expand_path("../..", __dir__)

  def setup
    @dir = Dir.mktmpdir("cow-tool")
    @top = File.join(@dir, "repository")
    FileUtils.mkdir_p(%w[patches gc build].map { |d| File.join(@top, d) })
    FileUtils.cp_r(File.join(TOP, "tool"), @top)
    FileUtils.cp(File.join(TOP, "gc/revision.h"), File.join(@top, "gc"))
    write("patches/series", "# the order\n")
    @tarball = make_tarball("3.4.5")
    pin
  end

  def teardown
    # FileUtils stops at a link to nothing, as Debian has one among the programs that a test links.
    system("chmod", "-R", "u+w", @dir)
    FileUtils.rm_rf(@dir)
  end

  def write(path, text)
    path = File.expand_path(path, @top)
    FileUtils.mkdir_p(File.dirname(path))
    File.write(path, text)
    path
  end

  # Files of the real repository, put at the same place in this one.
  def take(*paths) = paths.each { |path| FileUtils.cp(File.join(TOP, path), File.join(@top, path)) }

  def read(path) = File.read(File.expand_path(path, @top))

  # A directory that looks like CRuby's source of +version+.
  def make_source(version)
    name = "ruby-#{version}"
    major, minor, teeny = version.split(".")
    write("#{@dir}/#{name}/version.h", "#define RUBY_VERSION_TEENY #{teeny}\n")
    write("#{@dir}/#{name}/include/ruby/version.h",
          "#define RUBY_API_VERSION_MAJOR #{major}\n#define RUBY_API_VERSION_MINOR #{minor}\n")
    write("#{@dir}/#{name}/configure", "#!/bin/sh\n")
    write("#{@dir}/#{name}/gc.c", (1..20).map { |i| "line #{i};\n" }.join)
    write("#{@dir}/#{name}/gc/default/default.c", "int a;\nint b;\nint c;\n")
    File.join(@dir, name)
  end

  def make_tarball(version)
    source = make_source(version)
    tarball = File.join(@dir, "source-#{version}.tar.gz")
    system("tar", "-czf", tarball, "-C", @dir, File.basename(source), exception: true)
    tarball
  end

  # Pins the tarball under both names; no mirror has it.
  def pin(more = {})
    values = {
      version: "3.4.5", debian_tarball: "debian.tar.gz", debian_path: "pool/none/debian.tar.gz",
      debian_sha256: Digest::SHA256.file(@tarball).hexdigest, release_tarball: "release.tar.gz",
      release_url: "file:///nowhere/release.tar.gz", release_sha256: "0" * 64, unpacked_kb: 1
    }.merge(more)
    write("upstream.pin", values.map { |k, v| "#{k}=#{v}\n" }.join)
  end

  # Runs a tool of the small repository; gives [standard output, standard error, status].
  def tool(name, *arguments, env: {})
    Open3.capture3(env, File.join(@top, "tool", name), *arguments, chdir: @top, unsetenv_others: false)
  end

  def tool!(name, *arguments, **options)
    out, err, status = tool(name, *arguments, **options)
    assert status.success?, "#{name} #{arguments.join(" ")}: #{status}\n#{out}#{err}"
    out
  end

  # Asserts that a tool refuses with one line that matches.
  def refute_tool(pattern, name, *arguments, **options)
    out, err, status = tool(name, *arguments, **options)
    refute status.success?, out
    errors = err.lines.grep(/: error: /)
    assert_equal 1, errors.size, err
    assert_match pattern, errors.first
  end

  def git(*arguments, dir: tree)
    command = %w[git -c user.name=T -c user.email=t@localhost]
    out, status = Open3.capture2e({ "GIT_CONFIG_GLOBAL" => "/dev/null" }, *command, *arguments, chdir: dir)
    assert status.success?, out
    out
  end

  def tree = File.join(@top, "build/tree")
end

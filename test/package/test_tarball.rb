# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "digest"
require "fileutils"
require_relative "installed_ruby"

# Unpacks the tarball that make tarball has packed, uses it there, and where it is moved to.
# What it needs of other systems tool/tarball has looked at; packaging/tarball/README.md says
# how to try it on them.
class TestTarball < Minitest::Test
  include InstalledRuby

  def setup
    @tarball = Dir["#{TOP}/build/tarball/ruby-*.tar.gz"].max_by { |file| File.mtime(file) }
    skip "there is no tarball; run make tarball" unless @tarball
  end

  attr_reader :prefix

  def ruby = "#{prefix}/bin/ruby"

  # Unpacked as mise does it: without the first directory.
  def unpacked
    Dir.mktmpdir("tarball") do |dir|
      @prefix = "#{dir}/rubies/cow"
      FileUtils.mkdir_p(@prefix)
      run!("tar", "-xzf", @tarball, "-C", @prefix, "--strip-components", "1")
      yield dir
    end
  end

  def test_its_name_is_that_of_a_precompiled_ruby
    version, revision = unpacked { says_what_it_is }
    machine = run!("uname", "-m").chomp.sub(/\Aaarch64\z/, "arm64")
    assert_equal "ruby-#{version}-cow#{revision}.#{machine}_linux.tar.gz", File.basename(@tarball)
    assert_equal ["ruby-#{version}"], run!("tar", "-tzf", @tarball).lines.map { |line| line[/[^\/]+/] }.uniq
    assert_equal "#{Digest::SHA256.file(@tarball).hexdigest}  #{File.basename(@tarball)}\n",
                 File.read("#{@tarball}.sha256")
  end

  def test_runs_where_it_is_unpacked
    unpacked do
      has_its_programs
      serves_a_request
      builds_an_extension
      asks_for_no_foreign_header
      links_with_its_own_libraries
      has_the_terms
    end
  end

  def test_runs_where_it_is_moved_to
    unpacked do |dir|
      gem = make_gem(dir)
      run!("#{prefix}/bin/gem", "install", "--local", "--no-document", gem)
      FileUtils.mv(prefix, "#{dir}/moved")
      @prefix = "#{dir}/moved"
      has_its_programs
      assert_equal "hello\n", run!("#{prefix}/bin/greeter")
      assert_equal "#{prefix}/lib/ruby/gems/3.4.0\n", run!(ruby, "-e", "puts Gem.default_dir")
    end
  end

  # For rv, which leaves out the first two directories: the same files, under CRuby's version alone.
  def test_the_one_for_rv_has_another_directory_above
    version = File.read("#{TOP}/upstream.pin")[/^version=(.*)/, 1]
    file = "#{File.dirname(@tarball)}/rv/#{File.basename(@tarball).sub(/-cow[^_]*(?=\.)/, "")}"
    assert_path_exists file
    assert_match(/\Aruby-#{Regexp.escape(version)}\.\w+_linux\.tar\.gz\z/, File.basename(file))
    paths = [@tarball, file].map { |tar| run!("tar", "-tzf", tar).lines(chomp: true) }
    below = "ruby-#{version}/"
    assert_equal(paths[0].map { |path| path.sub(below, "#{below}#{version}/") }, paths[1])
    Dir.mktmpdir("tarball") do |dir|
      @prefix = "#{dir}/ruby-#{version}"
      FileUtils.mkdir_p(@prefix)
      run!("tar", "-xzf", file, "-C", @prefix, "--strip-components", "2")
      says_what_it_is
    end
  end

  # packaging/container/Dockerfile unpacks it to /usr/local. What the image sets is tried here with another
  # prefix: gems and Bundler's settings go where docker's own images of ruby have them, and all is found.
  def test_serves_as_the_image_of_a_container
    recipe = "#{TOP}/packaging/container/Dockerfile"
    skip "there is no recipe for a container here" unless File.exist?(recipe)
    unpacked do |dir|
      version, = says_what_it_is
      env = environment_of_the_image(File.read(recipe))
      assert_equal version, env.delete("RUBY_VERSION")
      assert_equal version, File.read("#{TOP}/packaging/container/application/.ruby-version").chomp
      run!("#{prefix}/bin/gem", "install", "--local", "--no-document", make_gem(dir), env: env)
      assert_path_exists "#{prefix}/bundle/gems/greeter-1.0"
      assert_equal "hello\n", run!("greeter", env: env)
      assert_equal "1", run!("ruby", "-e", "print ENV['BUNDLE_SILENCE_ROOT_WARNING']", env: env)
      run!("bundle", "config", "set", "--local", "jobs", "2", env: env, dir: dir)
      assert_includes File.read("#{prefix}/bundle/config"), "BUNDLE_JOBS"
    end
  end

  # The ENV of the last stage, with +prefix+ for /usr/local.
  def environment_of_the_image(recipe)
    settings = recipe[/^FROM (?!.*^FROM ).*/m].scan(/^ENV (.*)/).flatten.flat_map(&:split)
    settings.each_with_object({ "PATH" => "/usr/local/bin:/usr/bin:/bin" }) do |setting, env|
      name, value = setting.split("=", 2)
      env[name] = value.gsub(/\$(\w+)/) { env.fetch($1) }.gsub("/usr/local", prefix)
    end
  end

  # A gem with a program, without a network.
  def make_gem(dir)
    FileUtils.mkdir_p("#{dir}/greeter/exe")
    File.write("#{dir}/greeter/exe/greeter", "puts 'hello'\n", perm: 0o755)
    File.write("#{dir}/greeter/greeter.gemspec", <<~RUBY)
      Gem::Specification.new("greeter", "1.0") do |spec|
        spec.authors, spec.summary = ["nobody"], "says hello"
        spec.bindir, spec.executables, spec.files = "exe", ["greeter"], ["exe/greeter"]
      end
    RUBY
    run!("#{prefix}/bin/gem", "build", "greeter.gemspec", dir: "#{dir}/greeter")
    "#{dir}/greeter/greeter-1.0.gem"
  end

  # openssl of another version may be loaded beside it, with an extension of a gem.
  def links_with_its_own_libraries
    linked = run!("ldd", ruby, *Dir["#{prefix}/lib/ruby/**/*.so"])
    refute_match(/not found/, linked)
    refute_match(/lib(ssl|crypto|yaml|ffi|z|jemalloc|stdc\+\+)\.so/, linked)
    assert_match(%r{libgmp\.so\S* => #{prefix}/bin/\.\./lib/bundled/}, linked)
    symbols = run!("nm", "-D", "--defined-only", ruby, *Dir["#{prefix}/lib/ruby/3.4.0/*/openssl.so"])
    refute_match(/ (SSL_new|deflate)$/, symbols)
    assert_match(/ T malloc$/, symbols)
    assert_equal "jemalloc\n", run!(ruby, "-e", "puts GC.malloc_stat[:allocator]")
  end

  # A header that extensions read asks for none that only this build needed.
  def asks_for_no_foreign_header
    headers = Dir["#{prefix}/include/**/*.h"]
    refute_empty headers
    assert_empty headers.select { |file| File.read(file).match?(%r{<(jemalloc|gmp|zlib|yaml|openssl)[./]}) }
  end

  def has_the_terms
    papers = Dir.children("#{prefix}/share/doc/cowruby")
    assert_empty %w[LICENSE COPYING BSDL LEGAL] - papers
    %w[ssl yaml ffi zlib1g jemalloc gmp].each do |name|
      assert(papers.any? { |paper| paper.match?(/\A(lib)?#{name}\.copyright\z/) }, "the terms of #{name}")
    end
    { "Apache-2.0" => /Apache License/, "LGPL-3" => /GNU LESSER GENERAL PUBLIC LICENSE/,
      "GPL-3" => /GNU GENERAL PUBLIC LICENSE/ }.each do |name, text|
      assert_match text, File.read("#{prefix}/share/doc/cowruby/#{name}")
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# What tool/deb refuses, and what it packs: packaging/debian and the recipe. The package
# itself is tried by test/package.
class TestDebTool < Minitest::Test
  include ToolTest

  PACKAGING = File.join(ToolTest::TOP, "packaging")

  def test_refuses_without_a_configuration_or_a_source
    refute_tool(/usage/, "deb", "x")
    skip "needs debhelper" unless system("command -v dh >/dev/null")
    refute_tool(/run tool\/bootstrap/, "deb")
    write("build/config.args", "")
    refute_tool(/run make cow first/, "deb")
  end

  # That removing keeps what was installed beside it and purging does not, and that both are
  # about the prefix that the package is built for.
  def test_what_the_package_says_of_its_prefix
    debian = File.join(PACKAGING, "debian")
    output, status = Open3.capture2e("sh", "-n", stdin_data: File.read("#{debian}/cowruby.postrm"))
    assert status.success?, output
    command = %r{^Link: /usr/bin/cowruby\nAlternative: /opt/cowruby/bin/ruby$}
    assert_match(command, File.read("#{debian}/cowruby.alternatives"))
    assert_includes File.read("#{ToolTest::TOP}/tool/deb"), "--prefix=/opt/cowruby"
  end

  # Gems of the package go with it, but no ruby that came to its place in another way.
  def test_purging
    Dir.mktmpdir do |dir|
      prefix = File.join(dir, "cowruby")
      script = File.read(File.join(PACKAGING, "debian/cowruby.postrm"))
      assert_includes script, "/opt/cowruby"
      script.gsub!("/opt/cowruby", prefix)
      purge = lambda do |argument|
        output, status = Open3.capture2e("sh", "-s", argument, stdin_data: script)
        assert status.success?, output
        File.exist?(prefix)
      end
      FileUtils.mkdir_p("#{prefix}/lib/ruby/gems")
      assert purge.call("remove")
      refute purge.call("purge")
      FileUtils.mkdir_p("#{prefix}/bin")
      FileUtils.touch("#{prefix}/bin/ruby")
      assert purge.call("purge")
    end
  end

  # A ruby that make install has put there stays whole, and the package's is not taken by its make uninstall.
  def test_the_package_does_not_take_the_place_of_another_ruby
    Dir.mktmpdir do |dir|
      script = File.read(File.join(PACKAGING, "debian/cowruby.preinst"))
      script.gsub!("/opt/cowruby", "#{dir}/cowruby")
      File.write("#{dir}/dpkg-query", "#!/bin/sh\n[ -e #{dir}/packaged ]\n", perm: 0o755)
      run = lambda do |argument|
        output, status = Open3.capture2e({ "PATH" => "#{dir}:#{ENV.fetch("PATH")}" }, "sh", "-s", argument,
                                         stdin_data: script)
        [status.success?, output]
      end
      assert_equal [true, ""], run.call("install")
      FileUtils.mkdir_p("#{dir}/cowruby/bin")
      FileUtils.touch("#{dir}/cowruby/bin/ruby")
      fine, output = run.call("install")
      refute fine
      assert_match(/cowruby.bin.ruby is there and belongs to no package; run make uninstall/, output)
      assert_equal [true, ""], run.call("upgrade")
      FileUtils.touch("#{dir}/packaged")
      assert_equal [true, ""], run.call("install")
    end
  end

  def test_tool_deb_fills_in_all_that_is_left_open
    left_open = Dir["#{PACKAGING}/debian/*"].select { |file| File.file?(file) }
                                            .flat_map { |file| File.read(file).scan(/@[A-Z_]+@/) }.uniq
    assert_equal %w[@BSD@ @COPYING@ @DATE@ @RUBY_COPYRIGHT@ @RUBY_VERSION@ @VERSION@], left_open.sort
    left_open.each { |name| assert_includes File.read("#{ToolTest::TOP}/tool/deb"), name }
  end

  # An override without its reason cannot be judged.
  def test_each_lintian_override_has_a_reason
    text = File.read("#{PACKAGING}/debian/cowruby.lintian-overrides")
    blocks = text.scan(/((?:^#.*\n)*)((?:^cowruby: .*\n)+)/)
    assert_operator blocks.size, :>, 4
    assert_empty(blocks.select { |reason, _| reason.empty? })
  end

  def test_the_recipe_copies_what_dist_packs_and_names_its_base
    recipe = File.read("#{PACKAGING}/container/Dockerfile")
    arguments = recipe.lines(chomp: true).grep(/\AARG B/)
    assert_equal ["ARG BASE=debian:bookworm-slim", "ARG BUILD=debian:bookworm-slim"], arguments
    assert_equal [1, 1], ["FROM ${BUILD} AS build", "FROM ${BASE}\n"].map { |line| recipe.scan(line).size }
    assert_match(%r{ARG DIST=build/dist/cowruby-\*\.tar\.xz}, recipe)
    assert_includes File.read("#{PACKAGING}/container/Dockerfile.dockerignore"), "!build/dist/*.tar.xz"
  end
end

# frozen_string_literal: true

require_relative "helper"

# What tool/deb refuses, and what it packs: control files and recipe. The package
# itself is tried by test/package.
class TestDebTool < Minitest::Test
  include ToolTest

  PACKAGING = File.join(ToolTest::TOP, "packaging")

  def test_refuses_without_a_configuration_or_a_source
    refute_tool(/usage/, "deb", "x")
    skip "needs dpkg-dev" unless system("command -v dpkg-shlibdeps >/dev/null")
    refute_tool(/run tool\/bootstrap/, "deb")
    write("build/config.args", "")
    refute_tool(/run make cow first/, "deb")
  end

  def test_the_scripts_of_the_package_are_sound
    %w[postinst prerm postrm].each do |script|
      text = File.read("#{PACKAGING}/deb/#{script}")
      assert_match(/\A#!\/bin\/sh\n/, text)
      output, status = Open3.capture2e("sh", "-n", stdin_data: text)
      assert status.success?, "#{script}: #{output}"
    end
  end

  def test_the_control_file_has_what_tool_deb_fills_in
    names = File.read("#{PACKAGING}/deb/control").scan(/@([A-Z]+)@/).flatten
    assert_equal %w[ARCHITECTURE DEPENDS SIZE VERSION], names.sort
    names.each { |name| assert_includes File.read("#{ToolTest::TOP}/tool/deb"), "@#{name}@" }
  end

  def test_the_recipe_copies_what_dist_packs_and_names_its_base
    recipe = File.read("#{PACKAGING}/container/Dockerfile")
    assert_equal ["ARG BASE=debian:bookworm-slim"], recipe.lines(chomp: true).grep(/\AARG BASE/)
    assert_equal 2, recipe.scan("FROM ${BASE}").size
    assert_match(%r{ARG DIST=build/dist/cowruby-\*\.tar\.xz}, recipe)
    assert_includes File.read("#{PACKAGING}/container/Dockerfile.dockerignore"), "!build/dist/*.tar.xz"
  end
end

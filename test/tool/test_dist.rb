# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# tool/dist: the same commit gives the same bytes, whoever packs it.
class TestDist < Minitest::Test
  include ToolTest

  def dist(umask)
    before = File.umask(umask)
    tool!("dist")
    tarball = Dir["#{@top}/build/dist/cowruby-3.4.5-*.tar.xz"].first
    assert_equal 0o044, File.stat(tarball).mode & 0o044
    [Digest::SHA256.file(tarball), tarball]
  ensure
    File.umask(before)
  end

  def test_the_umask_of_who_packs_makes_no_difference
    write(".gitignore", "/build/\n/configure\n")
    write("configure", "#!/bin/sh\n")
    git("init", "-q", dir: @top)
    git("add", ".", dir: @top)
    git("commit", "-qm", "x", dir: @top)
    File.chmod(0o755, "#{@top}/configure")
    first, = dist(0o022)
    File.chmod(0o700, "#{@top}/configure")
    second, tarball = dist(0o077)
    assert_equal first, second
    listed, = Open3.capture2("tar", "-tvf", tarball)
    assert_equal %w[-rw-r--r-- -rwxr-xr-x drwxr-xr-x], listed.lines.map { |line| line[/\S+/] }.uniq.sort
  end

  def test_what_git_says_is_shown
    _, err, status = tool("dist", env: { "GIT_CEILING_DIRECTORIES" => @dir })
    refute status.success?
    assert_match(/not a git repository.*make dist packs a commit of a git checkout/m, err)
  end
end

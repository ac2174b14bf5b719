# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "fileutils"
require "open3"
require "tmpdir"

# The make targets on the build that is there: where it is, that it can be
# installed without network and taken away again, and the distribution.
class TestBuild < Minitest::Test
  TOP = File.expand_path("../..", __dir__)

  def make(*arguments, env: {})
    Open3.capture3({ "MAKEFLAGS" => nil, "MFLAGS" => nil, "MAKELEVEL" => nil }.merge(env), "make", "-s",
                   *arguments, chdir: TOP)
  end

  def make!(*arguments, **options)
    out, err, status = make(*arguments, **options)
    assert status.success?, "make #{arguments.join(" ")}\n#{out}#{err}"
    out
  end

  def test_which_ruby_prints_a_runnable_path
    ruby = make!("which-ruby").chomp
    out, status = Open3.capture2e(ruby, "-rjson", "-rsocket", "-ropenssl", "-e",
                                  "puts RUBY_DESCRIPTION, JSON[[1]]")
    assert status.success?, out
    assert_match(/\+CowRuby.*\n\[1\]\n\z/, out)
  end

  def test_which_says_what_to_do_where_there_is_no_build
    out, err, status = make("which-debug", "CURDIR=/nonexistent")
    refute status.success?
    assert_empty out
    assert_match(/the debug build is not there; run make debug/, err)
  end

  # Addresses that lead nowhere stand in for a machine without network.
  NO_NETWORK = { "http_proxy" => "http://127.0.0.1:9", "https_proxy" => "http://127.0.0.1:9" }.freeze

  def test_install_and_uninstall_without_network
    Dir.mktmpdir do |temporary|
      # uninstall removes directories that have become empty: also this one.
      dir = File.join(temporary, "root")
      prefix = File.read("#{TOP}/build/cow/obj/Makefile")[/^prefix = (.*)/, 1]
      extensions = -> { Dir["#{prefix}/lib/ruby/gems/*/extensions/**/*"].sort }
      there = extensions.call
      make!("install", "DESTDIR=#{dir}", env: NO_NETWORK)
      # What .ci/run has installed at the prefix stays (0197-install-destdir).
      assert_equal there, extensions.call
      ruby = Dir["#{dir}/**/bin/ruby"].first
      assert ruby, "no bin/ruby"
      bin = File.dirname(ruby)
      %w[irb rake bundle gem erb rbs racc].each { |program| assert_path_exists File.join(bin, program) }

      lib = File.join(File.dirname(bin), "lib/ruby/3.4.0")
      gems = File.join(File.dirname(bin), "lib/ruby/gems/3.4.0")
      arch = Dir["#{lib}/*-linux*"].first
      env = { "RUBYLIB" => "#{lib}:#{arch}", "GEM_HOME" => gems, "GEM_PATH" => gems }
      assert_path_exists File.join(File.dirname(bin), "share/man/man1/cowruby-memory.1")
      patterns = { "cowruby-memory" => /\Acowruby-memory of CowRuby/, "irb" => /\Airb/, "rake" => /\Arake/,
                   "bundle" => /\ABundler/, "gem" => /\A3\./ }
      patterns.each do |name, pattern|
        out, status = Open3.capture2e(env, ruby, File.join(bin, name), "--version")
        assert status.success?, out
        assert_match pattern, out
      end
      listed, = Open3.capture2e(env, ruby, File.join(bin, "gem"), "list", "--no-details")
      bundled = File.readlines("#{TOP}/build/cow/src/gems/bundled_gems").grep_v(/\A(#|\s*\z)/)
                    .map { |line| line.split.first }
      missing = bundled.reject { |name| listed.match?(/^#{Regexp.escape(name)} /) }
      # nkf and syslog were gems with compiled parts: they must be there as well.
      assert_empty missing
      script = "require 'bigdecimal'; require 'nkf'; require 'racc/cparse'; puts BigDecimal('1.5')"
      out, status = Open3.capture2e(env, ruby, "-e", script)
      assert status.success?, out

      make!("uninstall", "DESTDIR=#{dir}")
      refute_path_exists ruby
      assert_empty Dir["#{lib}/*.rb"]
    end
  end

  def test_dist_packs_the_commit_with_configure_and_nothing_of_upstream
    skip "no git checkout" unless system("git", "-C", TOP, "rev-parse", "-q", "--verify", "HEAD",
                                         out: File::NULL, err: File::NULL)
    make!("dist")
    tarball = Dir["#{TOP}/build/dist/cowruby-*.tar.xz"].first
    names = `tar -tf #{tarball}`.lines(chomp: true).map { |n| n.split("/", 2).last }
    packed = %w[configure README.md patches/series gc/revision.h tool/bootstrap upstream.pin]
    assert_empty packed - names
    assert_empty names.grep(%r{\A(build|gc/default|include)/})
  end

  def test_help_names_the_targets
    out = make!("help")
    %w[stock tree patches verify range-diff install check check-c benchmark dist clean].each do |target|
      assert_match(/^make #{target} /, out)
    end
  end
end

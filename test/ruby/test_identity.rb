# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "rbconfig"

# The description says that this is CowRuby. By engine, version, ABI and platform it is CRuby, so
# that gems take it for CRuby.
class TestIdentity < Minitest::Test
  include CowTest

  REVISION = File.read(File.join(ROOT, "gc/revision.h"))[/^#define COWRUBY_REVISION "(.*)"/, 1]
  VERSION = File.read(File.join(ROOT, "upstream.pin"))[/^version=(.*)/, 1]

  def test_description_names_cowruby_and_revision
    assert_includes RUBY_DESCRIPTION, " +CowRuby #{REVISION} "
    assert_match(/\Aruby #{Regexp.quote(VERSION)} \(.*\) .*\[#{Regexp.quote(RUBY_PLATFORM)}\]\n\z/,
                 run_ruby_status("", options: ["-v"]).first)
  end

  def test_description_names_cowruby_once_with_a_jit_and_without
    %w[--disable-yjit --yjit].each do |option|
      output, status = run_ruby_status("puts RUBY_DESCRIPTION", options: [option])
      next unless status.success? # no YJIT in this build

      assert_equal 1, output.scan("+CowRuby").size, output
    end
  end

  def test_rbconfig_has_the_revision
    assert_equal REVISION, RbConfig::CONFIG["COWRUBY_REVISION"]
  end

  def test_engine_version_abi_and_platform_are_those_of_cruby
    assert_equal "ruby", RUBY_ENGINE
    assert_equal VERSION, RUBY_VERSION
    assert_equal VERSION, RUBY_ENGINE_VERSION
    assert_equal "3.4.0", RbConfig::CONFIG["ruby_version"]
    refute_match(/cow/i, Gem::Platform.local.to_s)
    refute_match(/cow/i, RbConfig::CONFIG["arch"])
  end
end

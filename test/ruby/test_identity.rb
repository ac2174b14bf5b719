# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "rbconfig"

# CowRuby tells that it is CowRuby, and looks like CRuby to all that asks for
# engine, version, ABI or platform.
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

  def test_what_gems_look_at_is_cruby
    assert_equal "ruby", RUBY_ENGINE
    assert_equal VERSION, RUBY_VERSION
    assert_equal VERSION, RUBY_ENGINE_VERSION
    assert_equal "3.4.0", RbConfig::CONFIG["ruby_version"]
    refute_match(/cow/i, Gem::Platform.local.to_s)
    refute_match(/cow/i, RbConfig::CONFIG["arch"])
  end
end

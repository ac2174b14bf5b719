# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
load File.expand_path("../../tool/check", __dir__)

# What is installed at the prefix, such as Rails' gems, is not seen by the tests. A gem
# directory with a plugin of minitest that raises stands for it.
class TestIsolation < Minitest::Test
  RUBY = ENV["COW_RUBY"] || RbConfig.ruby
  MINITEST = File.dirname($LOADED_FEATURES.grep(%r{/minitest\.rb\z}).first)
  LIBRARIES = ["-I", MINITEST, "-I", File.join(ToolTest::TOP, "test")].freeze
  HELPER = <<~'RUBY'
    require "helper"

    class TestIsolated < Minitest::Test
      include CowTest

      def test_this_process = assert_raises(Gem::MissingSpecError) { gem "evil" }
      def test_a_script
        found = run_ruby('print Gem.find_files("minitest/evil_plugin.rb").join', options: %w[--enable-gems])
        assert_equal "", found
      end
    end
  RUBY
  PLAIN = <<~'RUBY'
    require "minitest/autorun"

    class TestPlain < Minitest::Test
      def test_anything = pass
    end
  RUBY

  def setup
    @dir = Dir.mktmpdir("cow-isolation")
    @gems = File.join(@dir, "gems")
    FileUtils.mkdir_p(%w[gems/evil-1.0/lib/minitest specifications].map { |path| File.join(@gems, path) })
    File.write(File.join(@gems, "gems/evil-1.0/lib/minitest/evil_plugin.rb"), "raise 'a plugin was loaded'")
    File.write(File.join(@gems, "specifications/evil-1.0.gemspec"), <<~SPEC)
      Gem::Specification.new do |s|
        s.name, s.version, s.summary, s.authors = "evil", "1.0", "a plugin", ["us"]
        s.files = ["lib/minitest/evil_plugin.rb"]
      end
    SPEC
  end

  def teardown = FileUtils.rm_rf(@dir)

  def file(text) = File.join(@dir, "test_isolated.rb").tap { |path| File.write(path, text) }

  def environment = { "RUBY" => RUBY, "GEM_HOME" => @gems, "GEM_PATH" => @gems, "MT_NO_PLUGINS" => nil }

  def test_the_plugin_is_loaded_where_nothing_is_done_about_it
    output, status = Open3.capture2e(environment, RUBY, *LIBRARIES, file(PLAIN))
    refute status.success?
    assert_match(/a plugin was loaded/, output)
  end

  def test_a_file_by_hand
    output, status = Open3.capture2e(environment, RUBY, *LIBRARIES, file(HELPER))
    assert status.success?, output
    assert_match(/2 runs, .* 0 failures, 0 errors, 0 skips/, output)
  end

  # The helper has no part in this one: the stage's environment does it.
  def test_the_runner
    log = File.join(@dir, "log")
    define_singleton_method(:run) { |_, *command, **options| run_logged(log, *command, **options) }
    before = ENV.to_h
    ENV.update(environment)
    outcome = minitest_run("ours", file(PLAIN), RUBY, *LIBRARIES, env: { "RUBY" => RUBY, **NO_GEMS })
    assert_equal({ "TestPlain#test_anything" => "passed" }, outcome.tests, outcome.notes.join)
  ensure
    ENV.replace(before)
  end
end

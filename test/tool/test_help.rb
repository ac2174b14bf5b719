# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestHelp < Minitest::Test
  include ToolTest

  TOOLS = %w[apt bootstrap build check check-gems check-others deb definition fetch-source flat-patch layouts
             lint lint-text progress range-diff rubies].freeze

  def test_each_tool_says_what_it_does
    FileUtils.mkdir_p(File.join(@top, "benchmark/lib/measure"))
    take("benchmark/lib/measure/machine.rb") # check-gems says where it ran
    %w[--help -h].product(TOOLS).each do |option, name|
      out, err, status = tool(name, option)
      assert status.success?, "#{name}: #{err}"
      assert_match(/\b#{name}\b/, out)
      assert_operator out.lines.size, :>, 2, name
      refute_match(/^set -|frozen_string/, out)
    end
  end

  def test_an_option_without_its_operand
    refute_tool(/--base takes a URL/, "definition", "--base")
    refute_tool(/--cache takes a directory/, "fetch-source", "--cache")
    refute_tool(/usage: tool\/build cow\|stock\|.*\|header/, "build", "nonsense")
    refute_tool(/usage: tool\/build cow\|stock/, "build")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "json"
require "rbconfig"

# cowruby-memory runs on any ruby, and looks at any: here both are the base ruby. What it does is tested in
# test/ruby/test_memory_command.rb.
class TestMemoryProgram < Minitest::Test
  PROGRAM = File.join(ToolTest::TOP, "bin/cowruby-memory")

  def program(*arguments)
    Open3.capture3(RbConfig.ruby, "-w", PROGRAM, *arguments.map(&:to_s))
  end

  # In place of the test's own process, from which children of other tests may descend.
  def with_server
    script = "$0 = 'unicorn master of a test'; fork { sleep }; puts $$; $stdout.flush; gets; exit!"
    Open3.popen2(RbConfig.ruby, "-e", script, pgroup: true) do |input, output, thread|
      output.gets
      yield thread.pid
      input.close
    ensure
      Process.kill(:KILL, -thread.pid)
    end
  end

  def test_each_way_to_print
    with_server do |pid|
      { [] => /^ +total 2 processes/, ["--json"] => /"process_count": 2,/, ["--explain"] => /^all +\d/,
        ["--prometheus"] => /^cowruby_server_processes 2$/ }.each do |options, expected|
        out, err, status = program(pid, *options)
        assert_equal ["", 0], [err, status.exitstatus]
        assert_match expected, out
      end
    end
  end

  # In an installation the library is found by its name.
  def test_away_from_the_repository
    Dir.mktmpdir do |directory|
      FileUtils.mkdir(bin = File.join(directory, "bin"))
      FileUtils.cp(PROGRAM, bin)
      command = [RbConfig.ruby, "-I", File.join(ToolTest::TOP, "lib"), File.join(bin, "cowruby-memory"), "-V"]
      out, status = Open3.capture2e(*command)
      assert_equal 0, status.exitstatus, out
      assert_match(/\Acowruby-memory /, out)
    end
  end
end

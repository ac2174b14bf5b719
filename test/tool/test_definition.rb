# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestDefinition < Minitest::Test
  include ToolTest

  NAME = "cowruby-3.4.5-#{File.read("#{ToolTest::TOP}/gc/revision.h")[/COWRUBY_REVISION "(.*)"/, 1]}"

  def setup
    super
    FileUtils.mkdir_p("#{@top}/packaging")
    FileUtils.cp_r("#{ToolTest::TOP}/packaging/ruby-build", "#{@top}/packaging")
    write("build/dist/#{NAME}.tar.gz", "a tarball")
  end

  def test_writes_a_definition_of_the_tarball_that_is_there
    tool!("definition", "--base", "file:///some/where/")
    sum = Digest::SHA256.hexdigest("a tarball")
    assert_includes read("build/dist/#{NAME}"),
                    %(install_package "#{NAME}" "file:///some/where/#{NAME}.tar.gz##{sum}" standard\n)
    refute_match(/@[A-Z]/, read("build/dist/#{NAME}"))
    _, status = Open3.capture2e("bash", "-n", "#{@top}/build/dist/#{NAME}")
    assert status.success?
  end

  def test_writes_where_it_is_told
    tool!("definition", "--base", "https://localhost/x", "--output", "#{@dir}/new/place")
    assert_path_exists "#{@dir}/new/place/#{NAME}"
  end

  def test_mistakes
    refute_tool(/name where the tarball will be fetched from/, "definition")
    refute_tool(/--base URL/, "definition", "--base", "somewhere")
    refute_tool(/this is no URL/, "definition", "--base", "https://x/$(date)")
    refute_tool(/unknown argument 'x'/, "definition", "x")
    FileUtils.rm("#{@top}/build/dist/#{NAME}.tar.gz")
    refute_tool(/run make dist/, "definition", "--base", "file:///x")
  end
end

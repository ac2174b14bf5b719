# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# The unit tests of YJIT's crate, upstream's and those in gc/yjit_*.rs. They need no interpreter.
class TestYJITCrate < Minitest::Test
  include ToolTest

  def test_crate
    source = File.join(TOP, "build/tree/yjit/src/lib.rs")
    skip "no build/tree: make tree" unless File.exist?(source)
    Dir.mktmpdir do |directory|
      program = File.join(directory, "tests")
      options = %w[--edition=2021 --test --crate-name=yjit]
      out, status = Open3.capture2e("rustc", *options, "-o", program, source)
      assert_predicate status, :success?, out
      out, status = Open3.capture2e(program)
      assert_predicate status, :success?, out
      assert_match(/thin::tests::a_word_for_each_length \.\.\. ok/, out)
    end
  rescue Errno::ENOENT
    skip "no rustc"
  end
end

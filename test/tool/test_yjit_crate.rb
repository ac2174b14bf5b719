# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# The unit tests of YJIT's crate, upstream's and those in gc/yjit_*.rs. They need no interpreter.
class TestYJITCrate < Minitest::Test
  include ToolTest

  def test_crate
    source = File.join(TOP, "build/tree/yjit/src/lib.rs")
    skip "no build/tree: make tree" unless File.exist?(source)
    compilers = rust_compilers
    skip "no rustc" if compilers.empty?
    Dir.mktmpdir do |directory|
      compilers.each do |compiler|
        program = File.join(directory, "tests")
        options = %w[--edition=2021 --test --crate-name=yjit]
        out, status = Open3.capture2e(compiler, *options, "-o", program, source)
        assert_predicate status, :success?, "#{compiler}: #{out}"
        out, status = Open3.capture2e(program)
        assert_predicate status, :success?, out
        assert_match(/thin::tests::a_word_for_each_length \.\.\. ok/, out)
      end
    end
  end

  # That of the PATH, and that of the system, which may be years older; CRuby wants 1.58 at least.
  def rust_compilers
    found = %w[rustc /usr/bin/rustc].to_h do |compiler|
      version, status = Open3.capture2e(compiler, "--version")
      [version, (compiler if status.success?)]
    rescue Errno::ENOENT
      ["", nil]
    end
    found.values.compact
  end
end

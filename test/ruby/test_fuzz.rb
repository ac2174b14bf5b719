# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "etc"
require "tmpdir"

# A short part of make check-fuzz (test/fuzz): the heap, settings and files. A failure prints the seed with
# which it comes again.
class TestFuzz < Minitest::Test
  include CowTest

  PLACE = File.join(ROOT, "test/fuzz")
  # Seconds after which no further sequence begins.
  SECONDS = Float(ENV["COW_FUZZ_SECONDS"] || 15)
  # The same each time: what is found at random is found by make check-fuzz.
  SEED = Integer(ENV["COW_FUZZ_SEED"] || 1)
  # Seconds that one sequence may take.
  LIMIT = (120 * Float(ENV["RUBY_TEST_TIMEOUT_SCALE"] || 1)).ceil

  def test_heap
    Dir.mktmpdir do |directory|
      fuzz("run", "--seconds", SECONDS, "--each", ASSERTIONS ? 300 : 1_500, "--output", directory,
           "--processes", [Etc.nprocessors, 2].min, "--minimize", 0, "--failures", 1, "--limit", LIMIT)
    end
  end

  def test_environment
    skip "AddressSanitizer needs more address space" if ASAN

    fuzz("environment", "--cases", ASSERTIONS ? 6 : 30)
  end

  def test_files
    fuzz("files", "--cases", 180)
  end

  private

  def fuzz(program, *arguments)
    arguments += ["--seed", SEED]
    arguments += ["--ruby", RUBY] unless program == "files"
    command = [RUBY, "--disable-gems", "-W0", File.join(PLACE, program), *arguments.map(&:to_s)]
    out, status = Open3.capture2e(*command)
    assert status.success?, "#{status.inspect}\n#{out}"
  end
end

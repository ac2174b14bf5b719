# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "tmpdir"

# For tests of COWRUBY_REHEARSAL=auto: a directory of an application, with the notes of its workers.
module RehearsalPlace
  NOTES = "tmp/cowruby/rehearsal.txt"

  def setup
    @place = Dir.mktmpdir
    Dir.mkdir(File.join(@place, "tmp"))
  end

  def teardown
    FileUtils.rm_rf(@place)
  end

  def file(name = NOTES) = File.join(@place, name)

  # What the file says when a master has added the journal to it.
  def noted_text
    CowRuby::Rehearsal::Notes.new(file, query: true).read
    File.read(file)
  end

  def journal = file("#{NOTES}.journal")

  def write(name, text, mode = 0o600)
    FileUtils.mkdir_p(File.dirname(file(name)), mode: 0o700)
    File.write(file(name), text)
    File.chmod(mode, file(name))
    name
  end

  def note(*lines, day: Time.now.utc.strftime("%Y-%m-%d"))
    write(NOTES, "cowruby-rehearsal 1 #{day}\n#{lines.map { |line| "#{line}\n" }.join}")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Reads patches/series and patches. Loaded by tool/lint-patches and tool/patch-index.

# Gives the names in patches/series of the directory, in order. Raises SystemCallError if it cannot be read.
def patch_series(directory)
  lines = File.readlines(File.join(directory, "series"), chomp: true)
  lines.map { |line| line.sub(/#.*/, "").strip }.reject(&:empty?)
end

# A patch: its header, which is a mail's with fields of ours, and its diff (nil if it has none).
class Patch
  attr_reader :name, :text, :header, :diff

  def initialize(directory, name)
    @name = name
    @text = File.read(File.join(directory, "#{name}.patch"))
    @header, @diff = @text.split(/^(?=diff --git )/, 2)
  end

  def number = name[/\A\d+/].to_i

  # Gives the subject as the header has it, which may be folded; "" if there is none.
  def subject = header[/^Subject: (?:\[PATCH\] )?(.*(?:\n .*)*)/, 1].to_s

  # Gives what a field says, on one line however many it has; nil if there is none.
  def field(key)
    header[/^#{Regexp.escape(key)}: (.*(?:\n(?![A-Z][\w\- \/]*:|---$|\n).+)*)/, 1]&.gsub("\n", " ")
  end

  # Gives the part of the diff that each file has.
  def parts = diff.split(/^(?=diff --git )/)
end

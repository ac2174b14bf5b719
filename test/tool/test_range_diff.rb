# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# tool/range-diff between a commit of the small repository and its tree.
class TestRangeDiff < Minitest::Test
  include ToolTest

  def setup
    super
    FileUtils.mkdir_p("#{@top}/build/cache")
    FileUtils.cp(@tarball, "#{@top}/build/cache/debian.tar.gz")
    tool!("tree", "import", tree)
    patch("0100-five", 5 => "five")
    patch("0200-ten", 10 => "ten")
    tool!("tree", "export", tree)
    write(".gitignore", "/build/\n")
    git("init", "-q", dir: @top)
    save("first")
  end

  # A commit in the tree that changes lines of gc.c.
  def patch(name, lines, option = nil)
    text = File.read("#{tree}/gc.c")
    lines.each { |number, word| text.sub!(/^line #{number}.*;$/, "line #{number} #{word};") }
    File.write("#{tree}/gc.c", text)
    git("commit", "-qa", *option, "-m", "Change a line\n\nWhy: x\n\nPatch: #{name}")
  end

  def save(message)
    git("add", "-A", dir: @top)
    git("commit", "-qm", message, dir: @top)
  end

  # [what is printed, the number of patches that are the same]
  def range_diff(*arguments)
    out, err, status = tool("range-diff", *arguments)
    assert status.success?, out + err
    assert_empty Dir["#{@top}/build/scratch.*"]
    [out, err[/^range-diff: (\d+) patches are as in/, 1].to_i]
  end

  def test_nothing_has_changed
    assert_equal ["", 2], range_diff
  end

  def test_a_patch_that_was_changed_and_one_that_is_new
    patch("0200-ten", { 10 => "TEN" }, "--amend")
    patch("0300-fifteen", 15 => "fifteen")
    head = File.read("#{tree}/.git/cow-head")
    out, same = range_diff
    assert_equal 1, same
    assert_match(/^2: +\h+ ! 2: /, out)
    assert_match(/^ +-\+line 10 ten;$/, out)
    assert_match(/^ +\+\+line 10 TEN;$/, out)
    assert_match(/^-: +-+ > 3: /, out)
    refute_match(/five/, out)
    assert_equal head, File.read("#{tree}/.git/cow-head"), "the tree is left alone"

    # Exported and committed it is the same as the tree; against the commit before it is not.
    tool!("tree", "export", tree)
    save("second")
    assert_equal ["", 3], range_diff
    assert_equal out, range_diff("HEAD~1").first
  end

  def test_another_version_of_upstream
    git("reset", "-q", "--hard", "upstream", dir: tree)
    FileUtils.rm_rf(tree)
    @tarball = make_tarball("3.4.6")
    FileUtils.cp(@tarball, "#{@top}/build/cache/release.tar.gz")
    pin(version: "3.4.6", debian_sha256: "0" * 64, release_sha256: Digest::SHA256.file(@tarball).hexdigest)
    tool!("tree", "import", tree)
    assert_equal ["", 2], range_diff
  end

  def test_what_cannot_be_compared_is_said
    refute_tool(/no such commit here: nonsense/, "range-diff", "nonsense")
    refute_tool(/unknown argument '--x'/, "range-diff", "--x")
    assert_match(/\Ausage: tool\/range-diff/, tool!("range-diff", "--help"))
    FileUtils.rm_rf(tree)
    refute_tool(/run make tree first/, "range-diff")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestTree < Minitest::Test
  include ToolTest

  def import = tool!("tree", "import", tree, "--source", @tarball)
  def export = tool!("tree", "export", tree)
  def verify = tool("tree", "verify", "--source", @tarball)
  def sync = tool!("tree", "sync", tree, src, "--source", @tarball)
  def src = File.join(@top, "build/cow/src")

  def commit_message(name, subject = "Change a line")
    names = ["Why", "Not in gc/", "Invariant", "Effect", "Forwarded", "Needed-Until"]
    fields = names.map { |field| "#{field}: x\n" }.join
    "#{subject}\n\n#{fields}Test: tool/tree\nLast-Update: 2026-11-21\n\nPatch: #{name}\n"
  end

  def change(file, from, to)
    path = File.join(tree, file)
    text = File.read(path)
    assert_includes text, from
    File.write(path, text.sub(from, to))
  end

  def commit(name, **options) = git("commit", "-qam", commit_message(name, **options))

  # A tree with two patches, exported.
  def two_patches
    import
    change("gc.c", "line 5;", "line five;")
    commit("0100-five")
    change("gc.c", "line 6;", "line six;")
    File.write(File.join(tree, "gc/new.c"), "int new;\n")
    git("add", "gc/new.c")
    commit("0200-six")
    export
  end

  def test_export_and_import_are_inverses
    two_patches
    assert_equal "# the order\n0100-five\n0200-six\n", read("patches/series")
    refute_match(/^index /, read("patches/0200-six.patch"))
    assert_match(/^\| \[0200\]\(0200-six.patch\) \| Change a line \| \+2 -1 \| gc.c, gc.new.c \|/,
                 read("patches/README.md")[/^## 02xx: .*/m])
    before = Dir["#{@top}/patches/*"].to_h { |f| [f, File.read(f)] }
    FileUtils.rm_rf(tree)
    import
    export
    assert_equal before, Dir["#{@top}/patches/*"].to_h { |f| [f, File.read(f)] }
    out, err, status = verify
    assert status.success?, out + err
    assert_match(/upstream lines touched: 5 by CowRuby's own patches, 0 by fixes/, err)
    assert_match(/by hundreds of the series: 01xx 2, 02xx 3$/, err)
  end

  def test_gc_stands_in_the_tree_and_is_not_exported
    two_patches
    assert_path_exists File.join(tree, "gc/cow/revision.h")
    refute_match(/revision\.h/, read("patches/0200-six.patch"))
  end

  def test_import_renews_a_tree_when_the_patches_changed
    two_patches
    write("patches/series", "0100-five\n")
    import
    assert_match(/line six/, File.read("#{@top}/patches/0200-six.patch"))
    assert_match(/line 6;/, File.read("#{tree}/gc.c"))
  end

  def test_import_never_drops_work
    two_patches
    write("patches/series", "0100-five\n")
    change("gc.c", "line 9;", "line nine;")
    refute_tool(/has work that is not exported; run make patches/,
                "tree", "import", tree, "--source", @tarball)
    commit("0300-nine")
    refute_tool(/has work that is not exported; run make patches/,
                "tree", "import", tree, "--source", @tarball)
    refute_tool(/has work that is not exported/, "tree", "unexported", tree)
    assert_match(/line nine/, File.read("#{tree}/gc.c"))
  end

  def test_a_patch_that_does_not_apply_leaves_no_half_of_a_tree
    two_patches
    FileUtils.rm_rf(tree)
    write("patches/0100-five.patch", read("patches/0100-five.patch").sub("-line 5;", "-line fifty;"))
    refute_tool(/0100-five.patch does not apply to CRuby 3.4.5; see doc.rebase.md/,
                "tree", "import", tree, "--source", @tarball)
    refute_path_exists tree
    assert_empty Dir["#{@top}/build/scratch.*"]
  end

  # A patch that does not apply to a tree that was whole before.
  def test_a_renewal_that_fails_leaves_the_tree_as_it_was
    two_patches
    before = git("rev-parse", "HEAD")
    good = read("patches/0200-six.patch")
    write("patches/0200-six.patch", good.sub("-line 6;", "-line sixty;"))
    2.times do
      refute_tool(/0200-six.patch does not apply/, "tree", "import", tree, "--source", @tarball)
      assert_equal before, git("rev-parse", "HEAD")
    end
    assert_empty git("status", "--porcelain")
    assert_empty Dir["#{@top}/build/scratch.*"]
    write("patches/0200-six.patch", good)
    import
    assert_match(/line six/, File.read("#{tree}/gc.c"))
  end

  # Killed after the first of two patches: neither a build nor an export takes one patch for all.
  def test_a_renewal_that_is_killed_leaves_the_tree_as_it_was
    two_patches
    before = git("rev-parse", "HEAD")
    patches = %w[0100-five 0200-six].to_h { |name| [name, read("patches/#{name}.patch")] }
    patches.each { |name, text| write("patches/#{name}.patch", text.sub("Why: x", "Why: y")) }
    real = ENV["PATH"].split(":").map { |dir| File.join(dir, "git") }.find { |file| File.executable?(file) }
    File.chmod(0o755, write("#{@dir}/bin/git", <<~SH))
      #!/bin/sh
      case $* in *0200-six.patch) kill -KILL $PPID ;; *) exec #{real} "$@" ;; esac
    SH
    _, _, status = tool("tree", "import", tree, "--source", @tarball,
                        env: { "PATH" => "#{@dir}/bin:#{ENV.fetch("PATH")}" })
    assert_predicate status, :signaled?
    assert_equal before, git("rev-parse", "HEAD")
    export
    assert_equal patches, patches.keys.to_h { |name| [name, read("patches/#{name}.patch")] }
    patches.each { |name, text| write("patches/#{name}.patch", text.sub("Why: x", "Why: y")) }
    import
    assert_equal "2\n", git("rev-list", "--count", "upstream..HEAD")
    assert_match(/^Why: y/, git("log", "-1", "--format=%B"))
  end

  # What make distclean would remove for good.
  def test_new_files_stashes_branches_and_the_tree_before_are_work_too
    two_patches
    tool!("tree", "unexported", tree)
    write("#{tree}/gc/newer.c", "int newer;\n")
    refute_tool(/has work that is not exported \(new files/, "tree", "unexported", tree)
    File.delete("#{tree}/gc/newer.c")
    change("gc.c", "line 9;", "line nine;")
    git("stash")
    refute_tool(/has work that is not exported/, "tree", "unexported", tree)
    git("stash", "drop")
    git("branch", "same")
    git("branch", "older", "HEAD^")
    tool!("tree", "unexported", tree)
    git("checkout", "-q", "-b", "other")
    git("commit", "-q", "--allow-empty", "-m", "x")
    git("checkout", "-q", "main")
    refute_tool(/has work that is not exported/, "tree", "unexported", tree)
    git("branch", "-qD", "other")
    tool!("tree", "unexported", tree)
    FileUtils.mkdir("#{tree}.old")
    refute_tool(/build.tree.old is there/, "tree", "unexported", tree)
  end

  # upstream.pin names another CRuby, as after a pull: what is there of the one before is of no use.
  def test_another_pin_makes_tree_and_source_anew
    two_patches
    sync
    write("#{src}/generated", "by a build\n")
    @tarball = make_tarball("3.4.6")
    pin(version: "3.4.6")
    write("#{tree}/gc/newer.c", "int newer;\n")
    refute_tool(/is of another CRuby than upstream.pin, 3.4.6, and has work that is not exported/, "tree",
                "import", tree, "--source", @tarball)
    File.delete("#{tree}/gc/newer.c")
    import
    assert_match(/TEENY 6/, File.read("#{tree}/version.h"))
    assert_match(/line six/, File.read("#{tree}/gc.c"))
    sync
    assert_match(/TEENY 6/, File.read("#{src}/version.h"))
    refute_path_exists "#{src}/generated"
  end

  # As root has it in a user's clone.
  def test_a_tree_of_another_user
    two_patches
    write("patches/series", "0100-five\n")
    other = { "GIT_TEST_ASSUME_DIFFERENT_OWNER" => "1" }
    _, err, = Open3.capture3(other.merge("GIT_CONFIG_GLOBAL" => "/dev/null"), "git", "status", chdir: tree)
    skip "this git enters trees of others" unless err.include?("dubious ownership")
    tool!("tree", "import", tree, "--source", @tarball, env: other)
    assert_match(/line 6;/, File.read("#{tree}/gc.c"))
    tool!("tree", "sync", tree, src, "--source", @tarball, env: other)
    tool!("flat-patch", env: other)
  end

  def test_a_patch_edited_by_hand_is_found
    two_patches
    write("patches/0100-five.patch", read("patches/0100-five.patch").sub("Why: x", "Why: x  "))
    _, err, status = verify
    refute status.success?
    assert_match(/0100-five.patch is not what its import exports/, err)
  end

  def test_export_wants_committed_work_and_a_name
    import
    change("gc.c", "line 5;", "line five;")
    refute_tool(/has changes that are not committed/, "tree", "export", tree)
    git("commit", "-qam", "No trailer")
    refute_tool(/\(No trailer\) has no trailer 'Patch: NNNN-name'/, "tree", "export", tree)
  end

  def test_export_removes_a_patch_whose_commit_is_gone
    two_patches
    git("reset", "-q", "--hard", "HEAD^")
    export
    refute_path_exists "#{@top}/patches/0200-six.patch"
    assert_equal "# the order\n0100-five\n", read("patches/series")
  end

  def test_sync_touches_only_what_differs
    two_patches
    sync
    assert_match(/line six/, File.read("#{src}/gc.c"))
    assert_path_exists "#{src}/gc/new.c"
    assert_path_exists "#{src}/gc/cow/revision.h"
    refute_path_exists "#{src}/.git"
    # What a build generated in the source stays, newer than what it came from.
    File.write("#{src}/gc/default/default.c", "generated\n")
    change("gc.c", "line 7;", "line seven;")
    before = File.mtime("#{src}/version.h")
    sync
    assert_match(/line seven/, File.read("#{src}/gc.c"))
    assert_equal "generated\n", File.read("#{src}/gc/default/default.c")
    assert_equal before, File.mtime("#{src}/version.h")
    git("rm", "-qf", "gc/new.c")
    sync
    refute_path_exists "#{src}/gc/new.c"
    assert_empty git("diff", "--cached", "--name-only", "--diff-filter=AM"), "the user's index is not touched"
  end

  def test_sync_from_a_tree_that_was_made_anew
    two_patches
    change("gc.c", "line 7;", "line seven;")
    sync
    before = File.mtime("#{src}/version.h")
    FileUtils.rm_rf(tree)
    import
    sync
    assert_match(/line 7;/, File.read("#{src}/gc.c"))
    assert_equal before, File.mtime("#{src}/version.h")
  end

  # Libraries, programs and man pages of ours, for CRuby's make install.
  def test_sync_brings_what_is_installed
    two_patches
    sync
    refute_path_exists "#{src}/bin"
    files = { "lib/cowruby/some/part.rb" => "part", "bin/cowruby-some" => "program",
              "man/cowruby-some.1" => "page" }
    files.each { |path, text| write(path, text) }
    File.chmod(0o755, File.join(@top, "bin/cowruby-some"))
    write("lib/cowruby/notes.txt", "not installed")
    sync
    assert_equal files, files.keys.to_h { |path| [path, File.read("#{src}/#{path}")] }
    assert File.executable?("#{src}/bin/cowruby-some")
    refute_path_exists "#{src}/lib/cowruby/notes.txt"
    write("man/cowruby-some.1", "another page")
    sync
    assert_equal "another page", File.read("#{src}/man/cowruby-some.1")
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestLintPatches < Minitest::Test
  include ToolTest

  HEADER = <<~'MAIL'
    From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
    From: T <t@localhost>
    Date: Sat, 21 Nov 2026 10:00:00 +0000
    Subject: [PATCH] Change a line

    Why: x
    Not in gc/: x
    Invariant: x
    Effect: x
    Test: tool/tree
    Forwarded: no
    Last-Update: 2026-11-21
    Needed-Until: x

    Patch: 0100-a

  MAIL
  DIFF = <<~'DIFF'
    diff --git a/gc.c b/gc.c
    --- a/gc.c
    +++ b/gc.c
    @@ -4,3 +4,3 @@ line 3;
     line 4;
    -line 5;
    +line five;
     line 6;
  DIFF

  def lint(header: HEADER, diff: DIFF, series: "0100-a\n")
    write("patches/0100-a.patch", header + diff)
    write("patches/series", series)
    out, _, status = tool("lint-patches")
    [out, status.success?]
  end

  def assert_fault(pattern, **options)
    out, ok = lint(**options)
    refute ok, out
    assert_match pattern, out
  end

  def test_a_good_patch
    assert_equal ["lint-patches: 1 patches, no fault\n", true], lint
  end

  def test_series
    assert_fault(/listed twice: 0100-a/, series: "0100-a\n0100-a\n")
    assert_fault(/0100-a.patch: not in series/, series: "")
    assert_fault(/0200-b.patch: in series, but not there/, series: "0100-a\n0200-b\n")
    assert_fault(/numbers do not rise/, series: "0200-b\n0100-a\n")
    write("patches/0100-a.orig", "")
    assert_fault(/0100-a.orig: does not belong here/)
  end

  def test_header
    %w[Why Invariant Effect Test Forwarded Last-Update Needed-Until].each do |field|
      assert_fault(/header lacks '#{field}:'/, header: HEADER.sub(/^#{field}: .*\n/, ""))
    end
    assert_fault(/longer than 72/, header: HEADER.sub("Change a line", "x" * 80))
    assert_fault(/trailer names another patch/, header: HEADER.sub("Patch: 0100-a", "Patch: 0100-b"))
    assert_fault(/not a date/, header: HEADER.sub("2026-11-21\nNeeded", "yesterday\nNeeded"))
    assert_fault(/its test test.none.rb is not there/, header: HEADER.sub("tool/tree", "test/none.rb"))
    assert_fault(/not ASCII/, header: HEADER.sub("Why: x", "Why: \u00e9"))
  end

  def test_what_it_depends_on
    header = HEADER.sub("Forwarded", "Depends-On: 0050-x\nForwarded")
    assert_fault(/depends on 0050-x, which is not before it/, header: header)
    write("patches/0050-x.patch", (HEADER + DIFF).gsub("0100-a", "0050-x"))
    _, ok = lint(header: header, series: "0050-x\n0100-a\n")
    assert ok
  end

  def test_index
    write("patches/README.md", "old\n")
    assert_fault(/README.md: is not what tool.patch-index prints/)
    write("patches/README.md", tool!("patch-index"))
    assert_equal true, lint.last
  end

  def test_hunks
    context = DIFF.sub("@@ -4,3 +4,3 @@ line 3;\n", "@@ -3,4 +3,4 @@\n line 3;\n")
    assert_fault(/more than one line of context/, diff: context)
    assert_fault(/only moves space/, diff: DIFF.sub("+line five;", "+  line 5;"))
    assert_fault(/nothing but comments/, diff: DIFF.sub("-line 5;\n", "").sub("+line five;", "+/* five */"))
    comment = DIFF.sub("-line 5;\n", "").sub("+line five;", "+/* five */")
    documents = HEADER.sub("Needed-Until", "Documents: gc.c (x)\nNeeded-Until")
    assert_equal true, lint(diff: comment, header: documents).last
    assert_fault(/space at the end/, diff: DIFF.sub("line five;", "line five; "))
    assert_fault(/changes nothing/, diff: "")
  end
end

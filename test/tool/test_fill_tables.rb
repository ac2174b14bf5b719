# frozen_string_literal: true

require_relative "helper"

class TestFillTables < Minitest::Test
  TOOL = File.join(ToolTest::TOP, "tool/fill-tables")
  RESULTS = <<~'MD'
    # Benchmarks

    - 2026-02-02T10:00:00Z, commit new
    - 2 cores
    - medians

    ### a: time (ms, less is better)

    what it is

    |  | stock | stock+glibc | ratio | spread | cow | ratio | spread |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | one | 1 | 2 | 2.00 | 1.90 to 2.10 | 3 | 3.00 | one run |
    | two | 4 | 5 | 1.25 | one run | 6 | 1.50 | 1.40 to 1.60 |

    - skipped: c: nothing
  MD

  def filled(document, results: RESULTS)
    Dir.mktmpdir do |directory|
      File.write(File.join(directory, "tables.md"), results)
      file = File.join(directory, "doc.md")
      File.write(file, document)
      out, status = Open3.capture2e(TOOL, directory, file)
      [File.read(file), out.gsub("#{directory}/", ""), status.success?]
    end
  end

  def test_rows_and_columns_that_a_document_shows
    document = <<~'MD'
      ## Figures

      - 2026-01-01T10:00:00Z, commit old
      - 1 core

      **a: time (ms, less is better)**

      |  | stock | cow | ratio |
      | --- | ---: | ---: | ---: |
      | two | 0 | 0 | 0 |

      **b: of another benchmark**

      |  | stock |
      | --- | ---: |
      | two | 0 |

      **a: time (ms, less is better)**

      |  | stock | header | ratio |
      | --- | ---: | ---: | ---: |
      | one | 0 | 0 | 0 |

      ## Others

      - 2026-01-01T10:00:00Z, commit old
    MD
    text, out, = filled(document)
    # All else stays: another benchmark's table, one of a build that was not measured, another part.
    expected = document.sub("- 2026-01-01T10:00:00Z, commit old\n- 1 core\n", "- 2026-02-02T10:00:00Z, commit new\n- 2 cores\n- medians\n")
                       .sub("| two | 0 | 0 | 0 |", "| two | 4 | 6 | 1.50 |")
    refute_equal document, expected
    assert_equal expected, text
    assert_equal "doc.md: a: time (ms, less is better)\n", out
  end

  def test_all_that_was_printed
    text, = filled("Before.\n\n- 2026-01-01T10:00:00Z, commit old\n\n### x\n\n| 1 |\n\n## After\n\nthis\n")
    printed = RESULTS.lines.drop(2).join.sub(/\n- skipped.*/m, "")
    assert_equal "Before.\n\n#{printed}\n## After\n\nthis\n", text
  end

  def test_what_cannot_be_filled_is_left
    document = "**a: time (ms, less is better)**\n\n|  | cow |\n| --- | ---: |\n| three | 0 |\n"
    text, out, success = filled(document)
    assert_equal [document, false], [text, success]
    assert_match(/no row "three"/, out)
    text, out, success = filled(document, results: "nothing\n")
    assert_equal [document, false], [text, success]
    assert_match(/no date and commit/, out)
    out, status = Open3.capture2e(TOOL, "/nowhere", "x.md")
    assert_equal ["fill-tables: No such file or directory @ rb_sysopen - /nowhere/tables.md\n", false], [out, status.success?]
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# tool/lint-text on small files, and what tool/lint does where a linter is missing. The rules
# of shellcheck, rubocop and cppcheck are their own.
class TestLint < Minitest::Test
  include ToolTest

  def setup
    super
    exempt("spdx *")
  end

  # Writes the list of exemptions, a line an argument.
  def exempt(*lines) = write("tool/lint-text.exempt", lines.map { |line| "#{line}\n" }.join)

  # [faults, notes] of tool/lint-text.
  def lint(*files)
    out, err, = tool("lint-text", *files)
    assert_empty err
    out.lines(chomp: true).partition { |line| !line.include?(": note: ") }
  end

  def test_long_lines_of_code
    write("tool/long.rb", "#{"x" * 110}\n#{"y" * 111}\n")
    write("test/data", "#{"z" * 200}\n")
    write("lib/long.rb", "#{"z" * 200}\n")
    write("tool/script", "#!/bin/sh\n#{"z" * 112}\n")
    assert_equal ["tool/long.rb:2: long-line: 111 characters, 110 are allowed",
                  "tool/script:2: long-line: 112 characters, 110 are allowed"],
                 lint("tool/long.rb", "test/data", "lib/long.rb", "tool/script").first
  end

  def test_words_of_comments_in_c
    write("gc/a.h", <<~C)
      /* It is told
       * so, too: as
       * ever. */
      const char *text = "told // told /* told";
      int behad; // may be had
    C
    assert_equal ["gc/a.h:1: words: \"told\": say it plainly", "gc/a.h:2: words: \"as ever\": say it plainly",
                  "gc/a.h:2: words: \"so, too\": say it plainly",
                  "gc/a.h:5: words: \"be had\": say it plainly"],
                 lint("gc/a.h").first.sort
  end

  def test_words_of_the_headers_of_patches
    write("patches/0100-a.patch", "Subject: x\n\nWhy: as if it\n were told\n\ndiff --git a b\n+told\n")
    assert_equal ["patches/0100-a.patch:3: words: \"it were\": say it plainly",
                  "patches/0100-a.patch:4: words: \"told\": say it plainly"],
                 lint("patches/0100-a.patch").first.sort
  end

  def test_exempted_files
    write("gc/a.h", "/* told */\n")
    write("gc/b.h", "/* told */ #{" " * 120}\n")
    exempt("# why", "words gc/a.*", "long-line gc/*", "spdx *")
    assert_equal ["gc/b.h:1: words: \"told\": say it plainly"], lint("gc/a.h", "gc/b.h").first
  end

  def test_the_licence_is_asked_for_unless_a_file_is_exempted
    write("gc/a.h", "int a;\n")
    write("gc/b.h", "/* SPDX-License-Identifier: BSD-2-Clause */\n")
    exempt
    assert_equal ["gc/a.h:1: spdx: no line SPDX-License-Identifier"], lint("gc/a.h", "gc/b.h").first
    exempt("spdx *")
    assert_empty lint("gc/a.h", "gc/b.h").first
  end

  def test_commits_that_are_cited
    git("init", "-q", dir: @top)
    write("doc/a.md", "x\n")
    git("add", "doc", dir: @top)
    git("commit", "-qm", "a", dir: @top)
    here = git("rev-parse", "HEAD", dir: @top).chomp
    write("README.md", "commit #{here}\nof commit #{here[0, 9]}, not commit 1234567\n")
    write("doc/a.md", "see results/2026-11-25-#{here[0, 7]}/tables.md and 2026-11-25-abcdef0\n")
    files = ["README.md", "doc/a.md", "results/2026-11-20-7654321/tables.md",
             "results/2026-11-20-#{here[0, 10]}/tables.md"]
    files.last(2).each { |file| write(file, "") }
    faults, notes = lint(*files)
    assert_equal ["README.md:2: commit: there is no commit 1234567 here",
                  "doc/a.md:1: commit: there is no commit abcdef0 here",
                  "results/2026-11-20-7654321: commit: there is no commit 7654321 here"], faults
    assert_empty notes

    system("git", "clone", "-q", "--depth", "1", "file://#{@top}", "#{@dir}/shallow", exception: true)
    FileUtils.cp_r("#{@top}/tool", "#{@dir}/shallow")
    write("#{@dir}/shallow/README.md", "commit 1234567\n")
    out, status = Open3.capture2("tool/lint-text", "README.md", chdir: "#{@dir}/shallow")
    assert status.success?
    assert_match(/\Alint-text: note: commits that are cited are not looked up: this is a shallow clone$/, out)
  end

  def test_commits_are_not_looked_up_in_a_tarball
    write("README.md", "commit 1234567\n")
    faults, notes = lint("README.md")
    assert_empty faults
    assert_match(/not looked up: this is no git checkout/, notes.first)
  end

  # A directory for PATH with what tool/lint calls, but no linter; gives its name.
  def make_bin
    bin = File.join(@dir, "bin")
    FileUtils.mkdir_p(bin)
    directories = ENV["PATH"].split(":")
    %w[sh sed find head tr cat sort grep mkdir mktemp rm dirname ruby env git].each do |name|
      found = directories.map { |dir| File.join(dir, name) }.find { |file| File.executable?(file) }
      FileUtils.ln_s(found, bin)
    end
    bin
  end

  def test_a_missing_linter_is_named_and_a_fault_where_that_is_asked_for
    bin = make_bin
    git("init", "-q", dir: @top)
    exempt("long-line *", "spdx *")
    out, err, status = tool("lint", env: { "PATH" => bin })
    assert status.success?, out + err
    linters = %w[shellcheck rubocop cppcheck]
    linters.each { |name| assert_match(/^lint: note: left out, as #{name} is not installed/, out) }
    out, _, status = tool("lint", "--strict", env: { "PATH" => bin })
    refute status.success?
    missing = "is missing; tool/bootstrap --with tests installs it"
    linters.each { |name| assert_includes out, "lint: #{name} #{missing}" }

    # One that is there and finds something.
    { "shellcheck" => 0, "rubocop" => 1, "cppcheck" => 0 }.each do |name, result|
      File.chmod(0o755, write(File.join(bin, name), "#!/bin/sh\necho '#{name} was here'\nexit #{result}\n"))
    end
    out, _, status = tool("lint", "--strict", env: { "PATH" => bin })
    refute status.success?
    assert_match(/^rubocop was here$/, out)
    refute_match(/is missing|^lint: no fault/, out)
  end

  # This checkout's own place, as far as it is long enough to be none but this machine's.
  def test_paths_of_this_machine
    bin = make_bin
    mirrors = %w[localhost 127.0.0.1 mirror.invalid].map { |host| "echo http://#{host}/debian\n" }
    File.chmod(0o755, write("#{bin}/apt-get", "#!/bin/sh\n#{mirrors.join}"))
    faults = lambda do |top|
      write("#{top}/notes", "see #{top}/x\nand elsewhere#{top}/x\nat localhost, 127.0.0.1\nmirror.invalid\n")
      out, = Open3.capture2({ "PATH" => bin }, "#{top}/tool/lint", err: File::NULL)
      out.scan(/^lint: notes: a path of a machine or a host: (\d+)/).flatten
    end
    FileUtils.cp_r(File.join(@top, "tool"), @dir)
    assert_equal %w[4], faults.call(@dir), "#{@dir} is as short as what others have"
    FileUtils.rm_rf(File.join(@dir, "tool"))
    assert_equal %w[4 1], faults.call(@top)
  end

  def test_unknown_arguments
    refute_tool(/unknown argument '--x'; see tool\/lint --help/, "lint", "--x")
  end
end

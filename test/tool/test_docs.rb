# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# What the documents say about this repository is there: links, commits, patches, commands and
# settings. Reads files only.
class TestDocs < Minitest::Test
  TOP = ToolTest::TOP
  FILES = Dir.glob("**/*.md", base: TOP).reject { |file| file.start_with?("build/") }.sort
  STORED = %r{\Aresults/\d{4}-\d\d-\d\d-}

  # A directory of CRuby's.
  UPSTREAM = "benchmark/gc"

  # [title](target) and ![title](target), outside of code.
  LINK = /!?\[[^\]]*\]\(([^)\s]+)\)/
  EXTERNAL = /\A[a-z]+:/
  # Digits and letters, so that neither a number nor a word is one; upstream's revision of
  # `ruby -v` is none of ours.
  COMMIT = /(?<!revision )(?<![\w-])(?=\h*\d)(?=\h*[a-f])\h{7,40}(?![\w-])/

  # What follows make or tool/bootstrap at the beginning of a command, up to variables or its end.
  MADE = %r{(?:^\s*|[(&;]\ *)(?:make|(?:\./)?tool/bootstrap)
            ((?:\ +(?:-s|[a-z][\w-]*))+)(?=\ *(?:$|[);&]|\ --|\ [A-Z]))}x

  def test_relative_links_lead_somewhere
    wrong = each_link do |file, target|
      path, anchor = target.split("#", 2)
      place = path.empty? ? file : File.join(File.dirname(file), path).then { |name| clean(name) }
      next "is not there" unless File.exist?(File.join(TOP, place))

      "has no heading for it" if anchor && place.end_with?(".md") && !anchors(place).include?(anchor)
    end
    assert_empty(wrong, "links that lead nowhere")
  end

  def test_cited_commits_exist
    skip("not a whole git repository: the commits cannot be looked up") unless whole_repository?

    cited = FILES.flat_map { |file| text(file).scan(COMMIT).map { |commit| [commit, file] } }
    cited += result_folders.map { |name| [name[/\h+\z/], "results/#{name}"] }
    known = commits(cited.map(&:first).uniq)
    unknown = cited.uniq.reject { |commit, _| known.include?(commit) }
    assert_empty(unknown, "commits that are not in this repository")
  end

  def test_cited_patches_exist
    series = File.readlines(File.join(TOP, "patches/series")).filter_map { |line| line[/\A\d{4}/] }
    wrong = FILES.grep_v(STORED).flat_map do |file|
      (text(file).scan(/(?<![\w.,-])0\d{3}(?![\w.-]*\w)/) - series).uniq.map { |number| "#{file}: #{number}" }
    end
    assert_empty(wrong, "numbers that are no patches of the series")
  end

  def test_commands_name_targets_and_files_that_exist
    wrong = FILES.grep_v(STORED).flat_map do |file|
      code(file).flat_map do |command|
        (made(command) - targets).map { |target| "#{file}: make #{target}" } +
          programs(command).map { |program| "#{file}: #{program}" }
      end
    end
    assert_empty(wrong.uniq, "commands that cannot be given")
  end

  def test_readme_says_the_two_commands_and_has_its_table
    readme = text("README.md")
    commands = ["tool/bootstrap benchmark", "tool/bootstrap check", "make install"]
    commands.each { |line| assert_includes(readme, line) }
    assert_match(/^<!-- table: begin -->$.+^<!-- table: end -->$/m, readme)
    assert_operator(readme.lines.size, :<=, 110)
  end

  def test_settings_are_all_described
    settings = text("doc/settings.md")
    names = text("gc/environment.c").scan(/getenv\("(\w+)"\)/).flatten +
            text("gc/gc_stat.h").scan(/^    X\((\w+),/).flatten +
            Dir.glob("lib/**/*.rb", base: TOP).flat_map { |file| text(file).scan(/ENV\["(\w+)"\]/).flatten }
    assert_operator(names.size, :>, 10)
    assert_empty(names.uniq.reject { |name| settings.include?("`#{name}`") }, "not in doc/settings.md")
  end

  def test_results_are_named_by_day_and_commit
    assert_empty(result_folders.grep_v(/\A\d{4}-\d\d-\d\d-\h{7}\z/), "folders that are not named DATE-COMMIT")
    index = text("results/README.md")
    assert_empty(result_folders.reject { |name| index.include?("(#{name}/") }, "not in results/README.md")
  end

  private

  def text(file) = File.read(File.join(TOP, file), encoding: "UTF-8")

  def clean(path)
    path.split("/").each_with_object([]) { |part, kept| part == ".." ? kept.pop : kept << part }.join("/")
  end

  # Without comments, code blocks and code spans.
  def prose(file)
    words = text(file).gsub(/<!--.*?-->/m, "").gsub(/^```.*?^```/m, "")
    words.gsub(/^ {4,}.*$/, "").gsub(/`[^`\n]*`/, "code")
  end

  # "FILE: TARGET REASON" for each relative link for which the block gives a reason.
  def each_link
    FILES.flat_map do |file|
      prose(file).scan(LINK).flatten.grep_v(EXTERNAL).filter_map do |target|
        reason = yield(file, target)
        "#{file}: #{target} #{reason}" if reason
      end
    end
  end

  # As the forges make them of headings.
  def anchors(file)
    @anchors ||= {}
    @anchors[file] ||= text(file).gsub(/^```.*?^```/m, "").scan(/^\#{1,6} +(.+)$/).flatten.map do |heading|
      heading.gsub(/\[([^\]]*)\]\([^)]*\)/, '\1').downcase.gsub(/[^\p{Word}\- ]/u, "").tr(" ", "-")
    end
  end

  # Lines of code blocks, and code spans.
  def code(file)
    blocks = text(file).scan(/^```.*?^```/m).flat_map(&:lines)
    blocks + text(file).scan(/^ {4,}\S.*$/) + text(file).gsub(/^```.*?^```/m, "").scan(/`([^`\n]+)`/).flatten
  end

  # The targets that a command line makes, by make itself or by tool/bootstrap. "ruby" is one of
  # CRuby's own Makefile.
  def made(command)
    words = command.sub(/(?:^| )# .*/, "").scan(MADE)
    words.flatten.flat_map(&:split) - %w[-s ruby]
  end

  def targets
    @targets ||= begin
      makefile = text("Makefile.in").gsub("\\\n", " ")
      builds = text("tool/builds").lines.grep_v(/\A#/).map { |line| line.split.first }
      makefile.scan(/^([a-z][\w -]*):(?!=)/).flat_map { |(names)| names.split } +
        makefile[/^\.PHONY: (.*)$/, 1].split.grep_v(/\$/) + builds + builds.map { |kind| "which-#{kind}" }
    end
  end

  # Programs of ours that a command names and that do not exist.
  def programs(command)
    command.scan(%r{(?<![\w/.-])(?:tool|benchmark|test|packaging|\.ci)/[\w/.-]*\w}).reject do |path|
      path == UPSTREAM || path.match?(/NAME|DIR/) || File.exist?(File.join(TOP, path))
    end
  end

  def result_folders
    Dir.children(File.join(TOP, "results")).select { |name| File.directory?(File.join(TOP, "results", name)) }
  end

  def whole_repository?
    command = %w[rev-parse --is-shallow-repository --show-prefix]
    output, status = Open3.capture2e("git", "-C", TOP, *command)
    status.success? && output.lines.map(&:strip) == ["false", ""]
  rescue Errno::ENOENT
    false
  end

  def commits(names)
    input = names.map { |name| "#{name}^{commit}\n" }.join
    output, = Open3.capture2("git", "-C", TOP, "cat-file", "--batch-check=%(objecttype)", stdin_data: input)
    names.zip(output.lines.map(&:strip)).filter_map { |name, type| name if type == "commit" }
  end
end

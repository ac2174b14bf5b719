# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# tool/flat-patch: CRuby's source as released and this patch are the source that we build.
class TestFlatPatch < Minitest::Test
  include ToolTest

  REVISION = File.read("#{TOP}/gc/revision.h")[/COWRUBY_REVISION "(.*)"/, 1]
  PATCH = "build/dist/cowruby-3.4.5-#{REVISION}.patch".freeze
  OURS = { "gc/arena.c" => "int arena;\n", "gc/README.md" => "no part of a build\n",
           "lib/cow/a.rb" => "1\n", "man/cow.1" => ".TH\n", "bin/cow" => "#!ruby\n" }.freeze

  # A tree with a change that is committed, one that is not, a new file, and files of ours.
  def make
    OURS.each { |path, text| write(path, text) }
    File.chmod(0o755, "#{@top}/bin/cow")
    tool!("tree", "import", tree, "--source", @tarball)
    write("#{tree}/gc.c", read("#{tree}/gc.c").sub("line 5;", "line five;"))
    write("#{tree}/gc/new.c", "int new;\n")
    git("add", "gc/new.c")
    git("commit", "-qam", "x")
    write("#{tree}/gc/default/default.c", read("#{tree}/gc/default/default.c").sub("int b;", "int bb;"))
    tool!("flat-patch")
  end

  def patch(directory, file)
    Open3.capture2e("patch", "-p1", "--force", "--fuzz=0", "-i", file, chdir: directory)
  end

  def test_source_and_patch_are_what_is_built
    make
    source = make_source("3.4.5")
    output, status = patch(source, "#{@top}/#{PATCH}")
    assert status.success?, output
    refute_match(/fuzz|offset/, output)
    tool!("tree", "sync", tree, "#{@top}/build/cow/src", "--source", @tarball)
    differences, = Open3.capture2e("diff", "-r", "-x", ".cow-synced", source, "#{@top}/build/cow/src")
    assert_equal "Only in #{@top}/build/cow/src/gc/cow: README.md\n", differences
    assert_equal 0o755, File.stat("#{source}/bin/cow").mode & 0o777
  end

  def test_the_tree_is_left_as_it_was
    make
    assert_equal " M gc/default/default.c\n", git("status", "--porcelain")
    before = read(PATCH)
    tool!("flat-patch", "--output", "#{@dir}/elsewhere/x.patch")
    assert_equal before, read("#{@dir}/elsewhere/x.patch")
    assert_empty Dir["#{@top}/build/scratch.*"]
  end

  def test_mistakes
    refute_tool(/run make tree/, "flat-patch")
    refute_tool(/--output takes a file/, "flat-patch", "--output")
    refute_tool(/unknown argument 'x'/, "flat-patch", "x")
    make
    refute_tool(/is a directory/, "flat-patch", "--output", @dir)
    write("#{@dir}/file", "")
    refute_tool(/cannot be made/, "flat-patch", "--output", "#{@dir}/file/x")
  end

  # The patches that stand here, with CRuby's files that they change.
  def test_our_own
    source = "#{TOP}/build/tree"
    skip "build/tree is not there" unless File.directory?("#{source}/.git")
    file = "#{@dir}/ours.patch"
    output, status = Open3.capture2e("#{TOP}/tool/flat-patch", "--output", file)
    assert status.success?, output
    changed = File.read(file).scan(%r{^--- a/(.*)$}).flatten
    git("archive", "-o", "#{@dir}/changed.tar", "upstream", *changed, dir: source)
    FileUtils.mkdir("#{@dir}/source")
    system("tar", "-xf", "#{@dir}/changed.tar", "-C", "#{@dir}/source", exception: true)
    output, status = patch("#{@dir}/source", file)
    assert status.success?, output
    refute_match(/fuzz|offset|Hunk/, output)
    patched = Dir.glob("**/*", File::FNM_DOTMATCH, base: "#{@dir}/source").select do |path|
      File.file?("#{@dir}/source/#{path}")
    end
    assert_operator patched.size, :>=, changed.size
    differing = patched.reject do |path|
      built = ["#{source}/#{path}", "#{TOP}/#{path.sub(%r{\Agc/cow/}, "gc/")}"].find { |f| File.file?(f) }
      built && FileUtils.identical?("#{@dir}/source/#{path}", built)
    end
    assert_empty differing
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# tool/apt: what it makes is read by apt itself, with folders of its own in place of the system's.
class TestApt < Minitest::Test
  include ToolTest

  PROGRAMS = %w[apt-get apt-ftparchive dpkg-deb gpg].freeze

  def setup
    super
    FileUtils.cp_r("#{TOP}/packaging", @top)
    missing = PROGRAMS.reject { |name| system("command -v #{name} >/dev/null 2>&1") }
    skip "not there: #{missing.join(", ")}" if missing.any?
    @repository = "#{@top}/build/apt"
    @gpg = { "GNUPGHOME" => "#{@dir}/gpg" }
    FileUtils.mkdir(@gpg["GNUPGHOME"], mode: 0o700)
    run_gpg("--passphrase", "", "--quick-gen-key", "a@localhost", "default", "default", "never")
  end

  def teardown
    system(@gpg, "gpgconf", "--kill", "all", err: File::NULL) if @gpg
    super
  end

  def run_gpg(*arguments)
    output, status = Open3.capture2e(@gpg, "gpg", "--batch", *arguments)
    assert status.success?, output
  end

  def deb(version, name: "cowruby")
    write("#{@dir}/package/DEBIAN/control", <<~CONTROL)
      Package: #{name}
      Version: #{version}
      Architecture: amd64
      Maintainer: The CowRuby authors <nobody@localhost>
      Description: nothing
    CONTROL
    file = "#{@top}/build/deb/#{name}_#{version}_amd64.deb"
    FileUtils.mkdir_p(File.dirname(file))
    system("dpkg-deb", "--root-owner-group", "-b", "#{@dir}/package", file, out: File::NULL, exception: true)
    file
  end

  def repository(*arguments)
    tool!("apt", "--key", "a@localhost", "--base", "file://#{@repository}", *arguments, env: @gpg)
  end

  # Gives output and success.
  def apt(*arguments)
    places = { "Dir::State" => "state", "Dir::Cache" => "cache", "Dir::Etc::SourceList" => "none",
               "Dir::Etc::SourceParts" => "sources", "Dir::State::status" => "status" }
    FileUtils.mkdir_p(%W[#{@dir}/state/lists/partial #{@dir}/cache/archives/partial #{@dir}/sources])
    FileUtils.touch("#{@dir}/status")
    FileUtils.cp("#{@repository}/cowruby.sources", "#{@dir}/sources/")
    options = places.flat_map { |name, path| ["-o", "#{name}=#{@dir}/#{path}"] }
    options += %w[-o APT::Sandbox::User=root -o APT::Architecture=amd64 -o APT::Update::Error-Mode=any]
    output, status = Open3.capture2e({ "LC_ALL" => "C" }, "apt-get", *options, *arguments, chdir: @dir)
    [output, status.success?]
  end

  def apt!(*arguments)
    output, success = apt(*arguments)
    assert success, output
    output
  end

  def test_apt_takes_packages_from_it
    file = deb("1")
    repository("--suite", "bookworm")
    apt!("update")
    apt!("download", "cowruby")
    assert FileUtils.identical?(file, "#{@dir}/cowruby_1_amd64.deb")
  end

  # A web server reads it, whatever files the packer keeps to himself.
  def test_all_may_read_it
    deb("1")
    before = File.umask(0o077)
    repository("--suite", "bookworm")
    modes = Dir["#{@repository}/**/*"].map { |path| File.stat(path).mode & 0o044 }
    assert_equal [0o044], modes.uniq
  ensure
    File.umask(before) if before
  end

  def test_packages_are_added_and_the_newest_is_taken
    deb("1")
    repository("--suite", "bookworm")
    FileUtils.rm(deb("1")) # what is there stays without the file it came from
    repository("--suite", "bookworm", deb("2"))
    apt!("update")
    assert_match(/Inst cowruby \(2 .*bookworm/, apt!("install", "--simulate", "cowruby"))
    assert_match(/Inst cowruby \(1 /, apt!("install", "--simulate", "cowruby=1"))
    repository("--suite", "trixie", deb("3"))
    assert_equal %w[bookworm trixie], Dir.children("#{@repository}/dists").sort
    apt!("update")
    assert_match(/Inst cowruby \(3 .*trixie/, apt!("install", "--simulate", "cowruby"))
  end

  def test_apt_refuses_what_was_changed
    deb("1")
    repository("--suite", "bookworm")
    Dir["#{@repository}/dists/bookworm/{InRelease,Release}"].each do |path|
      File.write(path, File.read(path).sub("Label: CowRuby", "Label: Other"))
    end
    output, success = apt("update")
    refute success, output
    assert_match(/signature/i, output)
  end

  def test_mistakes
    known = ["--key", "a@localhost", "--base", "https://localhost/x", "--suite", "bookworm"]
    refute_tool(/name the key that signs/, "apt", *known.drop(2), env: @gpg)
    refute_tool(/name where the folder will be served/, "apt", *known.first(2), env: @gpg)
    refute_tool(/this is no URL/, "apt", *known.first(2), "--base", "https://x/a|b", env: @gpg)
    refute_tool(/--suite NAME/, "apt", *known, "--suite", "../x", env: @gpg)
    refute_tool(/gpg has no secret key b@localhost/, "apt", *known, "--key", "b@localhost", env: @gpg)
    refute_tool(/unknown argument '--x'/, "apt", *known, "--x", env: @gpg)
    refute_tool(/run make deb/, "apt", *known, env: @gpg)
    refute_tool(/is no Debian package/, "apt", *known, write("#{@dir}/x.deb", "x"), env: @gpg)
    refute_tool(/cannot be made/, "apt", *known, "--output", "#{@dir}/x.deb/y", deb("1"), env: @gpg)
    refute_path_exists @repository
  end
end

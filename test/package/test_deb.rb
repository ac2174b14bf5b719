# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "zlib"
require_relative "installed_ruby"

# Installs the package that make deb has built, uses it as a server would, and
# removes it. As root; refuses to touch a /opt/cowruby that is there already.
class TestDeb < Minitest::Test
  include InstalledRuby

  PREFIX = "/opt/cowruby"
  LEFTOVERS = [PREFIX, "/usr/bin/cowruby", "/etc/alternatives/cowruby", "/var/lib/dpkg/alternatives/cowruby",
               "/usr/bin/cowruby-memory", "/usr/share/man/man1/cowruby-memory.1",
               "/usr/share/doc/cowruby"].freeze

  def setup
    @deb = Dir["#{TOP}/build/deb/cowruby_*.deb"].max_by { |file| File.mtime(file) }
    skip "there is no package; run make deb" unless @deb
  end

  def needs_an_empty_prefix
    skip "needs root" unless Process.uid.zero?
    skip "needs dpkg" unless system("dpkg --version", out: File::NULL, err: File::NULL)
    skip "#{PREFIX} is there already" if File.exist?(PREFIX)
  end

  # Errors and warnings; packaging/debian/cowruby.lintian-overrides says why some are none.
  def test_lintian_finds_no_fault
    skip "needs lintian (Debian package lintian)" unless system("lintian --version", out: File::NULL)
    root = Process.uid.zero? ? ["--allow-root"] : []
    assert_equal "", run!("lintian", *root, "--fail-on", "error,warning", @deb)
  end

  # The file is read by machines: paragraphs of fields, and each licence that is named has its text.
  def test_the_copyright_names_both_authors_and_holds_the_terms
    text = contents("usr/share/doc/cowruby/copyright")
    assert_match(%r{\AFormat: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/$}, text)
    assert_equal 2, text.scan(/^Files: /).size
    assert_match(/^Copyright: \d{4} The CowRuby authors\nLicense: BSD-2-Clause$/, text)
    assert_match(/^Copyright: 1993-\d{4} \S.*\nLicense: Ruby or BSD-2-Clause$/, text)
    assert_match(/^License: Ruby\n .*2-clause BSDL/m, text)
    assert_match(/^License: BSD-2-Clause\n Redistribution and use in source and binary forms/, text)
    refute_match(/@[A-Z_]+@/, text)
    assert_match(/\Acowruby \(\S+\) unstable; .* -- The CowRuby authors <\S+>  \w{3}, +\d/m,
                 Zlib.gunzip(contents("usr/share/doc/cowruby/changelog.gz")))
  end

  def contents(path)
    output, status = Open3.capture2("dpkg-deb --fsys-tarfile '#{@deb}' | tar -xO './#{path}'", binmode: true)
    assert status.success?
    output
  end

  def test_installs_serves_and_goes
    needs_an_empty_prefix
    run!("dpkg", "--install", @deb)
    begin
      is_known_by_its_name
      has_its_programs
      serves_a_request
      builds_an_extension
      keeps_to_what_it_depends_on
      recommends_what_builds_gems
      run!("dpkg", "--remove", "cowruby")
    ensure
      run!("dpkg", "--purge", "cowruby")
    end
    assert_empty(LEFTOVERS.select { |path| File.exist?(path) || File.symlink?(path) })
    _, status = Open3.capture2e("dpkg", "--status", "cowruby")
    refute status.success?, "dpkg still knows it"
  end

  # Debian's tools know it by the name and the version that the ruby says, and the release of Debian.
  def is_known_by_its_name
    assert_equal "#{PREFIX}/bin/ruby", File.realpath("/usr/bin/cowruby")
    assert_match(/\Acowruby-memory of CowRuby /, run!("cowruby-memory", "--version"))
    version = run!("dpkg-query", "-W", "-f", "${Version}", "cowruby")
    assert_match(/\A#{Regexp.escape(says_what_it_is.join("+cow"))}(~(deb|ubuntu)\d[\d.]*)?\z/, version)
    release = File.read("/etc/os-release").scan(/^(ID|VERSION_ID)="?([\w.]+)/).to_h
    return unless release["ID"] == "debian" && release["VERSION_ID"]

    assert_equal "~deb#{release["VERSION_ID"]}", version[/~.*/]
  end

  def ruby = "cowruby"
  def prefix = PREFIX

  # Every library that is linked with is found, and what is essential is named.
  def keeps_to_what_it_depends_on
    programs = ["#{PREFIX}/bin/ruby", *Dir["#{PREFIX}/lib/**/*.so"]]
    linked = run!("ldd", *programs)
    refute_match(/not found/, linked)
    depends = run!("dpkg-query", "-W", "-f", "${Depends}", "cowruby")
    %w[libc6 libssl libyaml zlib1g].each { |package| assert_includes depends, package }
    assert_equal linked.include?("libjemalloc"), depends.include?("libjemalloc")
  end

  # Trying for a function links with all that the interpreter is linked with.
  def recommends_what_builds_gems
    recommends = run!("dpkg-query", "-W", "-f", "${Recommends}", "cowruby").split(", ")
    development = Hash.new("libc6-dev")
    development.update("gmp" => "libgmp-dev", "jemalloc" => "libjemalloc-dev", "z" => "zlib1g-dev")
    linked = run!("cowruby", "-rrbconfig", "-e", "puts RbConfig::CONFIG['MAINLIBS']")
    libraries = linked.scan(/-l(\S+)/).flatten
    assert_empty libraries.map { |library| development[library] } - recommends
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# The Makefile that configure writes: what clean removes, and where arguments go.
class TestMake < Minitest::Test
  include ToolTest

  # What configure writes, in the order of its time stamps. It runs once.
  WRITTEN = %w[build/config.args config.status Makefile].freeze

  def setup
    super
    take("configure", "configure.ac", "Makefile.in", "upstream.pin")
    @@texts ||= configure
    WRITTEN.zip(@@texts) { |path, text| write(path, text) }
    File.chmod(0o755, "#{@top}/config.status")
  end

  def configure
    command = %w[./configure --disable-yjit --without-jemalloc --disable-ccache]
    output, status = Open3.capture2e(*command, chdir: @top)
    assert status.success?, output
    WRITTEN.map { |path| read(path) }
  end

  def make(*arguments)
    output, status = Open3.capture2e(UNSET, "make", *arguments, chdir: @top)
    assert status.success?, output
    output
  end

  NAMES = %w[MAKEFLAGS MFLAGS MAKELEVEL ARGS CHECK BENCHMARK GEMS SOAK SERIES DEFINITION REV].freeze
  UNSET = NAMES.to_h { |name| [name, nil] }.freeze

  def kinds = File.readlines("#{TOP}/tool/builds").grep_v(/^#/).map { |line| line[/\A\S+/] }

  def test_clean_removes_all_that_is_built_and_keeps_the_rest
    made = kinds + %w[apps apps.lock apt benchmark check configure.cache deb dist gems others rubies series
                      soak scratch.Ab12]
    kept = %w[tree cache ccache]
    (made + kept).each { |name| write("build/#{name}/file", "") }
    write("build/cow.log", "")
    make("clean")
    assert_equal (kept + %w[config.args]).sort, Dir.children("#{@top}/build").sort
    kept.each { |name| assert_path_exists "#{@top}/build/#{name}/file" }
  end

  # Whatever our tools make directly below build/ is known to clean.
  def test_clean_knows_what_the_tools_make
    files = Dir["#{TOP}/Makefile.in", "#{TOP}/tool/*", "#{TOP}/benchmark/*", "#{TOP}/benchmark/lib/**/*.rb"]
    texts = files.select { |file| File.file?(file) }.map { |file| File.read(file) }
    directory = %r{(?<![\w-])build/([a-z-]+)(?![a-z./-]*\.(?:log|args))}
    named = texts.flat_map { |text| text.scan(directory) }.flatten.uniq
    removed = make("-n", "clean").scan(%r{build/([a-z-]+)}).flatten
    assert_empty named - removed - %w[tree cache ccache conftest no-gems]
  end

  # configure is newer, as after an update, and runs again as it ran before.
  def test_a_compiler_that_only_make_has_is_not_that_of_configure
    given = read("build/config.args")
    past = Time.now - 60
    File.utime(past, past, "#{@top}/config.status")
    env = UNSET.merge("CC" => "none", "CFLAGS" => "-nonsense")
    output, status = Open3.capture2e(env, "make", "help", chdir: @top)
    assert status.success?, output
    assert_match(/running CONFIG_SHELL/, output)
    assert_equal given, read("build/config.args")
  end

  # What stands at the prefix is the package's then, whatever was installed from here before.
  def test_uninstall_leaves_what_belongs_to_a_package
    write("build/cow/obj/.installed.list", "")
    write("build/cow/obj/Makefile", "prefix = /opt/x\nuninstall:\n\t@echo removed '$(DESTDIR)'\n")
    dpkg = write("bin/dpkg", "#!/bin/sh\n[ \"$*\" = '-S /opt/x/bin/ruby' ]\n")
    File.chmod(0o755, dpkg)
    uninstall = lambda do |*arguments|
      Open3.capture2e(UNSET.merge("PATH" => "#{@top}/bin:#{ENV.fetch("PATH")}"), "make", "-s", "uninstall",
                      *arguments, chdir: @top)
    end
    output, status = uninstall.call
    refute status.success?
    assert_match(%r{^make: /opt/x/bin/ruby belongs to a Debian package; remove that by apt-get$}, output)
    assert_match(/^removed .?#{@dir}/, uninstall.call("DESTDIR=#{@dir}").first)
    write("build/cow/obj/Makefile", read("build/cow/obj/Makefile").sub("/opt/x", "/opt/y"))
    assert_match(/^removed/, uninstall.call.first)
  end

  # Without network the tests run all the same: those that need the driver say that it is missing.
  def test_check_does_without_the_driver
    stub = %w[tree stock-source cow rubies-stock debug alignoff rubies-cow].map { |name| "#{name}:\n\t@:\n" }
    rule = read("Makefile")[/^check: .*?\n\n/m].sub("tool/check", "echo checked")
    write("made.mk", "driver := nowhere\nMAKE := make -s -f made.mk\n#{rule}nowhere:\n\t@false\n#{stub.join}")
    assert_match(/make: without the gem benchmark_driver .* is left out\n.*checked/m,
                 make("-s", "-f", "made.mk", "BASERUBY=", "check"))
  end

  def test_each_kind_of_build_has_a_target
    kinds.each { |kind| assert_match(%r{tool/build #{kind}\b}, make("-n", kind)) }
  end

  OLD_NAMES = {
    "CHECK" => %w[check check-quick check-c check-asan check-ubsan check-yjit check-baseline],
    "BENCHMARK" => %w[benchmark benchmark-quick benchmark-servers],
    "SERIES" => %w[check-series], "GEMS" => %w[check-gems], "SOAK" => %w[soak], "DEFINITION" => %w[definition]
  }.freeze

  def test_one_variable_for_arguments_and_the_older_names
    OLD_NAMES.each do |old, targets|
      targets.product(["ARGS", old]).each do |target, name|
        assert_match(/ --one two$/, make("-n", target, "#{name}=--one two"), "#{target} #{name}")
      end
    end
    assert_match(/ --strict$/, make("-n", "lint", "ARGS=--strict"))
    assert_match(%r{tool/range-diff HEAD~2$}, make("-n", "range-diff", "REV=HEAD~2"))
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# tool/bootstrap with stand-ins for the package tools and for configure.
class TestBootstrap < Minitest::Test
  include ToolTest

  def setup
    super
    write("configure.ac", "")
    File.chmod(0o755, write("configure", <<~'SH'))
      #!/bin/sh
      echo "configure $*" >>calls
      printf '#!/bin/sh\necho "config.status $*" >>calls; touch config.status\n' >config.status
      chmod 755 config.status
      printf '%%:\n\t@echo making $@ >>calls\nMakefile: ;\n' >Makefile
      echo 'configure: CowRuby 0.1'
    SH
    # Times alone decide whether configure is made anew.
    File.utime(Time.now - 100, Time.now - 100, *%w[configure.ac gc/revision.h].map { |f| File.join(@top, f) })
    @bin = File.join(@dir, "bin")
    FileUtils.mkdir_p(@bin)
    commands = %w[autoconf cat chmod dirname env grep id make mkdir paste rm ruby rustc sed sh sort
                  tail touch tr uname]
    commands.each do |name|
      path = ENV["PATH"].split(":").map { |d| File.join(d, name) }.find { |f| File.executable?(f) }
      FileUtils.ln_s(path, @bin) if path
    end
  end

  def command(name, script)
    FileUtils.rm_f(File.join(@bin, name))
    File.chmod(0o755, write(File.join(@bin, name), "#!/bin/sh\n#{script}\n"))
  end

  # A Debian machine with +installed+ packages; apt-get notes its arguments.
  def debian(installed:, apt: "true")
    command("dpkg-query", <<~SH)
      for last; do :; done
      case ' #{installed.join(" ")} ' in *" $last "*) printf installed ;; *) exit 1 ;; esac
    SH
    command("apt-get", "echo \"apt-get $*\" >>calls; #{apt}")
  end

  def bootstrap(*arguments) = tool("bootstrap", *arguments, env: { "PATH" => @bin })
  def calls = File.exist?(File.join(@top, "calls")) ? read("calls").lines(chomp: true) : []

  # What each group holds: name => [target patterns, packages].
  def groups
    read("tool/packages").gsub(/ *#.*/, "").split(/^(?=\[)/).drop(1).to_h do |text|
      heading, *packages = text.split("\n").reject(&:empty?)
      [heading[/\[(.*)\]/, 1], [heading.split.drop(1), packages]]
    end
  end

  def packages(*names) = groups.values_at(*names).flat_map(&:last).uniq
  def all_packages = packages(*groups.keys)

  # What it installs where nothing is there.
  def installed(*arguments)
    debian(installed: [])
    _, err, status = bootstrap(*arguments)
    assert status.success?, err
    calls.grep(/apt-get install/).last.split.drop(4)
  end

  def test_elsewhere_it_says_what_is_supported_prints_the_list_and_goes_on
    _, err, status = bootstrap("--with", "servers")
    assert status.success?, err
    assert_match(/not a Debian system: nothing is installed/, err)
    assert_match(/Linux with glibc is supported, other systems are untested/, err)
    assert_includes err, "libjemalloc-dev"
    assert_includes err, "wrk"
    refute_includes err, "shellcheck"
    assert_equal ["configure "], calls
  end

  def test_the_groups
    assert_equal %w[benchmarks build docs gems others package profiling sched servers tests], groups.keys.sort
    assert_empty(all_packages.reject { |name| name.match?(/\A[a-z0-9.+-]+\z/) })
    targets = File.read("#{TOP}/Makefile.in").scan(/^([a-z-]+):/).flatten
    targets += File.read("#{TOP}/tool/builds").scan(/^[a-z]+/)
    patterns = groups.values.flat_map(&:first)
    assert_empty(patterns.reject { |pattern| targets.any? { |target| File.fnmatch(pattern, target) } })
  end

  def test_it_installs_what_building_needs_and_what_is_asked_for
    skip "needs root" unless Process.uid.zero?
    missing = lambda do |*names|
      packages("build", *names).sort - ["ruby", *("rustc" unless names.include?("tests"))]
    end
    assert_equal missing[], installed
    assert_equal missing["tests", "servers"], installed("--with", "tests,servers")
    assert_equal missing["docs", "gems"], installed("--with=docs", "--with", "gems")
    assert_equal missing[*groups.keys], installed("--with", "all")
  end

  def test_a_target_brings_its_groups
    skip "needs root" unless Process.uid.zero?
    assert_includes installed("check"), "libcmocka-dev"
    assert_equal "making check", calls.last
    everything_check_wants = packages("build", "tests", "gems", "package", "benchmarks",
                                      "servers").sort - %w[ruby]
    assert_equal everything_check_wants, installed("check")
    assert_equal packages("build", "benchmarks").sort - %w[ruby rustc], installed("benchmark")
    both = packages("build", "benchmarks", "profiling").sort - %w[ruby rustc]
    assert_equal both, installed("benchmark", "--with", "profiling")
    assert_includes installed("soak", "deb"), "debhelper"
  end

  def test_unknown_groups_are_refused_with_those_that_there_are
    refute_tool(/no such group of packages: nonsense; there are build, tests, gems, .*, docs, sched and all/,
                "bootstrap", "--with", "tests,nonsense", env: { "PATH" => @bin })
    refute_tool(/no such group of packages: tes/, "bootstrap", "--with", "tes", env: { "PATH" => @bin })
    refute_tool(/--with takes groups/, "bootstrap", "--with", env: { "PATH" => @bin })
    assert_empty calls
  end

  def test_help
    out, _, status = bootstrap("--help")
    assert status.success?
    assert_match(/\AMakes a fresh machine ready.*--with tests,servers.*configure are given\.\n\z/m, out)
    assert_empty calls
  end

  def test_on_debian_it_says_and_installs_what_is_missing
    skip "needs root" unless Process.uid.zero?
    debian(installed: all_packages - %w[gperf bison])
    _, err, status = bootstrap
    assert status.success?, err
    assert_match(/installing from Debian's packages: bison gperf$/, err)
    assert_equal ["apt-get update", "apt-get install -y --no-install-recommends bison gperf", "configure "],
                 calls
  end

  def test_a_second_time_it_does_nothing_again
    debian(installed: all_packages)
    2.times { assert bootstrap.last.success? }
    assert_equal ["configure "], calls
  end

  def test_arguments_go_to_configure_and_a_target_to_make
    debian(installed: all_packages)
    _, err, status = bootstrap("check", "--", "--prefix=/opt/x", "--disable-yjit")
    assert status.success?, err
    assert_equal ["configure --prefix=/opt/x --disable-yjit", "making check"], calls
  end

  # An update brings a newer configure.
  def test_arguments_stay_when_configure_is_newer
    debian(installed: all_packages)
    assert bootstrap("--", "--prefix=/opt/x").last.success?
    later = Time.now + 10
    File.utime(later, later, File.join(@top, "configure"))
    _, err, status = bootstrap
    assert status.success?, err
    assert_equal ["configure --prefix=/opt/x", "config.status --recheck", "config.status "], calls
  end

  def test_a_ruby_that_is_not_packaged_will_do
    debian(installed: all_packages - %w[ruby rustc])
    assert bootstrap.last.success?
    assert_equal ["configure "], calls
  end

  # The package may be there: the one that comes first counts.
  def test_a_ruby_that_is_too_old_is_named
    debian(installed: all_packages)
    command("ruby", "exit 1")
    refute_tool(%r{bin/ruby is older than Ruby 3.1, or does not run; put the directory of a newer one first},
                "bootstrap", env: { "PATH" => @bin })
    assert_empty calls
  end

  def test_options_that_ruby_gets_by_the_environment_do_not_make_it_old
    debian(installed: all_packages - %w[ruby])
    _, err, status = tool("bootstrap", env: { "PATH" => @bin, "RUBYOPT" => "-rnonexistent" })
    assert status.success?, err
    assert_equal ["configure "], calls
  end

  # sudo gives nothing of the environment to what it runs.
  def test_apt_by_sudo_gets_the_proxies_and_asks_nothing
    debian(installed: all_packages - %w[bison], apt: 'echo "$http_proxy|$no_proxy|$DEBIAN_FRONTEND" >>calls')
    command("id", "echo 1000")
    command("sudo", '[ "$1" = -n ] || exec env -i PATH="$PATH" "$@"; exit 0')
    proxies = { "http_proxy" => "http://localhost:9", "no_proxy" => "a, b", "https_proxy" => nil }
    _, err, status = tool("bootstrap", env: { "PATH" => @bin, **proxies })
    assert status.success?, err
    got = "http://localhost:9|a, b|noninteractive"
    install = "apt-get install -y --no-install-recommends bison"
    assert_equal ["apt-get update", got, install, got, "configure "], calls
  end

  def test_a_failure_of_apt_is_reported_with_the_log
    skip "needs root" unless Process.uid.zero?
    debian(installed: [], apt: "echo E: no mirror; exit 100")
    _, err, status = bootstrap
    refute status.success?
    assert_match(/E: no mirror/, err)
    assert_match(%r{error: apt-get failed; the whole log is .*build/bootstrap.log}, err)
    assert_empty calls.grep(/configure/)
  end

  def test_a_failure_of_configure_is_reported
    debian(installed: all_packages)
    File.chmod(0o755, write("configure", "#!/bin/sh\necho 'error: no compiler'; exit 77\n"))
    _, err, status = bootstrap
    refute status.success?
    assert_match(/error: no compiler/, err)
    assert_match(%r{configure failed; the whole log is build/configure.log}, err)
  end
end

# frozen_string_literal: true

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
      touch config.status
      printf 'check:\n\t@echo checking >>calls\n' >Makefile
      echo 'configure: CowRuby 0.1'
    SH
    # Times alone decide whether configure is made anew.
    File.utime(Time.now - 100, Time.now - 100, *%w[configure.ac gc/revision.h].map { |f| File.join(@top, f) })
    @bin = File.join(@dir, "bin")
    FileUtils.mkdir_p(@bin)
    %w[sh sed paste dirname env make touch mkdir rm tail cat id grep uname ruby rustc autoconf].each do |name|
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
    command("dpkg-query", "for last; do :; done; case ' #{installed.join(" ")} ' in *\" $last \"*) printf installed ;; *) exit 1 ;; esac")
    command("apt-get", "echo \"apt-get $*\" >>calls; #{apt}")
  end

  def bootstrap(*arguments) = tool("bootstrap", *arguments, env: { "PATH" => @bin })
  def calls = File.exist?(File.join(@top, "calls")) ? read("calls").lines(chomp: true) : []
  def packages = read("tool/packages").lines.map { |l| l.sub(/#.*/, "").strip }.reject(&:empty?)

  def test_elsewhere_it_prints_the_list_and_goes_on
    _, err, status = bootstrap
    assert status.success?, err
    assert_match(/not a Debian system/, err)
    assert_includes err, "libjemalloc-dev"
    assert_equal ["configure "], calls
  end

  def test_on_debian_it_says_and_installs_what_is_missing
    skip "needs root" unless Process.uid.zero?
    debian(installed: packages - %w[gperf bison])
    _, err, status = bootstrap
    assert status.success?, err
    assert_match(/installing from Debian's packages: bison gperf$/, err)
    assert_equal ["apt-get update", "apt-get install -y --no-install-recommends bison gperf", "configure "], calls
  end

  def test_a_second_time_it_does_nothing_again
    debian(installed: packages)
    2.times { assert bootstrap.last.success? }
    assert_equal ["configure "], calls
  end

  def test_arguments_go_to_configure_and_a_target_to_make
    debian(installed: packages)
    _, err, status = bootstrap("check", "--", "--prefix=/opt/x", "--disable-yjit")
    assert status.success?, err
    assert_equal ["configure --prefix=/opt/x --disable-yjit", "checking"], calls
  end

  def test_a_ruby_that_is_not_packaged_will_do
    debian(installed: packages - %w[ruby rustc])
    assert bootstrap.last.success?
    assert_equal ["configure "], calls
  end

  def test_a_failure_of_apt_is_told_with_the_log
    skip "needs root" unless Process.uid.zero?
    debian(installed: [], apt: "echo E: no mirror; exit 100")
    _, err, status = bootstrap
    refute status.success?
    assert_match(/E: no mirror/, err)
    assert_match(%r{error: apt-get failed; the whole log is .*build/bootstrap.log}, err)
    assert_empty calls.grep(/configure/)
  end

  def test_a_failure_of_configure_is_told
    debian(installed: packages)
    File.chmod(0o755, write("configure", "#!/bin/sh\necho 'error: no compiler'; exit 77\n"))
    _, err, status = bootstrap
    refute status.success?
    assert_match(/error: no compiler/, err)
    assert_match(%r{configure failed; the whole log is build/configure.log}, err)
  end
end

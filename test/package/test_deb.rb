# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "minitest/autorun"
require "net/http"
require "open3"
require "timeout"
require "tmpdir"
require "zlib"

# Installs the package that make deb has built, uses it as a server would, and
# removes it. As root; refuses to touch a /opt/cowruby that is there already.
class TestDeb < Minitest::Test
  TOP = File.expand_path("../..", __dir__)
  PREFIX = "/opt/cowruby"
  LEFTOVERS = [PREFIX, "/usr/bin/cowruby", "/etc/alternatives/cowruby", "/var/lib/dpkg/alternatives/cowruby",
               "/usr/bin/cowruby-memory", "/usr/share/man/man1/cowruby-memory.1",
               "/usr/share/doc/cowruby"].freeze

  # A preloading server: state made once, prepared, two forked workers.
  SERVER = <<~'RUBY'
    require "socket"
    DATA_OF_THE_MASTER = Array.new(50_000) { |i| "entry #{i}" }
    Process.warmup
    server = TCPServer.new("127.0.0.1", 0)
    workers = 2.times.map do
      fork do
        trap(:TERM) { exit!(0) }
        loop do
          client = server.accept
          path = client.gets.split[1]
          nil until client.gets == "\r\n"
          GC.start
          body = "#{DATA_OF_THE_MASTER[path[1..].to_i]} #{RUBY_DESCRIPTION}"
          head = "HTTP/1.1 200 OK\r\nContent-Length: #{body.bytesize}\r\nConnection: close\r\n\r\n"
          client.write(head, body)
          client.close
        end
      end
    end
    puts server.addr[1]
    $stdout.flush
    $stdin.read
    workers.each { |pid| Process.kill(:TERM, pid) }
    Process.waitall
  RUBY

  EXTCONF = <<~'RUBY'
    require "mkmf"
    abort unless have_func("rb_ary_new")
    $defs << "-DHAVE_STRLCPY_TRIED=42"
    create_makefile("tried")
  RUBY

  EXTENSION = <<~C
    #include <ruby.h>
    static VALUE answer(VALUE self) { return INT2FIX(HAVE_STRLCPY_TRIED); }
    void Init_tried(void) { rb_define_global_function("answer", answer, 0); }
  C

  # What the environment must not change.
  UNSET = %w[RUBYLIB RUBYOPT GEM_HOME GEM_PATH].to_h { |name| [name, nil] }.freeze

  def setup
    @deb = Dir["#{TOP}/build/deb/cowruby_*.deb"].max_by { |file| File.mtime(file) }
    skip "there is no package; run make deb" unless @deb
  end

  def needs_an_empty_prefix
    skip "needs root" unless Process.uid.zero?
    skip "needs dpkg" unless system("dpkg --version", out: File::NULL, err: File::NULL)
    skip "#{PREFIX} is there already" if File.exist?(PREFIX)
  end

  def run!(*command, env: {}, dir: "/")
    output, status = Open3.capture2e(UNSET.merge(env), *command, chdir: dir)
    assert status.success?, "#{command.join(" ")}\n#{output}"
    output
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
      says_what_it_is
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

  def says_what_it_is
    assert_equal "#{PREFIX}/bin/ruby", File.realpath("/usr/bin/cowruby")
    revision = File.read("#{TOP}/gc/revision.h")[/COWRUBY_REVISION "(.*)"/, 1]
    version = File.read("#{TOP}/upstream.pin")[/^version=(.*)/, 1]
    named = /\Aruby #{Regexp.escape(version)} .*\+CowRuby #{Regexp.escape(revision)} /
    assert_match(named, run!("cowruby", "-v"))
    assert_equal "#{version}+cow#{revision}", run!("dpkg-query", "-W", "-f", "${Version}", "cowruby")
  end

  def has_its_programs
    %w[gem bundle irb rake].each { |program| run!("#{PREFIX}/bin/#{program}", "--version") }
    assert_match(/\Acowruby-memory of CowRuby /, run!("cowruby-memory", "--version"))
    libraries = %w[openssl psych zlib fiddle bigdecimal].map { |name| "-r#{name}" }
    script = "OpenSSL::SSL::SSLContext.new; Psych.load('a: 1'); BigDecimal('1')"
    run!("cowruby", *libraries, "-e", script)
    # Nothing in it remembers where it was built.
    script = "puts RbConfig::CONFIG.values.select { |value| value.to_s.include?(#{TOP.dump}) }"
    assert_empty run!("cowruby", "-rrbconfig", "-e", script)
  end

  def serves_a_request
    Open3.popen2("cowruby", "-e", SERVER) do |input, output, thread|
      Timeout.timeout(60) do
        port = output.gets.to_i
        6.times do |i|
          body = Net::HTTP.get(URI("http://127.0.0.1:#{port}/#{i}"))
          assert_match(/\Aentry #{i} ruby .*CowRuby/, body)
        end
        input.close
        assert thread.value.success?
      end
    ensure
      Process.kill(:KILL, thread.pid) if thread.alive?
    end
  end

  # Trying for a function links with the static library: it must be in the package.
  def builds_an_extension
    Dir.mktmpdir do |dir|
      File.write("#{dir}/tried.c", EXTENSION)
      File.write("#{dir}/extconf.rb", EXTCONF)
      run!("cowruby", "extconf.rb", dir: dir)
      run!("make", dir: dir, env: { "MAKEFLAGS" => nil, "MAKELEVEL" => nil })
      assert_equal "42\n", run!("cowruby", "-I#{dir}", "-rtried", "-e", "p answer")
    end
  end

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

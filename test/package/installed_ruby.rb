# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "net/http"
require "open3"
require "timeout"
require "tmpdir"

# What a ruby must do that somebody has installed from a package. A test that includes this
# defines +ruby+, the interpreter as its user calls it, and +prefix+, where it stands.
module InstalledRuby
  TOP = File.expand_path("../..", __dir__)

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

  def run!(*command, env: {}, dir: "/")
    output, status = Open3.capture2e(UNSET.merge(env), *command, chdir: dir)
    assert status.success?, "#{command.join(" ")}\n#{output}"
    output
  end

  def says_what_it_is
    revision = File.read("#{TOP}/gc/revision.h")[/COWRUBY_REVISION "(.*)"/, 1]
    version = File.read("#{TOP}/upstream.pin")[/^version=(.*)/, 1]
    named = /\Aruby #{Regexp.escape(version)} .*\+CowRuby #{Regexp.escape(revision)} /
    assert_match(named, run!(ruby, "-v"))
    [version, revision]
  end

  def has_its_programs
    %w[gem bundle irb rake].each { |program| run!("#{prefix}/bin/#{program}", "--version") }
    assert_match(/\Acowruby-memory of CowRuby /, run!("#{prefix}/bin/cowruby-memory", "--version"))
    libraries = %w[openssl psych zlib fiddle bigdecimal].map { |name| "-r#{name}" }
    script = "OpenSSL::SSL::SSLContext.new; Psych.load('a: 1'); BigDecimal('1')"
    run!(ruby, *libraries, "-e", script)
    # Nothing in it remembers where it was built.
    script = "puts RbConfig::CONFIG.values.select { |value| value.to_s.include?(#{TOP.dump}) }"
    assert_empty run!(ruby, "-rrbconfig", "-e", script)
  end

  def serves_a_request
    Open3.popen2(UNSET, ruby, "-e", SERVER) do |input, output, thread|
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
      run!(ruby, "extconf.rb", dir: dir)
      run!("make", dir: dir, env: { "MAKEFLAGS" => nil, "MAKELEVEL" => nil })
      assert_equal "42\n", run!(ruby, "-I#{dir}", "-rtried", "-e", "p answer")
    end
  end
end

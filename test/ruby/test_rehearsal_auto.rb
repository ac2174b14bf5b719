# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "pathname"
require_relative "../helper"
require_relative "rehearsal_place"
require_relative "../../lib/cowruby/rehearsal/start"

# COWRUBY_REHEARSAL rehearses in a server without a line in the application, and learns what to rehearse
# (lib/cowruby/rehearsal/). The servers are doubles, with the methods of the real ones at which the
# library gets in, and they fork.
class TestRehearsalAuto < Minitest::Test
  include CowTest
  include RehearsalPlace

  LIB = File.join(ROOT, "lib")
  OPTIONS = ["-I", LIB, "-r", "cowruby/rehearsal/auto"].freeze
  Notes = CowRuby::Rehearsal::Notes
  Notable = CowRuby::Rehearsal::Notable
  Content = Notes::Content

  # What the doubles share. The application prints its process (m: the master, w: a worker), the path,
  # and where the request seems to come from, and answers by the path.
  COMMON = <<~'RUBY'
    Dir.chdir(ENV.fetch("PLACE"))
    $stdout.sync = $stderr.sync = true
    MASTER = Process.pid
    ANSWERS = Hash.new([200, {}, ["fine"]])
    APP = lambda do |env|
      kind = env["cowruby.rehearsal"] ? "rehearsed" : "asked"
      puts "#{Process.pid == MASTER ? "m" : "w"} #{kind} #{env["PATH_INFO"]} #{env["REMOTE_ADDR"]} " \
           "#{env["HTTP_HOST"]} #{env["rack.url_scheme"]}"
      answer = ANSWERS[env["PATH_INFO"]]
      answer.is_a?(Proc) ? answer.call(env) : answer
    end
    if ENV["COUNT"]
      require "cowruby/rehearsal"
      CowRuby::Rehearsal.send(:remove_const, :COUNT)
      CowRuby::Rehearsal::COUNT = Integer(ENV["COUNT"])
    end
    CONFIG_RU = -> { APP }

    # A worker answers the paths and ends.
    def worker(*paths, **more)
      pid = fork do
        app = yield
        paths.each do |path|
          app.call({ "REQUEST_METHOD" => "GET", "PATH_INFO" => path, "QUERY_STRING" => "",
                     "SCRIPT_NAME" => "", "rack.url_scheme" => "http" }.merge(more[:env] || {}))
          sleep 0.06 # longer than between two that are noted
        end
      end
      raise "worker failed" unless Process.wait2(pid).last.success?
    end
    PATHS = ENV.fetch("PATHS", "/asked").split

    module Doubles
      module Unicorn
        attr_accessor :app, :preload_app

        def initialize(preload)
          @preload_app = preload
          @app = ->(_, _server) { CONFIG_RU.call }
        end

        def start
          build_app! if preload_app
          worker(*PATHS) { build_app! unless preload_app; @app }
        end

        def build_app!
          self.app = app.call(nil, self) if app.respond_to?(:arity) && app.arity == 2
        end
      end
    end
  RUBY

  SERVERS = {
    unicorn: <<~'RUBY',
      module Unicorn; end
      class Unicorn::HttpServer
        include Doubles::Unicorn
      end
      Unicorn::HttpServer.new(ENV["PRELOAD"] != "no").start
    RUBY
    pitchfork: <<~'RUBY',
      module Pitchfork
        class HttpServer
          attr_accessor :app

          def start
            @app = ->(_, _server) { CONFIG_RU.call }
            build_app!
            worker(*PATHS) { @app }
          end

          private

          def build_app!
            return unless app.respond_to?(:arity)

            self.app = app.arity == 2 ? app.call(nil, self) : app
          end
        end
      end
      Pitchfork::HttpServer.new.start
    RUBY
    puma: <<~'RUBY',
      module Puma
        class Configuration
          def app = CONFIG_RU.call
        end

        class Runner
          def initialize = @config = Configuration.new
          def app = @app ||= @config.app

          private

          def load_and_bind
            @app = @config.app
            puts "bound" if ENV["BOUND"]
          end
        end

        class Cluster < Runner
          def preload? = ENV["PRELOAD"] != "no"

          def run
            load_and_bind if preload?
            worker(*PATHS) { app }
          end
        end

        class Single < Runner
          def run
            load_and_bind
            app.call("REQUEST_METHOD" => "GET", "PATH_INFO" => "/asked")
          end
        end
      end
      (ENV["PRELOAD"] == "single" ? Puma::Single : Puma::Cluster).new.run
    RUBY
    passenger: <<~'RUBY'
      module PhusionPassenger
        module LoaderSharedHelpers
          extend self

          def after_loading_app_code(_options) = :result
        end
        module PreloaderSharedHelpers; end unless ENV["PRELOAD"] == "no"

        module App
          def self.app = @@app

          def self.preload_app
            @@app = CONFIG_RU.call
            raise "result" unless LoaderSharedHelpers.after_loading_app_code({}) == :result
          end
        end
      end
      PhusionPassenger::App.preload_app
      worker(*PATHS) { PhusionPassenger::App.app }
    RUBY
  }.freeze

  # What a server prints. It rehearses +count+ requests; nil: as many as users' do.
  def serve(name, value, more: "", count: 60, **env)
    env = { COWRUBY_REHEARSAL: value, PLACE: @place, COUNT: count&.to_s, **env }
    out, status = run_ruby_status("#{COMMON}\n#{more}\n#{SERVERS.fetch(name)}",
                                  env: env.transform_keys(&:to_s), options: OPTIONS)
    assert_predicate status, :success?, out
    out
  end

  def rehearsed(out) = out.scan(/^m rehearsed (\S+)/).flatten

  def test_each_server_rehearses_in_its_master_and_only_there
    write("list", "/a\n/b\n")
    SERVERS.each_key do |name|
      out = serve(name, "list", count: nil)
      assert_equal %w[/a /b /a /b], rehearsed(out).first(4), out
      assert_equal 3_000, rehearsed(out).size, name
      assert_equal ["w asked /asked"], out.scan(/^w \w+ \S+/), name
      assert_match(/^rehearsal: 3000 requests in /, out)
      refute_path_exists file("tmp/cowruby"), "a list of the user's own is no reason to note anything"
    end
  end

  # Who connects to a server that rehearses would wait for an answer until it has ended.
  def test_puma_binds_after_the_rehearsal
    write("list", "/a\n")
    out = serve(:puma, "list", BOUND: "1")
    assert_equal ["m rehearsed /a", "bound", "w asked /asked"], out.scan(/^(?:[mw] \w+ \S+|bound$)/).uniq
  end

  # Unicorn has told its workers to end before it loads the application again: nobody answers until it
  # forks others.
  def test_a_reload_of_unicorn_does_not_wait_for_a_rehearsal
    note("+ 1.00 http /a")
    write("list", "/a\n")
    reload = <<~'RUBY'
      module Unicorn; end
      class Unicorn::HttpServer; end
      Unicorn::HttpServer.prepend(Module.new do
        def worker(*)
          puts "reload"
          @app = ->(_, _server) { CONFIG_RU.call }
          build_app!
          super
        end
      end)
    RUBY
    %w[list auto].each do |value|
      out = serve(:unicorn, value, more: reload)
      before, after = out.split(/^reload$/)
      assert_equal [60, 0], [before, after].map { |text| rehearsed(text).size }, value
      assert_match(/^rehearsal: not made at a reload of Unicorn, whose workers have ended already$/, after)
    end
    assert_equal %w[/a /asked], noted
  end

  def test_what_is_not_preloaded_is_not_rehearsed
    write("list", "/a\n")
    { %i[unicorn no] => /not made: Unicorn .*preload_app true$/,
      %i[puma no] => /not made: Puma .*preload_app!$/,
      %i[puma single] => /not made: Puma .*workers 2 and preload_app!$/,
      %i[passenger no] => nil }.each do |(name, preload), line|
      %w[list auto].each do |value|
        out = serve(name, value, PRELOAD: preload.to_s)
        assert_empty out.scan("rehearsed"), out
        assert_equal [line].compact.size, out.scan(/^rehearsal: /).size, out
        assert_match line, out if line
        refute_path_exists file("tmp/cowruby")
      end
    end
  end

  def test_off_is_off
    write("list", "/a\n")
    ["off", ""].each do |value|
      out = serve(:unicorn, value, COWRUBY_REHEARSAL_JOBS: value == "off" ? "Nothing" : "")
      assert_equal 1, out.lines.size, out
      assert_match(/^w asked/, out)
    end
    out = run_ruby(<<~'RUBY', options: OPTIONS, env: { "COWRUBY_REHEARSAL" => nil })
      p defined?(CowRuby::Rehearsal::COUNT), CowRuby::Rehearsal::Auto.wanted?
      p $LOADED_FEATURES.grep(/ipaddr|socket/)
    RUBY
    assert_equal ["nil", "false", "[]"], out.lines(chomp: true)
  end

  # A server's configuration is read when the library has been loaded already.
  def test_off_in_the_configuration_of_a_server
    write("list", "/a\n")
    note("+ 1.00 http /a")
    configuration = 'ENV["COWRUBY_REHEARSAL"] = "off"'
    SERVERS.each_key do |name|
      [{}, { PRELOAD: "no" }].each do |env|
        %w[list auto].each do |value|
          out = serve(name, value, more: configuration, **env)
          assert_equal ["w asked /asked"], out.scan(/^(?:\w \w+ \S+|rehearsal:.*)/), out
        end
      end
    end
    assert_equal ["+ 1.00 http /a"], noted_lines
  end

  # Where one of the two variables is there when ruby starts, the configuration may set the others.
  def test_variables_in_the_configuration_of_a_server
    write("list", "/a\n")
    configuration = <<~'RUBY'
      ENV["COWRUBY_REHEARSAL"] = "list"
      ENV["COWRUBY_REHEARSAL_HOST"] = "shop.example"
    RUBY
    out = serve(:puma, nil, more: configuration, COWRUBY_REHEARSAL_JOBS: "Nothing")
    assert_match(%r{^m rehearsed /a 127.0.0.1 shop.example http$}, out)
    %w[off auto].each do |value|
      out = serve(:puma, value, more: configuration)
      assert_equal value == "auto", out.include?("rehearsed"), value
    end
    assert_empty rehearsed(serve(:puma, nil, more: configuration))
  end

  # A server that is loaded already, as where its configuration has the line.
  def test_a_server_that_is_there_already
    write("list", "/a\n")
    late = SERVERS[:unicorn].sub(/^Unicorn::HttpServer.new/) { "require \"cowruby/rehearsal/auto\"\n#{$&}" }
    out, = run_ruby_status(COMMON + late, options: ["-I", LIB],
                                          env: { "COWRUBY_REHEARSAL" => "list", "PLACE" => @place })
    assert_equal 3_000, rehearsed(out).size, out.lines.last(5).join
  end

  def test_an_application_with_a_line_of_its_own_is_rehearsed_once
    write("list", "/a\n")
    config = <<~'RUBY'
      CONFIG_RU = lambda do
        require "cowruby/rehearsal"
        CowRuby::Rehearsal.of(APP, ["/own"], count: 2)
      end
    RUBY
    SERVERS.each_key do |name|
      out = serve(name, "list", more: config)
      assert_equal %w[/own /own], rehearsed(out), out
      assert_match(/^rehearsal: config.ru has made one; COWRUBY_REHEARSAL=list is not used$/, out)
    end
  end

  # Rack's builder, as Unicorn and Passenger call it, of the versions that are found here.
  def test_warmup_of_rack_runs_and_the_rehearsal_after_it
    found = racks
    skip("no rack here") if found.empty?
    write("list", "/a\n/part/b\n")
    write("config.ru", <<~'RUBY')
      use(Class.new { def initialize(app) = @app = app; def call(env) = @app.call(env) })
      warmup { |app| app.call({ "REQUEST_METHOD" => "GET", "PATH_INFO" => "/warm", "SCRIPT_NAME" => "" }) }
      map("/part") { run APP }
      run APP
    RUBY
    config = <<~'RUBY'
      $LOAD_PATH.unshift(ENV.fetch("RACK"))
      require "rack"
      require "rack/builder"
      CONFIG_RU = -> { Rack::Builder.parse_file("config.ru").then { |app, *| app } }
    RUBY
    found.each do |rack|
      out = serve(:unicorn, "list", more: config, RACK: rack)
      assert_equal ["m asked /warm", "m rehearsed /a", "m rehearsed /b"], out.scan(/^m \w+ \S+/).first(3), out
      assert_equal 1, out.scan("/warm").size
    end
  end

  # Directories to load rack from: that of the system's ruby, and those named by RACKS.
  def racks
    script = 'puts Gem::Specification.find_by_name("rack").full_require_paths'
    env = %w[GEM_HOME GEM_PATH RUBYLIB RUBYOPT].to_h { |name| [name, nil] }
    found, = Open3.capture2(env, "ruby", "-e", script, err: File::NULL)
    found.lines(chomp: true).first(1) + ENV["RACKS"].to_s.split(":")
  rescue Errno::ENOENT
    []
  end

  # CowRuby loads the library by itself where a variable asks for it, and RUBYOPT would be read.
  def test_the_variable_alone
    skip "not CowRuby" unless LOCATOR

    script = "puts $LOADED_FEATURES.grep(%r{cowruby/rehearsal/auto}).size"
    loaded = lambda do |*options, **env|
      env = { "COWRUBY_REHEARSAL" => nil, "COWRUBY_REHEARSAL_JOBS" => nil }.merge(env.transform_keys(&:to_s))
      numbers(run_ruby(script, env: env, options: options)).first
    end
    assert_equal 0, loaded.call
    assert_equal 1, loaded.call(COWRUBY_REHEARSAL: "auto")
    assert_equal 1, loaded.call("--disable-gems", COWRUBY_REHEARSAL_JOBS: "Job")
    assert_equal 0, loaded.call("--disable-rubyopt", COWRUBY_REHEARSAL: "auto")
  end

  def test_values_that_are_no_list
    lines = {
      "nowhere" => %r{^rehearsal: there is no file \S+/nowhere: COWRUBY_REHEARSAL is off, auto, or a file$},
      "tmp" => /^rehearsal: IOError: no regular file: /,
      write("garbage", "\xff\x00{}\n" * 100) => /^rehearsal: nothing to send, 100 lines left out/,
      write("empty", "") => /^rehearsal: nothing to send/
    }
    lines.each do |value, line|
      out = serve(:puma, value)
      assert_match line, out
      assert_equal ["w asked /asked"], out.scan(/^\w \w+ \S+/), out
      assert_equal 1, out.scan(/^rehearsal: /).size, out
    end
    out = serve(:puma, write("list", "/a\n"), COWRUBY_REHEARSAL_HOST: "a b")
    assert_match(/^rehearsal: not a host: "a b" \(see COWRUBY_REHEARSAL_HOST\)$/, out)
    out = serve(:puma, "list", COWRUBY_REHEARSAL_HOST: "shop.example", COWRUBY_REHEARSAL_HTTPS: "1")
    assert_match(/^m rehearsed \S+ 127.0.0.1 shop.example https$/, out)
    out = serve(:puma, "auto", COWRUBY_REHEARSAL_QUERY: "yes", COWRUBY_REHEARSAL_HTTPS: "0")
    assert_match(/^rehearsal: COWRUBY_REHEARSAL_QUERY is 0 or 1, not "yes"$/, out)
  end

  # A log goes by the rules for logs.
  def test_a_log
    line = '203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "GET /logged HTTP/1.1" 200 1'
    write("log", "#{line}\n")
    assert_match(/1 without a public host/, serve(:unicorn, "log"))
    out = serve(:unicorn, "log", COWRUBY_REHEARSAL_HOST: "shop.example")
    assert_match(%r{^m rehearsed /logged 203.0.113.9 shop.example http$}, out)
  end

  def test_requests_that_hang_raise_redirect_write_or_need_a_login
    write("list", "/raise\n/redirect\n/login\nPOST /write\nDELETE /write\n/exit\n/hang\n")
    answers = <<~'RUBY'
      ANSWERS.merge!("/raise" => ->(_) { raise "no" }, "/redirect" => [302, {}, []],
                     "/login" => [401, {}, []],
                     "/exit" => ->(_) { exit(3) }, "/hang" => ->(_) { sleep })
      CowRuby::Rehearsal.send(:remove_const, :SECONDS) if require "cowruby/rehearsal"
      CowRuby::Rehearsal::SECONDS = 2
    RUBY
    out = serve(:puma, "list", more: answers)
    assert_match(/^rehearsal: 5 requests .*1 with 302, 1 with 401.*, 3 failed, 2 lines left out \(2 of/, out)
    assert_match(%r{^rehearsal: GET /hang: no answer within}, out)
    refute_includes out, "/write"
    assert_match(/^w asked/, out)
  end

  def test_it_learns
    SERVERS.each_key do |name|
      FileUtils.rm_rf(file("tmp/cowruby"))
      out = serve(name, "auto", PATHS: "/often /seldom /often /often")
      assert_match(%r{^rehearsal: nothing is noted yet; workers will note .*/tmp/cowruby$}, out)
      assert_equal 0o100600, File.stat(journal).mode
      assert_equal ["+ 3.00 http /often", "+ 1.00 http /seldom"], noted_lines
      refute_path_exists journal
      assert_equal [0o100600, 0o40700], [file, File.dirname(file)].map { |path| File.stat(path).mode }
      out = serve(name, "auto", PATHS: "/often")
      assert_equal %w[/often /seldom /often /seldom], rehearsed(out).first(4)
      assert_equal [38, 22], rehearsed(out).tally.values_at("/often", "/seldom"), name
      assert_match(%r{^m rehearsed /often 203.0.113.1 www.example.org http$}, out)
      assert_includes noted_text, "+ 4.00 http /often\n"
    end
  end

  # What is not noted: by its method, its answer, its headers, its path.
  def test_what_is_noted
    paths = %w[/fine /redirect /missing /broken /secret-answer /users/7 /password_resets/x /u/kate@example.org
               /u/kate%40example.org /i/aB3dE6gH /f/0123456789abcdef0 //x /a/../b /é /query?a=b]
    answers = <<~'RUBY'
      ANSWERS.merge!("/redirect" => [302, {}, []], "/missing" => [404, {}, []], "/broken" => [500, {}, []],
                     "/secret-answer" => [200, { "Cache-Control" => "private, no-store" }, []])
    RUBY
    serve(:unicorn, "auto", more: answers, PATHS: paths.join(" "))
    assert_equal %w[/fine /users/7], noted
    more = <<~'RUBY'
      class Unicorn::HttpServer; end
      Unicorn::HttpServer.prepend(Module.new do
        def worker(*paths)
          [{ "REQUEST_METHOD" => "POST" }, { "HTTP_AUTHORIZATION" => "Basic x" },
           { "QUERY_STRING" => "q=kate" },
           { "HTTP_COOKIE" => "session=1", "HTTP_X_FORWARDED_PROTO" => "https" }]
            .each_with_index { |env, i| super("/n#{i}", env: env) { @app } }
        end
      end)
    RUBY
    FileUtils.rm_rf(file("tmp/cowruby"))
    serve(:unicorn, "auto", more: "module Unicorn; end\n#{more}")
    assert_equal ["+ 1.00 http /n2", "+ 1.00 https /n3"], noted_lines
    FileUtils.rm_rf(file("tmp/cowruby"))
    serve(:unicorn, "auto", more: "module Unicorn; end\n#{more}", COWRUBY_REHEARSAL_QUERY: "1")
    assert_includes noted, "/n2?q=kate"
    out = serve(:unicorn, "auto")
    refute_match(/n2\?q/, noted_text + out, "no longer asked for")
  end

  def noted_lines = noted_text.lines(chomp: true).drop(1)

  def noted = noted_lines.grep(/\A\+/).map { |line| line.split.last }.sort

  def test_what_was_slow_or_failed_is_left_out_from_then_on
    note("+ 9.00 http /a", "+ 5.00 http /raise", "+ 5.00 http /mine", "+ 1.00 http /b", "+ 1.00 http /c",
         "+ 1.00 http /slow")
    answers = <<~'RUBY'
      require "cowruby/rehearsal/start"
      CowRuby::Rehearsal::Start.send(:remove_const, :SLOW)
      CowRuby::Rehearsal::Start::SLOW = 0.4
      if ENV["BAD"]
        ANSWERS.merge!("/raise" => ->(_) { raise "no" }, "/mine" => [302, {}, []],
                       "/slow" => ->(_) { sleep(0.5); [200, {}, []] })
      end
    RUBY
    out = serve(:puma, "auto", more: answers, BAD: "1", PATHS: "/a /b")
    assert_equal [1, 1, 2], rehearsed(out).tally.values_at("/raise", "/mine", "/slow")
    assert_match(/^rehearsal: 3 of 6 pages are left out from now on \(1 redirected, 1 failed, 1 slow\)$/, out)
    # Workers may see it with a cookie; it stays out.
    out = serve(:puma, "auto", more: answers, PATHS: "/a /mine")
    assert_equal %w[/a /b /c], rehearsed(out).uniq.sort
    assert_equal %w[/mine /raise /slow], File.read(file).scan(/^- \d.\d\d (\S+)/).flatten.sort
  end

  # Where all is redirected, the host or https is wrong, and not all pages.
  def test_nothing_is_left_out_where_most_went_wrong
    note("+ 9.00 http /a", "+ 5.00 http /b", "+ 1.00 http /c")
    out = serve(:puma, "auto", more: "ANSWERS.default = [301, {}, []]")
    assert_match(/most of what is noted is not answered as it was \(3 redirected\): .*_HTTPS=1/, out)
    assert_equal %w[/a /b /c], noted
    note("+ 9.00 https /a", "+ 1.00 http /b")
    assert_match(%r{^m rehearsed /a \S+ \S+ https$}, serve(:puma, "auto"))
  end

  def test_a_file_that_is_malformed_is_set_aside
    ["", "x\n", "cowruby-rehearsal 2 2026-11-27\n", "cowruby-rehearsal 1 2026-99-99\n",
     "cowruby-rehearsal 1 2026-11-27\n+ 1.00 http /a\nrubbish\n", "\0" * 2_000_000].each do |text|
      write("tmp/cowruby/rehearsal.txt", text)
      FileUtils.rm_f(file("tmp/cowruby/rehearsal.txt.bad"))
      out = serve(:unicorn, "auto")
      assert_match(/^rehearsal: \S+ is no list of noted pages \(.*\); it is now \S+.bad$/, out)
      assert_equal text.b, File.binread(file("tmp/cowruby/rehearsal.txt.bad"))
      assert_equal ["/asked"], noted
    end
  end

  # Whether everybody may read these files: not below /root.
  def reached_by_all?(*files)
    files.flat_map { |file| Pathname.new(File.realpath(file)).ascend.to_a }.all? do |path|
      File.stat(path).mode.anybits?(path.directory? ? 0o001 : 0o004)
    end
  end

  # A user who is not root writes nothing into a directory without w.
  def unprivileged
    return yield unless Process.euid.zero?

    skip "another user does not reach this ruby or these files" unless reached_by_all?(RUBY, __FILE__)
    File.chmod(0o755, @place)
    pid = fork do
      Process::UID.change_privilege(65_534)
      yield
      exit!(0)
    rescue Exception => e
      warn e.full_message
      exit!(1)
    end
    assert_predicate Process.wait2(pid).last, :success?
  end

  def test_a_directory_that_cannot_be_written
    File.chmod(0o555, file("tmp"))
    unprivileged do
      out = serve(:unicorn, "auto")
      assert_match(/^rehearsal: nothing will be noted: Permission denied/, out)
      assert_equal 2, out.lines.size, out
    end
    FileUtils.rmdir(file("tmp"))
    assert_match(/^rehearsal: nothing will be noted: there is no directory \S+tmp$/, serve(:unicorn, "auto"))
    File.write(file("tmp"), "")
    assert_match(/^rehearsal: nothing will be noted: there is no directory/, serve(:unicorn, "auto"))
  end

  def test_a_list_in_a_directory_that_cannot_be_written_is_rehearsed
    note("+ 1.00 http /a")
    File.chown(65_534, nil, file("tmp/cowruby"), file) if Process.euid.zero?
    File.chmod(0o555, file("tmp/cowruby"))
    unprivileged do
      out = serve(:unicorn, "auto")
      assert_equal 60, rehearsed(out).size
      assert_match(/^rehearsal: nothing will be noted: /, out)
    end
  ensure
    File.chmod(0o755, file("tmp/cowruby"))
  end

  def test_files_that_somebody_else_can_write_are_neither_read_nor_written
    refused = lambda do |what|
      out = serve(:puma, "auto")
      assert_match(/^rehearsal: nothing is rehearsed, and nothing will be noted: \S+ #{what}$/, out)
      assert_equal 2, out.lines.size, out
    end
    note("+ 1.00 http /a")
    File.chmod(0o620, file)
    refused.call("can be written by other users")
    File.chmod(0o600, file)
    File.chmod(0o770, file("tmp/cowruby"))
    refused.call("can be written by other users")
    File.chmod(0o700, file("tmp/cowruby"))
    File.link(file, file("other"))
    refused.call("is no regular file of its own")
    File.unlink(file)
    File.symlink(file("other"), file)
    refused.call("is no regular file of its own")
    File.unlink(file)
    File.mkfifo(file, 0o600)
    refused.call("is no regular file of its own")
    File.unlink(file)
    Dir.mkdir(file)
    refused.call("is no regular file of its own")
    return unless Process.euid.zero?

    Dir.rmdir(file)
    note("+ 1.00 http /a")
    File.chown(65_534, nil, file)
    refused.call("belongs to another user")
  end

  # As it is where each release has a tmp of its own.
  def test_a_directory_that_is_a_link
    Dir.mkdir(file("shared"), 0o700)
    File.symlink(file("shared"), file("tmp/cowruby"))
    serve(:puma, "auto")
    assert_equal ["/asked"], noted
    File.chmod(0o770, file("shared"))
    assert_match(/cowruby can be written by other users$/, serve(:puma, "auto"))
    File.unlink(file("tmp/cowruby"))
    File.symlink(file("nowhere"), file("tmp/cowruby"))
    assert_match(/nothing will be noted: No such file/, serve(:puma, "auto"))
  end

  # Processes that write at the same time lose nothing.
  def test_two_masters_with_one_file
    paths = ->(i) { Array.new(20) { |j| "/p#{i}x#{j}" } }
    children = Array.new(4) do |i|
      fork do
        notes = Notes.new(file)
        paths.call(i).each do |path|
          seen = Notable::Seen.new
          seen.add(path, false)
          seen.add("/all", true)
          sleep(0.001) until notes.append(seen)
        end
        exit!(0)
      end
    end
    # It ends by itself: if it were killed with the file written and the journal not yet removed, that would
    # count once more.
    reader = fork do
      loop do
        Notes.new(file).read
        exit!(0) if File.exist?(file("ended"))
      end
    end
    successes = children.map { |pid| Process.wait2(pid).last.success? }
    write("ended", "")
    assert_equal [true] * 5, [*successes, Process.wait2(reader).last.success?]
    assert_includes noted_text, "+ 80.00 https /all\n"
    assert_equal Notable::PER_KIND + 1, noted.size, "/all is of a kind of its own"
    assert_empty Dir.children(File.dirname(file)) - %w[rehearsal.txt rehearsal.txt.lock]
  end

  # A worker appends; a master adds what was appended to the file when it starts.
  def test_a_journal
    today, yesterday = [0, 1].map { |days| (Time.now.utc - days * 86_400).strftime("%Y-%m-%d") }
    note("+ 10.00 http /a", "- 0.50 /bad", day: yesterday)
    write("tmp/cowruby/rehearsal.txt.journal.old",
          "\ncowruby-rehearsal 1 #{yesterday}\n+ 10.00 http /a x:html\n")
    write("tmp/cowruby/rehearsal.txt.journal", <<~TEXT)

      cowruby-rehearsal 1 #{today}
      + 2.00 https /a
      + 1.00 http /bad
      + 3.00 http /sign_in
      + 4.00 http /cut
      cowruby-rehearsal 1 9999-01-01
      + 5.00 http /b
      + 6.00 ht
    TEXT
    assert_equal ["cowruby-rehearsal 1 #{today}", "+ 20.00 https /a x:html", "+ 5.00 http /b",
                  "+ 4.00 http /cut", "- 0.45 /bad"], noted_text.lines(chomp: true)
    assert_equal %w[rehearsal.txt rehearsal.txt.lock], Dir.children(file("tmp/cowruby")).sort
  end

  # Where there is no file yet, what is old counts less as well.
  def test_a_journal_without_a_file
    today, before = [0, 10].map { |days| (Time.now.utc - days * 86_400).strftime("%Y-%m-%d") }
    write("tmp/cowruby/rehearsal.txt.journal", "cowruby-rehearsal 1 #{before}\n+ 10.00 http /old\n\n" \
                                               "cowruby-rehearsal 1 #{today}\n+ 5.00 http /new\n")
    assert_equal ["+ 5.00 http /new", "+ 3.49 http /old"], noted_lines
  end

  # A disk that is full in the middle of a batch: nothing of it stays. Half a line, which a process that was
  # killed has left, is no page.
  def test_half_a_batch
    notes = Notes.new(file)
    seen = Notable::Seen.new
    seen.add("/whole", false)
    assert notes.append(seen)
    size = File.size(journal)
    seen.add("/accounts/closed-today", false)
    child = fork do
      trap(:XFSZ, "IGNORE")
      Process.setrlimit(:FSIZE, size + 60)
      notes.append(seen)
      exit!(1)
    rescue SystemCallError
      exit!(0)
    end
    assert_predicate Process.wait2(child).last, :success?
    assert_equal size, File.size(journal)
    whole = File.binread(journal)
    ["cowruby-rehearsal 1 2026-11-29\n", ""].each do |begun|
      text = "#{whole}#{begun}+ 1.00 http /accounts/cl"
      write("tmp/cowruby/rehearsal.txt.journal", text)
      assert notes.append(seen)
      assert_equal %w[/accounts/closed-today /whole], noted
      write("tmp/cowruby/rehearsal.txt.journal", text)
      assert_equal %w[/accounts/closed-today /whole], noted
    end
  end

  # Values of queries go at the next start where they are not asked for any more.
  def test_queries_in_a_journal_go
    seen = Notable::Seen.new
    seen.add("/a?name=kate", false)
    seen.add("/a", false)
    assert Notes.new(file, query: true).append(seen)
    assert_equal ["/a"], Notes.new(file).read.requests(1)
    assert_empty Dir[file("tmp/cowruby/*")].grep_v(/lock/).select { |path| File.read(path).include?("kate") }
  end

  # What many workers append in a long time is bounded.
  def test_a_journal_that_is_full
    notes = Notes.new(file)
    4.times do |round|
      seen = Notable::Seen.new
      200.times { |i| seen.add("/#{"abcd"[round] * (1 + i / 25)}/#{i}", false) }
      assert notes.append(seen)
      File.open(journal, "a") { |file| file.write("\n" * Notes::FULL) }
    end
    assert_operator File.size(journal), :<, Notes::LARGEST
    assert_operator File.size("#{journal}.old"), :<, Notes::LARGEST
    found = notes.read.requests(1)
    assert_equal [0, 0, 200, 200], Array.new(4) { |round| found.grep(/#{"abcd"[round]}/).size }
  end

  # It would end the process at each start.
  def test_a_page_that_ends_the_process
    ends = 'ANSWERS["/b"] = ->(env) { env["cowruby.rehearsal"] ? exit!(9) : [200, {}, ["fine"]] }'
    note("+ 3.00 http /a", "+ 2.00 http /b", "+ 1.00 http /c")
    env = { COWRUBY_REHEARSAL: "auto", PLACE: @place, COUNT: "60" }.transform_keys(&:to_s)
    _, status = run_ruby_status("#{COMMON}\n#{ends}\n#{SERVERS.fetch(:unicorn)}", env: env, options: OPTIONS)
    assert_equal 9, status.exitstatus
    assert_equal "/b\n".ljust(Notes::MARK, "\n"), File.read(file("#{NOTES}.sending"))
    assert_equal 0o100600, File.stat(file("#{NOTES}.sending")).mode

    out = serve(:unicorn, "auto", more: ends, PATHS: "/b")
    assert_match(%r{ended with its process, at /b, which is left out from now on; none is made}, out)
    assert_empty rehearsed(out)
    out = serve(:unicorn, "auto", more: ends, PATHS: "/b")
    assert_equal %w[/a /c], rehearsed(out).uniq
    refute_path_exists file("#{NOTES}.sending")
  end

  # Where it cannot be left out, the next start finds it again. Where nothing can be written, nothing is sent.
  def test_a_page_that_ends_the_process_on_a_full_disk
    full = "class CowRuby::Rehearsal::Notes; private def write(*) = raise(Errno::ENOSPC); end"
    note("+ 3.00 http /a", "+ 2.00 http /b")
    2.times do
      write("#{NOTES}.sending", "/b\n")
      out = serve(:unicorn, "auto", more: "require 'cowruby/rehearsal/start'\n#{full}")
      assert_match(%r{ended with its process, at /b; none is made}, out)
      assert_empty rehearsed(out)
      assert_equal "/b\n", File.read(file("#{NOTES}.sending"))
    end
    File.unlink(file("#{NOTES}.sending"))
    full = full.sub("write(", "write_mark(")
    out = serve(:unicorn, "auto", more: "require 'cowruby/rehearsal/start'\n#{full}")
    assert_match(/^rehearsal: nothing is rehearsed, and nothing will be noted: No space left/, out)
    assert_empty rehearsed(out)
  end

  # A wrong clock takes no more than a week from what was asked for. What is left out comes back in time,
  # though nothing was noted meanwhile and the server starts once in a while.
  def test_pages_after_a_long_time
    note("+ 2.00 http /a", "- 1.00 /b", "- 1.00 /c", day: "2026-01-02")
    write("#{NOTES}.journal", "cowruby-rehearsal 1 1970-01-02\n+ 5.00 http /c\n")
    assert_equal %w[/a /c], Notes.new(file).read.requests(1).sort
    assert_equal ["+ 2.39 http /c", "+ 0.96 http /a"], noted_lines

    note("+ 2.00 http /a", "- 1.00 /b", day: (Time.now.utc - 30 * 86_400).strftime("%Y-%m-%d"))
    content = Notes.new(file).read
    refute_includes content.to_s, "/b"
    assert_equal "+ 0.96 http /a", content.to_s.lines(chomp: true).last
  end

  # Of a server that rehearses at the same time, or rubbish.
  def test_a_note_of_another_process
    note("+ 3.00 http /a")
    mark = file("#{NOTES}.sending")
    ["x", "", "/token/x\n", "/a", "/a\xff\n", "/#{"a" * 1_000}\n"].each do |text|
      write("#{NOTES}.sending", text)
      assert_includes rehearsed(serve(:unicorn, "auto")), "/a", text
      refute_path_exists mark
    end
    write("#{NOTES}.sending", "/a\n")
    File.open(mark) do |file|
      file.flock(File::LOCK_EX)
      assert_includes rehearsed(serve(:unicorn, "auto")), "/a"
      assert_equal "/a\n", File.read(mark), "it is the other one's"
    end
    assert_empty rehearsed(serve(:unicorn, "auto"))
    write("#{NOTES}.sending", "/a\n", 0o622)
    assert_match(/nothing will be noted: \S+sending can be written by other users$/, serve(:unicorn, "auto"))
  end

  # The file of a master that ended before it had removed the journal, or cannot write.
  def test_a_journal_that_stays
    today = Time.now.utc.strftime("%Y-%m-%d")
    write("tmp/cowruby/rehearsal.txt.journal", "cowruby-rehearsal 1 #{today}\n+ 2.00 http /a\n")
    notes = Notes.new(file)
    notes.define_singleton_method(:write) { |_| raise Errno::ENOSPC }
    assert_equal ["/a"], notes.read.requests(1)
    assert_path_exists journal
    write("tmp/cowruby/rehearsal.txt.journal", "rubbish\n")
    out = serve(:unicorn, "auto")
    assert_match(/journal is no list of noted pages \(no batch begins in it\); it is now \S+.bad$/, out)
    assert_equal ["/asked"], noted
    write("tmp/cowruby/rehearsal.txt.journal", "x", 0o620)
    assert_match(/noted: \S+journal can be written by other users$/, serve(:unicorn, "auto"))
  end

  # Counts in this process; what they hold at its end is not written.
  def counts
    counts = CowRuby::Rehearsal::Noting::Counts.new(Notes.new(file), false)
    yield counts
  ensure
    counts.instance_variable_set(:@process, nil)
  end

  # Whoever cannot get the lock keeps what it has.
  def test_a_lock_that_another_holds
    notes = Notes.new(file)
    seen = Notable::Seen.new
    seen.add("/a", true)
    assert notes.append(seen)
    File.open(file("tmp/cowruby/rehearsal.txt.lock")) do |lock|
      lock.flock(File::LOCK_EX)
      refute notes.append(seen)
      assert_equal ["/a"], notes.read.requests(1), "it can be read"
    end
    counts do |counts|
      2.times do
        counts.note({}, "/kept", nil, [200, {}, []])
        File.open(file("tmp/cowruby/rehearsal.txt.lock")) do |lock|
          lock.flock(File::LOCK_EX)
          counts.send(:write)
        end
      end
      counts.send(:write)
    end
    assert_includes noted_text, "+ 2.00 http /kept\n"
  end

  # A disk that is full, a directory that goes away: one line, and requests are answered.
  def test_a_worker_that_cannot_write_any_more
    out = serve(:unicorn, "auto", more: <<~'RUBY', PATHS: "/a /b")
      require "cowruby/rehearsal/notes"
      class CowRuby::Rehearsal::Notes
        def append(*, **) = raise(Errno::ENOSPC)
      end
    RUBY
    assert_equal ["/a", "/b"], out.scan(/^w asked (\S+)/).flatten
    assert_equal 1, out.scan(/^rehearsal: nothing more is noted in process \d+: No space left/).size, out
  end

  def parse(*lines) = Content.parse("cowruby-rehearsal 1 2026-11-01\n#{lines.join("\n")}") { true }

  def test_content_fades_and_is_bounded
    content = parse("+ 10.00 http /old", "+ 0.11 http /rare", "- 0.50 /bad")
    content.age(Time.utc(2026, 11, 8).to_i / Content::DAY)
    assert_equal "cowruby-rehearsal 1 2026-11-08\n+ 4.78 http /old\n- 0.24 /bad\n", content.to_s
    content.age(0)
    assert_includes content.to_s, "+ 4.78 http /old", "a clock that was put back"
    content.age(Time.utc(2026, 11, 8).to_i / Content::DAY)
    assert_includes content.to_s, "+ 2.29 http /old", "a clock that begins at 1970: a week at most"
    seen = Notable::Seen.new
    2_000.times { |i| seen.add("/a#{i % 100}/b#{i}", false) }
    content.add(seen, [])
    assert_equal Notable::PER_KIND + 1, content.requests(1).size
    many = Array.new(2_000) { |i| ["/#{("a".ord + i % 26).chr * (1 + i / 26)}/x", [1, 0]] }
    content.add(many, Array.new(2_000) { |i| "/bad/#{i}" })
    assert_equal 2 * Notable::PATHS + 1, content.to_s.lines.size
    assert_equal content.to_s, Content.parse(content.to_s) { true }.to_s
    often = Array.new(2_000) { |i| ["/#{"a" * (1 + i % 100)}/#{i}", [2, 0]] }
    content = parse
    content.add(often + many, [])
    assert_equal 100, (often.map(&:first) & content.requests(1)).size, "the first of each kind"
    content = parse("+ 30.00 http /a", "+ 10.00 http /b")
    assert_equal %w[/a /b /a], content.requests(4), "none more often than its equal part"
  end

  def test_what_is_notable
    fine = %w[/ /posts /posts/17 /posts/10-best-cities-of-europe-2024 /wiki/Main_Page /a.json /2026/11/27
              /%C3%A9t%C3%A9 /authors /blog/insider /tags/c++
              /shows/lost/s01e02 /posts/how-to-pay-and-send /run-of-the-mill /players
              /docs/utf8mb4 /a/iso8859-15]
    assert_empty(fine.reject { |target| Notable.target?(target) })
    not_fine = ["/reset/x", "/users/confirmation?t=1", "/sign_in", "/logout", "/unsubscribe", "/p/a@b.c",
                "/p/a%40b.c", "/i/Ab3xY9", "/%74oken/x", "/f/f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "/x?y",
                "/s/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "/t/qRtVxYzAbWcDeF", "/o/12345678901",
                "/i/k3j9d2x8", "/gift/7QX4K9W2", "/f/3f2a9c1b7e4d", "/posts/7/like", "/cart/add/5", "/pay",
                "/news/mark_as_read", "/cart/add_to_cart/5", "/clear_cache",
                "/#{"a" * 300}", "/a b", "//a",
                "/%2e%2e/x", "relative", "", "/admin", "/posts/7/delete", "/a\xff"]
    assert_empty(not_fine.select { |target| Notable.target?(target) })
    assert Notable.target?("/a?page=2", query: true)
    refute Notable.target?("/a?token=2", query: true)
    kinds = { "/" => "/", "/posts/x" => "/posts/*", "/posts/12/comments/9" => "/posts/*/comments/*",
              "/x?a=/b/" => "/x", "/posts" => "/posts", "/posts.json" => "/posts.json", "/my-post" => "/*",
              "/best.of/my-post.html" => "/best.of/*.html", "/posts/12.json" => "/posts/*.json",
              "/2026" => "/*", "/#{"a" * 30}" => "/*" }
    kinds.each { |target, kind| assert_equal kind, Notable.guess(target) }
  end

  # What a worker notes of answers: pairs of a path and what env and headers say, and the status.
  def answer(*answers)
    counts do |counts|
      answers.each do |path, env, headers = { "content-type" => "text/html" }, status = 200|
        counts.note(env, path, nil, [status, headers, []])
      end
      yield counts if block_given?
      counts.send(:write)
    end
  end

  def by(controller, action = "show", **more)
    { "action_dispatch.request.path_parameters" => { controller: controller, action: action, **more } }
  end

  def test_kinds_by_what_the_framework_says
    json = { "Content-Type" => "application/json; charset=utf-8" }
    answer(["/1", by("posts", id: "1"), json], ["/2", { "sinatra.route" => "GET /:id" }],
           ["/3", by("a/b c\n", nil)], ["/4", { "action_dispatch.request.path_parameters" => { id: "4" } }],
           ["/5", { "action_dispatch.request.path_parameters" => "x", "sinatra.route" => "a" * 1_000 }],
           ["/6", by("posts"), { "content-type" => ["image/png"] }],
           ["/7", by("files"), [%w[content-type a/b]]],
           ["/8", { "sinatra.route" => "GET /\u00e9" }, { "content-type" => "text/\xff".b }],
           ["/9", by("posts"), { "content-type" => "text/\xff" }], ["/10", by("posts"), {}])
    long = "a" * (Notable::LONGEST_KIND - 20)
    assert_equal ["/1 posts#show:json", "/10", "/2 GET/:id:html", "/3 a/bc#:html", "/4", "/5 #{long}:html",
                  "/6 posts#show:image", "/7 files#show:other", "/8 GET/:other"],
                 noted_lines.map { |line| line[/http (.*)/, 1] }, "/9 is like no other answer"
  end

  # A browser that has the page is told so without a type.
  def test_a_kind_that_is_known_stays_known
    answer(["/1", by("posts"), {}, 304], ["/1", by("posts")], ["/1", by("posts"), {}, 304])
    assert_equal ["+ 3.00 http /1 posts#show:html"], noted_lines
    answer(["/1", by("posts"), {}, 304])
    assert_equal ["+ 4.00 http /1 posts#show:html"], noted_lines
    answer(["/1", by("comments")]) do |counts|
      File.open(file("tmp/cowruby/rehearsal.txt.lock")) do |lock|
        lock.flock(File::LOCK_EX)
        counts.send(:write)
      end
    end
    assert_equal ["+ 5.00 http /1 comments#show:html"], noted_lines, "kept while the file was locked"
  end

  def test_what_the_framework_tells_not_to_ask_for
    answer(["/i/abc", by("invitations")], ["/p/7", by("posts", "like")],
           ["/t/abc", by("things", token: "abc")],
           ["/r/abc", { "sinatra.route" => "GET /r/:secret_key/:otp" }],
           ["/u/abc", { "sinatra.route" => "GET /unsubscribe" }],
           ["/places/de", by("places", code: "de")])
    assert_equal ["+ 1.00 http /places/de places#show:html"], noted_lines
  end

  # An application of many resources has more of them than there may be pages of a kind. Once all their lists
  # were of one kind, and most were left out.
  def test_pages_of_all_kinds_are_kept
    pages = ->(range, env) { range.map { |i| ["/#{i}", env] } }
    answer(*pages.call(0...30, by("a")), *pages.call(30...60, by("b")), *pages.call(60...90, by("c")))
    assert_equal 3 * Notable::PER_KIND, noted.size, "of three actions"
    FileUtils.rm_rf(file("tmp/cowruby"))
    answer(*Array.new(300) { |i| ["/part#{"s" * (i % 10)}/#{i}", by("pages")] })
    assert_equal 10 * Notable::PER_KIND, noted.size, "of one action, of ten forms"
    content = parse
    often = Array.new(700) { |i| ["/often#{i}", [2, 0, "often#{i % 28}:html"]] }
    seldom = Array.new(400) { |i| ["/seldom#{i}", [1, 0, "seldom#{i}:html"]] }
    content.add(often + seldom, [])
    content = Content.parse(content.to_s) { true }
    assert_equal 428, content.to_s.lines.drop(1).map { |line| line.split.last }.uniq.size, "kinds"
    assert_equal Notable::PATHS, content.requests(1).size
  end

  # Strangers can ask for any word, and give any ending.
  def test_strangers_do_not_crowd_out_all_others
    words = ("aaa".."zzz").first(1_500).map { |word| ["/#{word}", [3, 0]] }
    endings = ("aaa".."zzz").first(1_500).map { |ending| ["/posts/1.#{ending}", [3, 0]] }
    real = Array.new(20) { |i| ["/#{"x" * (i + 1)}/1", [2, 0]] }
    content = parse
    content.add(words + endings + real, [])
    assert_equal real.map(&:first).sort, (content.requests(1) & real.map(&:first)).sort
    assert_includes content.requests(1), "/aaa"
    assert_operator content.requests(1).size, :<=, Notable::WORDS + 2 * Notable::PER_KIND + 20
  end

  # A worker that was forked from a worker has counts of its own, and the parent's are not written twice.
  def test_a_worker_that_forks
    out = serve(:unicorn, "auto", PATHS: "/a /fork /b", more: <<~'RUBY')
      ANSWERS["/fork"] = ->(_) { Process.wait(fork {}); [200, {}, []] }
    RUBY
    assert_equal 3, out.scan(/^w asked/).size
    assert_equal ["+ 1.00 http /a", "+ 1.00 http /b", "+ 1.00 http /fork"], noted_lines
  end

  # The wrapper changes neither answers nor exceptions.
  def test_the_wrapper_is_transparent
    run_ruby(<<~'RUBY', options: ["-I", LIB], env: { "PLACE" => @place })
      require "cowruby/rehearsal/noting"
      answer = [200, {}, []]
      answers = { "/a" => -> { answer }, "/raise" => -> { raise KeyError }, nil => -> {},
                  "/odd" => -> { [nil, 1] } }
      notes = CowRuby::Rehearsal::Notes.new("#{ENV["PLACE"]}/tmp/cowruby/rehearsal.txt")
      noting = CowRuby::Rehearsal::Noting.new(->(env) { answers.fetch(env["PATH_INFO"]).call }, notes)
      ask = ->(path, method = "GET") { noting.call({ "REQUEST_METHOD" => method, "PATH_INFO" => path }) }
      raise unless ask.call("/a").equal?(answer) && ask.call("/a", "POST").equal?(answer)
      raise unless ask.call(nil).nil? && ask.call("/odd") == [nil, 1]
      raise unless (ask.call("/raise") rescue $!.class) == KeyError
    RUBY
  end

  def test_threads
    counts do |counts|
      threads = Array.new(4) do |i|
        Thread.new do
          500.times do |j|
            counts.note({}, "/#{"t" * (i + 1)}/#{j % 20}", nil, [200, {}, []])
            counts.send(:write) if j % 100 == 0
          end
        end
      end
      threads.each(&:join)
      counts.send(:write, patience: 10)
    end
    assert_equal 80, noted.size
    assert_equal 2_000, noted_text.scan(/^\+ (\d+)/).flatten.sum(&:to_i)
  end

  JOBS = <<~'RUBY'
    class Plain
      def self.get_sidekiq_options = { "retry" => true }
      def perform = raise("performed")
    end

    class Own < Plain
      def self.rehearse = puts("rehearse #{Process.pid == MASTER}")
    end

    class Active
      Chain = Class.new { def compile(kind) = puts("compiled #{kind.inspect}") }
      def self.queue_adapter = puts("adapter")
      def self.deserialize(data) = puts("deserialized #{data["arguments"]}")
      def self.__callbacks = { perform: Chain.new }
      def serialize = { "job_class" => "Active", "arguments" => [] }
      def perform = raise("performed")
    end
  RUBY

  SOLID_QUEUE = <<~'RUBY'
    module SolidQueue
      class Supervisor
        def start = start_processes

        private

        def start_processes
          worker("/job") { APP }
          worker("/job") { APP }
        end
      end
    end
    SolidQueue::Supervisor.new.start
  RUBY

  def run_jobs(names, server, value: nil)
    env = { "COWRUBY_REHEARSAL_JOBS" => names, "COWRUBY_REHEARSAL" => value, "PLACE" => @place }
    run_ruby(COMMON + JOBS + server, options: OPTIONS, env: env)
  end

  def test_jobs_are_warmed_before_solid_queue_forks
    out = run_jobs("Plain, Own,Active", "$stderr = $stdout\n#{SOLID_QUEUE}")
    assert_equal ["rehearse true", "adapter", "deserialized []", "compiled nil"],
                 out.lines(chomp: true).first(4)
    assert_match(/^rehearsal: 3 jobs in [\d.]+ s$/, out)
    assert_equal 1, out.scan("rehearse true").size, "once, though two workers are forked"
    refute_includes out, "performed"
    assert_equal 2, out.scan("w asked /job").size
    assert_equal 2, run_jobs("Plain", "$stderr = $stdout\n#{SOLID_QUEUE}", value: "off").lines.size
  end

  # As where Puma's plugin starts Solid Queue: its class comes after the application was rehearsed.
  def test_jobs_of_a_server_that_comes_after_a_rehearsal
    later = "CowRuby::Rehearsal::Auto.preload('Puma') { ->(_) { [200, {}, []] } }\n"
    out = run_jobs("Plain", "$stderr = $stdout\n#{later}#{SOLID_QUEUE}", value: write("list", "/a\n"))
    assert_match(/^rehearsal: 3000 requests /, out)
    assert_match(/^rehearsal: 1 jobs in /, out)
  end

  def test_jobs_are_warmed_before_the_swarm_forks
    skip("Ruby before 3.1 has no Process._fork") unless Process.respond_to?(:_fork)
    swarm = "$stderr = $stdout\n$PROGRAM_NAME = 'sidekiqswarm'\n2.times { worker('/job') { APP } }\n"
    assert_equal 1, run_jobs("Plain", swarm).scan(/^rehearsal: 1 jobs/).size
    refute_match(/rehearsal/, run_jobs("Plain", swarm.sub("sidekiqswarm", "other")))
  end

  def test_jobs_that_are_none
    out = run_jobs("Nowhere::Job,String,bad-name,Plain", "$stderr = $stdout\n#{SOLID_QUEUE}")
    assert_match(/^rehearsal: 4 jobs in [\d.]+ s, 3 failed$/, out)
    assert_match(/^rehearsal: job Nowhere::Job: NameError: uninitialized constant Nowhere/, out)
    assert_match(/^rehearsal: job String: NameError: it has no method perform/, out)
    assert_equal 2, out.scan("w asked /job").size
  end

  # In Ruby, with a block for what a class does not know itself.
  def test_jobs_called_by_hand
    called = []
    job = Class.new { def perform = raise("performed") }
    Object.const_set(:HandJob, job)
    output = StringIO.new
    report = CowRuby::Rehearsal.jobs(job, "Missing", output: output) { |found| called << found }
    assert_equal [[job], 2, 1], [called, report.sent, report.failures.size]
    assert_raises(CowRuby::Rehearsal::Unusable) { CowRuby::Rehearsal.jobs }
  ensure
    Object.send(:remove_const, :HandJob)
  end
end

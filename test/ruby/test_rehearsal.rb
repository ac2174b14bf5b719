# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require "pathname"
require "tempfile"
require "timeout"
require "tmpdir"
require_relative "../../lib/cowruby/rehearsal"

# CowRuby::Rehearsal sends requests to an application before a server forks (lib/cowruby/rehearsal.rb).
class TestRehearsal < Minitest::Test
  include CowTest

  Rehearsal = CowRuby::Rehearsal

  # An application that keeps the environments that it is called with, and answers what the block gives.
  class App
    attr_reader :seen

    def initialize(&answer)
      @seen = []
      @answer = answer
    end

    def call(env)
      @seen << env
      @answer ? @answer.call(env) : [200, {}, ["fine"]]
    end

    def targets = seen.map { |env| "#{env["REQUEST_METHOD"]} #{env["REQUEST_URI"]}" }
  end

  # Gives the application, the report and what was printed.
  def rehearse(requests, app: App.new, count: 10, **options, &block)
    output = StringIO.new
    report = Rehearsal.new(app, requests, count: count, output: output, **options, &block).run
    [app, report, output.string]
  end

  def with_file(text)
    Tempfile.create("rehearsal") do |file|
      file.binmode
      file.write(text)
      file.close
      yield file.path
    end
  end

  def test_a_list_is_repeated_until_enough_were_sent
    app, report, = rehearse(["/a", "HEAD /b?x=1", "", "# nothing", "POST /c", "no request"], count: 5)
    assert_equal ["GET /a", "HEAD /b?x=1", "GET /a", "HEAD /b?x=1", "GET /a"], app.targets
    assert_equal [5, 2, []], [report.sent, report.left_out, report.failures]
    assert_equal({ 200 => 5 }, report.statuses)
  end

  def test_a_file
    with_file("# the pages\n/a\n\nHEAD /b\n") do |path|
      assert_equal ["GET /a", "HEAD /b"], rehearse(path, count: 2).first.targets
      assert_equal ["GET /a"], rehearse(Pathname(path), count: 1).first.targets
    end
  end

  def test_an_access_log
    with_file(<<~'LOG') do |path|
      127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] "GET /posts?page=2 HTTP/1.1" 200 2326
      127.0.0.1 - kate [10/Oct/2026:13:55:37 +0000] "GET /gone HTTP/1.1" 404 12 "-" "Mozilla/5.0 (\xff)"
      127.0.0.1 - - [10/Oct/2026:13:55:38 +0000] "POST /posts HTTP/1.1" 201 12 "-" "x"
      127.0.0.1 - - [10/Oct/2026:13:55:39 +0000] "HEAD /up HTTP/2.0" 304 - "http://a/b" "x"
      127.0.0.1 - - [10/Oct/2026:13:55:39 +0000] "\x16\x03\x01" 400 226
    LOG
      app, report, = rehearse(path, count: 2, host: "shop.example", address: "203.0.113.1")
      assert_equal ["GET /posts?page=2", "HEAD /up"], app.targets
      assert_equal 3, report.left_out
    end
  end

  # A line of a log. Without arguments it is one of a public server.
  def logged(target, address: "203.0.113.9", host: "shop.example:443 ", user: "-", status: 200,
             rest: ' 12 "-" "Mozilla/5.0"')
    "#{host}#{address} - #{user} [10/Oct/2026:13:55:36 +0000] \"GET #{target} HTTP/1.1\" #{status}#{rest}"
  end

  # On 2222f26 each of these requests was sent from 127.0.0.1 to localhost.
  def test_requests_of_a_log_have_the_address_and_the_host_of_their_line
    lines = [logged("/a"),
             logged("/b", address: "2001:db8::1", host: "www.shop.example:80 "),
             logged("/c", address: "::ffff:203.0.113.7", host: "shop.example ")]
    app, report, = rehearse(lines, count: 3)
    keys = %w[PATH_INFO REMOTE_ADDR HTTP_HOST SERVER_NAME SERVER_PORT rack.url_scheme]
    assert_equal [%w[/a 203.0.113.9 shop.example shop.example 443 https],
                  %w[/b 2001:db8::1 www.shop.example www.shop.example 80 http],
                  %w[/c ::ffff:203.0.113.7 shop.example shop.example 80 http]],
                 app.seen.map { |env| env.values_at(*keys) }
    assert_empty app.seen.flat_map(&:keys).grep(/FORWARDED|CLIENT_IP|REAL_IP/)
    assert_equal 0, report.left_out
  end

  # An application may trust a request because it comes from an address that only this machine or a
  # proxy has.
  def test_lines_without_a_public_address_are_left_out
    local = %w[127.0.0.1 127.8.8.8 ::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 10.1.2.3 172.16.0.1 172.31.255.255
               192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 255.255.255.255 224.0.0.1 :: fe80::1
               fe80::1%eth0 fd00::1 ff02::1 64:ff9b::7f00:1 - localhost a.example unix: 203.0.113.9/0
               1 127.1 0x7f.0.0.1 203.0.113.9,127.0.0.1]
    app, report, told = rehearse(local.map { |address| logged("/", address: address) })
    assert_nil report
    assert_empty app.seen
    omission = "#{local.size} lines left out (#{local.size} without a public address (see address:))"
    assert_match(/nothing to send, #{Regexp.escape(omission)}/, told)
    public_ones = %w[172.15.0.1 172.32.0.1 100.128.0.1 11.0.0.1 192.167.255.255 2a00::1]
    app, = rehearse(public_ones.map { |address| logged("/", address: address) }, count: 6)
    assert_equal public_ones, app.seen.map { |env| env["REMOTE_ADDR"] }
  end

  def test_lines_without_a_public_host_are_left_out
    hosts = ["", "localhost ", "localhost:443 ", "LOCALHOST ", "a.localhost ", "printer.local:80 ",
             "db.internal ", "web ", "shop.example. ", "127.0.0.1:80 ", "203.0.113.1 ", "0x7f.0x1 ",
             "[::1]:80 ", "- ", "a_b ", "x.example@localhost ", "..example "]
    app, report, told = rehearse(hosts.map { |host| logged("/", host: host) })
    assert_nil report
    assert_empty app.seen
    assert_match(/#{hosts.size} lines left out/, told)
    assert_match(/without a public host \(see host:\)/, told)
  end

  def test_address_and_host_when_the_user_gives_them
    lines = [logged("/a", host: ""), logged("/b", address: "127.0.0.1")]
    app, = rehearse(lines, count: 2, host: "shop.example:8080", address: "198.51.100.4")
    assert_equal [%w[198.51.100.4 shop.example:8080]] * 2,
                 app.seen.map { |env| env.values_at("REMOTE_ADDR", "HTTP_HOST") }
    assert_equal ["GET /a"], rehearse(lines, count: 1, host: "shop.example").first.targets,
                 "only the line whose own address is public"
    app, = rehearse(["/"], count: 1, host: "[::1]:3000", address: "::1")
    assert_equal %w[::1 [::1]:3000 [::1] 3000],
                 app.seen[0].values_at("REMOTE_ADDR", "HTTP_HOST", "SERVER_NAME", "SERVER_PORT")
    ["a b", "a/b", "", "a:b", "::1", "a\r\nb"].each do |host|
      assert_raises(Rehearsal::Unusable, host) { Rehearsal.new(App.new, [], host: host) }
    end
    ["a", "10.0.0.0/8", "", "127.0.0.1\n"].each do |address|
      assert_raises(Rehearsal::Unusable, address) { Rehearsal.new(App.new, [], address: address) }
    end
  end

  def test_a_list_of_the_user_is_local
    env = rehearse(["/"], count: 1).first.seen[0]
    keys = %w[REMOTE_ADDR HTTP_HOST SERVER_NAME SERVER_PORT rack.url_scheme]
    assert_equal %w[127.0.0.1 localhost localhost 80 http], env.values_at(*keys)
  end

  # An application may write what strangers have sent into its log, newlines included.
  def test_a_line_of_a_log_that_looks_like_a_list_is_left_out
    with_file("#{logged("/a")}\n/admin/delete\nGET /admin/delete\n") do |path|
      assert_equal ["GET /a"], rehearse(path, count: 1).first.targets
    end
    assert_equal ["GET /a"] * 2, rehearse([logged("/a"), "/admin/delete"], count: 2).first.targets
    with_file("{\"path\": \"/a\"}\n/admin/delete\n") { |path| assert_nil rehearse(path)[1] }
    with_file("/a\nPOST /b x=1&y=2\n  # c\n") do |path|
      assert_equal ["GET /a"], rehearse(path, count: 1).first.targets
    end
  end

  # Strangers choose the user's name, the referrer, the user agent and other text of a log's line.
  def test_a_request_forged_within_a_line_is_not_sent
    forged = '"GET /admin HTTP/1.1" 200 1'
    lines = [logged("/a", status: 404, rest: " 1 \"-\" #{forged}"),
             logged("/a", user: "x [y] #{forged}"),
             "203.0.113.9 #{forged}",
             'search: Started GET "/admin" for 203.0.113.9 at 2026',
             '203.0.113.9 - - [x] "POST /a HTTP/1.1" 200 1 "-" ' + forged]
    app, report, = rehearse(lines, host: "shop.example")
    assert_nil report
    assert_empty app.seen
  end

  # A request without success may have been refused by a proxy, so that the application never saw
  # it. A request of a user who was logged in would now be sent without that user.
  def test_only_successful_requests_without_a_user_are_sent
    statuses = [100, 200, 206, 301, 302, 304, 307, 401, 403, 500]
    lines = statuses.map { |status| logged("/#{status}", status: status) } + [logged("/kate", user: "kate")]
    app, report, = rehearse(lines, count: 3)
    assert_equal ["GET /200", "GET /206", "GET /304"], app.targets
    assert_equal({ "without success" => 7, "of a logged in user" => 1 }, report.reasons)
  end

  def test_unusable_targets
    targets = ["//localhost/admin", "http://localhost/", "*", "localhost:80", "/a\x22b", "/a\"b", "/a#b",
               "/<a>", "/\u00e9", "/a\u0000b", "/a\tb", "/a\eb", "/../etc/passwd", "/a/..", "/a/%2e%2e/b",
               "/a/%2E./b", "/./a", "/a/..?x"]
    [targets.map { |target| logged(target) }, targets].each do |lines|
      app, report, = rehearse(lines + [logged("/fine"), "/fine"], count: 1)
      assert_equal ["GET /fine"], app.targets
      assert_operator report.left_out, :>=, targets.size
    end
    fine = ["/a..b/...", "/?a=b/../c&d[e]=f|g", "/a%0d%0ab", "/%252e%252e/", "/a;b=c:@!$&'()*+,~"]
    app, report, = rehearse(fine.map { |target| logged(target) }, count: fine.size)
    assert_equal [fine, 0], [app.seen.map { |env| env["REQUEST_URI"] }, report.left_out]
    # If the path were decoded here, the application would take "%252e" for a dot.
    assert_equal fine.map { |target| target[/\A[^?]*/] }, app.seen.map { |env| env["PATH_INFO"] }
  end

  # No stranger's request is sent with a header that says who asks, as the cookie of the user does.
  def test_requests_of_a_log_get_no_header_that_identifies_a_user
    headers = { "Cookie" => "session=1", "Authorization" => "Basic x", "X-Forwarded-For" => "127.0.0.1",
                "X-Api-Key" => "k", "Accept-Language" => "ja", "User-Agent" => "x", "Host" => "localhost",
                "Content-Type" => "text/plain" }
    env = rehearse([logged("/")], count: 1, headers: headers).first.seen[0]
    refute_includes env, "CONTENT_TYPE"
    assert_equal %w[HTTP_ACCEPT HTTP_ACCEPT_LANGUAGE HTTP_HOST HTTP_USER_AGENT HTTP_VERSION],
                 env.keys.grep(/\AHTTP_/).sort
    assert_equal %w[ja x shop.example], env.values_at("HTTP_ACCEPT_LANGUAGE", "HTTP_USER_AGENT", "HTTP_HOST")
    assert_equal "session=1", rehearse(["/"], count: 1, headers: headers).first.seen[0]["HTTP_COOKIE"]
  end

  def test_only_and_except
    lines = %w[/posts /posts/1 /admin /%61dmin /posts%2Fadmin /up].map { |target| logged(target) }
    app, = rehearse(lines, count: 2, only: %r{\A/posts(?:/\d+)?\z})
    assert_equal ["GET /posts", "GET /posts/1"], app.targets
    app, report, = rehearse(lines, count: 3, except: [/admin/, "/up"])
    assert_equal ["GET /posts", "GET /posts/1", "GET /posts"], app.targets
    assert_equal({ "not wanted" => 4 }, report.reasons)
    up = ->(request) { request.target == "/up" && request.host == "shop.example:443" }
    assert_equal ["GET /up"], rehearse(lines, count: 1, only: up).first.targets
    _, report, told = rehearse(lines, only: ->(_) { raise SecurityError, "in the filter" })
    assert_nil report
    assert_match(/rehearsal: SecurityError: in the filter/, told)
  end

  # On 2222f26 each of these lists ended the start of the server, except the directory.
  def test_lists_that_cannot_be_read
    wide = "/a".encode("UTF-16LE")
    assert_equal ["GET /b"], rehearse([wide, "/b"], count: 1).first.targets
    list = Object.new
    def list.map(&) = raise(NoMemoryError, "of the list")
    assert_match(/NoMemoryError: of the list/, rehearse(list)[2])
    assert_match(/ArgumentError/, rehearse("a\0b")[2])
    assert_match(/no regular file: #{Dir.tmpdir}/, rehearse(Dir.tmpdir)[2])
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(App.new, nil) }
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(App.new, 3) }
  end

  # On 2222f26 the rehearsal hung here.
  def test_a_pipe_is_no_list
    Dir.mktmpdir do |directory|
      fifo = File.join(directory, "fifo")
      File.mkfifo(fifo)
      # The pipe is open at both ends: a reader would be able to open it, and would find no end.
      File.open(fifo, "r+") do |pipe|
        pipe.write("/a\n")
        assert_match(/no regular file/, Timeout.timeout(60) { rehearse(fifo)[2] })
      end
    end
  end

  def test_a_log_of_garbage_and_long_lines
    garbage = Random.new(1).bytes(100_000)
    long = "/#{"a" * 1_000_000}"
    lines = [garbage, long, logged(long), " " * 1_000_000 + "x", "Started GET \"/" * 70_000, logged("/a"),
             logged("/b\xff"), "A" * 1_000_000]
    with_file(lines.map(&:b).join("\r\n")) do |path|
      app, report, = rehearse(path, count: 2)
      assert_equal ["GET /a"] * 2, app.targets
      assert_equal 2, report.sent
    end
  end

  def test_a_rails_log
    lines = ["I, [2026-10-10T13:55:36.1 #12]  INFO -- : [abc] " \
             'Started GET "/posts/1" for 127.0.0.1 at 2026-10-10 13:55:36 +0000',
             'Started DELETE "/posts/1" for 127.0.0.1 at 2026-10-10 13:55:36 +0000',
             "Completed 200 OK in 5ms"]
    app, = rehearse(lines, count: 1, host: "shop.example", address: "203.0.113.1")
    assert_equal ["GET /posts/1"], app.targets
    [{}, { host: "shop.example" }].each { |options| assert_nil rehearse(lines, **options)[1] }
    lines = ['[abc] Started GET "/posts/2" for 203.0.113.9 at 2026-10-10 13:55:36 +0000']
    app, = rehearse(lines, count: 1, host: "shop.example")
    assert_equal %w[/posts/2 203.0.113.1 shop.example],
                 app.seen[0].values_at("PATH_INFO", "REMOTE_ADDR", "HTTP_HOST")
  end

  def test_a_rails_log_does_not_feed_itself
    line = ->(target, address) { "Started GET \"#{target}\" for #{address} at 2026-10-10 13:55:36 +0000" }
    lines = [line["/a", "203.0.113.9"]]
    app, = rehearse(lines, count: 2, host: "shop.example")
    # What Rails writes down of these requests, and what the next start makes of it.
    lines += app.seen.map { |environment| line[*environment.values_at("PATH_INFO", "REMOTE_ADDR")] }
    lines << line["/b", "203.0.113.8"]
    app, report, = rehearse(lines, count: 2, host: "shop.example")
    assert_equal ["GET /a", "GET /b"], app.targets
    assert_equal({ "of a rehearsal" => 2 }, report.reasons)
  end

  def test_only_the_end_of_a_long_log_is_read
    lines = Rehearsal::TAIL / 100 + 1
    with_file("#{logged("/first")}\n" + ("x" * 99 + "\n") * lines + "#{logged("/last")}\n") do |path|
      assert_equal ["GET /last"], rehearse(path, count: 1).first.targets
    end
    with_file("/#{"a" * 98}\n" * lines) do |path|
      assert_nil rehearse(path)[1], "a list of that length is taken for a log"
    end
  end

  def test_methods_that_the_user_gives
    app, = rehearse(["POST /c", "/a"], count: 2, methods: %i[get post])
    assert_equal ["POST /c", "GET /a"], app.targets
  end

  def test_what_the_application_sees
    app, = rehearse(["/a%20b/%C3%A9?q=%20"], count: 1, host: "shop.example:8080", https: true,
                    headers: { "Accept-Language" => "ja", "Cookie" => "a=b" })
    env = app.seen.first
    # Puma and Unicorn do not decode the path either.
    assert_equal ["/a%20b/%C3%A9", "q=%20", "https", "shop.example", "8080",
                  "shop.example:8080", "ja", "a=b", true],
                 [*env.values_at("PATH_INFO", "QUERY_STRING", "rack.url_scheme", "SERVER_NAME", "SERVER_PORT",
                                 "HTTP_HOST", "HTTP_ACCEPT_LANGUAGE", "HTTP_COOKIE", "cowruby.rehearsal")]
    assert_equal "", env["rack.input"].read
  end

  # As Rack has them (its SPEC, "The Environment").
  def test_headers_that_have_no_prefix
    ["Content-Type", :content_type, "CONTENT-TYPE"].each do |name|
      env = rehearse(["/"], count: 1, headers: { name => "text/plain", "content-length" => 0 }).first.seen[0]
      assert_equal ["text/plain", "0"], env.values_at("CONTENT_TYPE", "CONTENT_LENGTH")
      assert_empty env.keys.grep(/\AHTTP_CONTENT/)
    end
    env = rehearse(["/"], count: 1, headers: { "Content-Language" => "ja" }).first.seen[0]
    assert_equal "ja", env["HTTP_CONTENT_LANGUAGE"]
  end

  def test_bodies_are_read_and_closed_and_callbacks_called
    closed = []
    body = Struct.new(:closed) do
      def each = yield("part")
      def close = closed << :body
    end
    app = App.new do |env|
      env["rack.response_finished"] << ->(_env, status, _headers, _error) { closed << status }
      [201, {}, body.new(closed)]
    end
    rehearse(["/"], app: app, count: 1)
    assert_equal [:body, 201], closed
  end

  # All callbacks are called, in the order in which a server calls them, even after an exception.
  def test_callbacks_after_exceptions
    called = []
    app = App.new do |env|
      env["rack.after_reply"] << -> { called << :reply; raise SecurityError, "in the callback" }
      %i[second first].each do |name|
        env["rack.response_finished"] << ->(*, error) { called << [name, error&.class]; raise name.to_s }
      end
      env["PATH_INFO"] == "/raise" ? raise(KeyError) : [200, {}, []]
    end
    _, report, = rehearse(["/", "/raise"], app: app, count: 2)
    assert_equal [:reply, [:first, nil], [:second, nil],
                  :reply, [:first, KeyError], [:second, KeyError]], called
    assert_equal ["RuntimeError: second"] * 2, report.failures.map(&:last)
  end

  def test_failures_are_reported_and_nothing_is_raised
    errors = {
      "/raise" => -> { raise "no luck" }, "/load" => -> { raise LoadError, "no file" },
      "/exit" => -> { exit 3 }, "/throw" => -> { throw :x },
      "/deep" => -> { endless = -> { endless.call }; endless.call }, "/500" => -> { [500, {}, []] },
      "/nil" => -> {}, "/404" => -> { [404, {}, []] }
    }
    app = App.new { |env| errors.fetch(env["PATH_INFO"]).call }
    _, report, told = rehearse(errors.keys, app: app, count: errors.size)
    assert_equal errors.keys - ["/404"], report.failures.map { |request, _| request.target }
    assert_match(%r{7 failed.*\nrehearsal: GET /raise: RuntimeError: no luck$}, told)
    assert_match(%r{GET /exit: SystemExit}, told)
    assert_equal Rehearsal::TOLD + 1, told.lines.size
  end

  # An exception whose class has no name to print.
  class Own < Exception
    def self.to_s = raise("no name")
  end

  # An exception whose message raises another one.
  class Mute < Exception
    def message = raise(Own)
  end

  class Part < Exception; end

  # On 2222f26 the first three were reported, and /exit-thread and /kill ended the rehearsal without
  # a report. Each of the others ended the start of the server; /binary and /words did so together.
  def test_no_exception_ends_the_process
    errors = {
      "/timeout" => -> { raise Timeout::Error, "of the application" }, "/abort" => -> { abort },
      "/deep" => -> { endless = -> { endless.call }; endless.call },
      "/security" => -> { raise SecurityError, "no" }, "/memory" => -> { raise NoMemoryError, "no" },
      "/part" => -> { raise Part }, "/own" => -> { raise Own }, "/mute" => -> { raise Mute },
      "/exit-thread" => -> { Thread.exit }, "/kill" => -> { Thread.current.kill },
      "/each" => -> { [200, {}, Class.new { def each = raise(SecurityError, "in each") }.new] },
      "/close" => lambda do
        [200, {}, Class.new { def each = nil; def close = raise(NoMemoryError, "in close") }.new]
      end,
      "/status" => -> { [Class.new { def to_int = raise(Part) }.new, {}, []] },
      "/binary" => -> { raise "\xff\xfe".b }, "/words" => -> { raise "é" },
      "/wide" => -> { raise "x".encode("UTF-16BE") },
      "/forged" => -> { raise "x\r\nrehearsal: \e[2J" }
    }
    app = App.new do |env|
      if env["PATH_INFO"] == "/finished"
        env["rack.response_finished"] << ->(*) { raise SecurityError, "in the callback" }
      end
      errors.fetch(env["PATH_INFO"], -> { [200, {}, []] }).call
    end
    targets = [*errors.keys, "/finished", "/fine"]
    _, report, told = out_of_process(targets, app)
    assert_equal targets.size, report
    (targets - ["/fine"]).each { |target| assert_match(%r{^GET #{target}: }, told) }
    assert_match(%r{^GET /timeout: Timeout::Error: of the application$}, told)
    assert_match(%r{^GET /exit-thread: it ended its thread$}, told)
    assert_match(%r{^GET /mute: an exception that cannot be described$}, told)
    refute_match(/^rehearsal: \e/, told)
  end

  # Rehearses in a child, because some requests might end the tests themselves. Gives the child's
  # status, the number of requests that were sent, and the failures and the report as text.
  def out_of_process(targets, app, **options)
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      report = Rehearsal.new(app, targets, count: targets.size, output: nil, **options).run
      writer.puts report.sent, report.failures.map { |request, what| "#{request}: #{what}" }, report.to_s
      writer.close
      exit!(0)
    rescue Exception => e
      writer.puts "ended by #{e.class rescue "?"}"
      writer.close
      exit!(1)
    end
    writer.close
    told = reader.read
    status = Process.wait2(pid).last
    assert_equal 0, status.exitstatus, told
    [status, told[/\A\d+/].to_i, told]
  end

  # An operator's signal stops the server, and the request that runs. Before that the rehearsal calls
  # its block, which closes what was opened.
  def test_signals_stop_the_server
    { "raised in a request" => ->(_) { raise SignalException, "TERM" },
      "sent" => ->(main) { Process.kill(:INT, main); sleep },
      "handled by exit" => ->(main) { Process.kill(:USR1, main); sleep } }.each do |name, what|
      out = IO.popen("-") do |child|
        next child.read if child

        trap(:USR1) { exit 7 }
        trap(:INT, "DEFAULT")
        main = Process.pid
        stopped = false
        app = App.new { begin what.call(main) ensure stopped = true end }
        begin
          Rehearsal.new(app, ["/"], count: 5, output: nil) { $stdout.print "closed " }.run
        rescue SignalException, SystemExit => e
          $stdout.print e.class, " ", stopped, " ", app.seen.size
        end
        $stdout.flush
        exit!(0)
      end
      assert_match(/\Aclosed (SignalException|Interrupt|SystemExit) true 1\z/, out, name)
    end
  end

  # A child that a request forks ends with its own status, and never goes on with the list.
  def test_children_of_requests
    reader, writer = IO.pipe
    parent = Process.pid
    endings = [-> { exit 3 }, -> { raise SecurityError, "in the child" }, -> {}, -> { exit!(4) }]
    app = App.new do |env|
      writer.syswrite("#{env["PATH_INFO"]} #{Process.pid == parent}\n")
      pid = fork
      endings[env["PATH_INFO"][1..].to_i].call unless pid
      writer.syswrite("status #{Process.wait2(pid).last.exitstatus}\n") if pid
      [200, {}, []]
    end
    pid = fork do
      parent = Process.pid
      reader.close
      $stderr.reopen(File::NULL)
      Rehearsal.new(app, %w[/0 /1 /2 /3], count: 4, output: nil).run
      exit!(0)
    end
    writer.close
    assert_equal ["/0 true", "status 3", "/1 true", "status 1", "/2 true", "status 0", "/3 true", "status 4"],
                 reader.read.lines(chomp: true)
    assert_predicate Process.wait2(pid).last, :success?
  end

  # On 2222f26 the rehearsal never ended.
  def test_a_request_that_refuses_to_end
    release = Queue.new
    app = App.new { begin sleep ensure release.pop end }
    _, report, told = Timeout.timeout(60) { rehearse(["/"], app: app, seconds: 0.1) }
    assert_equal 1, report.sent
    assert_match(/a request does not end, its thread is left behind/, told)
  ensure
    release << true
  end

  def test_a_request_that_rescues_everything_is_given_up
    app = App.new do
      sleep
    rescue Exception
      sleep
    end
    _, report, = Timeout.timeout(60) { rehearse(["/"], app: app, seconds: 0.1) }
    assert_equal [[1, "no answer within the time that was left"]], [[report.sent, report.failures[0][1]]]
  end

  # One that is killed in the middle leaves half of what it was making to all workers.
  def test_a_request_that_is_late_may_end
    ended = 0
    app = App.new { sleep 0.3; ended += 1; [200, {}, []] }
    _, report, = rehearse(["/"], app: app, seconds: 0.1)
    assert_equal [1, 1, [], { 200 => 1 }], [ended, report.sent, report.failures, report.statuses]
  end

  # An operator stops the server: the request gets no time.
  def test_a_request_of_an_interrupted_rehearsal_is_killed
    running = Queue.new
    ended = nil
    app = App.new do
      running << true
      sleep 0.5
      ended = :by_itself
    ensure
      ended ||= :killed
    end
    main = Thread.current
    Thread.new { running.pop; main.raise(Interrupt) }
    assert_raises(Interrupt) { rehearse(["/"], app: app) }
    assert_equal :killed, ended
  end

  def test_time_is_bounded
    app = App.new { |env| sleep if env["PATH_INFO"] == "/hangs" }
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    _, report, = rehearse(["/hangs"], app: app, count: 1_000_000, seconds: 0.2)
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - started, :<, 30,
                    "seconds of a rehearsal that may take 0.2"
    assert_equal [1, "no answer within the time that was left"], [report.sent, report.failures[0][1]]
  end

  def test_the_hooks_at_the_end
    done = []
    app = App.new { raise "no" }
    after = -> { done << :after; raise "in the hook" }
    _, _, told = rehearse(["/"], app: app, after: after) { done << :block }
    assert_equal %i[after block], done
    assert_match(/at the end: RuntimeError: in the hook/, told)
    _, _, told = rehearse(["/"], after: -> { raise SecurityError, "in the hook" }) { done << :again }
    assert_equal :again, done.last
    assert_match(/at the end: SecurityError: in the hook/, told)
  end

  def test_an_output_that_cannot_be_written
    closed = IO.pipe.each(&:close).last
    assert_equal 1, Rehearsal.new(App.new, ["/"], count: 1, output: closed).run.sent
  end

  # clear_all_connections! of Active Record takes a role in some versions, and nothing in others.
  def test_connections_of_active_record
    versions = [->(calls) { define_singleton_method(:clear_all_connections!) { |role = nil| calls << role } },
                ->(calls) { define_singleton_method(:clear_all_connections!) { calls << :none } }]
    versions.each_with_index do |version, i|
      calls = []
      handler = Object.new
      handler.instance_exec(calls, &version)
      base = Class.new { define_singleton_method(:connection_handler) { handler } }
      Object.const_set(:ActiveRecord, Module.new).const_set(:Base, base)
      rehearse(["/"])
      assert_equal [i.zero? ? :all : :none], calls
    ensure
      Object.send(:remove_const, :ActiveRecord)
    end
  end

  # There :all means a role of that name.
  def test_connections_of_active_record_before_7_1
    %w[6.1.7 7.0.8 7.1.0.alpha 8.0.1].each do |version|
      calls = []
      pool = Object.new
      pool.define_singleton_method(:disconnect!) { calls << :disconnect! }
      handler = Object.new
      handler.define_singleton_method(:all_connection_pools) { [pool, pool] }
      handler.define_singleton_method(:clear_all_connections!) { |role = nil| calls << role }
      base = Class.new { define_singleton_method(:connection_handler) { handler } }
      Object.const_set(:ActiveRecord, Module.new).const_set(:Base, base)
      ActiveRecord.define_singleton_method(:version) { Gem::Version.new(version) }
      rehearse(["/"])
      assert_equal version < "7.1" ? %i[disconnect! disconnect!] : [:all], calls, version
    ensure
      Object.send(:remove_const, :ActiveRecord)
    end
  end

  def test_connections_of_sequel
    calls = []
    database = Object.new
    database.define_singleton_method(:disconnect) { calls << :disconnect }
    Object.const_set(:Sequel, Module.new).const_set(:DATABASES, [database])
    rehearse(["/"])
    assert_equal [:disconnect], calls
  ensure
    Object.send(:remove_const, :Sequel)
  end

  def test_it_leaves_no_variables_of_the_thread
    app = App.new { Thread.current[:mine] = 1; Thread.current.thread_variable_set(:mine, 1); [200, {}, []] }
    rehearse(["/"], app: app)
    assert_equal [nil, nil], [Thread.current[:mine], Thread.current.thread_variable_get(:mine)]
  end

  def test_bad_input
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(nil, []) }
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(App.new, [], count: 0) }
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(App.new, [], seconds: -1) }
    { count: ["5", nil, :many, Float::NAN, 1i], seconds: ["5", nil, []], host: [5, ["a"], 1.5, /a/],
      address: [5, ["127.0.0.1"], IPAddr.new("127.0.0.1")], methods: [5, nil, "GET"],
      headers: [5, "Accept"] }.each do |option, values|
      values.each do |value|
        assert_raises(Rehearsal::Unusable, "#{option}: #{value.inspect}") do
          Rehearsal.new(App.new, [], option => value)
        end
      end
    end
    _, report, told = rehearse("/nowhere/at/all")
    assert_nil report
    assert_match(%r{rehearsal: No such file or directory.*/nowhere/at/all}, told)
    _, report, told = rehearse(["POST /a"])
    assert_nil report
    assert_match(/nothing to send, 1 lines left out/, told)
  end

  # A caller that decides after each request whether it is worth being sent again.
  def test_requests_that_are_dropped
    seen = []
    answers = { "/a" => [200, {}, []], "/b" => [404, {}, []] }
    app = App.new { |env| answers.fetch(env["PATH_INFO"]) }
    drop = ->(request, status, seconds) { seen << [request.target, status, seconds.class]; status != 200 }
    app, report, = rehearse(%w[/a /b /raise /b], app: app, count: 6, drop: drop)
    assert_equal ["GET /a", "GET /b", "GET /raise", "GET /a", "GET /a", "GET /a"], app.targets
    assert_equal [["/a", 200, Float], ["/b", 404, Float], ["/raise", nil, Float]], seen.first(3)
    assert_equal({ 200 => 4, 404 => 1 }, report.statuses)
    _, report, = rehearse(%w[/a /b], count: 6, drop: ->(*) { true })
    assert_equal 2, report.sent, "it ends where nothing is left"
    statuses = []
    drop = ->(_, status, _) { statuses << status; false }
    rehearse(["/"], app: App.new { sleep }, seconds: 0.1, drop: drop)
    assert_equal [:unanswered], statuses
  end

  def test_switched_off
    ENV["COWRUBY_REHEARSAL"] = "off"
    app, report, told = rehearse(["/"])
    assert_equal [[], nil, ""], [app.seen, report, told]
    assert_nil Rehearsal.jobs, "without names, which are a mistake elsewhere"
  ensure
    ENV.delete("COWRUBY_REHEARSAL")
  end

  def test_of_gives_the_application
    app = App.new
    assert_same app, Rehearsal.of(app, ["/"], count: 1, output: nil)
    assert_equal 1, app.seen.size
  end

  # It is in the library of the ruby under test. A child has what the requests have made.
  def test_it_comes_with_the_ruby
    out = run_ruby(PRIVATE_DIRTY + IN_CHILD + <<~'RUBY')
      require "cowruby/rehearsal"
      cache = {}
      app = lambda do |env|
        [200, {}, [cache[env["PATH_INFO"]] ||= Array.new(1_000) { |i| "#{env["PATH_INFO"]} #{i}" }.join]]
      end
      CowRuby::Rehearsal.of(app, Array.new(100) { |i| "/#{i}" }, count: 200)
      in_child { puts cache.size }
    RUBY
    assert_match(/200 requests in .* \(200 with 200\)\n?/, out.lines.first)
    assert_equal "100", out.lines.last.chomp
  end
end

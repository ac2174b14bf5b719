# frozen_string_literal: true

require_relative "../helper"
require "pathname"
require "tempfile"
require_relative "../../lib/cowruby/rehearsal"

class TestRehearsal < Minitest::Test
  include CowTest

  Rehearsal = CowRuby::Rehearsal

  # Keeps what it was asked, and gives what the block says.
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
      app, report, = rehearse(path, count: 2)
      assert_equal ["GET /posts?page=2", "HEAD /up"], app.targets
      assert_equal 3, report.left_out
    end
  end

  def test_a_rails_log
    lines = ['I, [2026-10-10T13:55:36.1 #12]  INFO -- : [abc] Started GET "/posts/1" for 127.0.0.1 at 2026-10-10 13:55:36 +0000',
             'Started DELETE "/posts/1" for 127.0.0.1 at 2026-10-10 13:55:36 +0000', "Completed 200 OK in 5ms"]
    assert_equal ["GET /posts/1"], rehearse(lines, count: 1).first.targets
  end

  def test_only_the_end_of_a_long_log_is_read
    with_file("/first\n" + ("x" * 99 + "\n") * (Rehearsal::TAIL / 100 + 1) + "/last\n") do |path|
      assert_equal ["GET /last"], rehearse(path, count: 1).first.targets
    end
  end

  def test_other_methods_when_told
    assert_equal ["POST /c", "GET /a"], rehearse(["POST /c", "/a"], count: 2, methods: %i[get post]).first.targets
  end

  def test_what_the_application_sees
    app, = rehearse(["/a%20b/%C3%A9?q=%20"], count: 1, host: "shop.example:8080", https: true, headers: { "Accept-Language" => "ja", "Cookie" => "a=b" })
    env = app.seen.first
    assert_equal ["/a b/é".b, "q=%20", "https", "shop.example", "8080", "shop.example:8080", "ja", "a=b", true],
                 [env["PATH_INFO"].b, *env.values_at("QUERY_STRING", "rack.url_scheme", "SERVER_NAME", "SERVER_PORT", "HTTP_HOST", "HTTP_ACCEPT_LANGUAGE",
                                                     "HTTP_COOKIE", "cowruby.rehearsal")]
    assert_equal "", env["rack.input"].read
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

  def test_failures_are_reported_and_nothing_is_raised
    errors = { "/raise" => -> { raise "no luck" }, "/load" => -> { raise LoadError, "no file" }, "/exit" => -> { exit 3 }, "/throw" => -> { throw :x },
               "/deep" => -> { endless = -> { endless.call }; endless.call }, "/500" => -> { [500, {}, []] }, "/nil" => -> {}, "/404" => -> { [404, {}, []] } }
    app = App.new { |env| errors.fetch(env["PATH_INFO"]).call }
    _, report, told = rehearse(errors.keys, app: app, count: errors.size)
    assert_equal errors.keys - ["/404"], report.failures.map { |request, _| request.target }
    assert_match(%r{7 failed.*\nrehearsal: GET /raise: RuntimeError: no luck$}, told)
    assert_match(%r{GET /exit: SystemExit}, told)
    assert_equal Rehearsal::TOLD + 1, told.lines.size
  end

  def test_time_is_bounded
    app = App.new { |env| sleep if env["PATH_INFO"] == "/hangs" }
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    _, report, = rehearse(["/hangs"], app: app, count: 1_000_000, seconds: 0.2)
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - started, :<, 30, "it would sleep for ever"
    assert_equal [1, "no answer within the time that was left"], [report.sent, report.failures[0][1]]
  end

  def test_the_hooks_at_the_end
    done = []
    app = App.new { raise "no" }
    _, _, told = rehearse(["/"], app: app, after: -> { done << :after; raise "in the hook" }) { done << :block }
    assert_equal %i[after block], done
    assert_match(/at the end: RuntimeError: in the hook/, told)
  end

  # Of every version: with a role, and without.
  def test_connections_of_active_record
    [->(calls) { define_singleton_method(:clear_all_connections!) { |role = nil| calls << role } },
     ->(calls) { define_singleton_method(:clear_all_connections!) { calls << :none } }].each_with_index do |version, i|
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

  def test_it_leaves_no_variables_of_the_thread
    app = App.new { Thread.current[:mine] = 1; Thread.current.thread_variable_set(:mine, 1); [200, {}, []] }
    rehearse(["/"], app: app)
    assert_equal [nil, nil], [Thread.current[:mine], Thread.current.thread_variable_get(:mine)]
  end

  def test_bad_input
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(nil, []) }
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(App.new, [], count: 0) }
    assert_raises(Rehearsal::Unusable) { Rehearsal.new(App.new, [], seconds: -1) }
    _, report, told = rehearse("/nowhere/at/all")
    assert_nil report
    assert_match(%r{rehearsal: No such file or directory.*/nowhere/at/all}, told)
    _, report, told = rehearse(["POST /a"])
    assert_nil report
    assert_match(/nothing to send, 1 lines left out/, told)
  end

  def test_switched_off
    ENV["COWRUBY_REHEARSAL"] = "off"
    app, report, told = rehearse(["/"])
    assert_equal [[], nil, ""], [app.seen, report, told]
  ensure
    ENV.delete("COWRUBY_REHEARSAL")
  end

  def test_of_gives_the_application
    app = App.new
    assert_same app, Rehearsal.of(app, ["/"], count: 1, output: nil)
    assert_equal 1, app.seen.size
  end

  # It stands in the ruby's library, and what it made is shared.
  def test_it_comes_with_the_ruby
    out = run_ruby(PRIVATE_DIRTY + IN_CHILD + <<~'RUBY')
      require "cowruby/rehearsal"
      cache = {}
      app = ->(env) { [200, {}, [cache[env["PATH_INFO"]] ||= Array.new(1_000) { |i| "#{env["PATH_INFO"]} #{i}" }.join]] }
      CowRuby::Rehearsal.of(app, Array.new(100) { |i| "/#{i}" }, count: 200)
      in_child { puts cache.size }
    RUBY
    assert_match(/200 requests in .* \(200 with 200\)\n?/, out.lines.first) if out.lines.size > 1
    assert_equal "100", out.lines.last.chomp
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require_relative "rehearsal_place"
require "tempfile"
require_relative "../../lib/cowruby/rehearsal/start"

# What goes wrong where a server rehearses what its workers have noted (lib/cowruby/rehearsal/): pages
# that hang, odd answers, processes of many generations, a file that was edited by hand.
class TestRehearsalFaults < Minitest::Test
  include CowTest
  include RehearsalPlace

  LIB = File.join(ROOT, "lib")
  Notes = CowRuby::Rehearsal::Notes
  Notable = CowRuby::Rehearsal::Notable
  Counts = CowRuby::Rehearsal::Noting::Counts

  # A master that has loaded APP. rehearse gives the application of its workers.
  MASTER = <<~'RUBY'
    require "cowruby/rehearsal/start"
    Dir.chdir(ENV.fetch("PLACE"))
    $stderr = $stdout
    $stdout.sync = true
    Rehearsal = CowRuby::Rehearsal

    def constant(scope, name, value)
      scope.send(:remove_const, name)
      scope.const_set(name, value)
    end

    def rehearse(app) = Rehearsal::Start.new("Server", app).run
  RUBY

  def left_out = File.read(file).scan(/^- \d.\d\d (\S+)/).flatten

  def master(script, timeout: 60)
    env = { "COWRUBY_REHEARSAL" => "auto", "PLACE" => @place }
    run_ruby(MASTER + script, env: env, options: ["-I", LIB], timeout: timeout)
  end

  # The page that is asked for most may hang, as a stream of events does: then it was all that was sent,
  # at each start. The second does not even end when its thread is killed.
  def test_a_page_that_hangs_is_left_out
    ["sleep", "begin sleep ensure sleep end"].each do |hang|
      note("+ 9.00 http /hang", "+ 1.00 http /a")
      out = master(<<~RUBY)
        constant(Rehearsal, :SECONDS, 1)
        constant(Rehearsal::Start, :SLOW, 0.3)
        rehearse(->(env) { #{hang} if env["PATH_INFO"] == "/hang"; [200, {}, []] })
        $stdout.flush
        exit!(0)
      RUBY
      assert_match(/^rehearsal: 1 requests in [123]\.\d s/, out)
      assert_match(/^rehearsal: 1 of 1 pages are left out from now on \(1 slow\)$/, out)
      assert_equal ["/hang"], left_out, hang
      assert_match(/does not end, its thread is left behind: GET \/hang$/, out) if hang.include?("ensure")
    end
  end

  # What is slow is left out, though most of the others are redirected.
  def test_a_page_that_hangs_among_others_that_go_wrong
    note("+ 9.00 http /a", "+ 8.00 http /b", "+ 1.00 http /hang")
    out = master(<<~'RUBY')
      constant(Rehearsal, :SECONDS, 1)
      constant(Rehearsal::Start, :SLOW, 0.3)
      rehearse(->(env) { sleep if env["PATH_INFO"] == "/hang"; [301, {}, []] })
    RUBY
    assert_match(/^rehearsal: most of what is noted is not answered as it was \(2 redirected, 1 slow\)/, out)
    assert_match(/^rehearsal: 1 of 3 pages are left out from now on \(1 slow\)$/, out)
    assert_equal ["/hang"], left_out
  end

  # There is no time left to ask for it a second time.
  def test_a_page_that_takes_most_of_the_time
    note("+ 9.00 http /long", "+ 1.00 http /a")
    out = master(<<~'RUBY')
      constant(Rehearsal, :SECONDS, 1)
      constant(Rehearsal::Start, :SLOW, 0.2)
      constant(Rehearsal::Start, :TOO_LONG, 0.6)
      rehearse(->(env) { sleep(env["PATH_INFO"] == "/long" ? 0.7 : 0.05); [200, {}, []] })
    RUBY
    assert_match(/^rehearsal: 1 of 2 pages are left out from now on \(1 slow\)$/, out)
    assert_equal ["/long"], left_out
  end

  # An application may limit the requests of one address. That is no fault of the pages.
  def test_a_limit_of_requests
    note("+ 9.00 http /a", "+ 8.00 http /b", "+ 1.00 http /c")
    out = master(<<~'RUBY')
      sent = 0
      rehearse(->(_) { [(sent += 1) > 5 ? 429 : 200, {}, []] })
    RUBY
    assert_match(/^rehearsal: 8 requests in .*5 with 200, 3 with 429/, out)
    refute_match(/left out|most of/, out)
    assert_empty left_out
  end

  # A server sends a file without the application, and it may be long.
  def test_files_are_closed_and_not_read
    called = []
    body = Object.new
    %i[each close].each { |name| body.define_singleton_method(name) { called << name } }
    body.define_singleton_method(:to_path) { "film" }
    CowRuby::Rehearsal.new(->(_) { [200, {}, body] }, ["/film"], count: 1, output: nil).run
    assert_equal [:close], called
  end

  # A list with a line that is none counts as a log, and nothing of it is sent. It is said which.
  def test_a_list_with_a_mistake
    told = lambda do |text|
      Tempfile.create("list") do |list|
        list.write(text)
        list.close
        output = StringIO.new
        CowRuby::Rehearsal.new(->(_) { [200, {}, []] }, list.path, count: 2, output: output).run
        output.string
      end
    end
    assert_match(/^rehearsal: nothing to send, 3 lines left out .*: line 3 is neither a request nor a/,
                 told.call("/a\n# more\nposts\n/b\n"))
    refute_match(/neither/, told.call('127.0.0.1 - - [x] "GET /a HTTP/1.1" 200 1'))
    assert_match(/^rehearsal: 2 requests /, told.call("\uFEFF/a\r\n/b\r\n"), "with a mark of an editor")
  end

  # It was rehearsed, and only what was learned is lost.
  def test_a_disk_that_is_full_at_the_start
    note("+ 9.00 http /a", "+ 8.00 http /b", "+ 1.00 http /bad")
    out = master(<<~'RUBY')
      class Rehearsal::Notes
        def write(_text) = raise(Errno::ENOSPC)
      end
      app = rehearse(->(env) { [env["PATH_INFO"] == "/bad" ? 500 : 200, {}, []] })
      puts "class #{app.class}"
    RUBY
    assert_match(/^rehearsal: what was slow or failed cannot be left out: No space left/, out)
    refute_match(/nothing is rehearsed/, out)
    assert_match(/^class CowRuby::Rehearsal::Noting$/, out)
  end

  # Not on every file system a file can be locked, and not on a full disk can a lock be made.
  def test_a_file_that_cannot_be_locked
    ["def flock(_) = raise(Errno::ENOLCK)",
     "def initialize(path, *) = path.end_with?('.lock') ? raise(Errno::ENOSPC) : super"].each do |fault|
      note("+ 9.00 http /a")
      out = master(<<~RUBY)
        constant(Rehearsal, :COUNT, 5)
        File.prepend(Module.new { #{fault} })
        rehearse(->(_) { [200, {}, []] })
      RUBY
      assert_match(/^rehearsal: 5 requests in /, out)
      assert_match(/^rehearsal: nothing will be noted: No (?:locks|space)/, out)
    end
  end

  # A weight that is nothing was divided by.
  def test_a_file_with_weights_of_zero
    note("+ 0.00 http /a")
    out = master("p rehearse(->(_) { [200, {}, []] }).class\n")
    assert_match(/is no list of noted pages \(line 2 is not understood\); it is now/, out)
    assert_match(/^CowRuby::Rehearsal::Noting$/, out)
  end

  # Pitchfork forks its mold from a worker, again and again. Each process writes what it has noted, and
  # keeps nothing of those before it.
  def test_processes_of_many_generations
    out = master(<<~'RUBY')
      app = rehearse(->(_) { [200, {}, []] })
      generation = lambda do |number|
        Process.wait(fork do
          app.call({ "REQUEST_METHOD" => "GET", "PATH_INFO" => "/g", "QUERY_STRING" => "" })
          next generation.call(number + 1) if number < 30

          GC.start
          puts ObjectSpace.each_object(Rehearsal::Noting::Counts).count
        end)
      end
      generation.call(1)
    RUBY
    assert_operator Integer(out.lines.last), :<, 10, out
    assert_includes noted_text, "+ 30.00 http /g\n"
  end

  # A thread of the worker forks while another one writes. The child has the lock's file open as long as
  # it lives.
  def test_a_child_that_is_forked_while_the_file_is_written
    notes = Notes.new(file)
    child = nil
    notes.define_singleton_method(:write) do |text|
      child = fork { sleep }
      super(text)
    end
    assert notes.leave_out(["/a"])
    assert Notes.new(file).leave_out(["/a"]), "locked by a child that has nothing to do with it"
  ensure
    Process.kill(:KILL, child)
    Process.wait(child)
  end

  # Gives what is noted of an answer.
  def noted(response)
    counts = Counts.new(Notes.new(file), false)
    counts.note({}, "/page", nil, response)
    [counts.instance_variable_get(:@seen).each.map(&:first), counts.next]
  ensure
    counts.instance_variable_set(:@process, nil)
  end

  def test_odd_answers_are_not_noted_and_end_nothing
    assert_equal ["/page"], noted([200, { "Content-Type" => "text/html" }, []]).first
    assert_equal ["/page"], noted(["200", [%w[content-type text/html]], []]).first
    [[200, nil, []], [:async, {}, []], :async, nil, [-1, {}, []], [200, "text", []],
     [200, [%w[cache-control no-store]], []], [200, { "CACHE-CONTROL" => "private, No-Store" }, []],
     [200, { "cache-control" => ["private", "no-store"] }, []], [200, {}, File.new(__FILE__)],
     [200, { "content-type" => "text/event-stream; charset=utf-8" }, []]].each do |response|
      found, following = noted(response)
      assert_empty found, response.inspect
      assert_predicate following, :finite?, "noting goes on after #{response.inspect}"
    end
  end

  # The server starts, though nobody can be told what went wrong.
  def test_an_error_that_cannot_be_told
    script = <<~'RUBY'
      $stderr = IO.pipe.each(&:close).last
      app = Object.new
      ENV["COWRUBY_REHEARSAL"] = "~nobody-of-that-name/list"
      puts CowRuby::Rehearsal::Auto.preload("Server") { app }.equal?(app)
    RUBY
    options = ["-I", LIB, "-r", "cowruby/rehearsal/auto"]
    assert_equal "true\n", run_ruby(script, options: options, env: { "COWRUBY_REHEARSAL" => "list" })
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require_relative "recorded_proc"
require_relative "../../lib/cowruby/memory/command"
require "json"
require "minitest/mock"
require "socket"
require "stringio"

# The program cowruby-memory: its arguments, what it prints where, its status.
class TestMemoryCommand < Minitest::Test
  include CowTest
  Memory = CowRuby::Memory
  PROGRAM = File.join(ROOT, "bin/cowruby-memory")
  USAGE = 2

  # Gives standard output, standard error and the status. +proc+: a RecordedProc with a server of Puma.
  def command(proc, *arguments)
    out, err = StringIO.new, StringIO.new
    status = Memory::Command.run(arguments.map(&:to_s), out: out, err: err, procfs: proc.procfs)
    [out.string, err.string, status]
  end

  def with_puma
    RecordedProc.with { |proc| yield proc.puma }
  end

  def assert_error(expected, status, *arguments)
    with_puma do |proc|
      out, err, found = command(proc, *arguments)
      assert_equal ["", status], [out, found], err
      assert_match(/\Acowruby-memory: error: .*#{expected}.*\n\z/, err)
    end
  end

  def test_mistakes_in_the_arguments
    assert_error("Give a PID", USAGE)
    assert_error("Give a PID", USAGE, "--watch", "--json")
    assert_error("not a process number: -5", USAGE, "--", "-5")
    assert_error("not a process number: puma", USAGE, "puma")
    assert_error("not understood: 6", USAGE, 5, 6)
    assert_error("not both", USAGE, 5, "--server", "puma")
    assert_error("invalid option: --svg", USAGE, 5, "--svg")
    assert_error("missing argument: --html", USAGE, 5, "--html")
    assert_error("choose one: --json, --html", USAGE, 5, "--html", "x", "--json")
    assert_error("--explain does not go with --html", USAGE, 5, "--html", "x", "--explain")
    assert_error("missing argument: --textfile", USAGE, 5, "--textfile")
    assert_error("choose one: --json, --prometheus", USAGE, 5, "--prometheus", "--json")
    assert_error("--explain does not go with --watch", USAGE, 5, "--watch", "--explain")
    assert_error("--explain does not go with --prometheus", USAGE, 5, "--prometheus", "--explain")
    assert_error("--watch does not go with --listen", USAGE, 5, "--listen", "127.0.0.1:0", "--watch")
    assert_error("--watch wants seconds.* not 0", USAGE, 5, "--watch=0")
    assert_error("--watch wants seconds.* not soon", USAGE, 5, "--watch=soon")
    assert_error("--watch wants seconds.* not 1e400", USAGE, 5, "--watch=1e400")
    assert_error("--watch wants seconds.* not 1000001", USAGE, 5, "--watch=1000001")
    %w[9394 :1 localhost 127.0.0.1:99999 ::1:80 127.0.0.1:1:2].each do |address|
      assert_error("--listen wants ADDRESS:PORT", USAGE, 5, "--listen", address)
    end
    %w[0.0.0.0:9394 [::]:9394 10.0.0.1:1 127.0.0.1.example:1].each do |address|
      assert_error("say --listen-anywhere", USAGE, 5, "--listen", address)
    end
    assert_error("--listen-anywhere wants --listen", USAGE, 5, "--listen-anywhere")
  end

  # OptionParser puts what an option was given in front of what is raised while it reads the option.
  def test_a_server_of_no_known_name
    line = "cowruby-memory: error: --server wants one of puma, unicorn, pitchfork, passenger, apache, " \
           "solid_queue, sidekiq, not nope\n"
    with_puma do |proc|
      [["--server", "nope"], ["--server=nope"]].each do |arguments|
        assert_equal ["", line, USAGE], command(proc, *arguments), arguments.inspect
      end
    end
  end

  # The shell hands on what it gets: bytes that are no text in the locale.
  def test_arguments_of_any_bytes
    [["\xff"], ["--watch", "\xff"], ["--server", "\xff"], [5, "--listen", "\xff:1"], ["--\xff"],
     [5, "\u00fc".dup.force_encoding(Encoding::US_ASCII)]].each do |arguments|
      with_puma do |proc|
        out, err, status = command(proc, *arguments)
        assert_equal ["", USAGE, 1], [out, status, err.b.lines.size], arguments.inspect
      end
    end
    with_puma do |proc|
      Dir.mktmpdir do |directory|
        assert_equal ["", "", 0], command(proc, 100, "--textfile", File.join(directory, "\xff.prom"))
        assert_equal ["\xff.prom".b], Dir.children(directory).map(&:b)
      end
    end
  end

  def test_processes_that_are_not_there
    assert_error("there is no process 5000", 1, 5000)
    assert_error("there is no process 5000", 1, 5000, "--watch")
    assert_error("there is no sidekiq that this user may see", 1, "--server", "sidekiq")
    with_puma do |proc|
      proc.add(102, 100, "", state: "Z")
      assert_equal "cowruby-memory: error: process 102 has ended\n", command(proc, 102)[1]
    end
  end

  def test_no_right_to_read
    with_puma do |proc|
      proc.procfs.denied.push("smaps_rollup", "smaps")
      [[], ["--json"], ["--prometheus"], ["--explain"], ["--watch"]].each do |options|
        out, err, status = command(proc, 100, *options)
        assert_equal ["", 1], [out, status]
        assert_equal "cowruby-memory: error: may not read smaps of process 100\n", err
      end
    end
  end

  # A kernel that says nothing of sharing: what it says is printed, with a note.
  def test_no_smaps_at_all
    with_puma do |proc|
      (100..102).each { |pid| File.unlink(File.join(proc.root, "#{pid}/smaps_rollup")) }
      out, err, status = command(proc, 100)
      assert_equal ["", 0], [err, status]
      assert_match(/^Note: It could not be read what processes 100, 101, 102 shared/, out)
      assert_match(/The sum of RSS\s\(1\.2\sMB\)/, out)
    end
  end

  def test_a_server_by_its_name
    with_puma do |proc|
      assert_match(/^ +100 puma 6/, command(proc, "--server", "puma").first)
      proc.add(200, 1, "puma 6.4.2 (tcp://0.0.0.0:9393) [blog]", image: 50)
      out, err, status = command(proc, "--server", "puma")
      assert_equal ["", USAGE], [out, status]
      assert_equal ["cowruby-memory: error: 2 servers look like puma; give the PID of one:",
                    "  100  puma 6.4.2 (tcp://0.0.0.0:9292) [shop]",
                    "  200  puma 6.4.2 (tcp://0.0.0.0:9393) [blog]"], err.lines(chomp: true)
    end
  end

  def test_json
    with_puma do |proc|
      out, err, status = command(proc, 101, "--json")
      assert_equal ["", 0], [err, status]
      report = JSON.parse(out)
      assert_equal [1, 100, 600 * 1024], report.values_at("schema", "root_pid", "pss_bytes")
      assert_equal %w[pid parent_pid depth role index title private_bytes private_dirty_bytes shared_bytes
                      pss_bytes resident_bytes anonymous_bytes huge_page_bytes swap_bytes inherited_bytes
                      inherited_shared_bytes source], report["processes"].first.keys
      man = File.read(File.join(ROOT, "man/cowruby-memory.1"))
      keys = report.keys | report["processes"].first.keys
      assert_empty keys.reject { |key| man.include?(key) }, "keys that the man page does not explain"
    end
  end

  # In place of sleep: the master ends during the second pause.
  def watch(proc, *arguments)
    pauses = []
    pause = lambda do |_, seconds|
      pauses << seconds
      proc.remove(100) if pauses.size == 2
    end
    command = Memory::Command.new(arguments.map(&:to_s), out: @out = StringIO.new, err: @err = StringIO.new,
                                                         procfs: proc.procfs)
    command.define_singleton_method(:sleep) { |seconds| pause.call(self, seconds) }
    [command.run, pauses]
  end

  def test_watch_ends_with_the_master
    with_puma do |proc|
      assert_equal [0, [5.0, 5.0]], watch(proc, 100, "--watch")
      assert_equal 2, @out.string.scan(/^ +PID /).size
      assert_equal "cowruby-memory: process 100 has ended\n", @err.string
      refute_includes @out.string, "\e"
    end
    with_puma do |proc|
      assert_equal [0, [0.5, 0.5]], watch(proc, "--watch=0.5", "--json", 100)
      assert_equal([100, 100], @out.string.lines.map { |line| JSON.parse(line)["root_pid"] })
    end
  end

  # `--watch 100`: the only number there is.
  def test_a_number_behind_watch_that_is_meant_for_the_process
    with_puma { |proc| assert_equal [0, [5.0, 5.0]], watch(proc, "--watch", 100) }
    with_puma { |proc| assert_equal [0, [2.0, 2.0]], watch(proc, "--watch", 2, 100) }
    with_puma { |proc| assert_equal [0, [2.0, 2.0]], watch(proc, "--watch", 2, "--server", "puma") }
  end

  def test_a_textfile_is_whole_and_says_when_the_server_is_gone
    with_puma do |proc|
      Dir.mktmpdir do |directory|
        file = File.join(directory, "cowruby.prom")
        assert_equal ["", "", 0], command(proc, 100, "--textfile", file)
        assert_equal command(proc, 100, "--prometheus").first, File.read(file)
        assert_equal 0o644, File.stat(file).mode & 0o777
        assert_equal 0, watch(proc, 100, "--watch", "--textfile", file).first
        assert_includes File.read(file), "cowruby_server_up 0\n"
        assert_equal ["", ["cowruby.prom"]], [@out.string, Dir.children(directory)]
      end
    end
  end

  def test_a_textfile_that_cannot_be_written
    assert_error("/x.prom cannot be written: No such file", 1, 100, "--textfile", "/nowhere/x.prom")
    Dir.mktmpdir do |directory|
      Dir.mkdir(taken = File.join(directory, "x.prom"))
      assert_error("x.prom cannot be written: Is a directory", 1, 100, "--textfile", taken)
      assert_equal ["x.prom"], Dir.children(directory), "the file beside it is gone"
      File.chmod(0o555, directory)
      next if File.writable?(directory) # as root

      assert_error("y.prom cannot be written: Permission denied", 1, 100, "--textfile", "#{directory}/y.prom")
    end
  end

  # Else node_exporter would go on with the figures of a server that is gone.
  def test_a_textfile_of_a_server_that_is_not_there
    with_puma do |proc|
      Dir.mktmpdir do |directory|
        file = File.join(directory, "cowruby.prom")
        assert_equal 0, command(proc, "--server", "puma", "--textfile", file).last
        (100..102).each { |pid| proc.remove(pid) }
        [["--server", "puma"], [100], [100, "--watch"]].each do |arguments|
          File.write(file, "cowruby_server_up 1\n")
          out, err, status = command(proc, *arguments, "--textfile", file)
          assert_equal ["", 1], [out, status]
          assert_match(/\Acowruby-memory: error: there is no p.*\n\z/, err)
          assert_equal Memory::Prometheus.text(nil), File.read(file)
        end
        assert_equal USAGE, command(proc, "puma", "--textfile", "#{directory}/x").last
        assert_equal ["cowruby.prom"], Dir.children(directory)
      end
    end
  end

  # A file that stayed would say for ever what was when the program ended.
  def test_a_textfile_is_removed_where_the_program_ends_otherwise
    with_puma do |proc|
      Dir.mktmpdir do |directory|
        file = File.join(directory, "cowruby.prom")
        { Memory::Forbidden => 1, Errno::EMFILE => 1, Interrupt => 130 }.each do |error, status|
          File.write(file, "cowruby_server_up 1\n")
          Memory::Observer.stub(:new, ->(*, **) { raise error, "as told" }) do
            assert_equal status, command(proc, 100, "--textfile", file).last
          end
          refute_path_exists file, error
        end
      end
    end
  end

  # Whoever has changed how it is started, and made a mistake, may not look at the file for weeks.
  def test_a_textfile_is_removed_where_the_program_does_not_begin
    with_puma do |proc|
      Dir.mktmpdir do |directory|
        file = File.join(directory, "cowruby.prom")
        [[100, "--watch", "never"], [], ["puma"], [5, 6], ["--server", "nope"], [100, "--json"],
         [100, "--svg"], [100, "--listen-anywhere"]].each do |arguments|
          File.write(file, "cowruby_server_up 1\n")
          assert_equal USAGE, command(proc, "--textfile", file, *arguments).last, arguments.inspect
          refute_path_exists file, arguments.inspect
        end
        [["--textfile", file], ["--textfile=#{file}"], ["--text", file], ["--t=#{file}"]].each do |last|
          File.write(file, "# HELP cowruby_server_up x\n")
          assert_equal USAGE, command(proc, 100, "--svg", *last).last
          refute_path_exists file, last.inspect
        end
        File.write(file, "node_load1 1\n")
        assert_equal USAGE, command(proc, "--textfile", file, "other.prom").last
        assert_path_exists file, "it is not ours"
        File.write(file, "cowruby_server_up 1\n")
        File.unlink(File.join(proc.root, "self/stat"))
        _, err, status = command(proc, 100, "--textfile", file)
        assert_equal 1, status
        assert_match(/no Linux/, err)
        refute_path_exists file
        File.write(file, "cowruby_server_up 1\n")
        assert_equal 0, command(proc, "--textfile", file, "--version").last
        assert_path_exists file, "it was only asked for a version"
      end
    end
  end

  # To replace /dev/stdout would take it from all programs.
  def test_a_textfile_that_is_no_file
    Dir.mktmpdir do |directory|
      File.mkfifo(fifo = File.join(directory, "fifo"))
      File.symlink(fifo, link = File.join(directory, "link"))
      File.symlink("/dev/null", null = File.join(directory, "null"))
      [fifo, link, null].each do |file|
        assert_error("#{File.basename(file)} cannot be written: it is no plain file",
                     1, 100, "--textfile", file)
      end
      assert_equal [true, true, true], [File.pipe?(fifo), File.symlink?(link), File.symlink?(null)]
      assert_equal %w[fifo link null], Dir.children(directory).sort
    end
  end

  def test_a_textfile_behind_a_link_stays_there
    Dir.mktmpdir do |directory|
      File.write(file = File.join(directory, "real.prom"), "old")
      File.symlink("real.prom", link = File.join(directory, "link.prom"))
      with_puma { |proc| assert_equal ["", "", 0], command(proc, 100, "--textfile", link) }
      assert File.symlink?(link)
      assert_includes File.read(file), "cowruby_server_up 1\n"
      assert_equal %w[link.prom real.prom], Dir.children(directory).sort
    end
  end

  def test_a_textfile_behind_a_link_of_another_user
    skip "needs root" unless Process.uid.zero?
    Dir.mktmpdir do |directory|
      File.write(file = File.join(directory, "real.prom"), "old")
      File.symlink("real.prom", link = File.join(directory, "link.prom"))
      File.lchown(65_534, 65_534, link)
      assert_error("link.prom cannot be written: it is a link of another user", 1, 100, "--textfile", link)
      assert_equal "old", File.read(file)
    end
  end

  # A process with the same number, as in a container, was killed while it wrote; or it is somebody else's.
  def test_what_is_left_beside_a_textfile
    Dir.mktmpdir do |directory|
      file = File.join(directory, "cowruby.prom")
      left = File.join(directory, ".cowruby.prom.#{Process.pid}.new")
      kept = File.join(directory, "kept")
      [-> { File.mkfifo(left) }, -> { File.write(left, "x" * 9_000) }, -> { File.symlink(kept, left) },
       -> { File.link(kept, left) }].each do |leave|
        File.write(kept, "kept")
        leave.call
        Timeout.timeout(20) do
          with_puma { |proc| assert_equal ["", "", 0], command(proc, 100, "--textfile", file) }
        end
        assert_equal "kept", File.read(kept)
        assert_match(/\A# HELP.*cowruby_server_up 1\n/m, File.read(file))
        assert_equal %w[cowruby.prom kept], Dir.children(directory).sort
      end
    end
  end

  # ---- over HTTP

  # Yields the port of a program that listens, and the process of its standard error.
  def listening(*arguments)
    command = [RUBY, PROGRAM, *arguments.map(&:to_s), "--listen", "127.0.0.1:0"]
    Open3.popen3(*command) do |input, _, errors, thread|
      input.close
      port = errors.gets.to_s[/port (\d+)$/, 1] or flunk errors.read
      yield port.to_i
      Process.kill(:INT, thread.pid)
      assert_equal [0, ""], [thread.value.exitstatus, errors.read]
    ensure
      Process.kill(:KILL, thread.pid) if thread.alive?
    end
  end

  def ask(port, text)
    Timeout.timeout(60) do
      TCPSocket.open("127.0.0.1", port) do |socket|
        socket.write(text)
        socket.read
      end
    end
  end

  def test_metrics_over_http
    listening(Process.pid) do |port|
      answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: localhost:#{port}\r\n\r\n")
      head, body = answer.split("\r\n\r\n", 2)
      type = "text/plain; version=0.0.4; charset=utf-8"
      assert_equal ["HTTP/1.1 200 OK", "Content-Type: #{type}"], head.split("\r\n").first(2)
      assert_equal body.bytesize, head[/^Content-Length: (\d+)/, 1].to_i
      assert_match(/^cowruby_server_up 1$/, body)
      assert_match(/^cowruby_process_pss_bytes\{pid="#{Process.pid}",role="\w+",index=""\} [1-9]\d+$/, body)
      assert_match(%r{\AHTTP/1\.1 200 }, ask(port, "GET /metrics?x=1 HTTP/1.0\n\n"))
      { "GET / HTTP/1.1\r\n\r\n" => 404, "GET /metrics/../etc HTTP/1.1\r\n\r\n" => 404,
        "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" => 405, "GET /metrics\r\n\r\n" => 400,
        "\r\n\r\n" => 400, "\x16\x03\x01\r\n\r\n" => 400,
        "GET /metrics HTTP/1.1\r\nX: #{"y" * 9_000}" => 431 }.each do |request, status|
        assert_match(%r{\AHTTP/1\.1 #{status} }, ask(port, request), request[0, 40].inspect)
      end
      { "127.0.0.1:1" => 200, "[::1]" => 200, "LOCALHOST" => 200, "a.example" => 421, "" => 421,
        "localhost.a.example:#{port}" => 421, "127.0.0.1.a.example" => 421 }.each do |host, status|
        answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: #{host}\r\n\r\n")
        assert_match(%r{\AHTTP/1\.1 #{status} }, answer, host)
      end
      assert_match(/^Allow: GET, HEAD\r$/, ask(port, "PUT /metrics HTTP/1.1\r\n\r\n"))
    end
  end

  def test_any_name_of_this_machine
    listening(Process.pid, "--listen-anywhere") do |port|
      assert_match(%r{\AHTTP/1\.1 200 }, ask(port, "GET /metrics HTTP/1.1\r\nHost: a.example\r\n\r\n"))
    end
  end

  # Clients that go away, or say nothing, keep nobody from the page.
  def test_clients_that_do_not_ask
    page = Memory::HttpServer.new("127.0.0.1", 0, seconds: 0.2) { "fine\n" }
    thread = Thread.new { page.run }
    silent = Array.new(2 * Memory::HttpServer::CONNECTIONS) { TCPSocket.new("127.0.0.1", page.port) }
    silent.pop.close
    assert_match(/fine\n\z/, ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n"))
    assert_match(%r{\AHTTP/1\.1 408 }, silent.first.read)
    silent.each(&:close)
    assert_match(/fine\n\z/, ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n"))
  ensure
    thread.kill.join
  end

  # A client that asks and does not read holds nobody up, either.
  def test_a_client_that_does_not_read
    page = Memory::HttpServer.new("127.0.0.1", 0, seconds: 0.2) { "x" * (32 << 20) }
    thread = Thread.new { page.run }
    clients = Array.new(Memory::HttpServer::CONNECTIONS) { TCPSocket.new("127.0.0.1", page.port) }
    clients.each { |client| client.write("GET /metrics HTTP/1.1\r\n\r\n") }
    assert_match(%r{\AHTTP/1\.1 404 }, ask(page.port, "GET / HTTP/1.1\r\n\r\n"))
    clients.each(&:close)
  ensure
    thread.kill.join
  end

  # In place of a socket whose client takes a byte now and then.
  SlowClient = Struct.new(:taken) do
    def write_nonblock(*)
      self.taken += 1
      taken.odd? ? 1 : :wait_writable
    end

    def wait_writable(seconds)
      sleep([seconds, 0.05].min)
      seconds.positive? && self
    end
  end

  # The time is for the whole answer.
  def test_a_client_that_reads_slowly
    with_page(seconds: 0.2) do |page|
      page.send(:send_all, client = SlowClient.new(0), "x" * 500)
      assert_operator client.taken, :<, 500
    end
  end

  # Yields a server that answers, with what +text+ is or gives.
  def with_page(seconds: 5, text: "fine\n")
    page = Memory::HttpServer.new("127.0.0.1", 0, seconds: seconds) { text.is_a?(String) ? text : text.call }
    thread = Thread.new { page.run }
    yield page
  ensure
    thread.kill.join
  end

  def test_a_page_that_fails
    [false, nil].each do |verbose|
      _, errors = capture_io do
        old, $VERBOSE = $VERBOSE, verbose
        with_page(text: -> { raise "no memory" }) do |page|
          assert_match(%r{\AHTTP/1\.1 500 }, ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n"))
        end
      ensure
        $VERBOSE = old
      end
      assert_equal "cowruby-memory: no memory\n", errors, "with $VERBOSE #{verbose.inspect}"
    end
  end

  # A client that has gone before it is accepted; too many open files; no memory.
  def test_connections_that_cannot_be_accepted
    with_page do |page|
      errors = [Errno::ECONNABORTED, Errno::EMFILE, Errno::ENOBUFS]
      server = page.instance_variable_get(:@server)
      accept = server.method(:accept)
      ask(page.port, "GET / HTTP/1.1\r\n\r\n")
      server.define_singleton_method(:accept) { errors.empty? ? accept.call : raise(errors.shift) }
      page.define_singleton_method(:sleep) { |*| nil }
      _, said = capture_io do
        2.times { assert_match(/fine\n\z/, ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n")) }
      end
      assert_empty errors
      assert_equal ["cowruby-memory: Too many open files", "cowruby-memory: No buffer space available"],
                   said.lines(chomp: true)
    end
  end

  # As in a cgroup that is full of processes: the next ones are answered.
  def test_threads_that_cannot_be_made
    with_page do |page|
      ask(page.port, "GET / HTTP/1.1\r\n\r\n") # Timeout has its thread from now on
      fails = 2 * Memory::HttpServer::CONNECTIONS
      made = Thread.method(:new)
      new = lambda do |*arguments, &block|
        (fails -= 1) >= 0 ? raise(ThreadError, "can't create Thread") : made.call(*arguments, &block)
      end
      _, said = capture_io do
        Thread.stub(:new, new) do
          (fails + 1).times { @last = ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n") rescue "" }
        end
      end
      assert_match(/fine\n\z/, @last)
      assert_equal ["cowruby-memory: can't create Thread\n"], said.lines.uniq
    end
  end

  # As GET, without the page (RFC 9110, 9.3.2).
  def test_head
    with_page do |page|
      answer = ask(page.port, "HEAD /metrics HTTP/1.1\r\n\r\n")
      assert_equal ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n"), "#{answer}fine\n"
      assert_match(%r{\AHTTP/1\.1 404 Not Found\r\n.*\r\n\r\n\z}m, ask(page.port, "HEAD / HTTP/1.1\r\n\r\n"))
    end
  end

  # Whatever is sent is answered or closed, and no thread ends by an exception.
  def test_requests_of_any_bytes
    random = Random.new(7)
    errors = capture_io do
      with_page(seconds: 0.2) do |page|
        60.times do |i|
          text = ["", "GET ", "GET /metrics HTTP/1.1\r\n"][i % 3].b + random.bytes(random.rand(1..300))
          assert_match(%r{\A(?:HTTP/1\.1 \d{3} .*)?\z}m, ask(page.port, "#{text}\r\n\r\n").b)
        end
        assert_match(/fine\n\z/, ask(page.port, "GET /metrics HTTP/1.1\r\n\r\n"))
      end
    end.last
    assert_empty errors
  end

  def test_a_server_that_comes_and_goes
    with_puma do |proc|
      command = Memory::Command.new(%w[--server puma], procfs: proc.procfs)
      command.send(:parser).parse(%w[--server puma])
      metrics = lambda do
        command.instance_variable_set(:@looked, -10)
        command.send(:metrics).lines.grep(/\Acowruby_server_(?:up|processes) /).last.chomp
      end
      assert_equal "cowruby_server_processes 3", metrics.call
      (100..102).each { |pid| proc.remove(pid) }
      assert_equal "cowruby_server_up 0", metrics.call
      proc.add(300, 1, "puma 6.4.2 (tcp://0.0.0.0:9292) [shop]")
      assert_equal "cowruby_server_processes 1", metrics.call
      proc.remove(300)
      proc.add(301, 1, "puma 6.4.2 (tcp://0.0.0.0:9292) [shop]")
      assert_equal "cowruby_server_processes 1", metrics.call, "within one answer"
    end
  end

  # Its number may be given to any other process.
  def test_a_process_that_has_ended_does_not_come_back
    with_puma do |proc|
      command = Memory::Command.new([], procfs: proc.procfs)
      command.instance_variable_set(:@target, 100)
      command.instance_variable_set(:@observer, command.send(:observer))
      up = lambda do
        command.instance_variable_set(:@looked, -10)
        command.send(:metrics)[/^cowruby_server_up (\d)$/, 1]
      end
      assert_equal "1", up.call
      proc.remove(100)
      assert_equal "0", up.call
      proc.add(100, 1, "vi", image: 3, started: 999)
      assert_equal "0", up.call
    end
  end

  # ---- as it is started

  def program(*arguments)
    Open3.capture3(RUBY, PROGRAM, *arguments.map(&:to_s))
  end

  def test_help_and_version
    out, err, status = program("--help")
    assert_equal ["", 0], [err, status.exitstatus]
    assert_match(/\AUsage: cowruby-memory PID /, out)
    assert_operator out.lines.map(&:size).max, :<=, 102
    version = program("-V").first
    assert_match(/\Acowruby-memory (?:of CowRuby \S+|on another ruby) \(ruby \d\S+\)\n\z/, version)
  end

  # 16 workers that hold some MB, by the program itself: the table, and that an interrupt ends it.
  def test_sixteen_workers
    script = <<~'RUBY'
      kept = Array.new(100_000) { |i| "entry #{i} of the master" }
      $0 = "unicorn master of 16"
      workers = Array.new(16) { |i| fork { $0 = "unicorn worker[#{i}]"; sleep } }
      puts workers.size
      $stdout.flush
      gets
      workers.each { |pid| Process.kill(:KILL, pid) }
    RUBY
    Open3.popen2(RUBY, "-e", script) do |input, output, thread|
      output.gets
      out, err, status = program(thread.pid)
      assert_equal ["", 0], [err, status.exitstatus]
      assert_equal 18, out.lines.grep(/^ +(?:\d+|total) /).size
      assert_match(/^ +total 17 processes/, out)
      refute_includes out, "Note:"
      watched(thread.pid)
      input.close
    end
  end

  def watched(pid)
    Open3.popen3(RUBY, PROGRAM, pid.to_s, "--watch", "60", "--json") do |_, output, errors, thread|
      assert_equal 17, JSON.parse(output.gets)["process_count"]
      Process.kill(:INT, thread.pid)
      assert_equal [0, "", ""], [thread.value.exitstatus, output.read, errors.read]
    end
  end

  def test_a_reader_that_goes_away
    out, = Open3.capture2e("#{RUBY} #{PROGRAM} #{Process.pid} --watch=0.1 | head -n 1")
    assert_equal 1, out.lines.size, out
  end

  def test_the_man_page_names_each_option
    man = File.read(File.join(ROOT, "man/cowruby-memory.1"))
    options = program("--help").first.scan(/^ +(?:-\w, )?--([\w-]+)/).flatten
    assert_operator options.size, :>=, 10
    assert_equal options.sort, man.scan(/^\.It (?:Fl \w , )?Fl -([\w-]+)/).flatten.sort
    assert_empty Memory::Servers::ALL.keys.reject { |name| man.include?(name) }
    names = Memory::Prometheus::SERVER.map { |name,| "cowruby_server_#{name}" } +
            Memory::Prometheus::PROCESS.map { |name,| "cowruby_process_#{name}_bytes" }
    assert_empty names.reject { |name| man.include?(name) }
  end
end

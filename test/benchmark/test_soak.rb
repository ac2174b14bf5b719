# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
%w[soak soak_command].each { |name| BenchmarkTest.load("lib/servers/#{name}") }
require "open3"
require "socket"
require "tempfile"
require "tmpdir"

module SoakTest
  include BenchmarkTest

  # A soak of 30 minutes with +sizes+ (MB a worker) in its last third.
  def result(sizes, events: [], **other)
    sizes = [10.0] * (2 * sizes.size) + sizes
    rounds = sizes.each_with_index.map do |size, i|
      { seconds: 1800.0 * (i + 1) / sizes.size, private: size, tree: 40.0, gone: 0 }
    end
    SoakResult.new(server: "puma", app: "rails", sent: 900, answered: 890, rounds: rounds, events: events,
                   failed_without: {}, **other)
  end

  def event(name, failed, number = 0, away: [], kinds: %w[cut], **other)
    excuses = { number: number, kinds: kinds, away: away }
    { name: name, seconds: 9.0, took: 1.5, failed: failed, excuses: excuses, deaths: 1, hits: nil, kept: 0,
      note: nil, **other }
  end
end

class TestSoakResult < Minitest::Test
  include SoakTest

  def test_memory_that_is_flat
    noise = Random.new(1)
    flat = result(Array.new(60) { 30.0 + noise.rand / 5 })
    assert_equal "flat", flat.memory
    assert_operator flat.line.slope.abs, :<, 2 * flat.line.error
  end

  # 10 MB in ten minutes, and 0.2 per cent.
  def test_memory_that_grows
    grows = result((1..60).map { |i| 100.0 + i / 6.0 })
    assert_equal "grows", grows.memory
    assert_in_delta 60, grows.line.slope, 1
    assert_equal "flat", result((1..60).map { |i| 100.0 + i / 300.0 }).memory
    assert_equal "falls", result((1..60).map { |i| 100.0 - i / 6.0 }).memory
  end

  # What is not shown to grow may grow all the same.
  def test_memory_of_which_nothing_can_be_said
    noise = Random.new(1)
    assert_equal "unclear", result(Array.new(60) { 30.0 + noise.rand * 9 }).memory
  end

  def test_the_judged_part_begins_after_the_last_event
    kill = event("KILL a worker", {}, seconds: 1200.0, took: 200.0)
    late = result([90.0] * 20 + [30.0] * 40, events: [kill])
    assert_equal "flat", late.memory
    refute_equal "flat", result([90.0] * 20 + [30.0] * 40).memory
  end

  # 1 per cent of a third is not 1 per cent of a part of it.
  def test_what_is_left_of_the_last_third_stands_for_all_of_it
    sizes = (1..60).map { |i| 100.0 + i / 20.0 }
    assert_equal "grows", result(sizes).memory
    kill = ->(seconds) { [event("KILL a worker", {}, seconds: seconds, took: 90.0)] }
    assert_equal "grows", result(sizes, events: kill[1300]).memory
    assert_equal "too short", result(sizes, events: kill[1500]).memory
  end

  # Half an hour that says nothing of memory is not fine, some seconds are.
  def test_memory_of_which_nothing_is_known
    half_an_hour = result([nil] * 60)
    assert_equal ["too short", false], [half_an_hour.memory, half_an_hour.fine?]
    refute_predicate result((1..60).map { |i| 100.0 + i }), :fine?
    assert_predicate SoakResult.new(half_an_hour.to_h.merge(rounds: [])), :fine?
  end

  def test_workers_that_stayed
    found = result([1.0] * 10, events: [event("restart (USR2)", {}, kept: 2)])
    assert_equal({ "restart (USR2)" => { "not replaced" => 2 } }, found.unexcused)
  end

  def test_looks_without_a_worker_do_not_count
    assert_equal "flat", result([*[30.0] * 30, nil, *[30.0] * 29]).memory
  end

  def test_too_short_to_judge
    assert_nil result([10.0] * 5).line
    assert_equal "too short", result([10.0] * 5).memory
  end

  def test_an_event_excuses_what_it_explains_and_no_more
    both = ["cut", "status 502"]
    events = [event("KILL a worker", { "cut" => 3, "status 502" => 2 }, 4, kinds: both),
              event("KILL a worker", { "cut" => 6, "status 500" => 1 }, 4, kinds: both),
              event("restart (TERM, start)", { "refused" => 40 }, away: ["refused"])]
    found = result([1.0] * 10, events: events, failed_without: { "late" => 2 })
    assert_equal({ "KILL a worker" => { "status 502" => 1, "cut" => 2, "status 500" => 1 },
                   "none" => { "late" => 2 } }, found.unexcused)
    assert_equal [54, 48, 6, false],
                 [found.failures, found.excused, found.unexcused_failures, found.fine?]
  end

  def test_what_ended_early_is_not_fine
    refute_predicate result([1.0] * 10, ended_early: "no server"), :fine?
    assert_predicate result([1.0] * 10), :fine?
  end
end

class TestSoak < Minitest::Test
  include SoakTest

  # In place of Unicorn: processes that sleep.
  class Sleepers
    include BenchmarkTest
    attr_reader :workers, :pid
    alias serving workers

    def self.title
      "unicorn"
    end

    def serves?(_title) = true

    def at_work = 1

    def bugs = 0

    def initialize(number)
      @pid = Process.pid
      @children = Array.new(number) { Supervised.new("sleep", "60") }
      @workers = @children.map(&:pid)
    end

    # In place of those that have ended there are new ones.
    def reap
      @children.select(&:ended?).each do |child|
        @children[@children.index(child)] = Supervised.new("sleep", "60")
      end
      @workers = @children.map(&:pid)
    end

    def number_of_workers
      @children.size
    end

    def ended?
      false
    end

    def look
      workers.map { |pid| Service::Seen.new(pid, 1, true, "", { "Private_Dirty" => 1024, "Pss" => 2048 }) }
    end

    def stop
      @children.each(&:kill)
    end
  end

  Load = Struct.new(:sent, :answered, :failures, :at_once)

  def soak(seconds, failures: [], server: Sleepers.new(2), **options)
    @server = server
    Soak.new(@server, Load.new(10, 9, failures, 4), seconds, **options)
  end

  def teardown
    @server&.stop
  end

  def test_a_killed_worker_is_waited_for
    soak = soak(0)
    before = @server.workers
    soak.instance_variable_set(:@begun, Clock.now)
    soak.send(:happen, Soak::KILL)
    assert_equal 1, (before & @server.workers).size
    soak.send(:happen, Soak::TERM)
    kill, term = soak.to_h[:events]
    assert_equal ["KILL a worker", { number: 1, kinds: ["cut", "status 502"], away: [] }],
                 kill.values_at(:name, :excuses)
    assert_equal [1, nil, 0, nil], term.values_at(:deaths, :hits, :kept, :note)
  end

  # Nothing happens at first, nor in the last third; without a cgroup there is no limit of memory.
  def test_each_event_happens_in_time
    names = (Soak::EVENTS["unicorn"] - [Soak::MEMORY]).map(&:name)
    soak = soak(90)
    happened = (0..90).filter_map do |second|
      soak.instance_variable_set(:@begun, Clock.now - second)
      event = soak.send(:next_event)
      soak.happened << event if event
      soak.rounds << second
      [second, event.name] if event
    end
    seconds, = happened.transpose
    assert_equal names, happened.map(&:last).uniq
    assert_operator seconds.first, :>=, 6
    assert_operator seconds.last, :<=, 30
    assert_operator seconds.size, :>, names.size
  end

  def test_failures_belong_to_what_had_begun_last
    soak = soak(0)
    begun = soak.instance_variable_set(:@begun, Clock.now)
    [[Soak::KILL, 10, 12], [Soak::RESTART, 12.5, 20]].each do |event, from, to|
      soak.happened << Soak::Happened.new(event, begun + from, begun + to, 1)
    end
    # Each was sent at, failed at.
    [[9, 9.5], [9, 11], [12, 12.2], [12.4, 13], [20.5, 21], [21.5, 22]].each do |times|
      soak.load.failures << Clients::Failure.new(*times.map { |time| begun + time }, "cut")
    end
    found = soak.to_h
    assert_equal [{ "cut" => 2 }, { "cut" => 2 }], found[:events].map { |event| event[:failed] }
    assert_equal({ "cut" => 2 }, found[:failed_without])
  end

  # Of a killed process with 5 threads; not a job that was enqueued long before.
  def test_jobs_belong_to_an_event_that_may_have_taken_them
    soak = soak(0)
    begun = soak.instance_variable_set(:@begun, Clock.now)
    soak.instance_variable_set(:@server, Sidekiq.allocate.tap { |server| def server.bugs = 0 })
    [[Soak::KILL, 20, 21, 1], [Soak::TERM, 28, 29, 0]].each do |event, from, to, deaths|
      soak.happened << Soak::Happened.new(event, begun + from, begun + to, deaths)
    end
    [1, *[19] * 7].each do |sent|
      time = begun + sent
      soak.load.failures << Clients::Failure.new(time, time + JobLoad::TAKEN, JobServer::NEVER_DONE)
    end
    found = SoakResult.new(server: "sidekiq, plain", rounds: [], jobs: {}, **soak.to_h)
    assert_equal [{ "never done" => 5 }, { "never done" => 2 }], found.events.map { |event| event[:failed] }
    assert_equal({ "TERM a worker" => { "never done" => 2 }, "none" => { "never done" => 1 } },
                 found.unexcused.reject { |_, kinds| kinds.values.sum.zero? })
  end

  def test_only_workers_of_solid_queue_do_jobs
    server = SolidQueueFork.allocate
    titles = %w[dispatcher worker scheduler].map { |role| "solid-queue-#{role}(1.1.0): working" }
    assert_equal [false, true, false], titles.map { |title| server.serves?(title) }
  end

  def test_a_look
    soak = soak(0.01)
    soak.run { |round| assert_equal [2, 1.0, 4.0], round.values_at(:workers, :private, :tree) }
    assert_operator soak.rounds.size, :>, 0
  end

  Group = Struct.new(:limits, :hits, :ended) do
    def limit_to_use
      limits << :use
      self.hits += 3
      self.ended += 1
    end

    def limit=(bytes)
      limits << bytes
    end

    def without_limit
      -1
    end
  end

  def test_a_limit_of_memory_is_lifted_again
    group = Group.new([], 7, 0)
    soak = soak(1, group: group)
    soak.instance_variable_set(:@begun, Clock.now)
    before = File.read("/proc/self/oom_score_adj").chomp
    chosen = []
    soak.define_singleton_method(:choose) do |score|
      super(score)
      chosen.concat(@server.workers.map { |pid| File.read("/proc/#{pid}/oom_score_adj").chomp }.uniq)
    end
    soak.send(:happen, Soak::MEMORY)
    assert_equal [:use, -1], group.limits
    found = soak.to_h[:events].first
    assert_equal [3, 1, 1], [*found.values_at(:hits, :deaths), found[:excuses][:number]]
    assert_equal [Soak::CHOSEN, before], chosen.uniq
  end

  def test_nobody_is_there_to_be_killed
    soak = soak(0, server: Sleepers.new(0))
    soak.instance_variable_set(:@begun, Clock.now)
    soak.send(:happen, Soak::KILL)
    event, = soak.to_h[:events]
    assert_equal [0, "no worker was there", 0], [event[:deaths], event[:note], event[:excuses][:number]]
  end

  def test_every_server_is_known
    assert_empty (Server.all + JobServer.all).map(&:title) - Soak::EVENTS.keys
  end

  # The script runs in a process of its own, because that process adopts orphans from then on.
  def test_reap_waits_for_orphans_that_have_ended_but_not_for_the_master
    script = <<~'RUBY'
      include CowBench
      abort "skipped" unless Supervised.adopt_orphans
      out, inn = IO.pipe
      master = Supervised.new(RbConfig.ruby, "-e", <<~'MASTER', out: inn)
        Process.wait(fork { puts Process.spawn("true") })
        $stdout.flush
      MASTER
      orphan = out.gets.to_i
      sleep 0.01 until ([master.pid, orphan] - ProcessTable.ended(master.pid)).empty?
      master.reap
      puts File.exist?("/proc/#{orphan}"), master.wait(0).success?
    RUBY
    library = File.join(BENCHMARK, "lib/processes/supervised")
    out, status = Open3.capture2e(RbConfig.ruby, "-r#{library}", "-rrbconfig", "-e", script)
    skip "this system does not let a process adopt orphans" if out == "skipped\n"
    assert status.success?, out
    assert_equal "false\ntrue\n", out
  end
end

# Clients, against a server of a few lines.
class TestClients < Minitest::Test
  include SoakTest

  FINE = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=b; path=/\r\nConnection: close\r\n\r\nok"

  def setup
    @list = Tempfile.new("requests")
    @list.puts "GET /a", "POST /b x=1"
    @list.close
    @asked = Queue.new
  end

  def teardown
    @server&.kill
    @listener&.close
    @list&.unlink
  end

  # Each answer is one of +answers+ in turn.
  def serve(*answers)
    @listener = TCPServer.new("127.0.0.1", 0)
    answers = answers.cycle
    @server = Thread.new do
      loop do
        client = @listener.accept
        text = client.readpartial(4096)
        @asked << text
        client.write(answers.next)
        client.close
      end
    end
    @listener.local_address.ip_port
  end

  # +number+ requests of one client.
  def clients(port, number, **options)
    Clients.new(port, @list.path, number: 1, **options).tap do |clients|
      clients.start
      Clock.wait_until(30, pause: 0.001) { clients.sent > number }
      clients.stop
      assert_equal clients.sent, clients.answered + clients.failures.count { |one| one.kind != "status 500" }
    end
  end

  def test_requests_of_the_list_with_the_cookies_of_their_answers
    assert_empty clients(serve(FINE), 20).failures
    asked = Array.new(18) { @asked.pop }
    assert_match(%r{\AGET /a HTTP/1.1\r\nHost: }, asked[0])
    assert_match(/\APOST .*\r\nContent-Length: 3\r\n\r\nx=1\z/m, asked[1])
    refute_match(/^Cookie/, asked[0])
    assert_match(/^Cookie: a=b\r$/, asked[17])
  end

  def test_what_became_of_each_request
    half = FINE.sub("Length: 2", "Length: 9")
    chunked = FINE.sub("Content-Length: 2", "Transfer-Encoding: chunked")
    failures = clients(serve(FINE, half, FINE.sub("200", "500"), chunked, ""), 10).failures
    assert_equal ["cut", "status 500", "cut", "cut"], failures.first(4).map(&:kind)
    failures.each { |failure| assert_operator failure.sent, :<=, failure.known }
  end

  # The second of them is not there later.
  def test_records_that_were_made
    made = Array.new(3) { |i| FINE.sub("200 OK", "302 No\r\nLocation: http://127.0.0.1/records/#{i}") }
    File.write(@list.path, "GET /a\nPOST /b x=1\nPOST /b x=2\n")
    clients = Clients.new(serve(*made, FINE, FINE.sub("200", "404")), @list.path, number: 1)
    clients.instance_variable_set(:@due, Clock.now)
    3.times { clients.send(:ask, *clients.send(:turn)) }
    assert_equal [2, 1], clients.finish.values_at(:made, :lost)
    asked = Array.new(5) { @asked.pop[/\A\S+ \S+/] }
    assert_equal ["GET /records/1", "GET /records/2"], asked.last(2)
  end

  def test_nobody_listens
    port = Service.free_port
    assert_equal %w[refused], clients(port, 1).failures.map(&:kind).uniq
  end

  def test_a_rate
    began = Clock.now
    clients(serve(FINE), 10, rate: 100)
    assert_operator Clock.now - began, :>=, 0.09
  end
end

# Jobs, where lines of a file are what a process enqueues.
class TestJobLoad < Minitest::Test
  include SoakTest

  Queued = Struct.new(:directory, :gives_up) do
    def file
      File.join(directory, "done")
    end

    def enqueuer(orders, answers)
      script = <<~'RUBY'
        $stdout.sync = true
        puts "something that is logged"
        while (line = $stdin.gets)
          from, to = line.split.map(&:to_i)
          (from...to).each { |n| File.write(ARGV[0], "#{n} 1.5\n", mode: "a") if n != ARGV[1].to_i }
          puts "begun 1.5"
        end
      RUBY
      Supervised.new(RbConfig.ruby, "--disable-gems", "-e", script, file, gives_up.to_s, in: orders,
                                                                                         out: answers)
    end

    def done
      File.readlines(file).map { |line| [line.to_i, 1.5] }
    end

    def complaint = "(no word)"

    # The job that was given up is put back.
    def left(again: false)
      found = { waiting: 0, running: 0, again: 0, raised: 0, later: [], failed: [] }
      return found unless again && gives_up >= 0

      File.write(file, "#{gives_up} 1.5\n" * 2, mode: "a")
      { **found, raised: 1, failed: [[gives_up, "SomeError"]] }
    end
  end

  def load(gives_up)
    Dir.mktmpdir do |directory|
      queued = Queued.new(directory, gives_up)
      FileUtils.touch(queued.file)
      load = JobLoad.new(queued, rate: 40)
      load.start
      assert Clock.wait_until(30) { load.sent > 20 }
      load.stop
      assert_operator load.answered, :>=, 20
      yield load
    end
  end

  def test_all_are_done
    load(-1) do |load|
      assert_equal load.sent, load.answered
      assert_equal({ done: load.sent, twice: 0, failed: {}, raised: 0, lost: 0 }, load.finish)
      assert_empty load.failures
    end
  end

  def test_an_end_of_the_one_that_enqueues_is_told
    Dir.mktmpdir do |directory|
      queued = Queued.new(directory, -1)
      FileUtils.touch(queued.file)
      load = JobLoad.new(queued, rate: 40).start
      load.check
      load.instance_variable_get(:@enqueuer).kill
      assert_raises(Service::Failed) { 100.times { sleep(0.1) && load.check } }
      assert_raises(Service::Failed) { load.stop }
    end
  end

  def test_what_was_given_up_is_put_back_and_what_is_done_twice_is_told
    load(3) do |load|
      # Nothing goes on, as the queue says at once.
      def load.wait = nil
      found = load.finish
      assert_equal({ done: load.sent, twice: 1, failed: { "SomeError" => 1 }, raised: 1, lost: 0 }, found)
      failure, = load.failures
      assert_equal ["SomeError", JobLoad::TAKEN], [failure.kind, (failure.known - failure.sent).round]
    end
  end
end

class TestSoakCommand < Minitest::Test
  include SoakTest

  def write(place, build, version, found)
    directory = File.join(place, "soak", "puma-rails-#{build}")
    FileUtils.mkdir_p(directory)
    hash = { asked: { minutes: 30 }, **found.to_h, builds: [{ name: build, version: version }] }
    File.write(File.join(directory, "results.json"), JSON.generate(hash))
  end

  # The summary is made from the files of earlier soaks; those of one server stand beside each other.
  def test_summary
    Dir.mktmpdir("soak") do |place|
      kill = event("KILL a worker", { "cut" => 5 }, 4)
      term = event("TERM a worker", { "cut" => 1 })
      write(place, "cow", "ruby 3.4.5 +CowRuby 0.1", result([30.0] * 20, events: [kill, term]))
      write(place, "stock", "ruby 3.4.5", result([90.0] * 20, events: [kill]))
      FileUtils.mkdir_p(File.join(place, "soak/old"))
      File.write(File.join(place, "soak/old/results.json"), "{}")
      out, = capture_io { assert_equal 0, SoakCommand.run(["--summary", "--place", place]) }
      rows = out.lines.grep(/^\| puma, rails/)
      row = [30, 900, 890, 5, 4, 1, 0, 1, 0, "90.0", "+0.0 ± 0.0", "+0.00 %", "flat", ""]
      assert_equal "| puma, rails, stock | #{row.join(" | ")} |\n", rows[0]
      assert_match(/^\| puma, rails, cow \| 30 \| 900 \| 890 \| 6 \| 4 \| 2 \|/, rows[1])
      assert_includes rows, "| puma, rails: KILL a worker | 1 times: 5 cut | 1 times: 5 cut |\n"
      assert_includes rows, "| puma, rails: none | 0 | 0 |\n"
      assert_includes out, "Failed on CowRuby and not on pristine: puma, rails, TERM a worker: 1 cut more."
      write(place, "cow", "ruby 3.4.5 +CowRuby 0.1",
            result([30.0] * 20, events: [event("KILL a worker", { "cut" => 9 }, 4)]))
      out, = capture_io { SoakCommand.run(["--summary", "--place", place]) }
      assert_includes out, "Failed on CowRuby and not on pristine: puma, rails, KILL a worker: 4 cut more."
      # What is told and not judged, and what was not asked in the same way.
      records = { made: 5, lost: 1, slowest: 2.25, left_out: 7 }
      write(place, "cow", "ruby 3.4.5 +CowRuby 0.1",
            result((1..20).map { |i| 100.0 + i }, records: records, not_happened: ["upgrade (USR2)"]))
      out, = capture_io { SoakCommand.run(["--summary", "--place", place]) }
      remarks = "slowest answer 2.2 s, 7 requests left out; too late for: upgrade (USR2)"
      assert_includes out, "| grows | #{remarks} |"
      assert_includes out, "puma, rails: memory grows faster; puma, rails: 1 records more."
      write(place, "cow", "ruby 3.4.5 +CowRuby 0.1", result([30.0] * 20, asked: { minutes: 2 }))
      out, = capture_io { SoakCommand.run(["--summary", "--place", place]) }
      assert_includes out, "No server was soaked in the same way"
      capture_io { assert_equal 2, SoakCommand.run(["--summary", "--place", File.join(place, "none")]) }
    end
  end

  # What --go-on leaves out, with the files that a soak writes.
  def test_go_on
    Dir.mktmpdir("soak") do |place|
      command = SoakCommand.new(["--place", place, "--minutes", "30"])
      kind = CowBench::Puma
      build = Build.new("cow", File.join(CommandLine::ROOT, "build/none/bin/ruby"))
      build.define_singleton_method(:to_h) { { name: "cow", path: path } }
      here = File.join(place, "ruby")
      FileUtils.touch(here)
      build.define_singleton_method(:path) { here }
      directory = command.send(:directory_of, kind, build)
      FileUtils.mkdir_p(directory)
      made = -> { command.send(:made, kind, build) }
      save = lambda do |result|
        capture_io { command.send(:save, result, command.send(:what, kind, build), directory, FACTS) }
      end
      assert_nil made.call
      save[result([30.0] * 20, records: {})]
      assert_equal "flat", made.call.memory
      assert_includes File.read(File.join(directory, "results.json")), '"path": '
      File.utime(0, 0, here)
      assert_nil made.call, "another ruby"
      save[result([30.0] * 20, records: {}, ended_early: "no server")]
      assert_nil made.call, "it came to no end"
      save[result([30.0] * 20, records: {})]
      command.instance_variable_set(:@rate, 3.0)
      assert_nil made.call, "another rate"
      File.write(File.join(directory, "results.json"), "{")
      assert_nil made.call, "half a file"
    end
  end

  def test_mistakes
    assert_refused(/--servers: no such: thin/, "soak", "--servers", "thin")
    assert_refused(/--rate wants a number above 0/, "soak", "--rate", "0")
    assert_refused(/no ruby to measure/, "soak")
  end

  # benchmark/soak as a whole, for some seconds.
  def test_a_short_soak
    name, ruby = INSTALLED
    Dir.mktmpdir do |place|
      %w[apps gems apps.lock].each { |name_there| link(name_there, place) }
      arguments = ["--ruby", "#{name}=#{ruby}", "--minutes", "0.08", "--servers", "unicorn", "--app", "rack",
                   "--rate", "100", "--no-warmup", "--place", place]
      out, errors, status = command("soak", *arguments)
      assert_predicate status, :success?, errors + out
      found = JSON.parse(File.read(File.join(place, "soak/unicorn-rack-#{name}/results.json")))
      assert_equal "KILL a worker", found["events"].first["name"]
      assert_equal 4, found["rounds"].last["workers"]
      assert_operator found["sent"], :>=, found["answered"]
      assert_operator found["answered"], :>, 50
      assert_match(/^\d+ requests sent, \d+ answered, \d+ failed, of which \d+ are excused; /, out)
    end
  end

  # What other tests made of applications and gems is used again.
  def link(name, place)
    there = File.join(File.dirname(BENCHMARK), "build", name)
    FileUtils.mkdir_p(name.include?(".") ? File.dirname(there) : there)
    File.symlink(there, File.join(place, name))
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
%w[matrix server_report server_run side_by_side wrk].each { |name| BenchmarkTest.load("lib/servers/#{name}") }
require "json"
require "socket"
require "tempfile"
require "yaml"

class TestServerMatrix < Minitest::Test
  include BenchmarkTest

  def test_all_settings_are_the_product_of_the_axes
    whole = ServerMatrix.product
    assert_equal ServerMatrix::AXES.values.map(&:size).reduce(:*), whole.size
    assert_equal whole.size, whole.map(&:id).uniq.size
  end

  def test_the_chosen_settings_have_every_server_with_every_application
    chosen = ServerMatrix.chosen
    assert_empty chosen - ServerMatrix.product
    assert_equal chosen.uniq, chosen
    pairs = chosen.map { |setting| [setting.app, setting.server] }.uniq
    assert_equal App::NAMES.product(Server.all.map(&:title)).sort, pairs.sort
    ServerMatrix::AXES.each do |axis, values|
      assert_equal values.sort_by(&:to_s), chosen.map(&axis).uniq.sort_by(&:to_s), axis.to_s
    end
  end

  def test_quick_has_every_server
    assert_equal Server.all.map(&:title).sort, ServerMatrix.quick.map(&:server).uniq.sort
    assert_empty %w[unicorn puma pitchfork passenger] - ServerMatrix.quick.select(&:rehearsed).map(&:server)
  end

  def test_named_axes_leave_the_others_as_usual
    settings = ServerMatrix.only(server: %w[puma unicorn], yjit: [false])
    ids = %w[puma unicorn].map { |server| "curve-rails-#{server}-warmup-glibc-interpreter" }
    assert_equal ids, settings.map(&:id)
    compact = ServerMatrix.only(warmup: [ServerMatrix::COMPACT]).first
    assert_equal ["curve-rails-unicorn-compact-glibc-yjit", "unicorn, compact, glibc", "compact"],
                 [compact.id, compact.label, compact.case_on_chart]
  end
end

class TestWrk < Minitest::Test
  include BenchmarkTest

  # Of four connections: an interval of 80 ms.
  LINE = { answered: 100, failed: 0, status: "", connect: 0, read: 0, write: 0, timeout: 0,
           microseconds: 2_000_000, bytes: 5, complete: 100, latencies: [1_500, 98, 20_250, 2] }.freeze

  def parse(**others)
    Wrk.parse(JSON.generate(LINE.merge(others)), 100, 4)
  end

  def test_figures
    result = parse
    assert_equal [100, 0, 50.0, 1.5, 20.25, ""],
                 [result.requests, result.errors, result.rate, result.p50, result.p99, result.complaint]
  end

  def test_every_kind_of_error_counts_also_an_answer_that_did_not_come
    result = parse(answered: 98, failed: 3, status: "500", read: 1)
    assert_equal 6, result.errors
    assert_equal "3 failed, 1 read, 2 missing, status 500", result.complaint
  end

  def test_percentiles_are_without_what_wrk_has_added
    # 250 ms: 170 and 90 are added, and 10 is not.
    added = [1_500, 98, 90_000, 2, 170_000, 2, 250_000, 2]
    assert_equal [1.5, 250.0], parse(latencies: added).to_h.values_at(:p50, :p99)
  end

  def test_a_timeout_is_an_answer_that_took_long
    result = parse(latencies: [1_500, 98], timeout: 2)
    assert_equal [2, 1.5, 30_000.0], [result.errors, result.p50, result.p99]
  end

  def test_times_that_are_not_as_many_as_the_answers
    error = assert_raises(Wrk::Failed) { parse(latencies: [1_500, 97, 20_250, 2]) }
    assert_equal "wrk: 100 answers and 0 timeouts, but 99 times without those that wrk adds: " \
                 "no percentile can be told", error.message
    assert_raises(Wrk::Failed) { parse(timeout: 1) }
    # As many in the sum, but fewer than none at 90 ms.
    assert_raises(Wrk::Failed) { parse(latencies: [1_500, 102, 170_000, 2, 250_000, 2]) }
  end
end

class TestLatencies < Minitest::Test
  include BenchmarkTest

  # As stats_correct of wrk 4.1.0 does it, with a hash in place of its array.
  def corrected(counts, interval)
    data = Hash.new(0).merge(counts)
    (2 * interval).upto(counts.keys.max) do |n|
      count = data[n]
      m = n - interval
      while count.positive? && m > interval
        data[m] += count
        m -= interval
      end
    end
    data.reject { |_, count| count.zero? }
  end

  # Of four connections: in so many microseconds the interval is +interval+.
  def assert_restored(counts, interval, complete = counts.values.sum)
    microseconds = interval * (complete / 4)
    added = corrected(counts, interval)
    assert_equal counts.sort, Latencies.restored(added, microseconds, complete, 4).sort
    added.values.sum - complete
  end

  def test_what_wrk_adds_is_taken_out_again
    random = Random.new(1)
    added = Array.new(50) do
      times = Array.new(random.rand(4..200)) { (20 * -Math.log(1 - random.rand))**random.rand(1.0..2.0) }
      assert_restored(times.map { |time| time.ceil + 1 }.tally, random.rand(5..60))
    end
    assert_operator added.sum, :>, 10_000
  end

  def test_around_multiples_of_the_interval
    1.upto(50) { |time| assert_restored({ 41 => 5, 40 => 6, time => 4 }, 10) }
    assert_equal 0, assert_restored({ 20 => 4 }, 10)
    assert_equal 4, assert_restored({ 21 => 4 }, 10)
  end

  def test_wrk_adds_nothing_where_not_every_connection_was_answered
    assert_nil Latencies.interval(1_000_000, 3, 4)
    assert_equal({ 9 => 3 }, Latencies.restored({ 9 => 3 }, 1_000_000, 3, 4))
  end

  def test_percentiles
    counts = { 3 => 1, 1 => 98, 2 => 1 }
    assert_equal [1, 1, 2, 3], [50, 98, 99, 100].map { |percent| Latencies.percentile(counts, percent) }
    assert_equal [5, 5], [1, 99].map { |percent| Latencies.percentile({ 5 => 1 }, percent) }
    assert_nil Latencies.percentile({}, 99)
  end
end

# wrk itself, against a server of a few lines.
class TestWrkAtWork < Minitest::Test
  include BenchmarkTest

  ANSWER = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

  def setup
    skip Wrk.missing if Wrk.missing
    @list = Tempfile.new("requests")
    @list.puts "GET /a", "GET /b?x=1"
    @list.close
    @listener = TCPServer.new("127.0.0.1", 0)
  end

  def teardown
    @server&.kill
    @listener&.close
    @list&.unlink
  end

  # The block is called before each answer.
  def serve(answer)
    @server = Thread.new do
      loop do
        client = @listener.accept
        # wrk first connects once without a request.
        line = client.gets until line == "\r\n" || client.eof?
        yield if line && block_given?
        client.write(answer) if line
        client.close
      rescue Errno::EPIPE, Errno::ECONNRESET
        next # wrk has ended
      end
    end
    @listener.local_address.ip_port
  end

  def test_a_part_of_the_list_is_sent_and_the_block_is_called_at_the_first_answer
    begun = []
    result = Wrk.play(serve(ANSWER), @list.path, 0, 50) { begun << Clock.now }
    assert_equal [1, 0], [begun.size, result.errors]
    # Requests that wrk had sent but not finished at the end are counted as well.
    assert_includes 50..50 + Wrk::CONNECTIONS, result.requests
  end

  # Two of a hundred are late, and wrk adds more times to these than it has measured.
  def test_percentiles_are_those_of_the_answers
    times = 0
    port = serve(ANSWER) { sleep 0.2 if [40, 60].include?(times += 1) }
    result = Wrk.play(port, @list.path, 0, 100, connections: 1)
    assert_operator result.p99, :>=, 200
    assert_operator result.p50, :<, 100
  end

  def test_errors_are_counted
    result = Wrk.play(serve(ANSWER.sub("200 OK", "500 No")), @list.path, 0, 20)
    assert_equal result.requests, result.errors
    assert_match(/\A\d+ failed, status 500\z/, result.complaint)
  end

  def test_wrk_ends_with_who_started_it_even_if_that_is_killed
    @listener.close
    silent = TCPServer.new("127.0.0.1", 0)
    player = fork do
      Wrk.play(silent.addr[1], @list.path, 0, 1)
    ensure
      exit!
    end
    # wrk connects once before its connections, and waits for an answer.
    2.times { silent.accept }
    wrk = ProcessTable.tree(player) - [player]
    assert_equal 1, wrk.size
    Process.kill(:KILL, player)
    Process.wait(player)
    assert(Clock.wait_until(5) { wrk.none? { |pid| ProcessTable.alive?(pid) } })
  ensure
    silent&.close
  end

  # A group whose limit cannot be set at first, and a server with one worker: this process.
  PressedGroup = Struct.new(:used, :limits) do
    def without_limit = -1
    def ended = 0
    def limit_to_use = limits << :use

    def limit=(bytes)
      raise Errno::EBUSY if limits.empty?

      limits << bytes
    end
  end
  PressedServer = Struct.new(:port, :workers) do
    def look = workers.map { |pid| Service::Seen.new(pid, 1, true, "", Memory.sample(pid, mappings: false)) }
  end

  def test_a_server_under_pressure
    Dir.mktmpdir do |times|
      File.write(File.join(times, "1"), "0.5 2.0\n")
      group = PressedGroup.new(1_000, [])
      server = PressedServer.new(serve(ANSWER), [Process.pid])
      found = UnderPressure.new(server, group, @list.path, times, quick: true).call
      assert_equal [:use, 700, -1], group.limits
      assert_equal [0, 700, true], found.values_at(:ended, :limit, :reached)
      assert_equal [0, 0], found[:pressed].values_at(:gc, :errors)
      assert_operator found[:private], :>, 0
      assert_in_delta found[:taken], found[:left], found[:taken] / 2
      shown = ServerReport.pressure_values(JSON.parse(JSON.generate(found)))
      assert_equal [1, 0, 0], shown.values_at(:reached, :ended, :failed)
    end
  end

  def test_a_server_under_pressure_that_fails_before
    Dir.mktmpdir do |times|
      server = PressedServer.new(serve(ANSWER.sub("200 OK", "500 No")), [Process.pid])
      def server.complaint = "no room"
      pressure = UnderPressure.new(server, PressedGroup.new(1_000, []), @list.path, times, quick: true)
      assert_match(/errors .*status 500.*: no room/, assert_raises(Server::Failed) { pressure.call }.message)
    end
  end

  def test_the_error_names_a_list_that_is_missing
    error = assert_raises(Wrk::Failed) { Wrk.play(serve(ANSWER), "/nowhere", 0, 1) }
    assert_match(%r{wrk: .*/nowhere}, error.message)
  end
end

class TestServerReport < Minitest::Test
  include BenchmarkTest

  def process(worker, private_dirty, pss)
    { "worker" => worker, "Private_Dirty" => private_dirty * 1024, "Pss" => pss * 1024 }
  end

  def curve(build, private_dirty)
    points = [0, 100].map do |requests|
      workers = [-private_dirty / 10, 0, private_dirty / 10].map do |more|
        process(true, private_dirty + requests + more, 20)
      end
      { "requests" => requests, "processes" => [process(false, 5, 50), *workers] }
    end
    loads = [[0, 60, 0.5], [60, 100, 0.3]].map do |from, to, cpu|
      { "rate" => 100.0, "p50" => 2.0, "p99" => 9.0, "from" => from, "to" => to, "cpu" => cpu }
    end
    setting = ServerMatrix.only(server: ["unicorn"]).first.to_h.transform_keys(&:to_s)
    { "setting" => setting, "build" => build, "round" => 1, "points" => points, "loads" => loads,
      "first_fork" => private_dirty / 10.0 }
  end

  def pages(build, mb)
    kinds = ["GC pages", "malloc"].to_h do |kind|
      [kind, { "lost" => mb, "lost without a difference" => 0.25, "own" => 1.0, "changed words" => 0.5 }]
    end
    { "setting" => ServerMatrix.quick.last.to_h.transform_keys(&:to_s), "build" => build, "round" => 1,
      "pages" => { "kinds" => kinds,
                   "writers" => [{ "kind" => "malloc", "function" => "free", "mb" => mb }],
                   "idle_writers" => [{ "kind" => "malloc", "function" => "memmove", "mb" => mb / 2 }] } }
  end

  def report(runs = [curve("stock", 100), curve("cow", 50), pages("stock", 8.0), pages("cow", 2.0)])
    builds = %w[stock cow].map do |name|
      BenchmarkTest::Named.new(name, "ruby 3", { "name" => "jemalloc" }, {}, 1)
    end
    ServerReport.of(FACTS, builds, runs, [])
  end

  def test_tables
    text = report.text
    assert_match(/^unicorn, warmup, glibc, after 100 +200\.0 +150\.0 +0\.75$/, text)
    assert_match(/^unicorn, warmup, glibc, after 0 +100\.0 +50\.0 +0\.50$/, text)
    row = "\n\n.*\n-.*\nunicorn, warmup, glibc "
    assert_match(/^rails: from the worker with the least.*#{row}+20\.00 +10\.00 +0\.50$/, text)
    assert_match(/^rails: throughput .*more is better\)$/, text)
    assert_match(/^rails: the server's CPU time for a request.*#{row}+8\.00 +8\.00 +1\.00$/, text)
    assert_match(/^unicorn, warmup, glibc, after 60 +8\.33 +8\.33 +1\.00$/, text)
    assert_match(/^rails: the first fork that makes a worker.*#{row}+10\.0 +5\.0 +0\.50$/, text)
    assert_match(/^rack: inherited and lost by one worker: GC pages/, text)
    assert_match(/^rack: lost without a difference.*#{row}+0\.50 +0\.50 +1\.00$/, text)
    assert_match(/^free +malloc +8\.00 +2\.00$/, text)
    assert_match(/^memmove +malloc +4\.00 +1\.00$/, text)
    refute_match(/synthetic/, text)
  end

  def test_stops
    setting = ServerMatrix.only({}).first
    build = BenchmarkTest::Named.new("cow", "ruby 3", { "name" => "glibc" }, {}, 1)
    steps = ->(**options) { ServerRun.new(setting, build, nil, **options).instance_variable_get(:@steps) }
    assert_equal [0, 100, 1_000, 4_000, 10_000], steps.call
    assert_equal [0, 2_000, 8_000], steps.call(stops: [2_000, 8_000])
  end

  def speed(build, cpu)
    loads = [[0, 100, 1.0], [100, 300, 1.0]].map do |from, to, slower|
      { "from" => from, "to" => to, "requests" => to - from, "rate" => 100.0, "cpu" => cpu * slower,
        "faults" => 900 }
    end
    setting = ServerMatrix.only(measure: [:speed]).first.to_h.transform_keys(&:to_s)
    curve(build, cpu * 100).merge("setting" => setting, "loads" => loads)
  end

  def test_speed
    text = report([speed("stock", 0.4), speed("cow", 0.3)]).text
    assert_match(/^rails: the server's CPU time for a request between two stops, the rubies side by/, text)
    refute_match(/^geometric mean, /, text)
    assert_match(/^unicorn, warmup, glibc, 0 to 100 +4\.00 +3\.00 +0\.75$/, text)
    assert_match(/^unicorn, warmup, glibc, 100 to 300 +2\.00 +1\.50 +0\.75$/, text)
    assert_match(/^unicorn, warmup, glibc, 100 to 300 +100 +100 +1\.00$/, text)
    assert_match(/^unicorn, warmup, glibc, after 100 +140\.0 +130\.0 +0\.93$/, text)
    assert_match(/^unicorn, warmup, glibc, after 300 +2\.67 +2\.00 +0\.75$/, text)
    row = "\n\n.*\n-.*\nunicorn, warmup, glibc "
    assert_match(/^rails: the server's page faults for a request.*#{row}+6\.0 +6\.0/, text)
    assert_match(/^rails: .*, all requests.*\n\n.*\n-.*\nunicorn, warmup, glibc +2\.67 +2\.00 +0\.75$/, text)
  end

  def test_a_turn_ends_at_each_stop
    turns = SideBySide.new(ServerMatrix.only({}).first, [], nil, stops: [600, 700]).turns
    assert_equal [[0, 250], [250, 500], [500, 600], [600, 700]], turns
  end

  # This happens if children of the server were killed or orphans have left its tree.
  def test_cpu_time_that_fell
    assert_nil ServerReport.cpu_of([{ "cpu" => 0.5, "from" => 0, "to" => 10 },
                                    { "cpu" => -0.1, "from" => 10, "to" => 20 }])
  end

  # The charts have the same height, colours and dashes, although not all have the same lines.
  def test_curves_can_be_compared
    settings = [{ server: ["unicorn"], warmup: [true, false] }, { server: ["puma"] },
                { server: ["puma"], malloc: ["jemalloc"], warmup: [false], rehearsed: [true] }]
    settings = settings.flat_map { |axes| ServerMatrix.only(axes) }
    settings.map! { |setting| setting.to_h.transform_keys(&:to_s) }
    runs = settings.each_with_index.flat_map do |setting, i|
      %w[cow stock].map { |build| curve(build, 100 * (i + 1)).merge("setting" => setting) }
    end
    charts = report(runs).send(:charts).grep(Chart::Lines)
    assert_equal %w[rails-unicorn-growth rails-puma-growth rails-puma-jemalloc-growth], charts.map(&:name)
    assert_equal [[500, %w[stock cow], ServerReport::CASES]],
                 charts.map { |chart| [chart.highest, chart.builds, chart.cases] }.uniq
    assert_equal [%w[warmup plain], %w[warmup], %w[rehearsed]],
                 charts.map { |chart| chart.lines.map(&:case).uniq }
  end

  def test_curves
    files = Dir.mktmpdir { |directory| report.write(directory) { |line| line } }
    names = files.map { |file| File.basename(file) }
    skip "gnuplot is not installed" unless Chart.available?

    assert_includes names, "rails-unicorn-growth.svg"
  end
end

# The files that the generators write. No gem is needed for that.
class TestApps < Minitest::Test
  include BenchmarkTest

  def generate(name)
    Dir.mktmpdir do |directory|
      generator = File.join(BENCHMARK, "apps", name, "generate")
      output, status = Open3.capture2e(RbConfig.ruby, generator, directory)
      assert_predicate status, :success?, output
      yield directory, File.readlines(File.join(directory, "requests.txt"), chomp: true)
    end
  end

  def test_rails_has_models_controllers_and_routes_and_requests_for_all_of_them
    generate("rails") do |directory, requests|
      routes = File.read(File.join(directory, "config/routes/resources.rb")).scan(/^resources :(\w+)/).flatten
      assert_operator routes.size, :>=, 80
      assert_equal 10_000, requests.size
      routes.each do |plural|
        assert_path_exists File.join(directory, "app/controllers/#{plural}_controller.rb")
        assert_path_exists File.join(directory, "app/models/#{plural.delete_suffix("s")}.rb")
        [%r{\AGET /#{plural}\?}, %r{\AGET /#{plural}/\d+\?}, %r{\AGET /#{plural}/\d+\.json},
         %r{\AGET /#{plural}/\d+/report}, %r{\AGET /#{plural}/summary},
         %r{\APOST /#{plural} }, %r{\APATCH /#{plural}/\d+ }].each do |pattern|
          assert requests.first(1_100).any?(pattern), "no request is #{pattern.inspect}"
        end
      end
    end
  end

  def test_the_generated_files_are_valid_ruby_and_yaml
    generate("rails") do |directory, _|
      files = Dir[File.join(directory, "{app,config,db}/**/*.rb")]
      assert_operator files.size, :>, 170
      script = "ARGV.each { |file| RubyVM::InstructionSequence.compile(File.read(file), file) }"
      output, status = Open3.capture2e(RbConfig.ruby, "-w", "-e", script, *files)
      assert_predicate status, :success?, output
      assert_equal "", output
      Dir[File.join(directory, "config/locales/*.yml")].each do |file|
        assert_kind_of Hash, YAML.safe_load_file(file), file
      end
    end
  end

  def test_the_same_files_at_every_call
    %w[rails rack].each do |name|
      generate(name) do |first, _|
        generate(name) do |second, _|
          output, status = Open3.capture2e("diff", "-r", first, second)
          assert_predicate status, :success?, output
        end
      end
    end
  end
end

class TestServersCommand < Minitest::Test
  include BenchmarkTest

  def test_every_mistake_is_one_line
    assert_refused(/no ruby to measure/, "run-servers")
    assert_refused(/--ruby wants NAME=PATH, not x/, "run-servers", "--ruby", "x")
    assert_refused(/--server: no such: thin \(there are unicorn/, "run-servers", "--server", "thin")
    assert_refused(/not understood: more/, "run-servers", "more")
    assert_refused(/--stops wants numbers that grow/, "run-servers", "--stops", "100,50")
    assert_refused(/--stops wants a number above 0/, "run-servers", "--stops", "100,x")
    ["cow", "cow+off", "cow+off:A", "cow+off:=1"].each do |text|
      assert_refused(/--env wants NAME:KEY=VALUE, not #{Regexp.escape(text)}/, "run-servers", "--env", text)
    end
    skip "wrk is not installed (Debian package wrk)" if Wrk.missing

    assert_refused(/no such file/, "run-servers", "--ruby", "a=/nowhere/ruby")
    assert_refused(/--env names no build: b \(there are a\)/, "run-servers", "--ruby", "a=#{RUBY}", "--env",
                   "b:A=1")
  end

  def test_list
    out, _, status = command("run-servers", "--list", "--server", "puma", "--app", "rack", "--warmup",
                             "on,off")
    assert_predicate status, :success?
    assert_equal %w[curve-rack-puma-warmup-glibc-yjit curve-rack-puma-cold-glibc-yjit], out.split
  end

  # The runs that a report shows may be those of several calls.
  def test_results_name_the_commits_and_commands_of_their_runs
    BenchmarkTest.load("lib/servers/servers_command")
    runs = [%w[a x], %w[b x], %w[a y]].map do |commit, call|
      { "machine" => { "commit" => commit }, "command" => call }
    end
    command = ServersCommand.new(["--quick"])
    command.instance_variable_set(:@output, "/tmp/servers")
    assert_equal ["servers", "a, b", %w[x y]], command.send(:facts, runs).values_at(:name, :commit, :commands)
    assert_equal ["benchmark/run-servers --quick"], command.send(:facts, [])[:commands]
  end

  # A command for two builds, whose runs go to +directory+.
  def servers_command(directory, *arguments)
    BenchmarkTest.load("lib/servers/servers_command")
    builds = %w[stock cow].map do |name|
      BenchmarkTest::Named.new(name, "ruby 3", { "name" => "glibc" }, {}, 1)
    end
    builds.each { |build| def build.path = RbConfig.ruby }
    command = ServersCommand.new([])
    command.send(:parser).parse(["--server", "puma,unicorn", *arguments])
    { builds: builds, output: directory, omissions: [], progress: Progress.new(StringIO.new) }
      .each { |name, value| command.instance_variable_set("@#{name}", value) }
    command
  end

  def order(command, round)
    command.send(:jobs, round).map { |setting, builds| [setting.server, *builds.map(&:name)] }
  end

  def test_builds_take_turns_at_being_the_first
    Dir.mktmpdir do |directory|
      command = servers_command(directory)
      straight, back = [%w[puma stock], %w[puma cow]], [%w[unicorn cow], %w[unicorn stock]]
      assert_equal straight + back, order(command, 1)
      assert_equal straight.reverse + back.reverse, order(command, 2)
      command = servers_command(directory, "--measure", "speed")
      assert_equal [%w[puma stock cow], %w[unicorn stock cow]], order(command, 2)
    end
  end

  def test_the_tables_name_what_was_left_when_the_time_was_over
    Dir.mktmpdir do |directory|
      command = servers_command(directory, "--runs", "2", "--measure", "pages")
      command.instance_variable_set(:@minutes, -1)
      command.send(:run_all)
      builds, omissions = %i[@builds @omissions].map { |name| command.instance_variable_get(name) }
      over = "-1 minutes were over; call it again to go on"
      names = ["puma, warmup, glibc, pages, stock", "puma, warmup, glibc, pages, cow",
               "unicorn, warmup, glibc, pages, cow", "unicorn, warmup, glibc, pages, stock"]
      names = names.map { |name| "rails: #{name}" }.join("; ")
      assert_equal ["- skipped: 4 runs of round 1: #{over}: #{names}\n",
                    "- skipped: 4 runs of round 2: #{over}\n"],
                   ServerReport.of(FACTS, builds, [], omissions).markdown.lines.last(2)
    end
  end

  # benchmark/run-servers as a whole, with one server. A second call repeats nothing.
  def test_one_server
    name, ruby = INSTALLED
    Dir.mktmpdir do |directory|
      arguments = ["--ruby", "#{name}=#{ruby}", "--quick", "--server", "puma", "--app", "rack", "--output",
                   directory]
      out, errors, status = command("run-servers", *arguments)
      reason = errors[/^benchmark.run-servers: (wrk is not.*)/, 1] || out[/^skipped: (.*)/, 1]
      skip reason if reason

      assert_predicate status, :success?, errors + out
      run = JSON.parse(File.read(Dir[File.join(directory, "runs/*.json")].first))
      assert_equal [0, 40], run["points"].map { |point| point["requests"] }
      assert_equal 4, run["points"].last["processes"].count { |process| process["worker"] }
      assert_equal 0, run["loads"].first["errors"]
      assert_operator run["first_fork"], :>, 0
      assert_match(%r{\Abenchmark/run-servers --ruby #{name}=}, run["command"])
      assert_match(/^puma, warmup, glibc, after 40 +[\d.]+$/, out)
      # A worker that init has not yet waited for is a zombie: it has ended.
      run["points"].last["processes"].each { |process| refute ProcessTable.alive?(process["pid"]) }

      _, errors, status = command("run-servers", *arguments)
      assert_predicate status, :success?, errors
      refute_match(/round 1, 1 of/, errors)
    end
  end
end

# Two servers at once, the second of the same ruby in another environment.
class TestSideBySide < Minitest::Test
  include BenchmarkTest

  def test_both_play_the_same_requests
    name, ruby = INSTALLED
    Dir.mktmpdir do |directory|
      rubies = ["--ruby", "#{name}=#{ruby}", "--ruby", "#{name}+more=#{ruby}"]
      out, errors, status = command("run-servers", *rubies, "--env", "#{name}+more:MORE=1",
                                    "--stops", "300,400", "--measure", "speed", "--server", "puma",
                                    "--app", "rack", "--output", directory)
      reason = errors[/^benchmark.run-servers: (wrk is not.*)/, 1] || out[/^skipped: (.*)/, 1]
      skip reason if reason

      assert_predicate status, :success?, errors + out
      runs = Dir[File.join(directory, "runs/*.json")].sort.map { |file| JSON.parse(File.read(file)) }
      assert_equal ["#{name}+more", name], runs.map { |run| run["build"] }
      runs.each do |run|
        assert_equal [[0, 300], [300, 400]], run["loads"].map { |load| load.values_at("from", "to") }
        assert_operator run["loads"].first["requests"], :>=, 300
      end
      assert_match(/^#{name}\+more: .* MORE=1$/, out)
      assert_match(/^puma, warmup, glibc, 300 to 400 +[\d.]+ +[\d.]+ +[\d.]+$/, out)
    end
  end
end

# The file that is loaded into all processes of a server, to measure the first fork of each.
class TestForkTime < Minitest::Test
  include BenchmarkTest

  SCRIPT = <<~'RUBY'
    puts $$
    2.times { Process.wait(fork { exit!(0) }) }
    Process.wait(fork { Process.wait(fork { exit!(0) }) })
  RUBY

  def test_the_first_fork_of_each_process_is_printed_once
    out, errors, status = Open3.capture3(RUBY, "-r#{Server::FORK_TIME}", "-e", SCRIPT)
    assert_predicate status, :success?, errors
    skip "rubies before 3.1 have no Process._fork" if errors.empty?

    lines = errors.lines.map { |line| line[/\Afirst fork of (\d+): \d+\.\d+ ms\n\z/, 1].to_i }
    assert_equal 2, lines.size, errors
    assert_equal out.to_i, lines.first
    refute_equal out.to_i, lines.last
  end
end

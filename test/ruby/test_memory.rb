# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"
require_relative "recorded_proc"
require_relative "../../lib/cowruby/memory/explanation"
require_relative "../../lib/cowruby/memory/prometheus"
require_relative "../../lib/cowruby/memory/servers"
require_relative "../../lib/cowruby/memory/text"
require "json"
require "minitest/mock"

# What lib/cowruby/memory reads from /proc: made-up processes, and real forks.
class TestMemory < Minitest::Test
  include CowTest
  Memory = CowRuby::Memory
  KB = 1_024

  def recorded(&block)
    RecordedProc.with(&block)
  end

  def observer(proc, pid = 100)
    Memory::Observer.new(pid, procfs: proc.procfs)
  end

  def test_a_server_in_numbers
    recorded do |proc|
      report = observer(proc.puma, 102).look.to_h
      assert_equal [1, 100, 3, 0], report.values_at(:schema, :root_pid, :process_count, :unreadable_count)
      assert_equal [600 * KB, 280 * KB, 1050 * KB, 0],
                   report.values_at(:pss_bytes, :private_bytes, :resident_bytes, :swap_bytes)
      assert_equal [[100, "master", nil, 0], [101, "worker", 0, 1], [102, "worker", 1, 1]],
                   report[:processes].map { |process| process.values_at(:pid, :role, :index, :depth) }
      assert_equal [110 * KB, 100 * KB, 240 * KB, 300 * KB, 200 * KB],
                   report[:processes].last.values_at(:private_bytes, :private_dirty_bytes, :shared_bytes,
                                                     :inherited_bytes, :inherited_shared_bytes)
      assert_nil report[:processes].first[:inherited_bytes]
      assert_equal report, JSON.parse(JSON.generate(report), symbolize_names: true)
    end
  end

  # What makes --watch cheap: a file of each process, once all are known.
  def test_a_look_reads_one_file_of_each_process
    recorded do |proc|
      found = observer(proc.puma(16))
      found.look
      proc.add(900, 1, "cron", image: 9)
      2.times do |i|
        proc.procfs.opened.clear
        found.look
        news = i.zero? ? [[900, "stat"]] : []
        assert_equal news + (100..116).map { |pid| [pid, "smaps_rollup"] }, proc.procfs.opened
      end
    end
  end

  # Where there is no time to read all, they take turns.
  def test_a_look_that_must_be_short
    recorded do |proc|
      found = observer(proc.puma(3))
      assert_empty found.look(seconds: 0).notes, "all are new"
      proc.add(200, 100, "puma: cluster worker 3: 100 [shop]")
      turns = Array.new(5) do
        proc.procfs.opened.clear
        report = found.look(seconds: 0)
        assert_equal 5, report.rows.size
        assert_match(/\AThe figures of \d processes are of an earlier look/, report.notes.join)
        proc.procfs.opened.select { |_, name| name == "smaps_rollup" }.map(&:first)
      end
      assert_equal [[200, 100], [101], [102], [103], [200]], turns
      assert_equal 5 * 200 * KB, found.look(seconds: 60).sum(:pss)
    end
  end

  def test_workers_that_come_and_go
    recorded do |proc|
      found = observer(proc.puma)
      found.look
      proc.remove(101)
      proc.add(105, 100, "puma: cluster worker 0: 100 [shop]")
      assert_equal([100, 102, 105], found.look.rows.map { |row| row.member.pid })
      proc.remove(100)
      error = assert_raises(Memory::Gone) { found.look }
      assert_equal "process 100 has ended", error.message
    end
  end

  # Another process has got the master's number. All is read anew from time to time.
  def test_a_number_that_is_used_again
    recorded do |proc|
      found = observer(proc.puma)
      proc.add(100, 1, "vi", image: 3, started: 999)
      assert_raises(Memory::Gone) { Memory::ProcessTree::REREAD.times { found.look } }
    end
  end

  # Between the list of processes and the reading.
  def test_a_worker_that_ends_during_the_look
    recorded do |proc|
      found = observer(proc.puma)
      File.unlink(File.join(proc.root, "101/smaps_rollup"), File.join(proc.root, "101/status"))
      assert_equal([100, 102], found.look.rows.map { |row| row.member.pid })
    end
  end

  def test_the_master_is_found_from_below_and_not_too_high
    recorded do |proc|
      proc.puma
      proc.add(1, 0, "foreman", image: 7) # the same program, and the parent by a fork
      assert_equal 1, observer(proc, 102).root
      proc.add(1, 0, "foreman", image: 8)
      assert_equal 100, observer(proc, 102).root
      assert_equal 1, observer(proc, 1).root
      proc.add(102, 100, "puma: cluster worker 1", image: nil)
      assert_equal 102, observer(proc, 102).root
    end
  end

  def test_nested_forks_and_other_programs
    recorded do |proc|
      proc.puma
      proc.add(103, 101, "puma: cluster worker 2: 101 [shop]")
      proc.add(104, 100, "/usr/bin/convert a.png", image: 30)
      members = observer(proc).look.rows.map(&:member)
      assert_equal [[100, 0], [101, 1], [103, 2], [102, 1], [104, 1]],
                   (members.map { |member| [member.pid, member.depth] })
      assert_equal %w[master worker worker worker other], members.map(&:role)
      assert_equal [nil, 100, 101, 100, nil], members.map(&:origin)
    end
  end

  # The kernel has made the monitor the parent of the mold's children.
  def test_a_reforking_pitchfork
    recorded do |proc|
      proc.add(100, 1, "pitchfork monitor")
      proc.add(101, 100, "pitchfork (gen:1) mold", private_dirty: 500)
      proc.add(102, 100, "pitchfork (gen:1) worker[0] - requests: 5")
      rows = observer(proc).look.rows
      assert_equal [%w[master mold worker], [nil, nil, "0"], [nil, 100, 101]],
                   [rows.map { |row| row.member.role }, rows.map { |row| row.member.index },
                    rows.map { |row| row.member.origin }]
      assert_equal 700 * KB, rows.last.at_fork
    end
  end

  def test_what_a_master_noted_before_the_fork
    recorded do |proc|
      rows = observer(proc.puma).look(noted: { 100 => 220 * KB }).rows
      assert_equal [220 * KB, 200 * KB], [rows.last.at_fork, rows.last.still_shared]
    end
  end

  def test_zombies_are_left_out
    recorded do |proc|
      proc.puma.add(102, 100, "", state: "X")
      assert_equal 2, observer(proc).look.rows.size
      proc.puma.add(102, 100, "", state: "Z")
      assert_equal 2, observer(proc).look.rows.size
      error = assert_raises(Memory::Gone) { observer(proc, 102) }
      assert_equal "process 102 has ended", error.message
      error = assert_raises(Memory::Gone) { observer(proc, 5_000) }
      assert_equal "there is no process 5000", error.message
    end
  end

  # ---- what can be wrong with /proc

  # Before Linux 4.14.
  def test_no_smaps_rollup
    recorded do |proc|
      proc.puma
      File.unlink(File.join(proc.root, "101/smaps_rollup"))
      mappings = %w[1000-2000 3000-4000].map { |place| proc.rollup.sub("5500-7fff", place) }.join
      proc.write(101, "smaps", mappings)
      row = observer(proc).look.rows[1]
      assert_equal ["smaps", 220 * KB, 400 * KB],
                   [row.usage.source, row.usage.private_total, row.usage.shared_dirty]
      assert_includes observer(proc).look.notes.join, "smaps was read of process 101"
    end
  end

  def test_smaps_rollup_that_is_not_understood
    ["", "Rss: many kB\nPss: 5 kB\n", "\xff\xfe\0", "Rss:                   5 kB\n"].each do |text|
      recorded do |proc|
        proc.puma.write(101, "smaps_rollup", text)
        look = observer(proc).look
        assert_equal ["status", 400 * KB, nil, nil],
                     look.rows[1].usage.to_h.values_at(:source, :rss, :pss, :private_dirty), text.inspect
        assert_equal [101], (look.unreadable.map { |row| row.member.pid })
        assert_equal 400 * KB, look.sum(:pss), "the others are there"
        assert_match(/could not be read what process 101 shared/, look.notes.first)
      end
    end
  end

  # Linux before 4.3 has no SwapPss. What is not said is not 0.
  def test_fields_that_an_old_kernel_does_not_have
    recorded do |proc|
      text = proc.puma.rollup(swap: 30).sub(/^SwapPss:.*\n/, "").sub(/^AnonHugePages:.*\n/, "")
      (100..102).each { |pid| proc.write(pid, "smaps_rollup", text) }
      report = observer(proc).look
      assert_equal [90 * KB, 30 * KB, nil], [report.swap, *report.to_h[:processes].last
                                                               .values_at(:swap_bytes, :huge_page_bytes)]
      assert_match(/swapped out/, report.notes.join)
    end
  end

  # Memory that processes share on purpose, as caches do, was not inherited.
  def test_shared_memory_is_not_what_a_worker_still_shares
    recorded do |proc|
      proc.puma.write(102, "smaps_rollup", proc.rollup(shared_dirty: 800, anonymous: 130))
      row = observer(proc).look.rows.last
      assert_equal [300 * KB, 30 * KB, 840 * KB], [row.at_fork, row.still_shared, row.usage.shared_total]
    end
  end

  def test_a_thread_of_the_kernel
    recorded do |proc|
      proc.add(2, 0, "", image: nil)
      proc.write(2, "smaps_rollup", "")
      proc.write(2, "status", "Name:\tkthreadd\nState:\tS (sleeping)\n")
      error = assert_raises(Memory::Gone) { observer(proc, 2).look }
      assert_equal "process 2 has no memory: it is ending, or a thread of the kernel", error.message
    end
  end

  # The files are read one after the other; meanwhile a number may be given to another process.
  def test_parents_that_are_a_circle
    recorded do |proc|
      proc.puma.add(100, 102, "puma 6.4.2 (tcp://0.0.0.0:9292) [shop]")
      proc.add(103, 103, "puma: cluster worker 3: 100 [shop]")
      tree = Memory::ProcessTree.new(proc.procfs).refresh
      Timeout.timeout(20) do
        [100, 101, 102, 103].each do |pid|
          assert_includes (100..103), tree.root_of(pid)
          assert_includes tree.members(pid).map(&:pid), pid
          assert_operator tree.ancestors(pid).size, :<=, 3
        end
      end
    end
  end

  def test_no_right_to_read
    recorded do |proc|
      proc.puma.procfs.denied.push("smaps_rollup", "smaps")
      report = observer(proc).look.to_h
      assert_equal [3, 0, 1200 * KB, 24 * KB],
                   report.values_at(:unreadable_count, :pss_bytes, :resident_bytes, :swap_bytes)
      assert_equal [nil, 400 * KB], report[:processes].last.values_at(:private_bytes, :resident_bytes)
    end
  end

  def test_another_system
    Dir.mktmpdir do |directory|
      error = assert_raises(Memory::Unsupported) { Memory::Procfs.new(directory).check }
      assert_match(/no Linux/, error.message)
    end
  end

  # A hook before a fork ends no server, on whatever system it is developed.
  def test_what_cannot_be_noted_before_a_fork
    recorded do |proc|
      lines = [proc.puma.procfs, Memory::Procfs.new("/nowhere")].map do |procfs|
        Memory.before_fork(procfs: procfs)
      end
      assert_equal ["cowruby: process #{Process.pid} forks with memory of which /proc does not say how " \
                    "much it is"], lines.uniq
    end
    full = Memory::Procfs.new
    def full.read(*) = raise(Errno::EMFILE)
    assert_match(/ forks with memory of which /, Memory.before_fork(procfs: full))
    assert_match(/ forks with [\d,.]+ MB of memory /, Memory.before_fork)
  ensure
    Memory.instance_variable_set(:@noted, {}.freeze)
  end

  # On 6dc0c16 a report was a Ractor::IsolationError there.
  def test_a_report_in_a_ractor
    out = run_ruby(<<~'RUBY', LIBRARY, options: ["-W0"])
      require ARGV[0]
      kept = Array.new(1_000) { "x" * 1_000 }
      CowRuby::Memory.before_fork
      pid = fork do
        inherited = lambda do |report|
          report[:processes].find { |process| process[:pid] == Process.pid }[:inherited_bytes]
        end
        here = inherited.call(CowRuby::Memory.report)
        there = inherited.call(Ractor.new { CowRuby::Memory.report }.take)
        line = Ractor.new { CowRuby::Memory.before_fork }.take
        puts here.positive?, here == there, line.match?(/ forks with [\d,.]+ MB of memory /)
      end
      Process.wait(pid)
    RUBY
    assert_equal %w[true true true], out.lines(chomp: true)
  end

  # ---- servers by name

  TITLES = {
    "puma" => ["puma 6.4.2 (tcp://0.0.0.0:9292) [app]", "/usr/bin/ruby3.1\0/x/puma\0-C\0puma.rb",
               "ruby\0/usr/bin/bundle\0exec\0puma", "ruby\0-w\0/x/bin/puma"],
    "unicorn" => ["unicorn master -c u.rb", "unicorn_rails master", "ruby\0/x/unicorn_rails"],
    "pitchfork" => ["pitchfork monitor -c p.rb"],
    "passenger" => ["Passenger AppPreloader: /srv/app"],
    "apache" => ["/usr/sbin/apache2\0-k\0start", "httpd\0-X"],
    "solid_queue" => ["solid-queue-supervisor(1.1.0): supervising 5, 6"],
    "sidekiq" => ["sidekiq 7.2 app [0 of 5 busy]", "ruby\0/x/bin/sidekiqswarm"]
  }.freeze
  OTHERS = ["vim\0puma.rb", "sudo\0puma", "ruby\0cowruby-memory\0--server\0puma", "sh\0-c\0unicorn",
            "ruby\0-Ilib\0bin/cowruby-memory\0--server\0sidekiq", "", "grep\0sidekiq"].freeze

  def test_servers_are_known_by_their_titles_and_programs
    assert_equal Memory::Servers::ALL.keys, TITLES.keys
    TITLES.each do |name, titles|
      recorded do |proc|
        (titles + OTHERS).each_with_index { |title, i| proc.add(10 + i, 1, title, image: i + 2) }
        tree = Memory::ProcessTree.new(proc.procfs).refresh
        assert_equal (10...10 + titles.size).to_a, Memory::Servers.masters(name, proc.procfs, tree).keys, name
      end
    end
  end

  # Unicorn is being upgraded: its new master is a program that the old one has started.
  def test_a_server_within_a_server_is_one
    recorded do |proc|
      proc.add(100, 1, "unicorn master (old)")
      proc.add(101, 100, "unicorn worker[0]")
      proc.add(102, 100, "unicorn master", image: 20)
      proc.add(103, 102, "unicorn worker[0]", image: 20)
      tree = Memory::ProcessTree.new(proc.procfs).refresh
      assert_equal({ 100 => "unicorn master (old)" }, Memory::Servers.masters("unicorn", proc.procfs, tree))
      rows = observer(proc).look.rows
      assert_equal %w[master worker other worker], rows.map { |row| row.member.role }
      assert_equal 102, rows.last.member.origin
    end
  end

  # ---- how it is printed

  def test_the_table
    recorded do |proc|
      proc.puma.add(101, 100, "puma: cluster worker 0: 100 [a shop with a long name]", shared_dirty: 100)
      text = Memory::Text.new(observer(proc).look).to_s
      assert_match(/^ +100 puma 6\.4\.2 .* +0\.1 +0\.3 +0\.2 +0\.0$/, text)
      assert_match(/^ +101   puma: cluster worker 0: 100 \[a.*\.\.\. .* 0\.1 of 0\.3 \(33 %\)$/, text)
      assert_match(/^ +102   puma: cluster worker 1: .*0\.1 +0\.2 +0\.2 +0\.0   0\.2 of 0\.3 \(67 %\)$/, text)
      assert_match(/^ +total 3 processes +0\.3 +- +0\.6 +0\.0$/, text)
      assert_includes text, "takes 0.6 MB: the sum of Pss. The sum of RSS"
      assert_operator text.lines.map(&:size).max, :<=, 120
      refute_includes text, "\e"
      coloured = Memory::Text.new(observer(proc).look, colour: true).to_s
      assert_equal text, coloured.gsub(/\e\[\d*m/, "")
      assert_equal 3, coloured.scan("\e[0m").size, "head, total, and the worker that shares less than half"
    end
  end

  def test_a_title_of_any_bytes
    recorded do |proc|
      proc.puma.add(102, 100, "\e[2J\xff worker[3]\n x")
      report = observer(proc).look
      assert_equal ["?", "3"], [report.rows.last.member.title[/\?/], report.rows.last.member.index]
      refute_match(/[\e\n]/, report.rows.last.member.title)
      assert JSON.generate(report.to_h)
    end
  end

  def test_sizes_for_people
    assert_equal ["0.0 MB", "1.5 MB", "1,234.0 MB", "12,345,678.0 MB", "-"],
                 [0, 3 << 19, 1_234 << 20, 12_345_678 << 20, nil].map { |bytes| Memory.megabytes(bytes) }
  end

  METRIC = /\A(?:# (?:HELP|TYPE) (?<name>[a-z_]+) .+|(?<sample>[a-z_]+)(?:\{(?:\w+="[\w.]*",?)+\})? \d+)\z/

  def test_prometheus
    recorded do |proc|
      text = Memory::Prometheus.text(observer(proc.puma).look)
      lines = text.lines(chomp: true).map { |line| METRIC.match(line) || flunk("no metric: #{line}") }
      named = lines.map { |match| match[:name] }.compact.tally
      assert_equal [2], named.values.uniq, "HELP and TYPE of each, once"
      assert_empty lines.map { |match| match[:sample] }.compact.uniq - named.keys
      assert_includes text, %(cowruby_process_private_bytes{pid="101",role="worker",index="0"} #{110 * KB}\n)
      assert_includes text, %(cowruby_process_private_bytes{pid="100",role="master",index=""} #{60 * KB}\n)
      refute_includes text, %(inherited_bytes{pid="100")
      assert_includes text, "cowruby_server_up 1\n"
      assert_includes text, "cowruby_server_pss_bytes #{600 * KB}\n"
      assert_match(/\A# HELP cowruby_server_up .*\n# TYPE cowruby_server_up gauge\ncowruby_server_up 0\n\z/,
                   Memory::Prometheus.text(nil))
    end
  end

  # ---- what stands out

  Tally = Memory::LostPages::Tally

  def findings(kinds, environment: "", huge_pages: "always [madvise] never", huge: 0, cowruby: true)
    recorded do |proc|
      proc.puma.write(100, "environ", environment)
      file = File.join(proc.root, "enabled")
      File.write(file, huge_pages)
      worker = observer(proc).look.rows.last
      worker.usage.huge = huge
      Memory::Surroundings.new(worker, kinds, proc.procfs, cowruby: cowruby, huge_pages: file).findings
    end
  end

  SHARED = { "malloc" => Tally.new(90 << 20, 10 << 20, 50 << 20),
             "files" => Tally.new(500 << 20, 0, 0) }.freeze

  def test_findings
    shared = SHARED
    assert_empty findings(shared, environment: "RUBY_GC_SEAL=auto\0HOME=/\0RUBY_GC_FORK_NURSERY=1\0=x\0")
    alone = { "malloc" => Tally.new(9 << 20, 1 << 20, 50 << 20) }
    assert_match(/loaded before the fork/, findings(alone).join)
    assert_match(/huge pages are in use \(64 MB/, findings(shared, huge: 64 << 20).join)
    assert_match(/huge pages are in use\. /, findings(shared, huge_pages: "[always] madvise never").join)
    set = findings(shared, environment: "SECRET=1\0RUBY_GC_SEAL=off\0RUBY_GC_HEAP_FREE_SLOTS=10000\0")
    assert_equal(%w[RUBY_GC_SEAL=off RUBY_GC_HEAP_FREE_SLOTS=10000], set.map { |text| text.split.first })
    set = findings(shared, environment: "RUBY_GC_HEAP_FREE_SLOTS=\n#{"9" * 99}\0".b)
    assert_equal ["RUBY_GC_HEAP_FREE_SLOTS= #{"9" * 39} is set:"], set.map { |text| text[/.*set:/] }
    odd = "RUBY_GC_HEAP_FREE_SLOTS=\e]0;x\a\xff9\0RUBY_GC_SEAL=\xff\0".b
    assert_empty findings(shared, environment: odd)
  end

  # CowRuby's variables do nothing on another ruby, and CRuby's settings are its own.
  def test_variables_of_another_ruby
    environment = "RUBY_GC_SEAL=off\0RUBY_GC_HEAP_FREE_SLOTS=10000\0RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO=0.5\0"
    assert_equal 3, findings(SHARED, environment: environment).size
    assert_empty findings(SHARED, environment: environment, cowruby: false)
    { true => 3, nil => 3, false => 0 }.each do |cowruby, count|
      lost = Struct.new(:tallies, :cowruby, :gc_pages_unknown?).new(SHARED, cowruby, false)
      recorded do |proc|
        proc.puma.write(100, "environ", environment)
        found = Memory::LostPages.stub(:new, lost) do
          Memory::Explanation.new(observer(proc).look, 102, procfs: proc.procfs).to_h[:findings]
        end
        assert_equal count, found.grep(/ is set: /).size, "where CowRuby is #{cowruby.inspect}"
      end
    end
  end

  # As ruby takes the values or ignores them; -w says which.
  def test_settings_of_free_slots_that_ruby_ignores
    values = { "" => %w[1 10000 0x1f 010 4k 4M +7], "_MIN_RATIO" => %w[0.1 1 1e-1 .5 1.],
               "_GOAL_RATIO" => %w[0 0.0 0.21 0.65], "_MAX_RATIO" => %w[0.21 1.0] }
    ignored = { "" => %w[abc 0 0x0 000 -5 08 5x 4kb 1_0 1.5 k 4\ k],
                "_MIN_RATIO" => %w[abc 0 0.0 -0.1 1.1 0.1x 1_0],
                "_GOAL_RATIO" => %w[abc 0.2 0.7 -1], "_MAX_RATIO" => %w[abc 0 0.2 1.5] }
    [values, ignored].each_with_index do |list, i|
      list.each do |part, texts|
        texts.each do |text|
          name = "RUBY_GC_HEAP_FREE_SLOTS#{part}"
          found = findings(SHARED, environment: "#{name}=#{text}\0")
          assert_equal [1, 0][i], found.size, "#{name}=#{text}"
          told, = Open3.capture2e({ name => text }, RUBY, "--disable-gems", "-w", "-e", "")
          assert_equal i, told.scan(/ignored|invalid/).size, "#{name}=#{text}: #{told}"
        end
      end
    end
    environment = %w[MIN=0.05 GOAL=0.07 MAX=0.1].map { |text| "RUBY_GC_HEAP_FREE_SLOTS_#{text}" }
    environment = environment.map { |text| text.sub("=", "_RATIO=") }
    assert_equal 3, findings(SHARED, environment: environment.join("\0")).size
    assert_empty findings(SHARED, environment: environment.last)
  end

  def test_each_kind_of_memory_has_a_cause
    assert_equal Memory::PageKinds::ALL, Memory::Explanation::CAUSES.keys
  end

  # ---- real processes

  LIBRARY = File.join(ROOT, "lib/cowruby/memory").freeze

  # A master with 16 MB of strings and two workers, of which one has changed half of it. The workers print.
  SERVER = <<~'RUBY'
    require ENV.fetch("LIBRARY")
    require "json"
    inherited = Array.new(16) { "x" * (1 << 20) }
    $0 = "unicorn master -c of_a_test"
    line = CowRuby::Memory.before_fork
    workers = 2.times.map do |i|
      out, inn = IO.pipe
      back, go = IO.pipe
      fork do
        $0 = "unicorn worker[#{i}] -c of_a_test"
        inherited.first(8 * i).each { |text| (0...1 << 20).step(4096) { |at| text.setbyte(at, 7) } }
        inn.puts "ready"
        back.gets
        inn.puts JSON.generate(CowRuby::Memory.report)
        back.gets
        exit!(0)
      end
      [out, go]
    end
    workers.each { |out, _| out.gets }
    workers.each { |_, go| go.puts }
    reports = workers.map { |out, _| JSON.parse(out.gets) }
    puts JSON.generate("line" => line, "master" => CowRuby::Memory.report, "workers" => reports)
    $stdout.flush
    gets
    workers.each { |_, go| go.puts }
  RUBY

  # Yields what the server printed while it waits.
  def with_server
    Open3.popen3({ "LIBRARY" => LIBRARY }, RUBY, "-e", SERVER) do |input, output, errors, thread|
      line = output.gets
      flunk errors.read unless line
      yield JSON.parse(line), thread.pid
      input.close
    end
  end

  def test_a_report_from_inside_a_worker
    with_server do |found, pid|
      found.fetch("workers").each do |report|
        assert_equal [pid, 3], report.values_at("root_pid", "process_count")
        assert_equal ["master", "worker", "worker"], report["processes"].map { |process| process["role"] }
        idle, busy = report["processes"].last(2)
        assert_operator busy["private_bytes"] - idle["private_bytes"], :>, 4 << 20 unless ASAN
        assert_operator idle["inherited_shared_bytes"], :>, 6 << 20
        assert_operator idle["inherited_bytes"], :>=, idle["inherited_shared_bytes"]
        assert_equal report["pss_bytes"], report["processes"].sum { |process| process["pss_bytes"] }
      end
      assert_match(/\Acowruby: process #{pid} forks with [\d,.]+ MB of memory .*: cowruby-memory #{pid}\z/,
                   found["line"])
    end
  end

  def test_an_explanation_of_a_real_worker
    with_server do |found, pid|
      begin
        Memory::AddressSpace.new(pid, contents: false).close
      rescue Memory::AddressSpace::Unreadable => e
        skip e.message
      end
      busy = found["master"]["processes"].last["pid"]
      report = Memory::Observer.new(pid).look
      explanation = Memory::Explanation.new(report, pid)
      assert_equal [busy, pid], explanation.to_h.values_at(:pid, :forked_from_pid) unless ASAN
      assert_equal !LOCATOR.nil?, explanation.to_h[:cowruby]
      kinds = Memory::Explanation.new(report, busy).to_h[:kinds].to_h { |kind| [kind[:kind], kind] }
      assert_in_delta 10 << 20, kinds.fetch("malloc")[:lost_bytes], 3 << 20 unless ASAN
      assert_match(/^malloc, .* lost: The worker/, Memory::Explanation.new(report, busy).to_s) unless ASAN
    end
  end

  # A library's name in another encoding than the locale's, and a line that says nothing.
  def test_maps_of_any_bytes
    lines = "1000-2000 r--p 00000000 08:01 5  /srv/\u00fc/a.so\n\n" \
            "3000-4000 rw-p 00000000 00:00 0 \nno mapping\n"
    [Encoding::US_ASCII, Encoding::UTF_8, Encoding::BINARY].each do |encoding|
      mappings = Memory::AddressSpace.parse(lines.dup.force_encoding(encoding))
      assert_equal [[0x1000, true], [0x3000, false]],
                   (mappings.map { |mapping| [mapping.first, mapping.file] }), encoding.name
    end
  end

  # Address space that is only reserved, as other languages' machines do by the terabyte, has no pages.
  def test_a_huge_reservation
    space = Memory::AddressSpace.new(Process.pid, contents: false)
    reads = 0
    holes = ->(bits) { ->(size, _) { reads += 1 and [bits].pack("Q") * (size / 8) } }
    mapping = Memory::AddressSpace::Mapping.new(1 << 44, 5 << 42, "---p", "", false)
    file = space.instance_variable_get(:@pagemap)
    # With soft-dirty bits the kernel says of each page of a new mapping that it was written to.
    [0, 1 << 55].each do |bits|
      file.define_singleton_method(:pread, &holes.call(bits))
      Timeout.timeout(60) { space.each_page(mapping) { flunk "a page" } }
    end
    assert_equal 2 * (4 << 40) / Memory::AddressSpace::PAGE / Memory::AddressSpace::AT_A_TIME, reads
    rest = [1 << 55] * 511 + [1 << 63 | 7]
    file.define_singleton_method(:pread) { |size, _| (rest * (size / 4096)).pack("Q*") }
    found = []
    space.each_page(mapping.dup.tap { |one| one.last = one.first + (2 << 20) }) { |*page| found << page }
    assert_equal [[(1 << 44) + 511 * 4096, 1 << 63 | 7]], found
  rescue Memory::AddressSpace::Unreadable => e
    skip e.message
  ensure
    space&.close
  end

  # Behind the variables of a library the kernel maps whatever comes next, and makes one mapping of both.
  BEHIND_A_LIBRARY = <<~'RUBY'
    require "fiddle"
    pointer, integer, size = Fiddle::TYPE_VOIDP, Fiddle::TYPE_INT, Fiddle::TYPE_SIZE_T
    map = Fiddle::Function.new(Fiddle.dlopen(nil)["mmap"],
                               [pointer, size, integer, integer, integer, size], pointer)
    maps = File.foreach("/proc/self/maps").map do |line|
      [*line.split[0].split("-").map(&:hex), *line.split(" ", 6)[1..].map(&:chomp)]
    end
    # A mapping of variables, those without a first value behind it, and then a hole.
    found = maps.each_cons(3).select do |file, zeroes, above|
      file[2] == "rw-p" && file[6].start_with?("/") && zeroes[2] == "rw-p" && zeroes[6].to_s.empty? &&
        file[1] == zeroes[0] && above[0] - zeroes[1] >= 8192
    end
    file, zeroes, = found.first || exit
    private_anonymous_there = 0x100022
    address = map.call(zeroes[1], 8192, 3, private_anonymous_there, -1, 0)
    exit unless address.to_i == zeroes[1]
    address[0, 8192] = "x" * 8192
    puts [$$, file[0], *zeroes.first(2)].join(" ")
    $stdout.flush
    gets
  RUBY

  def test_memory_behind_the_variables_of_a_library
    Open3.popen2(RUBY, "-e", BEHIND_A_LIBRARY) do |input, output, _|
      pid, file, first, last = output.gets.to_s.split.map(&:to_i)
      skip "no room behind a library" unless pid
      space = Memory::AddressSpace.new(pid, contents: false)
      kinds = Memory::PageKinds.new(space)
      of = ->(address) { kinds.of(address, space.mapping_of(address)) }
      assert_equal %w[files files files malloc malloc],
                   [file, first, last - 4096, last, last + 4096].map(&of)
      input.close
    rescue Memory::AddressSpace::Unreadable => e
      skip e.message
    ensure
      space&.close
    end
  end

  # Files that are no libraries, or that somebody has damaged.
  def test_an_end_of_variables_that_is_not_known
    Dir.mktmpdir do |directory|
      file = File.join(directory, "library.so")
      head = Memory::Elf::SIGN + [64, 56, 1].pack("x26 Q< x14 S<2 x6")
      segment = [1, 6, 0x1010, 0, 0, 0x500, 0x9000, 0x1000].pack("L<2Q<6")
      { head + segment => 0x7000 + 0x1010 + 0x9000 - 0x1000, head + segment[0, 55] => nil, head => nil,
        "" => nil, head[0, 63] => nil, head.sub("ELF\x02", "ELF\x01") + segment => nil,
        head + segment.sub([1, 6].pack("L<L<"), [1, 4].pack("L<L<")) => nil,
        head.sub([64].pack("Q<"), [1 << 63].pack("Q<")) + segment => nil }.each do |text, last|
        File.binwrite(file, text)
        found = Memory::Elf.end_of_variables(file, 0x1000, 0x7000)
        last ? assert_equal(last, found) : assert_nil(found)
      end
      assert_nil Memory::Elf.end_of_variables(file, 0x5000, 0x7000)
      File.mkfifo(fifo = File.join(directory, "fifo"))
      [fifo, directory, "/nowhere"].each do |path|
        assert_nil Timeout.timeout(20) { Memory::Elf.end_of_variables(path, 0x1000, 0x7000) }
      end
    end
  end

  def test_nothing_to_explain
    recorded do |proc|
      error = assert_raises(Memory::Error) do
        Memory::Explanation.new(observer(proc.puma(0)).look, 100, procfs: proc.procfs)
      end
      assert_match(/no forked child/, error.message)
    end
  end
end

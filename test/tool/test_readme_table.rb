# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "json"

class TestReadmeTable < Minitest::Test
  TOOL = File.join(ToolTest::TOP, "tool/readme-table")
  README = "# Name\n\nBefore.\n\n<!-- table: begin -->\nold\n<!-- table: end -->\n\nAfter.\n"
  BEST = { measure: "curve", app: "rails", malloc: "jemalloc", yjit: true, warmup: true,
           rehearsed: false }.freeze
  REHEARSED = { **BEST, warmup: false, rehearsed: true }.freeze

  def sample(build, server, values, run: 1, stamp: "ruby 3, 1 bytes", **setting)
    setting = { **BEST, server: server, **setting }
    rehearsal = "rehearsal: 3000 requests in 9.6 s (3000 with 200)" if setting[:rehearsed]
    raw = { setting: setting, points: [0, 4_000, 10_000].map { |requests| { requests: requests } },
            stamp: stamp, rehearsal: rehearsal }
    { benchmark: "rails", case: "any", build: build, run: run, outcome: { values: values, raw: raw } }
  end

  def samples(cow: 570.0)
    stock = { tree: 800.0, private: { "a" => 199.0 }, p99: 50.4, rate: 400.2, cpu: 8.04, first_fork: 12.4 }
    cow = { tree: cow, private: { "a" => 140.0 }, p99: 40.4, rate: 440.0, cpu: 8.0, first_fork: 140.2 }
    [
      sample("stock", "puma", stock), sample("cow", "puma", cow),
      sample("stock", "unicorn", { tree: 700.0 }), sample("stock", "unicorn", { tree: 900.0 }, run: 2),
      sample("cow", "unicorn", { tree: 350.0 }), sample("cow", "unicorn", { tree: 450.0 }, run: 2),
      # None of them is shown.
      sample("cow", "unicorn", { tree: 1.0 }, malloc: "glibc"), sample("stock", "passenger", { tree: 3.0 }),
      sample("other", "passenger", { tree: 4.0 })
    ]
  end

  def rehearsed
    [sample("stock", "puma", { tree: 700.0, private: { "b" => 150.0 } }, **REHEARSED),
     sample("cow", "puma", { tree: 400.2, private: { "b" => 85.0 } }, **REHEARSED)]
  end

  def store(directory, samples, date: "2026-02-02", commit: "c" * 40)
    results = File.join(directory, "results", "#{date}-#{commit[0, 12]}", "servers")
    FileUtils.mkdir_p(results)
    machine = { date: "#{date}T10:00:00Z", commit: commit, cores: 2, cpu: "a cpu" }
    builds = [["stock", "ruby 3.4.5"], ["cow", "ruby 3.4.5 +CowRuby 0.1"]].map do |name, version|
      { name: name, version: version }
    end
    raw = { machine: machine, builds: builds, samples: samples }
    File.write(File.join(results, "results.json"), JSON.generate(raw))
  end

  # Gives the document, what was said, and whether it went well.
  def fill(directory, *arguments, readme: README)
    file = File.join(directory, "README.md")
    File.write(file, readme) if readme
    out, status = Open3.capture2e(TOOL, "--results", File.join(directory, "results"), *arguments, file)
    [File.read(file), out, status.success?]
  end

  def test_the_table_of_the_newest_results
    Dir.mktmpdir do |directory|
      store(directory, samples(cow: 1.0), date: "2026-01-01", commit: "b" * 40)
      store(directory, samples)
      text, out, success = fill(directory)
      assert success, out
      assert_operator text.lines.map(&:length).max, :<=, 121
      lines = text.lines(chomp: true)
      below = lines.index("| Puma: the master's first fork | 12 ms | 140 ms | 11.31 |") + 2
      assert_equal <<~MD.lines(chomp: true), [*lines.take(below), "...", *lines.last(3)]
        # Name

        Before.

        <!-- table: begin -->
        |  | CRuby | CowRuby | ratio |
        | --- | ---: | ---: | ---: |
        | Puma: memory of the master and four workers | 800 MB | 570 MB | 0.71 |
        | Unicorn: memory of the master and four workers | 800 MB | 400 MB | 0.50 |
        | Puma: 99th percentile of a request's time, requests 4,000 to 10,000 | 50 ms | 40 ms | 0.80 |
        | Puma: throughput (more is better), requests 4,000 to 10,000 | 400 /s | 440 /s | 1.10 |
        | Puma: CPU time of a request | 8.0 ms | 8.0 ms | 1.00 |
        | Puma: the master's first fork | 12 ms | 140 ms | 11.31 |

        ...
        <!-- table: end -->

        After.
      MD
      assert_equal "Medians of 2 runs of 10,000 requests to Rails, both rubies with jemalloc and " \
                   "`Process.warmup` before the first fork, whose time leaves out the warmup's. Memory is " \
                   "the sum of Pss. A Puma worker has 199 MB of private memory on CRuby, 140 MB on " \
                   "CowRuby. Percentiles hold times that wrk has made up. Measured on 2026-02-02 at commit " \
                   "cccccccccccc, 2 cores (a cpu): [all tables]" \
                   "(results/2026-02-02-cccccccccccc/servers/tables.md).", lines[below..-4].join(" ")
    end
  end

  def test_with_a_rehearsal_both_rubies_have_one_more_column
    Dir.mktmpdir do |directory|
      store(directory, [*samples, *rehearsed])
      text, = fill(directory)
      assert_includes text, "|  | CRuby | CowRuby | ratio | CRuby, rehearsed | CowRuby, rehearsed |\n" \
                            "| --- |#{" ---: |" * 5}\n"
      assert_match(/^\| Puma: memory of the .* \| 800 MB \| 570 MB \| 0\.71 \| 700 MB \| 400 MB \|$/, text)
      assert_match(/^\| Unicorn: memory of the .* \| 800 MB \| 400 MB \| 0\.50 \| - \| - \|$/, text)
      text = text.tr("\n", " ")
      assert_includes text, "140 MB on CowRuby, rehearsed 150 MB and 85 MB. The rehearsal, in place of"
      assert_includes text, "requests of the same list; its 10 s are in no figure. Percentiles hold"
    end
  end

  def test_what_is_said_of_one_run_and_of_percentiles_without_additions
    Dir.mktmpdir do |directory|
      stamp = "ruby 3, 1 bytes, times of the answers alone"
      store(directory, %w[stock cow].map { |build| sample(build, "puma", { tree: 1.0 }, stamp: stamp) })
      text, out, success = fill(directory)
      assert success, out
      assert_includes text, "\nOne run of 10,000 requests to Rails, both rubies with jemalloc"
      refute_includes text, "wrk"
    end
  end

  def test_filled_twice_it_is_the_same_and_check_says_so
    Dir.mktmpdir do |directory|
      store(directory, samples)
      once, = fill(directory)
      assert_equal [once, "", true], fill(directory, "--check", readme: nil)
      store(directory, samples(cow: 500.0), date: "2026-03-03")
      text, out, success = fill(directory, "--check", readme: nil)
      assert_equal [once, false], [text, success]
      assert_match(/\Areadme-table: error: .*README.md does not show .*2026-03-03-c+.servers: run tool/, out)
    end
  end

  def test_what_cannot_be_filled_is_left
    Dir.mktmpdir do |directory|
      assert_refused(/there is no .*: store a run with benchmark.store/, fill(directory))
      store(directory, samples.last(3))
      assert_refused(/has no run of Rails with jemalloc and warmup/, fill(directory))
      store(directory, samples)
      outcome = fill(directory, readme: "none\n")
      assert_refused(/has no lines <!-- table: begin --> and <!-- table: end -->/, outcome, "none\n")
    end
    out, status = Open3.capture2e(TOOL, "/nowhere.md")
    assert_equal ["readme-table: error: no such file: /nowhere.md\n", false], [out, status.success?]
  end

  def assert_refused(message, outcome, readme = README)
    text, out, success = outcome
    assert_equal [readme, false, 1], [text, success, out.lines.size]
    assert_match message, out
  end
end

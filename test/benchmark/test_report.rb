# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
BenchmarkTest.load("lib/measure/runner")
BenchmarkTest.load("lib/measure/report")
require "json"

class TestReport < Minitest::Test
  include BenchmarkTest

  # A benchmark that is in no list, so that the programs do not run it.
  Example = Class.new do
    def self.title = "example"
    def self.summary = "an example"
    def self.synthetic? = true
    def self.charts(_samples) = []
    def self.metrics
      [Benchmark::Metric.new(key: :memory, title: "memory", unit: "MB", better: :less, digits: 1),
       Benchmark::Metric.new(key: :speed, title: "speed", unit: "1/s", better: :more, digits: 0),
       Benchmark::Metric.new(key: :extra, title: "what comes on top", unit: "MB", better: :less, digits: 1,
                             alone: true)]
    end
  end
  Finished = Struct.new(:samples, :omissions)

  def sample(build, run, values, kase = "a case")
    Runner::Sample.new(benchmark: "example", case: kase, build: build, run: run,
                       outcome: Benchmark::Outcome.new(values: values, raw: {}))
  end

  def report(samples, skipped = [], builds: %w[stock cow], layouts: 1)
    builds = builds.map do |name|
      BenchmarkTest::Named.new(name, "ruby 3", { "name" => "jemalloc" }, { "A" => "b" }, layouts)
    end
    Report.new(FACTS, builds, [Example], Finished.new(samples, skipped))
  end

  def samples
    [sample("stock", 1, { memory: { "x" => 10.0, "y | z" => 1.0 }, speed: 100 }),
     sample("cow", 1, { memory: { "x" => 5.0, "y | z" => 0 }, speed: 110 }),
     sample("stock", 2, { memory: { "x" => 20.0 }, speed: 100 }),
     sample("cow", 2, { memory: { "x" => 12.0 }, speed: 90 })]
  end

  def test_text
    memory, speed = report(samples).tables.map(&:to_text)
    assert_equal <<~TEXT, memory
      example: memory (MB, less is better, synthetic)
      an example

             stock  cow  ratio        spread
      -----  -----  ---  -----  ------------
      x       15.0  8.5   0.55  0.50 to 0.60
      y | z    1.0  0.0   0.00       one run
    TEXT
    assert_includes speed, "(1/s, more is better, synthetic)"
    assert_includes speed, "a case    100  100   1.00  0.90 to 1.10"
  end

  def test_a_metric_without_a_ratio
    extra, = report([sample("stock", 1, { extra: 0.1 }), sample("cow", 1, { extra: 3.0 })]).tables
    assert_equal [["a case", "0.1", "3.0", "-"]], extra.rows
  end

  def test_a_metric_with_a_geometric_mean
    metrics = [Benchmark::Metric.new(key: :memory, title: "memory", unit: "MB", better: :less, digits: 1,
                                     geometric: true)]
    values = [{ "x" => 10.0, "y" => 1.0, "only one" => 1.0 }, { "x" => 5.0, "y" => 8.0 }]
    report = report([sample("stock", 1, { memory: values[0] }), sample("cow", 1, { memory: values[1] })])
    Example.stub(:metrics, metrics) do
      assert_equal ["geometric mean", "", "", "2.000"], report.tables.first.rows.last
    end
    found = [{ "x" => 5.0, "y" => 8.0 }, { "x" => 10.0, "y" => 1.0 }]
    rounds = found.each.with_index(1).flat_map do |ours, i|
      [sample("stock", i, { memory: values[0] }), sample("cow", i, { memory: ours })]
    end
    Example.stub(:metrics, metrics) do
      mean = report(rounds).tables.first.rows.last
      assert_equal ["geometric mean", "", "", "1.837", "1.000 to 2.000"], mean
    end
  end

  def test_geometric_means_of_the_rows_that_belong_together
    metrics = [Benchmark::Metric.new(key: :memory, title: "memory", unit: "MB", better: :less, digits: 1,
                                     geometric: /\d+ to \d+\z/)]
    ours = { "x, 0 to 10" => 2.0, "x, 10 to 40" => 8.0, "y, 0 to 10" => 8.0, "y, 10 to 40" => 2.0,
             "y, 40 to 90" => 9.0 }
    stock, cow = [ours.transform_values { 2.0 }, ours].map { |values| { memory: values } }
    Example.stub(:metrics, metrics) do
      rows = report([sample("stock", 1, stock), sample("cow", 1, cow)]).tables.first.rows
      assert_equal [["geometric mean, 0 to 10", "", "", "2.000"],
                    ["geometric mean, 10 to 40", "", "", "2.000"]], rows.drop(5)
    end
  end

  def test_cases_that_are_worse_in_each_run_have_a_table_of_their_own
    memory, speed = %i[memory speed].map { |key| [key, { "x" => 100.0, "y" => 100.0, "z" => 100.0 }] }
    better = { memory: :less, speed: :more }
    metrics = better.map do |key, word|
      Benchmark::Metric.new(key: key, title: key.to_s, unit: "1", better: word, digits: 0, geometric: true)
    end
    ours = [{ memory: { "x" => 104.0, "y" => 104.0, "z" => 90.0 },
              speed: { "x" => 104.0, "y" => 90.0, "z" => 102.0 } },
            { memory: { "x" => 110.0, "y" => 102.0, "z" => 80.0 },
              speed: { "x" => 110.0, "y" => 80.0, "z" => 80.0 } }]
    samples = ours.flat_map.with_index(1) do |values, run|
      [sample("stock", run, [memory, speed].to_h), sample("cow", run, values)]
    end
    Example.stub(:metrics, metrics) do
      apart = report(samples).tables.select do |table|
        table.title.include?("worse by more than 3 % in each run")
      end
      assert_equal [%w[x], %w[y]], apart.map { |table| table.rows.map(&:first) }
    end
  end

  def test_markdown_escapes
    text = report(samples).tables.first.to_markdown
    assert_includes text, "| --- | ---: | ---: | ---: | ---: |"
    assert_includes text, "| y \\| z | 1.0 | 0.0 | 0.00 | one run |"
  end

  def test_a_build_that_was_not_measured_has_no_column_and_a_missing_value_no_number
    samples = [sample("stock", 1, { memory: { "x" => 1 } }), sample("cow", 1, { memory: { "w" => 1 } })]
    tables = report(samples, builds: %w[stock other cow]).tables
    assert_equal ["", "stock", "cow", "ratio"], tables.first.head
    assert_equal [["x", "1.0", "-", "-"], ["w", "-", "1.0", "-"]], tables.first.rows
  end

  def test_without_a_second_run_there_is_no_spread
    once = report(samples.first(2))
    assert_equal ["", "stock", "cow", "ratio"], once.tables.first.head
    assert_includes once.text, "one run of each; ratio: to stock\n"
    assert_equal ["", "stock", "cow", "ratio", "spread"], report(samples).tables.first.head
    assert_includes report(samples).text, "medians; ratio: to stock, pair by pair, median, with the least"
  end

  def test_head_and_skipped_parts_are_shown
    text = report(samples, [Runner::Omission.new("skipped", "skk", "no dictionary")]).text
    assert_includes text, "2 cores (a | b), 100 MB, Linux, transparent huge pages: madvise"
    head = Machine.head(FACTS.merge(page_fault: 0.5)).last
    assert_equal "2 cores (a | b), 100 MB, Linux, transparent huge pages: madvise, 0.5 us to get a page", head
    assert_operator Machine.page_fault, :>, 0
    assert_includes text, "stock: ruby 3, jemalloc A=b"
    assert_includes text, "skipped: skk: no dictionary"
    assert_includes report(samples, layouts: 3).text, "stock: ruby 3, jemalloc, 3 layouts A=b"
  end

  def test_a_report_has_failed_if_one_part_failed_or_nothing_was_measured
    refute_predicate report(samples, [Runner::Omission.new("skipped", "skk", "no dictionary")]), :failed?
    assert_predicate report(samples, [Runner::Omission.new("failed", "skk", "crashed")]), :failed?
    assert_predicate report([]), :failed?
  end

  def test_files
    Dir.mktmpdir do |directory|
      said = []
      files = report(samples).write(directory) { |line| said << line }
      raw = JSON.parse(File.read(files.grep(/json/).first))
      assert_equal 4, raw["samples"].size
      assert_equal({ "x" => 10.0, "y | z" => 1.0 }, raw["samples"][0]["outcome"]["values"]["memory"])
      assert_equal 2, raw["machine"]["cores"]
      if Chart.available?
        assert_equal [], said
        assert_operator File.size(File.join(directory, "example-memory.svg")), :>, 1_000
      else
        assert_match(/gnuplot is not installed/, said.first)
      end
    end
  end

  def test_without_gnuplot_the_rest_is_written
    path = ENV["PATH"]
    Dir.mktmpdir do |directory|
      ENV["PATH"] = directory
      said = []
      files = report(samples).write(directory) { |line| said << line }
      assert_equal %w[results.json tables.md], files.map { |file| File.basename(file) }
      assert_equal ["no charts: gnuplot is not installed (Debian package gnuplot-nox)"], said
    end
  ensure
    ENV["PATH"] = path
  end
end

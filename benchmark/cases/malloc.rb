# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "open3"
require "tmpdir"
require_relative "../lib/measure/compiler"

module CowBench
  # A booted parent whose malloc has holes, and its children.
  class ForkMalloc < Benchmark
    SUMMARY = "children of a parent with holes in malloc's memory: they work, keep, free what they " \
              "inherited, and work again"
    SYNTHETIC = true
    BY_NAME = true
    metric :lost, "inherited memory that a child has lost, of what it had", "%", :less, 1
    metric :private, "private dirty memory of a child", "MB", :less, 1
    metric :throughput, "throughput of the children", "requests/s", :more, 0
    MEGABYTES = 150
    CHILDREN = 2

    def cases
      [0, 1].map do |number|
        arguments = [MEGABYTES, number, CHILDREN, quick? ? 20 : 400]
        Case.new(label: warmups(number), arguments: arguments, needs: 700)
      end
    end

    def measure(build, kase)
      measured = Measured.run(build, "fork_malloc", *kase.arguments)
      inherited = measured.looks.fetch("before").mean("Shared_Dirty")
      values = { lost: {}, private: {}, throughput: measured.result["requests"] / measured.result["seconds"] }
      measured.looks.each do |point, look|
        row = "#{kase.label}, #{point}"
        values[:private][row] = mb(look.mean("Private_Dirty"))
        next if point == "before"

        values[:lost][row] = (inherited - look.mean("Shared_Dirty")) * 100 / inherited
      end
      Outcome.new(values: values, raw: raw(measured))
    end
  end

  # The same without Ruby: the allocator of a build alone. Where the build is CowRuby, what gc/allocator.c
  # does is compiled in.
  class ForkMallocC < Benchmark
    SUMMARY = "the allocators alone, in C: a fragmented parent of 500 MB forks a child that works, keeps, " \
              "frees, and works again"
    SYNTHETIC = true
    BY_NAME = true
    metric :lost, "inherited memory that the child has lost", "MB", :less, 1
    metric :private, "private dirty memory of the child", "MB", :less, 1
    STEPS = %w[begin worked kept freed end].freeze
    SOURCE = File.expand_path("../workloads/fork_malloc.c", __dir__)
    HEADERS = File.expand_path("../../gc", __dir__)

    def ready
      raise Skip, Compiler::MISSING unless Compiler.there?
    end

    def cases
      size = quick? ? 50 : 500
      [Case.new(label: "#{size} MB", arguments: [size], needs: 3 * size)]
    end

    def measure(build, kase)
      output = program do |file|
        env = build.environment
        env["LD_PRELOAD"] = build.allocator["used"] if build.allocator["used"]
        mode = build.version.include?("CowRuby") ? "cow" : "plain"
        output, status = Open3.capture2e(env, file, mode, *kase.arguments.map(&:to_s))
        raise Measured::Failed, "fork_malloc: #{status}: #{output}" unless status.success?

        output
      end
      rows = STEPS.to_h do |step|
        [step, output[/^#{step} private \d+ shared \d+$/].scan(/\d+/).map(&:to_i)]
      end
      inherited = rows["begin"].last
      Outcome.new(values: { private: rows.transform_values { |own, _| mb(own) },
                            lost: rows.transform_values { |_, shared| mb(inherited - shared) } }, raw: output)
    end

    private

    def program
      Dir.mktmpdir do |directory|
        file = File.join(directory, "fork_malloc")
        error = Compiler.compile(SOURCE, file, "-O2", "-w", "-I", HEADERS)
        raise Measured::Failed, error if error

        yield file
      end
    end
  end

  # The fifth seed's story: what arenas for each thread cost.
  class MallocThreads < Benchmark
    SUMMARY = "25 threads that fetch, keep and drop data of random sizes for 30 simulated minutes"
    SYNTHETIC = true
    BY_NAME = true
    metric :peak, "peak of resident memory", "MB", :less, 1
    metric :resident, "resident memory on the way", "MB", :less, 1
    metric :throughput, "throughput", "requests/s", :more, 0
    metric :slots, "live slots of all slots", "", :more, 2
    metric :pages, "pages with objects of all heap pages", "", :more, 2
    metric :blocks, "bytes of live objects of resident memory", "", :more, 2
    THREADS = 25
    REQUESTS = 40

    def self.charts(samples)
      lines = samples.group_by(&:build).map do |build, runs|
        Chart::Line.new(build, "resident", points(runs.map { |run| run.outcome.values[:resident] }))
      end
      [Chart::Lines.new(name: "#{title}-resident", title: "Resident memory of 25 threads (less is better)",
                        x_title: "simulated minutes", y_title: "resident memory (MB)", lines: lines)]
    end

    # [[minutes, median], ...] of runs, each { row => MB }.
    def self.points(runs)
      runs.first.keys.map { |row| [row[/\d+/].to_i, Statistics.median(runs.map { |values| values[row] })] }
    end

    def cases
      [Case.new(label: "#{THREADS} threads", arguments: [quick? ? 3 : 30, THREADS, REQUESTS], needs: 1_500)]
    end

    def measure(build, kase)
      measured = Measured.run(build, "malloc_threads", *kase.arguments)
      result = measured.result
      resident = measured.looks.transform_values { |look| mb(look.parent["Rss"]) }
      Outcome.new(values: {
                    peak: mb(measured.peak), resident: resident,
                    throughput: result["requests"] / result["seconds"],
                    slots: result["live_slots"].fdiv(result["slots"]),
                    pages: (result["pages"] - result["empty_pages"]).fdiv(result["pages"]),
                    blocks: result["live_bytes"].fdiv(resident.values.last * 1_024 * 1_024)
                  }, raw: raw(measured))
    end
  end
end

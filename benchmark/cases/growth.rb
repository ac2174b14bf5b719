# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../lib/memory/cgroup"

module CowBench
  class Growth < Benchmark
    SUMMARY = "how big the heap is: what collections were expected to take and took; how fast free memory " \
              "comes back when a cgroup's limit is reached; and several processes in a cgroup, each of " \
              "which builds up and drops 600,000 strings again and again"
    SYNTHETIC = true
    BY_NAME = true
    metric :measured, "collections take, of the program's own time", "%", :less, 2
    metric :expected, "expected of that, by the model", "of what was measured", :less, 2
    metric :back, "of the free memory given back 4 s after the limit is reached", "%", :more, 0
    metric :ninety, "until nine tenths of it are back", "s", :less, 1
    metric :served, "processes at once: rounds of work done in a second", "rounds", :more, 0
    metric :gc_share, "processes at once: collections take, of their CPU time", "%", :less, 1
    metric :ended, "processes at once: ended by the system", "count", :less, 0
    STEADY = { "20,000 kept" => [20_000, 3_000_000], "300,000 kept" => [300_000, 6_000_000],
               "2,000,000 kept" => [2_000_000, 12_000_000] }.freeze
    DROPPED = 1_500_000
    PROCESSES = [1, 2, 4, 8].freeze
    STRINGS = 600_000
    WAVES = 6
    # Seven tenths of what 8 processes of pristine CRuby take at once (by hand).
    LIMIT = 480 << 20

    def cases
      steady = STEADY.map { |label, arguments| Case.new(label: label, arguments: arguments, needs: 1_000) }
      drop = Case.new(label: "drop", arguments: [quick? ? DROPPED / 10 : DROPPED], needs: 1_000)
      at_once = (quick? ? [2] : PROCESSES).map do |number|
        Case.new(label: "#{number} process#{"es" if number > 1}", arguments: [number], needs: 200 * number)
      end
      [*(quick? ? steady.first(1) : steady), drop, *at_once]
    end

    def ready
      Cgroup.with { nil }
    rescue Cgroup::Unavailable => e
      raise Skip, e.message
    end

    def measure(build, kase)
      case kase.label
      when "drop" then Cgroup.with { |group| drop(build, group, *kase.arguments) }
      when /process/ then Cgroup.with { |group| at_once(build, group, *kase.arguments) }
      else steady(build, *kase.arguments)
      end
    end

    private

    def steady(build, *arguments)
      measured = Measured.run(build, "growth", "steady", *arguments)
      found, expected = measured.result.values_at("measured", "expected")
      values = { measured: found * 100, expected: expected }
      Outcome.new(values: values.compact, raw: raw(measured))
    end

    # Seconds that a process is watched from the moment on in which the limit is reached.
    def watched
      quick? ? 5 : 20
    end

    # KB of a process, swapped ones included.
    def taken(pid)
      File.read("/proc/#{pid}/status").scan(/^Vm(?:RSS|Swap):\s+(\d+)/).flatten.sum(&:to_i)
    rescue Errno::ENOENT, Errno::ESRCH
      nil
    end

    def drop(build, group, number)
      watcher = nil
      measured = Measured.run(build, "growth", "drop", group.members, number, watched) do |run, point|
        next unless point == "full"

        base, full = %w[base full].map { |name| run.looks[name].parent["Rss"] }
        group.limit_to_use
        watcher = Thread.new { watch(run.pid, base, full) }
      end
      Outcome.new(values: watcher.value, raw: raw(measured))
    end

    # Looks at a process until nine tenths of what it has taken from +base+ to +full+ KB are given back.
    def watch(pid, base, full)
      begun = Clock.now
      values = {}
      while Clock.now < begun + watched && (now = taken(pid))
        seconds = Clock.now - begun
        back = (full - now).fdiv(full - base)
        values[:back] = back * 100 if seconds <= 4
        values[:ninety] ||= seconds if back >= 0.9
        break if seconds > 4 && values[:ninety]

        sleep 0.05
      end
      values
    end

    def at_once(build, group, number)
      group.limit = LIMIT
      begun = Clock.now
      runs = side_by_side(number) do |i|
        Measured.run(build, "growth", "waves", group.members, STRINGS, quick? ? 1 : WAVES, i)
      end
      seconds = Clock.now - begun
      ended, done = runs.partition { |run| run.is_a?(Exception) }
      unknown = ended.reject { |failure| failure.message.match?(/SIGKILL/) }
      raise unknown.first if unknown.any?

      cpu = done.sum { |run| run.result["cpu"] }
      gc = done.sum { |run| run.result["gc"]["time"] }
      values = { served: done.sum { |run| run.result["served"] } / seconds, ended: ended.size,
                 gc_share: cpu.positive? ? gc / cpu / 10 : nil }
      Outcome.new(values: values.compact, raw: done.map { |run| raw(run) })
    end
  end
end

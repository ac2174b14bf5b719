# frozen_string_literal: true

require "open3"

class Instructions < Benchmark
  SUMMARY = "instructions of a full collection and of allocation, counted by callgrind; no JIT"
  SYNTHETIC = true
  SPEED_ONLY = true
  METRICS = [Metric.new(key: :instructions, title: "instructions for an object", unit: "count", better: :less, digits: 1)].freeze
  WHAT = ["mark, in order", "mark, at random", "mark, strings in a hash", "mark, objects", "mark, arrays", "mark, procs", "allocate and sweep"].freeze
  TIMES = 3
  LIMIT = 600

  def ready
    needs_valgrind
  end

  def cases
    objects = quick? ? 2_000 : 100_000
    WHAT.map { |what| Case.new(label: "#{what}, #{objects} objects", arguments: [what, objects], needs: 500) }
  end

  # What +TIMES+ times more cost, so that nothing else is counted.
  def measure(build, kase)
    what, objects = kase.arguments
    none, some = [0, TIMES].map { |times| count(build, what, objects, times) }
    Outcome.new(values: { instructions: (some - none).fdiv(TIMES * objects) }, raw: { none: none, some: some })
  end

  private

  def count(build, what, objects, times)
    output, status = Open3.capture2e(build.environment, "timeout", LIMIT.to_s, "valgrind", "--tool=callgrind", "--trace-children=yes",
                                     "--callgrind-out-file=/dev/null",
                                     build.path, "--disable-gems", "--disable-jit", File.join(Measured::WORKLOADS, "instructions.rb"),
                                     what, objects.to_s, times.to_s, chdir: Dir.tmpdir)
    found = output[/Collected : (\d+)/, 1]
    raise Measured::Failed, "instructions on #{build.name}: #{output.lines.last&.strip || status}" unless status.success? && found

    found.to_i
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # A control group with a limit of memory, for programs that join it by writing 0 to +members+. As root only.
  class Cgroup
    Unavailable = Class.new(StandardError)
    PLACES = { "/sys/fs/cgroup/memory" => "memory.limit_in_bytes", "/sys/fs/cgroup" => "memory.max" }.freeze

    # Yields a new one, and removes it. Raises Unavailable, with the reason, where that cannot be done.
    def self.with
      group = new
      yield group
    ensure
      group&.remove
    end

    def initialize
      place, @limit = PLACES.find { |directory, _| File.exist?(File.join(directory, "cgroup.procs")) }
      raise Unavailable, "no cgroups below /sys/fs/cgroup" unless place

      @directory = File.join(place, "cow-benchmark-#{Process.pid}-#{object_id}")
      Dir.mkdir(@directory)
      return if File.exist?(File.join(@directory, @limit))

      remove
      raise Unavailable, "#{place} has no controller of memory"
    rescue SystemCallError => e
      raise Unavailable, "a cgroup cannot be made: #{e.message}"
    end

    def members
      File.join(@directory, "cgroup.procs")
    end

    # Sets the limit, in bytes, or to +without_limit+.
    def limit=(bytes)
      File.write(File.join(@directory, @limit), bytes.to_s)
    end

    # The limit that is none.
    def without_limit
      @limit == "memory.max" ? "max" : -1
    end

    # Sets the limit to what its processes take, and as many hundredths more as the kernel needs: it refuses
    # (EBUSY) where it cannot get the use below the limit at once.
    def limit_to_use
      hundredths ||= 1
      self.limit = used * (100 + hundredths) / 100
    rescue Errno::EBUSY
      retry if (hundredths += 1) <= 8
      raise
    end

    # What its processes take, in bytes, without files that were only read.
    def used
      text = File.read(File.join(@directory, "memory.stat"))
      Integer(text[/^(?:total_rss|anon) (\d+)/, 1])
    end

    # How often its processes wanted more than the limit: the kernel took back what it could, or ended one.
    def hits
      count("memory.failcnt", /\A(\d+)/) || count("memory.events", /^max (\d+)/) || 0
    end

    # How many of its processes the kernel has ended because memory ran out.
    def ended
      count("memory.oom_control", /^oom_kill (\d+)/) || count("memory.events", /^oom_kill (\d+)/) || 0
    end

    # Its processes have ended, or are about to.
    def remove
      tries ||= 0
      Dir.rmdir(@directory)
    rescue Errno::EBUSY
      sleep 0.05
      retry if (tries += 1) < 20
    rescue Errno::ENOENT
      nil
    end

    private

    # A number in a file of the group; nil where there is no such file.
    def count(file, pattern)
      File.read(File.join(@directory, file))[pattern, 1].to_i
    rescue Errno::ENOENT
      nil
    end
  end
end

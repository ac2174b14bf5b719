# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "etc"
require "open3"
require "rbconfig"

module CowBench
  # Where and when figures were taken.
  module Machine
    HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"

    def self.facts(root)
      {
        date: Time.now.utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        cpu: cpu,
        cores: Etc.nprocessors,
        memory_mb: File.read("/proc/meminfo")[/^MemTotal:\s+(\d+)/, 1].to_i / 1024,
        swap_mb: File.read("/proc/meminfo")[/^SwapTotal:\s+(\d+)/, 1].to_i / 1024,
        kernel: Etc.uname.values_at(:sysname, :release, :machine).join(" "),
        transparent_huge_pages: first_line(HUGE_PAGES)&.slice(/\[(\w+)\]/, 1),
        load: first_line("/proc/loadavg"),
        page_fault: page_fault,
        commit: commit(root),
        observer: RUBY_DESCRIPTION
      }
    end

    # The lines that say so at the head of tables: when and what, by which commands, on which machine.
    # +facts+ with :commands, an Array of String.
    def self.head(facts)
      pages = "transparent huge pages: #{facts[:transparent_huge_pages] || "none"}"
      machine = ["#{facts[:cores]} cores (#{facts[:cpu]})", "#{facts[:memory_mb]} MB", facts[:kernel], pages,
                 *("#{facts[:page_fault]} us to get a page" if facts[:page_fault])]
      ["#{facts[:date]}, commit #{facts[:commit] || "none"}", *facts[:commands], machine.join(", ")]
    end

    def self.first_line(path)
      File.open(path, &:gets)&.chomp
    rescue SystemCallError
      nil
    end

    def self.cpu
      File.read("/proc/cpuinfo")[/^(?:model name|Model)\s*: (.*)/, 1] || RbConfig::CONFIG["host_cpu"]
    end

    # Microseconds until a page of new memory can be written to: below one on most machines, above ten in a
    # virtual machine whose page tables its host has to follow. There a ruby gains more time by each page that
    # it does not copy. The least of some tries, taken once.
    def self.page_fault
      @page_fault ||= Array.new(TRIES) do
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        String.new("x" * TOUCHED)
        (Process.clock_gettime(Process::CLOCK_MONOTONIC) - started) * 1_000_000 / (TOUCHED / 4_096)
      end.min.round(1)
    end
    TRIES = 3
    # Bytes: malloc maps so many anew each time.
    TOUCHED = 64 * 1024 * 1024

    # The commit of this repository, with "-dirty" where files differ from it; nil where there is none.
    def self.commit(root)
      head, status = Open3.capture2e("git", "-C", root, "rev-parse", "--verify", "HEAD")
      return unless status.success?

      changes, = Open3.capture2e("git", "-C", root, "status", "--porcelain", "--untracked-files=no")
      head.chomp + (changes.empty? ? "" : DIRTY)
    rescue Errno::ENOENT
      nil
    end
    DIRTY = "-dirty"
  end
end

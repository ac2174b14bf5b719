# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "tmpdir"
require_relative "../../lib/cowruby/memory"

# A directory in the shape of /proc, with processes that a test makes up.
class RecordedProc
  # Procfs of such a directory. +denied+ are files that this user may not read.
  class Files < CowRuby::Memory::Procfs
    attr_reader :denied, :opened

    def initialize(root)
      super
      @denied = []
      @opened = []
    end

    def read(pid, name)
      @opened << [pid, name]
      raise CowRuby::Memory::Forbidden, "may not read #{name} of process #{pid}" if denied.include?(name)

      super
    end
  end

  attr_reader :root

  # Yields one; its directory goes at the end.
  def self.with
    Dir.mktmpdir("recorded-proc") { |directory| yield new(directory) }
  end

  def initialize(root)
    @root = root
    write("self", "stat", "")
  end

  def procfs
    @procfs ||= Files.new(root)
  end

  def write(pid, name, text)
    path = File.join(root, pid.to_s, name)
    FileUtils.mkdir_p(File.dirname(path))
    File.binwrite(path, text)
  end

  # A process. +image+ stands for the program that it runs; nil: this user may not know it.
  def add(pid, parent, title, image: 7, state: "S", started: pid, **memory)
    image = [image || 1, 0, image ? image + 1 : 0]
    fields = [state, parent, pid, *[0] * 8, 1, 2, 0, 0, *[0] * 4, started, 0, 0, 0, *image]
    write(pid, "stat", "#{pid} (a) b (c) #{fields.join(" ")} 0 0\n")
    write(pid, "cmdline", "#{title}\0")
    write(pid, "smaps_rollup", rollup(**memory))
    write(pid, "status", "Name:\tx\nVmRSS:\t    400 kB\nRssAnon:\t     200 kB\nVmSwap:\t       8 kB\n")
  end

  def remove(pid)
    FileUtils.rm_r(File.join(root, pid.to_s))
  end

  # The text of smaps_rollup; KB.
  def rollup(private_dirty: 100, private_clean: 10, shared_dirty: 200, shared_clean: 40, pss: 200, swap: 0,
             anonymous: private_dirty + shared_dirty)
    rss = private_dirty + private_clean + shared_dirty + shared_clean
    fields = { Rss: rss, Pss: pss, Pss_Dirty: 5, Shared_Clean: shared_clean, Shared_Dirty: shared_dirty,
               Private_Clean: private_clean, Private_Dirty: private_dirty, Referenced: rss,
               Anonymous: anonymous, AnonHugePages: 0, Swap: swap, SwapPss: swap / 2 }
    "5500-7fff ---p 00000000 00:00 0                          [rollup]\n" +
      fields.map { |name, kb| format("%-15s%9d kB\n", "#{name}:", kb) }.join
  end

  # A master with the number 100 and +count+ workers.
  def puma(count = 2)
    add(1, 0, "init", image: 1)
    add(100, 1, "puma 6.4.2 (tcp://0.0.0.0:9292) [shop]", private_dirty: 50, shared_dirty: 250)
    count.times { |i| add(101 + i, 100, "puma: cluster worker #{i}: 100 [shop]") }
    self
  end
end

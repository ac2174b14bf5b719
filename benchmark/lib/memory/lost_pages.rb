# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "page_kinds"

module CowBench
  # Compares a worker with its master: which pages the worker shares, which it has lost since
  # the fork (it has its own copy of them now), which are its own.
  class LostPages
    Tally = Struct.new(:shared, :lost, :own, :words, :few, :same) do
      def add(other)
        Tally.new(*to_a.zip(other.to_a).map(&:sum))
      end
    end
    FEW = 4

    # +first_writers+: address of a page => name of the function.
    def initialize(master_pid, worker_pid, first_writers = nil)
      @master = AddressSpace.new(master_pid)
      @worker = AddressSpace.new(worker_pid)
      @kinds = PageKinds.new(@worker)
      @first_writers = first_writers
      @tallies = PageKinds::ALL.to_h { |kind| [kind, Tally.new(0, 0, 0, 0, 0, 0)] }
      @writers = Hash.new(0)
      compare
    ensure
      [@master, @worker].each { |space| space&.close }
    end

    # { kind => { "shared" => MB, ... } }
    def to_h
      @tallies.transform_values do |tally|
        { "shared" => mb(tally.shared), "lost" => mb(tally.lost), "own" => mb(tally.own),
          "changed words" => Memory.mb(tally.words * 8 / 1024.0),
          "lost for at most #{FEW} words" => mb(tally.few), "lost without a difference" => mb(tally.same) }
      end
    end

    # { [kind, function] => MB that the function wrote first }, the largest first.
    def writers
      @writers.sort_by { |_, pages| -pages }.to_h.transform_values { |pages| mb(pages) }
    end

    # Whether no heap page was recognised; then they are counted as malloc.
    def gc_pages_unknown?
      @kinds.gc_page_count.zero?
    end

    private

    def compare
      in_master = {}
      @master.mappings.each do |mapping|
        @master.each_page(mapping) do |address, _|
          in_master[address] = true
        end
      end
      @worker.mappings.each do |mapping|
        @worker.each_page(mapping) do |address, bits|
          count(@kinds.of(address, mapping), address, bits, in_master[address])
        end
      end
    end

    def count(kind, address, bits, inherited)
      tally = @tallies.fetch(kind)
      # A file's own page is never private, even where one process alone maps it.
      if bits & AddressSpace::EXCLUSIVE == 0 || bits & AddressSpace::FILE_PAGE != 0
        tally.shared += 1
      elsif inherited
        lose(tally, kind, address)
      else
        tally.own += 1
      end
    end

    def lose(tally, kind, address)
      tally.lost += 1
      changed = changed_words(address)
      tally.words += changed
      tally.same += 1 if changed.zero?
      tally.few += 1 if changed.between?(1, FEW)
      @writers[[kind, @first_writers.fetch(address, "unknown")]] += 1 if @first_writers
    end

    def changed_words(address)
      ours, theirs = [@worker, @master].map { |space| space.read(address, AddressSpace::PAGE) }
      return 0 if ours == theirs || !ours || !theirs

      ours.unpack("Q*").zip(theirs.unpack("Q*")).count { |a, b| a != b }
    end

    def mb(pages)
      Memory.mb(pages * AddressSpace::PAGE / 1024)
    end
  end
end

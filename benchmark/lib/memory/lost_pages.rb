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
    # What a structure of the VM has to do with lost pages: words that differ from the master's; pages with
    # such a word; pages on which no other structure's word differs.
    Structure = Struct.new(:words, :pages, :alone)
    UNNAMED = "(not in the census)"

    # +first_writers+: address of a page => name of the function. +census+: what the master has written.
    def initialize(master_pid, worker_pid, first_writers = nil, census = nil)
      @master = AddressSpace.new(master_pid)
      @worker = AddressSpace.new(worker_pid)
      @kinds = PageKinds.new(@worker)
      @first_writers = first_writers
      @census = census
      @structures = Hash.new { |structures, name| structures[name] = Structure.new(0, 0, 0) }
      @tallies = PageKinds::ALL.to_h { |kind| [kind, Tally.new(0, 0, 0, 0, 0, 0)] }
      @writers = Hash.new(0)
      @idle_writers = Hash.new(0)
      @own_writers = Hash.new(0)
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

    # { [kind, function] => MB that the function wrote first }, the largest first: of all lost pages, ...
    def writers
      by_size(@writers)
    end

    # ... of lost pages that do not differ from the master's, ...
    def idle_writers
      by_size(@idle_writers)
    end

    # ... and of the worker's own pages.
    def own_writers
      by_size(@own_writers)
    end

    # { [kind, structure] => { "changed words" => MB, ... } }, by the pages.
    def structures
      @structures.sort_by { |_, structure| -structure.pages }.to_h.transform_values do |structure|
        { "changed words" => Memory.mb(structure.words * 8 / 1024.0), "on pages of" => mb(structure.pages),
          "alone on pages of" => mb(structure.alone) }
      end
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
        note_writer(@own_writers, kind, address)
      end
    end

    def lose(tally, kind, address)
      tally.lost += 1
      changed = changed_words(address)
      tally.words += changed.size
      tally.same += 1 if changed.empty?
      tally.few += 1 if changed.size.between?(1, FEW)
      note_writer(@writers, kind, address)
      note_writer(@idle_writers, kind, address) if changed.empty?
      note_structures(kind, changed) if @census
    end

    def note_writer(writers, kind, address)
      writers[[kind, @first_writers.fetch(address, "unknown")]] += 1 if @first_writers
    end

    def note_structures(kind, changed)
      names = changed.map { |address| @census.kind_of(address) || UNNAMED }.tally
      names.each do |name, words|
        structure = @structures[[kind, name]]
        structure.words += words
        structure.pages += 1
        structure.alone += 1 if names.size == 1
      end
    end

    # The addresses of the words of a page that differ from the master's.
    def changed_words(address)
      ours, theirs = [@worker, @master].map { |space| space.read(address, AddressSpace::PAGE) }
      return [] if ours == theirs || !ours || !theirs

      theirs = theirs.unpack("Q*")
      ours.unpack("Q*").each_with_index.filter_map { |word, i| address + i * 8 if word != theirs[i] }
    end

    def by_size(writers)
      writers.sort_by { |_, pages| -pages }.to_h.transform_values { |pages| mb(pages) }
    end

    def mb(pages)
      Memory.mb(pages * AddressSpace::PAGE / 1024)
    end
  end
end

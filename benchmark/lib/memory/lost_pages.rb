# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../../../lib/cowruby/memory/lost_pages"
require_relative "memory"
require_relative "page_kinds"

module CowBench
  # Beside which pages a worker has lost: what differs in them, and who wrote them first.
  class LostPages < CowRuby::Memory::LostPages
    # Of lost pages: words that differ from the master's; pages with at most FEW such words; pages with none.
    Difference = Struct.new(:words, :few, :same)
    FEW = 4
    # What a structure of the VM has to do with lost pages: words that differ from the master's; pages with
    # such a word; pages on which no other structure's word differs.
    Structure = Struct.new(:words, :pages, :alone)
    UNNAMED = "(not in the census)"

    # +first_writers+: address of a page => name of the function. +census+: what the master has written.
    def initialize(master_pid, worker_pid, first_writers = nil, census = nil)
      @first_writers = first_writers
      @census = census
      @structures = Hash.new { |structures, name| structures[name] = Structure.new(0, 0, 0) }
      @differences = Hash.new { |differences, kind| differences[kind] = Difference.new(0, 0, 0) }
      @writers = Hash.new(0)
      @idle_writers = Hash.new(0)
      @own_writers = Hash.new(0)
      super(master_pid, worker_pid)
    end

    # { kind => { "shared" => MB, ... } }
    def to_h
      tallies.to_h do |kind, tally|
        difference = @differences[kind]
        [kind, { "shared" => mb(tally.shared), "lost" => mb(tally.lost), "own" => mb(tally.own),
                 "changed words" => Memory.mb(difference.words * 8 / 1024.0),
                 "lost for at most #{FEW} words" => mb(difference.few),
                 "lost without a difference" => mb(difference.same) }]
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

    private

    def count_lost(kind, address)
      super
      changed = changed_words(address)
      difference = @differences[kind]
      difference.words += changed.size
      difference.same += 1 if changed.empty?
      difference.few += 1 if changed.size.between?(1, FEW)
      note_writer(@writers, kind, address)
      note_writer(@idle_writers, kind, address) if changed.empty?
      note_structures(kind, changed) if @census
    end

    def count_own(kind, address)
      super
      note_writer(@own_writers, kind, address)
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

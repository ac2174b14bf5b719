# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "lost_pages"

module CowRuby
  module Memory
    # The heap pages of a worker, one by one: how full they are, and which of them it still shares with the
    # process that it was forked from. It knows those of CowRuby, and of CRuby from 3.1 on.
    class HeapMap < LostPages
      # +state+: "shared", "lost" or "own" as of LostPages, the one that costs most of those that its OS pages
      # have; "absent" if none of them is in memory. +used+ of +slots+ of +slot_size+ bytes are taken, also by
      # what is dead and not swept yet; other rubies than CowRuby say how many they were when the page was
      # swept last. An empty page has no slots. +sealed+: nil where the ruby knows no seal.
      Page = Struct.new(:address, :size, :slot_size, :slots, :used, :sealed, :state) do
        # 0.0 to 1.0.
        def full
          slots.zero? ? 0.0 : used.fdiv(slots)
        end
      end

      # Reserved address space for heap pages: +pages+ may stand in it, +committed+ may be used, +used+ are.
      Arena = Struct.new(:address, :pages, :committed, :used)

      # States by what they cost.
      STATES = %w[absent shared own lost].freeze
      # What a slot may have: so many bytes, or a few more in builds with assertions.
      SLOT_SIZES = [40, 80, 160, 320, 640].freeze
      OVERHEADS = [0, 8, 16, 24].freeze

      # By addresses.
      attr_reader :pages, :arenas

      # The part of the memory of all heap pages' slots that is free; nil without pages. What malloc's holes
      # are to the size of a program (seed 004) these are to the size of its heap.
      def fragmentation
        room = pages.sum { |page| page.slots.zero? ? page.size : page.slots * page.slot_size }
        1 - pages.sum { |page| page.used * page.slot_size }.fdiv(room) if room.positive?
      end

      private

      def compare
        @states = {}
        super
        @pages = @kinds.heap_pages.filter_map { |page| read(page) }.sort_by(&:address)
        @arenas = @kinds.arenas.map { |arena| Arena.new(arena.start, arena.pages, arena.committed, arena.used) }
        @states = nil
      end

      def count_shared(kind, address)
        super
        note(kind, address, "shared")
      end

      def count_lost(kind, address)
        super
        note(kind, address, "lost")
      end

      def count_own(kind, address)
        super
        note(kind, address, "own")
      end

      def note(kind, address, state)
        @states[address] = state if kind == "GC pages"
      end

      # The first words of struct heap_page are alike in CRuby 3.4 and here, but for the seal.
      def read(page)
        bytes = @worker.read(page.descriptor, 14) or return
        slot_size, slots, free, _, _, _, seal = bytes.unpack("S7")
        return if slots.positive? && OVERHEADS.none? { |bytes_more| SLOT_SIZES.include?(slot_size - bytes_more) }

        used = page.allocated ? allocated(page) : slots - free
        return unless used&.between?(0, slots)

        Page.new(page.first, page.size, slot_size, slots, used, page.allocated ? seal.odd? : nil, state(page))
      end

      def allocated(page)
        @worker.read(page.allocated, page.bitmap_size)&.unpack1("b*")&.count("1")
      end

      def state(page)
        found = page.first.step(page.first + page.size - 1, AddressSpace::PAGE).map { |one| @states[one] || "absent" }
        found.max_by { |state| STATES.index(state) }
      end
    end
  end
end

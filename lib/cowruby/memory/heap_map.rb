# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "lost_pages"

module CowRuby
  module Memory
    # The heap pages of a worker, one by one: how full they are, and which of them it still shares with the
    # process that it was forked from.
    class HeapMap < LostPages
      # +state+: "shared", "lost" or "own" as of LostPages, the one that costs most of those that its OS pages
      # have; "absent" if none of them is in memory. +slots+ of +slot_size+ bytes, of which +free+ were free
      # when the page was swept last, or have become so since. +sealed+: nil where the ruby knows no seal.
      Page = Struct.new(:address, :size, :slot_size, :slots, :free, :sealed, :state) do
        def used
          slots - free
        end

        # 0.0 to 1.0.
        def full
          used.fdiv(slots)
        end
      end

      # Reserved address space for heap pages: +pages+ heap pages may stand in it, +committed+ may be used,
      # +used+ are.
      Arena = Struct.new(:address, :pages, :committed, :used)

      # States by what they cost.
      STATES = %w[absent shared own lost].freeze

      # By addresses.
      attr_reader :pages, :arenas

      # The part of all slots of the heap's pages that is free; nil without pages. What malloc's holes are to
      # a program's size (seed 004), these are to the heap's.
      def fragmentation
        slots = pages.sum(&:slots)
        pages.sum(&:free).fdiv(slots) if slots.positive?
      end

      private

      def compare
        @states = {}
        super
        @pages = @kinds.heap_pages.filter_map { |page| read(page) }.sort_by(&:address)
        @arenas = @kinds.arenas.map { |arena| Arena.new(arena.start, arena.pages, arena.committed, arena.used) }
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
        return if slots.zero? || free > slots

        found = page.first.step(page.first + page.size - 1, AddressSpace::PAGE).map { |one| @states[one] || "absent" }
        Page.new(page.first, page.size, slot_size, slots, free, page.arena ? seal.odd? : nil,
                 found.max_by { |state| STATES.index(state) })
      end
    end
  end
end

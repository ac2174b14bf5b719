# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "address_space"

module CowRuby
  module Memory
    # Says what the pages of a Ruby process are used for, without its help, so
    # that any ruby can be looked at.
    class PageKinds
      ALL = ["GC pages", "GC metadata", "VM words", "YJIT data", "malloc", "JIT code", "stacks",
             "files", "anonymous other"].freeze
      # Where the kernel keeps names of anonymous memory, Ruby gives them: "Ruby:GC:heap pages" for
      # an arena, "Ruby:GC:default:heap_page_body_allocate" for a heap page of CRuby.
      NAMES = { /heap[ _]page/ => "GC pages", /GC:metadata/ => "GC metadata", /VM words/ => "VM words",
                /YJIT data/ => "YJIT data",
                /yjit|rjit|jit_/i => "JIT code",
                /fiber|stack/i => "stacks" }.freeze
      # A heap page begins at a multiple of its size, 16 KB at the least.
      ALIGNMENT = 16 * 1024
      LARGEST_HEAP_PAGE = 64 * 1024
      LARGEST_HEAD = 2_048
      # CowRuby's arenas begin at a multiple of their size with a sign and some words that say where things
      # are in them (struct cow_arena).
      ARENA = 128 * 1024 * 1024
      ARENA_SIGN = "CowArena".unpack1("Q")
      ARENA_WORDS = 10
      # Regions for words that the VM writes begin with a sign and their size (struct cow_vm_words_region).
      WORDS_SIGNS = { "CowWords".unpack1("Q") => "VM words", "CowYjits".unpack1("Q") => "YJIT data" }.freeze
      # The guard below a stack, and the largest stack (the usual `ulimit -s`).
      LARGEST_GUARD = 64 * 1024
      LARGEST_STACK = 8 * 1024 * 1024

      # A heap page, and where its struct heap_page and, in an arena, the bitmap of its allocated slots stand.
      HeapPage = Struct.new(:first, :size, :descriptor, :allocated, :bitmap_size)
      # Beginning and words of a struct cow_arena, and how many of its heap pages are used.
      Arena = Struct.new(:start, :head, :descriptors, :free, :allocated, :descriptor_size, :bitmap_size,
                         :page_size, :pages, :committed) do
        attr_accessor :used

        # Not in the arenas of version 0.1. What is no arena may say anything.
        def described?
          [16, 32, 64].include?(page_size.fdiv(1024)) && committed <= pages && pages * page_size <= ARENA &&
            [head, descriptors, free, allocated].max < ARENA && [descriptor_size, bitmap_size].max <= page_size
        end

        def page(number)
          HeapPage.new(start + number * page_size, page_size, start + descriptors + number * descriptor_size,
                       start + allocated + number * bitmap_size, bitmap_size)
        end
      end

      attr_reader :heap_pages

      def initialize(space)
        @space = space
        @heap_pages = []
        @arenas = {}
        @gc_pages = {}
        @metadata = {}
        @words_regions = {}
        @variables = {}
        @space.mappings.each { |mapping| find_arenas(mapping) }
        # Where there are arenas other memory that looks like a heap page is none.
        find_gc_pages if arenas.empty?
        @kinds = @space.mappings.each_with_index.to_h { |mapping, i| [mapping, kind_of(mapping, i)] }
      end

      # Whether there is an arena, or a region for words: then the ruby is CowRuby.
      def cowruby?
        @metadata.any? || @words_regions.any?
      end

      # CowRuby's, by their addresses.
      def arenas
        @arenas.values.select(&:described?).sort_by(&:start)
      end

      # Number of OS pages that belong to heap pages.
      def gc_page_count
        @gc_pages.size
      end

      def of(address, mapping)
        return "GC pages" if @gc_pages[address]
        return "GC metadata" if @metadata[address]

        kind = @kinds.fetch(mapping)
        kind == "files" && address >= @variables.fetch(mapping, address + 1) ? "malloc" : kind
      end

      private

      def kind_of(mapping, index)
        below = index.zero? ? nil : @space.mappings[index - 1]
        above = @space.mappings[index + 1]
        below = nil unless below&.last == mapping.first
        above = nil unless above&.first == mapping.last
        return "files" if mapping.file
        return "malloc" if mapping.name == "[heap]"
        return "stacks" if mapping.name == "[stack]"
        words = words(mapping)
        return words if words
        return named(mapping) unless mapping.unnamed?
        # The JIT's reserve: some of it can be executed, the rest is next to it.
        return "JIT code" if [mapping, below, above].any? do |one|
                               one && one.unnamed? && !one.file && one.rights[2] == "x"
                             end
        return "stacks" if mapping.size <= LARGEST_STACK && guard?(below)
        return variables(mapping, below) if below&.file && below.writable?
        return "malloc" if mapping.writable?

        "anonymous other"
      end

      # Which of CowRuby's words are in the mapping; nil: none. What a child has added to a region that it
      # inherited is a mapping of its own, without the sign.
      def words(mapping)
        return unless mapping.writable?

        sign, size = @space.words(mapping.first, 2)
        @words_regions[mapping.first...mapping.first + size] = WORDS_SIGNS[sign] if WORDS_SIGNS.key?(sign)
        @words_regions.find { |region, _| region.cover?(mapping.first) }&.last
      end

      # What stands behind the variables of a library: those without a first value. Where the kernel has
      # mapped other memory right behind them, that is in the same mapping; or there are no such variables.
      def variables(mapping, library)
        last = @space.end_of_variables(library)
        @variables[mapping] = last if last
        "files"
      end

      def named(mapping)
        NAMES.find { |pattern, _| mapping.name.match?(pattern) }&.last || "anonymous other"
      end

      def guard?(mapping)
        mapping && mapping.unnamed? && mapping.rights.start_with?("---") && mapping.size <= LARGEST_GUARD
      end

      def find_arenas(mapping)
        return if mapping.file || !mapping.writable?

        # An arena may be several mappings: the kernel begins a new one where anything differs.
        numbers = mapping.first / ARENA..(mapping.last - 1) / ARENA
        starts = numbers.to_h { |number| [number * ARENA, arena_at(number * ARENA)] }.compact
        return if starts.empty?

        @space.each_page(mapping) do |address, _|
          start = address / ARENA * ARENA
          arena = starts[start] or next
          (address < start + arena.head ? @metadata : @gc_pages)[address] = true
        end
      end

      # The arena that begins there; nil where none does. Its heap pages are noted when it is seen first.
      def arena_at(start)
        return @arenas[start] if @arenas.key?(start)

        sign, *words = @space.words(start, ARENA_WORDS) if @space.mapping_of(start)&.writable?
        return unless sign == ARENA_SIGN

        @arenas[start] = Arena.new(start, *words).tap { |arena| note_pages(arena) if arena.described? }
      end

      # The heap pages of an arena that are in use: those behind its head without a bit in its bitmap of free
      # ones.
      def note_pages(arena)
        first = arena.head / arena.page_size
        bits = @space.words(arena.start + arena.free, arena.committed / 64 + 1) || []
        used = (first...arena.committed).select { |number| bits[number / 64]&.[](number % 64)&.zero? }
        arena.used = used.size
        @heap_pages.concat(used.map { |number| arena.page(number) })
      end

      # A heap page's first word points to its struct heap_page, which begins with
      # the size and the number of its slots and holds, after some pointers, the
      # address of the first slot, near the page's head. Other memory does not look
      # like this by chance.
      def find_gc_pages
        @space.mappings.each do |mapping|
          next if mapping.file || !mapping.writable?
          next unless mapping.unnamed? || named(mapping) == "GC pages"

          @space.each_page(mapping) do |address, _|
            next unless (address % ALIGNMENT).zero? && !@gc_pages[address]

            found = heap_page_at(address) or next
            @heap_pages << found
            address.step(address + found.size - 1, AddressSpace::PAGE) { |page| @gc_pages[page] = true }
          end
        end
      end

      def heap_page_at(address)
        header, = @space.words(address, 1)
        return unless header && header != 0 && (header % 8).zero? && @space.mapping_of(header)&.writable?

        struct = @space.words(header, 16) or return
        first_slot = struct.find { |word| word.between?(address + 8, address + LARGEST_HEAD) } or return
        slot_size, slots = [struct[0]].pack("Q").unpack("SS")
        size = first_slot + slot_size * slots - address
        return unless slot_size >= 16 && slots.positive? && size <= LARGEST_HEAP_PAGE

        HeapPage.new(address, (size + AddressSpace::PAGE - 1) / AddressSpace::PAGE * AddressSpace::PAGE, header)
      end
    end
  end
end

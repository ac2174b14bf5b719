# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "page_kinds"

module CowRuby
  module Memory
    # Compares a worker with the process that it was forked from: which pages the worker shares, which it has
    # lost since the fork (it has its own copy of them now), which are its own.
    class LostPages
      Tally = Struct.new(:shared, :lost, :own)

      # { kind => Tally of pages }, the kinds of PageKinds::ALL.
      attr_reader :tallies

      # Whether the ruby of the worker is CowRuby; nil if its memory may not be read.
      attr_reader :cowruby

      # Takes numbers of processes. +contents+: see AddressSpace. Raises AddressSpace::Unreadable.
      def initialize(master_pid, worker_pid, contents: true)
        @master = AddressSpace.new(master_pid, contents: contents)
        @worker = AddressSpace.new(worker_pid, contents: contents)
        @kinds = PageKinds.new(@worker)
        @contents = @worker.contents?
        @cowruby = @kinds.cowruby? if @contents
        @tallies = PageKinds::ALL.to_h { |kind| [kind, Tally.new(0, 0, 0)] }
        compare
      ensure
        [@master, @worker].each { |space| space&.close }
      end

      # Whether no heap page was recognised; then they are counted as malloc.
      def gc_pages_unknown?
        @kinds.gc_page_count.zero?
      end

      # Whether the contents of the worker's memory could be read, by which heap pages are recognised.
      def contents?
        @contents
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
        # A file's own page is never private, even where one process alone maps it.
        if bits & AddressSpace::EXCLUSIVE == 0 || bits & AddressSpace::FILE_PAGE != 0
          count_shared(kind, address)
        elsif inherited
          count_lost(kind, address)
        else
          count_own(kind, address)
        end
      end

      def count_shared(kind, _address)
        @tallies.fetch(kind).shared += 1
      end

      def count_lost(kind, _address)
        @tallies.fetch(kind).lost += 1
      end

      def count_own(kind, _address)
        @tallies.fetch(kind).own += 1
      end
    end
  end
end

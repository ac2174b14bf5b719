# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # Which structure of the VM a word of memory belongs to, as a master has written it before a fork
  # (gc/census.c).
  class Census
    Unreadable = Class.new(StandardError)
    LINE = /\A(?<address>\h+) (?<size>\h+) (?<kind>\S.*)\n?\z/
    # So many pieces may lie within each other.
    DEPTH = 4

    # +file+: what COWRUBY_CENSUS named. Raises Unreadable, with the reason in one line.
    def self.load(file)
      new(File.foreach(file, mode: "rb").with_index(1).map do |line, number|
        found = LINE.match(line)
        raise Unreadable, "#{file}, line #{number}: not of a census: #{line.inspect}" unless found

        [found[:address].to_i(16), found[:size].to_i(16), -found[:kind]]
      end)
    rescue SystemCallError => e
      raise Unreadable, e.message
    end

    # +pieces+: [address, bytes, kind] of each.
    def initialize(pieces)
      @pieces = pieces.sort_by { |address, size, _| [address, -size] }
      @addresses = @pieces.map(&:first)
    end

    # The kind of the smallest piece that holds the word at +address+; nil: nobody has named it.
    def kind_of(address)
      after = @addresses.bsearch_index { |start| start > address } || @addresses.size
      (after - 1).downto([after - DEPTH, 0].max) do |i|
        start, size, kind = @pieces[i]
        return kind if address < start + size
      end
      nil
    end

    # The kinds of all pieces that lie in the +size+ bytes at +address+, wholly or in part.
    def kinds_in(address, size)
      after = @addresses.bsearch_index { |start| start >= address + size } || @addresses.size
      first = @addresses.bsearch_index { |start| start >= address } || @addresses.size
      kinds = @pieces[first...after].map(&:last)
      ([kind_of(address)].compact + kinds).uniq
    end
  end
end

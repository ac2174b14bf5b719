# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowRuby
  module Memory
    # What a program or library says of its memory in the file's head (elf(5), of 64 bits, little-endian).
    module Elf
      SIGN = "\x7fELF\x02\x01".b
      # The head: place, size and number of the segments' entries. An entry: kind, flags, offset in the file,
      # address, physical address, size in the file, size in memory, alignment.
      HEAD = "x32 Q< x14 S< S<"
      HEAD_SIZE = 64
      SEGMENT = "L<2 Q<6"
      SEGMENT_SIZE = 56
      LOADED = 1
      WRITABLE = 2
      # Segments of a file that makes sense.
      MOST = 64

      # +first+: the address of the mapping that shows the file from +offset+ on. Gives the address behind its
      # variables, those without a first value included, for which the file has no bytes; nil if the file
      # cannot be read or +offset+ is not of variables.
      def self.end_of_variables(path, offset, first)
        from, size = segments(path).filter_map do |kind, flags, begins, _, _, in_file, in_memory|
          writable = kind == LOADED && flags & WRITABLE != 0
          [begins, in_memory] if writable && offset.between?(begins & -4096, begins + in_file)
        end.first
        first - offset + from + size if from
      rescue SystemCallError
        nil
      end

      def self.segments(path)
        # A link in a container may lead to a device of this machine, and to open one may do something.
        return [] unless File.file?(path)

        File.open(path, File::RDONLY | File::NONBLOCK | File::BINARY) do |file|
          head = file.read(HEAD_SIZE).to_s
          return [] unless head.start_with?(SIGN) && head.bytesize == HEAD_SIZE

          place, size, count = head.unpack(HEAD)
          return [] unless size == SEGMENT_SIZE && count.between?(1, MOST) && place < 1 << 32

          file.seek(place)
          table = file.read(size * count).to_s
          (0...table.bytesize / size).map { |i| table.byteslice(i * size, size).unpack(SEGMENT) }
        end
      end
      private_class_method :segments
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "etc"
require_relative "elf"
require_relative "errors"

module CowRuby
  module Memory
    # The memory of another process, page by page, as the kernel shows it.
    class AddressSpace
      Unreadable = Class.new(Error)
      Mapping = Struct.new(:first, :last, :rights, :name, :file, :offset) do
        def size
          last - first
        end

        def unnamed?
          name.empty?
        end

        def writable?
          rights.start_with?("rw")
        end
      end

      PAGE = 4_096
      # Bits of an entry of /proc/PID/pagemap.
      PRESENT = 1 << 63
      FILE_PAGE = 1 << 61
      EXCLUSIVE = 1 << 56

      # A line of /proc/PID/maps, and the first one of each mapping in smaps.
      MAPPING = /^(?<first>\h+)-(?<last>\h+) (?<rights>\S{4}) (?<offset>\h+) \S+ (?<inode>\d+) *(?<name>.*)$/
      # Entries of pagemap that are read at a time: 1 MB.
      AT_A_TIME = 128 * 1024
      # Bytes that are read of a process at a time, at most.
      MOST = 1024 * 1024

      attr_reader :pid, :mappings

      # +contents+: whether what stands in the memory must be readable too, for which the kernel asks for more
      # rights; without them read gives nil. Raises Unreadable, with the reason in one line.
      def initialize(pid, contents: true)
        system = Etc.sysconf(Etc::SC_PAGESIZE)
        raise Unreadable, "cannot tell memory pages of #{system} bytes apart, only of #{PAGE}" if system != PAGE

        @pid = pid
        @mappings = self.class.parse(File.read("/proc/#{pid}/maps"))
        @pagemap = File.open("/proc/#{pid}/pagemap", "rb")
        @memory = open_memory(contents)
      rescue Errno::ENOENT, Errno::ESRCH
        raise Unreadable, "no process #{pid}"
      rescue Errno::EACCES, Errno::EPERM
        raise Unreadable, "may not read process #{pid}: run as root, or as its user where ptrace is allowed"
      end

      # Private mappings only: what a fork can share and lose. Names of files may be of any bytes.
      def self.parse(maps)
        maps.b.each_line.filter_map do |line|
          found = MAPPING.match(line) or next
          next if !found[:rights].end_with?("p") || found[:name].start_with?("[v")

          Mapping.new(found[:first].to_i(16), found[:last].to_i(16), found[:rights], found[:name],
                      found[:inode] != "0", found[:offset].to_i(16))
        end
      end

      # Yields the address of each page that is in memory, and its bits.
      def each_page(mapping)
        (mapping.first...mapping.last).step(AT_A_TIME * PAGE) do |start|
          count = [AT_A_TIME, (mapping.last - start) / PAGE].min
          entries(start, count).each_with_index do |bits, i|
            yield start + i * PAGE, bits if bits & PRESENT != 0
          end
        end
      end

      def contents?
        !@memory.nil?
      end

      # nil where nothing can be read, and where it would be more than MOST: sizes come from the process.
      def read(address, size)
        bytes = @memory&.pread(size, address) if size <= MOST
        bytes if bytes&.bytesize == size
      rescue SystemCallError, EOFError, RangeError
        nil
      end

      def words(address, count)
        read(address, count * 8)&.unpack("Q*")
      end

      def mapping_of(address)
        found = mappings.bsearch { |mapping| mapping.last > address }
        found if found && found.first <= address
      end

      # The address behind the variables of the library of which +mapping+ is; nil if its file does not say.
      def end_of_variables(mapping)
        Elf.end_of_variables("/proc/#{pid}/root#{mapping.name}", mapping.offset, mapping.first)
      end

      def close
        [@pagemap, @memory].each { |file| file&.close }
      end

      private

      def open_memory(needed)
        File.open("/proc/#{@pid}/mem", "rb")
      rescue Errno::EACCES, Errno::EPERM
        raise if needed
      end

      # Of a part without any page that is like the one before: none. So terabytes that are only reserved
      # take seconds.
      def entries(start, count)
        bytes = @pagemap.pread(count * 8, start / PAGE * 8)
        return [] if bytes == @blank

        entries = bytes.unpack("Q*")
        @blank = bytes if entries.none? { |bits| bits & PRESENT != 0 }
        entries
      rescue EOFError, Errno::ESRCH
        raise Unreadable, "process #{@pid} has ended"
      end
    end
  end
end

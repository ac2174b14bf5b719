# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "memory"

module CowBench
  # The memory of another process, page by page, as the kernel shows it.
  class AddressSpace
    Unreadable = Class.new(StandardError)
    Mapping = Struct.new(:first, :last, :rights, :name, :file) do
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

    attr_reader :pid, :mappings

    def initialize(pid)
      @pid = pid
      @mappings = self.class.parse(File.read("/proc/#{pid}/maps"))
      @pagemap = File.open("/proc/#{pid}/pagemap", "rb")
      @memory = File.open("/proc/#{pid}/mem", "rb")
    rescue Errno::ENOENT, Errno::ESRCH
      raise Unreadable, "no process #{pid}"
    rescue Errno::EACCES, Errno::EPERM
      raise Unreadable, "may not read process #{pid}: run as root, or as its user where ptrace is allowed"
    end

    # Private mappings only: what a fork can share and lose.
    def self.parse(maps)
      maps.each_line.filter_map do |line|
        found = Memory::MAPPING.match(line)
        next if !found[:rights].end_with?("p") || found[:name].start_with?("[v")

        Mapping.new(found[:first].to_i(16), found[:last].to_i(16), found[:rights], found[:name],
                    found[:inode] != "0")
      end
    end

    # Yields the address of each page that is in memory, and its bits.
    def each_page(mapping)
      begin
        entries = @pagemap.pread(mapping.size / PAGE * 8, mapping.first / PAGE * 8).unpack("Q*")
      rescue EOFError, Errno::ESRCH
        raise Unreadable, "process #{@pid} has ended"
      end
      entries.each_with_index { |bits, i| yield mapping.first + i * PAGE, bits if bits & PRESENT != 0 }
    end

    # nil where nothing can be read.
    def read(address, size)
      bytes = @memory.pread(size, address)
      bytes if bytes.bytesize == size
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

    def close
      [@pagemap, @memory].each(&:close)
    end
  end
end

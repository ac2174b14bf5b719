# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../../../lib/cowruby/memory/address_space"

module CowBench
  # Reads what the kernel says about the memory of processes. All sizes are KB.
  module Memory
    FIELDS = %w[Rss Pss Private_Dirty Private_Clean Shared_Dirty Shared_Clean AnonHugePages Swap
                SwapPss].freeze
    FIELD = /^(#{FIELDS.join("|")}):\s+(\d+) kB$/
    MAPPING = CowRuby::Memory::AddressSpace::MAPPING

    # One process, from smaps_rollup, and with +mappings+ by mapping, from smaps.
    def self.sample(pid, mappings: true)
      sample = parse_rollup(File.read("/proc/#{pid}/smaps_rollup"))
      sample["mappings"] = parse_smaps(File.read("/proc/#{pid}/smaps")) if mappings
      sample
    end

    def self.parse_rollup(text)
      text.scan(FIELD).to_h { |name, kb| [name, kb.to_i] }
    end

    # Sums of the mappings of one name: a file's path, "[heap]", "[stack]", the
    # name a program gave to its anonymous memory, "anonymous", or "anonymous,
    # executable". Fields that are zero are left out.
    def self.parse_smaps(text)
      sums = Hash.new { |hash, name| hash[name] = Hash.new(0) }
      name = nil
      text.each_line do |line|
        if (field = FIELD.match(line))
          sums[name][field[1]] += field[2].to_i unless field[2] == "0"
        elsif (mapping = MAPPING.match(line))
          name = mapping_name(mapping)
        end
      end
      sums
    end

    def self.mapping_name(mapping)
      return mapping[:name] unless mapping[:name].empty?

      mapping[:rights].include?("x") ? "anonymous, executable" : "anonymous"
    end

    # The highest resident size so far.
    def self.peak(pid)
      File.read("/proc/#{pid}/status")[/^VmHWM:\s+(\d+)/, 1].to_i
    end

    # What the machine could still give.
    def self.available
      File.read("/proc/meminfo")[/^MemAvailable:\s+(\d+)/, 1].to_i
    end

    def self.mb(kilobytes)
      kilobytes / 1024.0
    end
  end
end

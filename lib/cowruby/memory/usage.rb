# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "procfs"

module CowRuby
  module Memory
    # The memory of one process, in bytes. Where the kernel does not say it, a member is nil.
    #
    # +rss+ is all that is in memory; +private_clean+ and +private_dirty+ are what no other process has,
    # +shared_clean+ and +shared_dirty+ what others have as well. +pss+ is the private memory and, of each
    # shared page, one part by the number of those who share it. +anonymous+ is the part of +rss+ that is of
    # no file, +huge+ the part of that in huge pages. +source+ is the file of /proc that was read.
    Usage = Struct.new(:rss, :pss, :private_clean, :private_dirty, :shared_clean, :shared_dirty, :anonymous,
                       :huge, :swap, :swap_pss, :source, keyword_init: true) do
      # What is shared of the memory that is of no file. The kernel counts its pages as dirty ones; so it
      # counts those that processes share on purpose, which are of a file.
      def shared_anonymous
        return shared_dirty unless anonymous && shares?

        (anonymous - private_dirty).clamp(0, shared_dirty)
      end

      # What would be free if the process ended.
      def private_total
        private_clean && private_clean + private_dirty
      end

      def shared_total
        shared_clean && shared_clean + shared_dirty
      end

      # Whether the kernel has said what is shared.
      def shares?
        !pss.nil?
      end
    end

    class << Usage
      FIELDS = { rss: "Rss", pss: "Pss", private_clean: "Private_Clean", private_dirty: "Private_Dirty",
                 shared_clean: "Shared_Clean", shared_dirty: "Shared_Dirty", anonymous: "Anonymous",
                 huge: "AnonHugePages", swap: "Swap", swap_pss: "SwapPss" }.freeze
      NEEDED = FIELDS.values.first(6).freeze
      STATUS = { rss: "VmRSS", anonymous: "RssAnon", swap: "VmSwap" }.freeze
      private_constant :FIELDS, :NEEDED, :STATUS

      # What can be read of process +pid+: smaps_rollup (Linux 4.14), else smaps, else status, which says
      # nothing of sharing and which everybody may read. nil if the process has ended.
      def of(procfs, pid)
        smaps(procfs, pid) || status(procfs.read(pid, "status").to_s)
      rescue Forbidden
        nil
      end

      # From the text of smaps_rollup, or of smaps, whose mappings are added up; nil if a field is missing.
      def parse(text, source)
        kilobytes = Hash.new(0)
        text.scan(/^(\w+): +(\d+) kB$/) { |name, number| kilobytes[name] += number.to_i }
        return unless NEEDED.all? { |name| kilobytes.key?(name) }

        known = FIELDS.select { |_, name| kilobytes.key?(name) }
        new(source: source, **known.transform_values { |name| kilobytes[name] * 1024 })
      end

      # From the text of status; nil if it is that of a process that has ended.
      def status(text)
        values = STATUS.transform_values { |name| text[/^#{name}:\s+(\d+) kB$/, 1]&.to_i&.*(1024) }
        new(source: "status", **values) if values[:rss]
      end

      private

      def smaps(procfs, pid)
        %w[smaps_rollup smaps].each do |name|
          usage = procfs.read(pid, name)&.then { |text| parse(text, name) }
          return usage if usage
        end
        nil
      rescue Forbidden
        nil
      end
    end
  end
end

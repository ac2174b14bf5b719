# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "report"

module CowRuby
  module Memory
    # A Report in Prometheus' text format 0.0.4.
    module Prometheus
      TYPE = "text/plain; version=0.0.4; charset=utf-8"
      # Of each process: the name's end, what it is, and where it stands in a Row. All are gauges, in bytes.
      PROCESS = [
        ["private", "Memory that no other process has.", ->(row) { row.usage.private_total }],
        ["shared", "Memory that other processes have as well.", ->(row) { row.usage.shared_total }],
        ["pss", "Private memory and a proportional part of what is shared.", ->(row) { row.usage.pss }],
        ["resident", "All that is in memory, shared or not (RSS).", ->(row) { row.usage.rss }],
        ["swap", "Memory that is swapped out.", ->(row) { row.usage.swap }],
        ["inherited", "Anonymous memory of the process that it was forked from.", lambda(&:at_fork)],
        ["inherited_shared", "The part of inherited_bytes that it still shares.", lambda(&:still_shared)]
      ].freeze
      # Of the whole server.
      SERVER = [
        ["up", "Whether the master is there: 1 or 0.", ->(_) { 1 }],
        ["processes", "Processes that the server has.", ->(report) { report.rows.size }],
        ["unreadable_processes", "Those of them of which it may not be read what they share.",
         ->(report) { report.unreadable.size }],
        ["pss_bytes", "What the server takes: the sum of Pss.", ->(report) { report.sum(:pss) }],
        ["private_bytes", "The sum of private memory.", ->(report) { report.sum(:private_total) }],
        ["resident_bytes", "The sum of RSS; counts a shared page once for each process.",
         ->(report) { report.sum(:rss) }],
        ["swap_bytes", "What is swapped out.", lambda(&:swap)]
      ].freeze

      class << self
        # +report+: nil if there is no server now.
        def text(report)
          server = report ? SERVER : SERVER.first(1)
          values = server.map do |name, help, value|
            family("cowruby_server_#{name}", help, { "" => report ? value.call(report) : 0 })
          end
          [*values, *(report ? processes(report.rows) : [])].join
        end

        private

        # What is not known of a process is left out.
        def processes(rows)
          labels = rows.to_h { |row| [row, labels(row.member)] }
          PROCESS.map do |name, help, value|
            samples = rows.to_h { |row| [labels[row], value.call(row)] }.compact
            family("cowruby_process_#{name}_bytes", help, samples)
          end
        end

        def labels(member)
          %({pid="#{member.pid}",role="#{member.role}",index="#{member.index}"})
        end

        def family(name, help, samples)
          return "" if samples.empty?

          ["# HELP #{name} #{help}\n# TYPE #{name} gauge\n",
           *samples.map { |labels, value| "#{name}#{labels} #{value}\n" }].join
        end
      end
    end
  end
end

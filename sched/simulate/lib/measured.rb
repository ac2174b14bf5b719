# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"

module Scheduling
  # Rows of a results.json of measured runs, to be drawn beside simulated ones.
  module Measured
    # The message is one line for the user.
    Bad = Class.new(StandardError)

    # A row lacks its CPUs where all runs were on the machine that the file names. A policy NAME-N has a bonus
    # of N ms.
    def self.read(path)
      raw = JSON.parse(File.read(path), symbolize_names: true)
      rows = raw.is_a?(Hash) ? raw[:rows] : raw
      whole = rows.is_a?(Array) && rows.all? { |row| row.is_a?(Hash) && row[:policy].is_a?(String) }
      raise Bad, "#{path}: it has no rows with a policy" unless whole && rows.any?

      cpus = raw[:cpus] if raw.is_a?(Hash)
      rows.map { |row| row(row, cpus, path) }
    rescue JSON::ParserError
      raise Bad, "#{path}: this is no JSON"
    rescue SystemCallError => e
      raise Bad, e.message.sub(/ @ .* - /, ": ")
    end

    # Those of a workload, also with more behind its name.
    def self.of(rows, workload)
      found = rows.select { |row| row[:workload].to_s.start_with?(workload) }
      return found if found.any? || rows.empty?

      raise Bad, "--measured: no row is of the workload #{workload} (there are " \
                 "#{rows.map { |row| row[:workload] }.uniq.join(", ")})"
    end

    def self.row(row, cpus, path)
      cpus = row[:cpus] || cpus
      raise Bad, "#{path}: a row does not say its cpus" unless cpus.is_a?(Integer) && cpus.positive?

      policy, bonus = row[:policy].match(/\A(.+?)(?:-(\d+))?\z/).captures
      { bonus_ms: bonus&.to_f, **row, policy: policy, cpus: cpus, simulated: false }
    end
    private_class_method :row
  end
end

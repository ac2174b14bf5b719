# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "workload"
require "socket"

# A worker's side of the queue, and what it does with a job: read JSON, look
# up, sort, write text and JSON.
class Job
  PRICES = (0...20_000).to_h { |i| ["item-#{i}", { price: i % 97, name: "item number #{i}" }] }

  # Takes and does jobs until there are none, or +most+ are done; gives how many.
  def self.work(port, most: nil)
    queue = TCPSocket.new("127.0.0.1", port)
    queue.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, true)
    done = 0
    while done != most && (job = ask(queue, "next")) != "none"
      job = JSON.parse(job)
      ask(queue, "done #{job["id"]} #{new(job).perform}")
      done += 1
    end
    queue.close
    done
  end

  def self.ask(queue, words)
    queue.write("#{words}\n")
    queue.gets&.chomp || raise("the queue is gone")
  end

  def initialize(job)
    @kind = job["kind"]
    @rows = job["rows"]
  end

  # Gives the sum over its rows, which the queue knows, too.
  def perform
    priced = @rows.map do |row|
      price = PRICES.fetch(row["sku"])
      row.merge("name" => price[:name], "total" => row["amount"] * price[:price])
    end
    text = priced.sort_by { |row| -row["total"] }.map do |row|
      format("%-20s %6d %s", row["name"], row["total"], row["note"].strip.capitalize)
    end
    groups = priced.group_by { |row| row["sku"][-1] }.transform_values(&:size)
    report = { kind: @kind, lines: text, groups: groups }
    raise "report" unless JSON.parse(JSON.generate(report))["lines"].size == @rows.size

    @rows.sum { |row| row["amount"] }
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A booted parent whose malloc has holes, and children that work, keep and free. Each child is looked at after
# each step, and says what it did.
require_relative "crew"

module Texts
  # Lengths from 30 bytes to 4 KB, short ones more often.
  def self.make(random)
    "x" * (30 * 136**random.rand).to_i
  end
end

megabytes, warmups, children, requests = ARGV.map(&:to_i)
random = Random.new(1)
parent = Array.new(megabytes * 1_000) { |i| i % 3 == 0 ? [i, i.to_s] : Texts.make(random) }
parent.each_index { |i| parent[i] = nil if random.rand(4).zero? }
GC.start
Workload.warm_up(warmups)

window = Array.new(500)
kept = []
number = 0
crew = Crew.new(children) do |words|
  started = Workload.now
  case words
  when "work"
    requests.times do
      number += 1
      200.times do
        window[random.rand(500)] = [Texts.make(random), { number: number, text: Texts.make(random) }]
      end
    end
  when "keep" then 15_000.times { kept << Texts.make(random) }
  when "free" then parent.each_index { |i| parent[i] = nil if random.rand(50).zero? }
  end
  GC.start if words == "free"
  { seconds: Workload.now - started }
end

Workload.at("at before\n")
seconds = %w[work keep free work].each_with_index.sum do |step, i|
  answers = crew.order(step)
  Workload.at(Workload.point("#{%w[worked kept freed end][i]}"))
  step == "work" ? answers.sum { |answer| answer["seconds"] } : 0
end
crew.dismiss
Workload.result(requests: 2 * requests * children, seconds: seconds)
parent.size # still needed

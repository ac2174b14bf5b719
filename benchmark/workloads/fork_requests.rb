# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Children of a booted parent that serve requests.
require_relative "crew"
require_relative "parent"
require "erb"

# A small application: tables and templates made at boot, and requests that
# look up, allocate, parse and write JSON, and fill a template.
class Application
  TEMPLATE = <<~HTML
    <html><head><title><%= h title %></title></head><body><table>
    <% rows.each do |row| %><tr><td><%= row["id"] %></td><td><%= h row["name"] %></td><td><%=
      h row["note"].to_s %></td></tr>
    <% end %></table></body></html>
  HTML

  def initialize
    @prices = (0...20_000).to_h do |i|
      ["item-#{i}", { "price" => i * 3, "name" => "item number #{i}", "stock" => i % 17 }]
    end
    @orders = Array.new(200) do |i|
      lines = Array.new(48) { |k| { item: "item-#{(i * 97 + k * 31) % 20_000}", count: k } }
      JSON.generate(id: i, lines: lines)
    end
    @sessions = {}
    ERB.new(TEMPLATE).def_method(Application, "page(title, rows)")
  end

  def h(text)
    ERB::Util.html_escape(text)
  end

  def answer(type, body)
    [200, { "content-type" => type, "content-length" => body.bytesize.to_s }, [body]]
  end

  def serve(number)
    session = (@sessions[number % 500] ||= { "seen" => [], "since" => number })
    session["seen"] = (session["seen"] << "/orders/#{number}").last(5)
    order = JSON.parse(@orders[number % @orders.size])
    rows = order["lines"].map do |line|
      item = @prices.fetch(line["item"])
      { "id" => line["item"], "name" => item["name"].capitalize,
        "note" => "#{line["count"]} at #{item["price"]}, <#{item["stock"]}>" }
    end
    sum = order["lines"].sum { |line| line["count"] * @prices.fetch(line["item"])["price"] }
    return answer("text/html", page("Order #{order["id"]}", rows)) if number.even?

    answer("application/json", JSON.generate(rows: rows, sum: sum, seen: session["seen"]))
  end
end

megabytes, warmups, workers, *steps = ARGV.map(&:to_i)
kept = Parent.boot(megabytes)
application = Application.new
application.serve(0)
application.serve(1)
Workload.warm_up(warmups)

served = 0
crew = Crew.new(workers) do |words|
  stat = GC.stat
  started = Workload.now
  if words == "collect"
    GC.start
  else
    served.upto(words.to_i - 1) { |number| application.serve(number * 7) }
    served = words.to_i
  end
  { seconds: Workload.now - started, gc: Workload.gc_delta(stat) }
end

answers = steps.to_h do |step|
  step_answers = crew.order(step)
  Workload.at(Workload.point("after #{step} requests"))
  [step, step_answers]
end
crew.order("collect")
Workload.at(Workload.point("after a collection"))
crew.dismiss

# A worker's own speed, and what all of them did with their time.
Workload.result(
  requests: steps.max * workers,
  seconds: answers.values.sum { |step| step.map { |worker| worker["seconds"] }.max },
  gc: answers.values.flatten.map { |worker| worker["gc"] }.reduce do |sum, gc|
        sum.merge(gc) do |_, a, b|
          a + b
        end
      end
)
kept.size # still needed

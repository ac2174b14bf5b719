# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "workload"

# Children that wait for an order, carry it out and say what came of it, so
# that the observer finds all of them at rest.
class Crew
  # A child holds the parent's ends of the pipes of those hired before it, so
  # the end of a pipe would not reach them all.
  GO_HOME = "go home"

  # The block gets each order in the child, with the pipe the next one will
  # come through, and gives a Hash back.
  def initialize(size, &work)
    @members = []
    size.times { hire(&work) }
  end

  # Gives all the same order.
  def tell(words)
    @members.each { |_, orders, _| orders.syswrite("#{words}\n") }
  end

  # Waits for the answer of each.
  def hear
    @members.map { |_, _, answers| JSON.parse(answers.gets || raise("a child ended early")) }
  end

  def order(words)
    tell(words)
    hear
  end

  def dismiss
    tell(GO_HOME)
    @members.each { |pid, _, _| Process.wait(pid) }
  end

  private

  def hire(&work)
    orders_out, orders_in = IO.pipe
    answers_out, answers_in = IO.pipe
    pid = Workload.forked do
      orders_in.close
      obey(orders_out, answers_in, &work)
    end
    orders_out.close
    answers_in.close
    @members << [pid, orders_in, answers_out]
  end

  def obey(orders, answers)
    while (words = orders.gets&.chomp) && words != GO_HOME
      answers.syswrite("#{JSON.generate(yield(words, orders))}\n")
    end
  end
end

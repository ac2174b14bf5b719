# frozen_string_literal: true

require_relative "workload"

# Children that wait for an order, carry it out and say what came of it, so
# that the observer finds all of them at rest.
class Crew
  # A child holds the parent's ends of the pipes of those hired before it, so
  # the end of a pipe would not reach them all.
  GO_HOME = "go home"

  # The block gets each order in the child and gives a Hash back.
  def initialize(size, &work)
    @members = Array.new(size) { hire(&work) }
  end

  # Gives the same order to all; returns their answers when all have answered.
  def order(words)
    @members.each { |_, orders, _| orders.syswrite("#{words}\n") }
    @members.map { |_, _, answers| JSON.parse(answers.gets || raise("a child ended early")) }
  end

  def dismiss
    @members.each do |pid, orders, answers|
      orders.syswrite("#{GO_HOME}\n")
      Process.wait(pid)
      orders.close
      answers.close
    end
  end

  private

  def hire
    order_out, order_in = IO.pipe
    answer_out, answer_in = IO.pipe
    pid = fork do
      order_in.close
      while (words = order_out.gets&.chomp) && words != GO_HOME
        answer_in.syswrite("#{JSON.generate(yield(words))}\n")
      end
      exit!(0)
    rescue Exception => e # rubocop:disable Lint/RescueException
      warn e.full_message(highlight: false)
      exit!(1)
    end
    order_out.close
    answer_in.close
    [pid, order_in, answer_out]
  end
end

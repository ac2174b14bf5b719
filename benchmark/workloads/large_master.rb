# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A master of a real application's size, with generated code and data, and workers that serve requests.
require_relative "crew"
require_relative "parent"

# Controllers with methods of their own, as an application has them, over what the parent keeps.
module LargeApplication
  CONTROLLERS = 400
  METHODS = 12
  # Of the data of one request.
  ACCOUNTS = 96
  # Half of what requests look at is among so many.
  POPULAR = 2_000
  SESSIONS = 500
  FRAGMENTS = 2_000

  # Made when it is first asked for: a request writes to what the master made.
  Parent::Account.class_eval do
    attr_reader :id, :name, :roles, :settings

    def heading
      @heading ||= "#{name} <#{settings[:mail]}>"
    end
  end

  class << self
    def boot(megabytes)
      @kept = Parent.boot(megabytes)
      @accounts = @kept.grep(Parent::Account)
      @controllers = Array.new(CONTROLLERS) { |number| controller(number).new }
      @sessions = {}
      @fragments = {}
      self
    end

    # Gives the size of the answer.
    def serve(number)
      random = Random.new(number)
      session = (@sessions[number % SESSIONS] ||= { "seen" => [] })
      session["seen"] = JSON.parse(JSON.generate(session["seen"] << "/accounts/#{number}")).last(5)
      rows = Array.new(ACCOUNTS) { |i| account(random, i) }
      rows = @controllers[random.rand(CONTROLLERS)].show(rows)
      fragment = (@fragments[number % FRAGMENTS] ||= rows.first(3).map { |row| row[:text] }.join)
      JSON.generate(rows: rows, seen: session["seen"], fragment: fragment).bytesize
    end

    private

    def account(random, index)
      @accounts[random.rand(index.even? ? POPULAR : @accounts.size)]
    end

    def controller(number)
      Class.new { class_eval(LargeApplication.source(number), "controller_#{number}.rb", 1) }
    end
  end

  def self.source(number)
    methods = Array.new(METHODS) { |i| format(METHOD, name: "row_#{i}", label: "c#{number}m#{i}", number: i) }
    calls = Array.new(METHODS) { |i| "when #{i} then row_#{i}(account, i)" }.join("\n")
    format(SHOW, calls: calls, methods: METHODS) + methods.join
  end

  SHOW = <<~'RUBY'
    def show(accounts)
      accounts.each_with_index.map do |account, i|
        case i %% %<methods>d
        %<calls>s
        end
      end
    end
  RUBY
  METHOD = <<~'RUBY'
    def %<name>s(account, place)
      roles = account.roles.map { |role| "#{role} of %<label>s" }
      row = { id: account.id, heading: account.heading, place: place + %<number>d, roles: roles }
      row[:language] = account.settings.fetch(:language).upcase
      row[:words] = account.name.split.map { |word| "#{word}-%<label>s" }.reverse
      row[:text] = format("%%-30s %%6d %%s\n", row[:heading], row[:place], roles.sort.join(", "))
      row
    end
  RUBY
end

# How long each fork took, from the call to its return in the parent.
module ForkTimes
  SECONDS = []

  def _fork
    started = Workload.now
    child = super
    SECONDS << (Workload.now - started) unless child.zero?
    child
  end
end
Process.singleton_class.prepend(ForkTimes)

megabytes, warmups, workers, *steps = ARGV.map(&:to_i)
application = LargeApplication.boot(megabytes)
LargeApplication::CONTROLLERS.times { |number| application.serve(number) }
Workload.at(Workload.point("booted"))
started = Workload.now
Workload.warm_up(warmups)
warmup = Workload.now - started

served = 0
crew = Crew.new(workers) do |words|
  stat = GC.stat
  times = served.upto(words.to_i - 1).map do |number|
    before = Workload.now
    application.serve(number * 7)
    Workload.now - before
  end
  served = words.to_i
  { times: times, gc: Workload.gc_delta(stat) }
end
first, *others = ForkTimes::SECONDS

answers = steps.flat_map do |step|
  given = crew.order(step)
  Workload.at(Workload.point("after #{step} requests"))
  given
end
crew.dismiss
GC.start
Workload.result(live: GC.stat(:heap_live_slots), warmup: warmup, first_fork: first, other_forks: others,
                times: answers.flat_map { |answer| answer["times"].map { |time| time.round(6) } },
                gc: answers.map { |answer| answer["gc"] })

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "workload"

module Scheduling
  # Workloads that are made up, for runs without a trace. The same Random gives the same.
  module Generator
    US = 1_000
    # Users of a room: with four threads each, as in the paper's chatroom, 80 threads.
    USERS = 20
    # Times that a program goes round with other lengths of runs before it repeats itself.
    ROUNDS = 8

    module_function

    # The workload +name+ of at least +threads+ threads in +processes+ processes.
    def make(name, processes:, threads:, random:)
      entries = send(ALL.fetch(name), processes, threads, random)
      Workload.new(name: name, entries: entries, messages: 1)
    end

    # Rooms, half of the processes serve and half are clients. A user's four threads: the client's sender,
    # which waits until its own message has come back; the server's receiver, which hands each message to
    # the senders of all users of the room; the server's sender; the client's receiver.
    def chatroom(processes, threads, random)
      servers = [processes / 2, 1].max
      clients = [processes - servers, 1].max
      rooms = [threads.fdiv(USERS * 4).ceil, clients].max
      rooms.times.each_with_object([]) do |room, entries|
        client = processes == 1 ? 1 : servers + room % clients + 1
        entries.concat(Room.new([room % servers + 1, client], entries.size, random).entries)
      end
    end

    # One room, whose threads begin at the place +first+.
    class Room
      def initialize(spaces, first, random)
        @server, @client = spaces
        @first = first
        @random = random
      end

      def entries
        makers = { sender: @client, receiver: @server, server_sender: @server, client_receiver: @client }
        makers.flat_map do |role, space|
          Array.new(USERS) { |user| Generator.entry(kind(role), space, send(role, user)) }
        end
      end

      private

      # In one process all do both.
      def kind(role)
        return "chatroom" if @server == @client

        role.to_s.include?("client") || role == :sender ? "client" : "server"
      end

      def place(role, user)
        @first + role * USERS + user
      end

      def run(mean)
        Generator.exponential(@random, mean)
      end

      def sender(user)
        program do |steps|
          steps.add(run(30 * US), place(1, user))
          steps.add(0, Program::WAIT)
        end
      end

      def receiver(_user)
        program do |steps|
          steps.add(0, Program::WAIT)
          USERS.times { |other| steps.add(run((other.zero? ? 20 : 4) * US), place(2, other)) }
        end
      end

      def server_sender(user)
        program do |steps|
          steps.add(0, Program::WAIT)
          steps.add(run(25 * US), place(3, user))
        end
      end

      # Of each USERS messages one is its own user's.
      def client_receiver(user)
        program do |steps|
          USERS.times do
            steps.add(0, Program::WAIT)
            steps.add(run(20 * US), Program::GO)
          end
          steps.add(1, place(0, user))
        end
      end

      def program
        Program.new([], []).tap { |steps| ROUNDS.times { yield steps } }
      end
    end

    # Threaded workers, five threads a process, and one process of clients that asks each of them and waits
    # for the answer. A request is work, a wait for a database and work again.
    def workers(processes, threads, random)
      workers = [processes * THREADS, (threads / 2 / THREADS.to_f).ceil * THREADS].max
      answers = Array.new(workers) do |i|
        entry("worker", 2 + i / THREADS % processes, worker(workers + i, random))
      end
      answers + Array.new(workers) { |i| entry("client", 1, client(i, random)) }
    end
    THREADS = 5

    def worker(client, random)
      Program.new([], []).tap do |steps|
        ROUNDS.times do
          steps.add(0, Program::WAIT)
          steps.add(exponential(random, 600 * US), Program.sleep(exponential(random, 1_000 * US)))
          steps.add(exponential(random, 400 * US), client)
        end
      end
    end

    def client(worker, random)
      Program.new([], []).tap do |steps|
        ROUNDS.times do
          steps.add(exponential(random, 30 * US), worker)
          steps.add(0, Program::WAIT)
        end
      end
    end

    # Threads that never block, as many in each process as in the next.
    def spinners(processes, threads, _random)
      program = Program.new([Workload::SPIN], [Program::GO])
      Array.new([processes, threads].max) { |i| entry("spinner", 1 + i % processes, program) }
    end

    ALL = { "chatroom" => :chatroom, "workers" => :workers, "spinners" => :spinners }.freeze

    def entry(kind, space, program)
      Entry.new(kind: kind, space: space, weight: 100, program: program, copy: 0, delay: 0)
    end

    # 1 ns at least.
    def exponential(random, mean)
      (-Math.log(1 - random.rand) * mean).ceil + 1
    end
  end
end

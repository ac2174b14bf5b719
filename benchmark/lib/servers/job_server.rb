# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../measure/registry"
require_relative "service"

module CowBench
  # A server that takes jobs from a queue. A subclass is one way to run one. Jobs note in a file that they
  # were done (apps/jobs/app/jobs).
  class JobServer < Service
    extend Registry

    REHEARSED = "jobs"
    # What a job came to that was enqueued, and neither done nor given up.
    NEVER_DONE = "never done"
    # The jobs of the application (ApplicationJob::KINDS there).
    KINDS = %w[ReportJob PageJob ChangeJob].freeze
    # Seconds; bounds only.
    ENQUEUING = 180
    DOING = 300
    # Jobs that have begun may go on for so long: Sidekiq asks for 30.
    STOP = 40
    # What asking for jobs takes is rest.
    PAUSE = 1
    REST = 0.09

    # What the jobs numbered from ... to took: seconds until the last of them was done, and the CPU time of
    # the server's processes.
    def work(from, to)
      before = cpu
      begun = enqueue(from, to)
      wait("end of #{to} jobs (#{done.size} were done)", DOING) { done.size >= to }
      settle
      numbers = done.map(&:first)
      unless numbers.sort == (0...to).to_a
        raise Failed, "#{numbers.size} jobs were done in place of #{to}, some twice: #{complaint}"
      end

      { from: from, to: to, seconds: done.map(&:last).max - begun, cpu: cpu - before }
    end

    # Starts a process that enqueues what it reads from +orders+, a line "FROM TO" for each time, and answers
    # each line with one.
    def enqueuer(orders, answers)
      program("enqueue.rb", in: orders, out: answers)
    end

    # What is left in the queue: a hash with how many jobs are :waiting, :running and :again (tried again
    # later), how often a job has :raised so far, and in :failed the jobs that were given up, each as its
    # number and the name of its error; these are put back where +again+ says so. In :later jobs that are
    # neither given up nor lost, each as its number and why.
    def left(again: false)
      output = run_program("left.rb", *("again" if again))
      JSON.parse(output[/^\{.*\}$/] || raise(Failed, "the queue cannot be read: #{output.lines.last}"),
                 symbolize_names: true)
    end

    # [number, time] of each job so far.
    def done
      File.readlines(@done).map(&:split).map { |number, time| [Integer(number), Float(time)] }
    end

    # "worker", "dispatcher", ... by a process' title.
    def self.role(title)
      self::ROLE.match(title)&.[](1) || "parent"
    end

    private

    def before_start
      @done = File.join(directory, "done")
      FileUtils.touch(@done)
    end

    # Gives the time at which it began.
    def enqueue(from, to)
      Float(run_program("enqueue.rb", from.to_s, to.to_s)[/^begun ([\d.]+)$/, 1])
    end

    # Programs of the application beside the server.
    def program(*words, **options)
      launch(*in_bundle(@build.path, *words), environment: environment, chdir: @app.directory, **options)
    end

    def run_program(*words)
      output, status = Supervised.capture(*in_bundle(@build.path, *words), seconds: ENQUEUING,
                                          environment: environment, chdir: @app.directory)
      return output if status&.success?

      raise Failed, "#{words.join(" ")} failed: #{output.lines.last&.strip}"
    end

    def environment
      more = @settings[:rehearsed] ? rehearsal_without_a_line("COWRUBY_REHEARSAL_JOBS", KINDS.join(",")) : {}
      super.merge("DONE" => @done, "QUEUE" => self.class::QUEUE, **more)
    end
  end

  # The supervisor forks a dispatcher, a worker of 3 threads (or as many as :workers says) and a scheduler, as
  # set up by its own generator.
  class SolidQueueFork < JobServer
    NAME = "solid_queue, fork"
    QUEUE = "solid_queue"
    WORKER = /\Asolid-queue-(?:dispatcher|worker|scheduler)\(/
    ROLE = /\Asolid-queue-(dispatcher|worker|scheduler|\S*supervisor)\(/
    # The threads of a worker, each with a job.
    AT_WORK = 3
    # The errors of jobs whose process has ended.
    LOST = /\ASolidQueue::Processes::Process\w+Error\z/

    def number_of_workers
      2 + number_of_serving
    end

    # Not the dispatcher and the scheduler.
    def serves?(title)
      title.match?(/\Asolid-queue-worker\(/)
    end

    def number_of_serving
      @settings.fetch(:workers, 1)
    end

    private

    def environment
      super.merge("JOB_CONCURRENCY" => @settings.fetch(:workers, 1).to_s)
    end

    def command
      in_bundle(@build.path, "bin/jobs")
    end
  end

  # The same in threads of one process.
  class SolidQueueAsync < SolidQueueFork
    NAME = "solid_queue, async"
    WORKER = /\Asolid-queue-/

    def number_of_workers
      1
    end

    def number_of_serving
      1
    end

    def serves?(title)
      title.match?(WORKER)
    end

    private

    def command
      [*super, "--mode", "async"]
    end
  end

  # One process of 5 threads, which forks nothing and calls Process.warmup by itself.
  class Sidekiq < JobServer
    NAME = "sidekiq, plain"
    QUEUE = "sidekiq"
    WORKER = ROLE = /\A(sidekiq) \d/
    PROCESSES = 1
    AT_WORK = 5
    # A fetch takes a job out of the queue; a killed process takes it along.
    LOST = /\A#{NEVER_DONE}\z/
    REDIS = "redis-server"

    def self.missing
      return if system(REDIS, "--version", out: File::NULL, err: File::NULL)

      "redis-server is not installed (Debian package redis-server)"
    end

    def number_of_workers
      self.class::PROCESSES
    end

    # Redis goes on over a restart.
    def stop
      super
      @redis&.stop(:TERM, STOP)
      @redis = nil
    end

    private

    # On a port of its own, with nothing on disk.
    def before_start
      super
      return if @redis

      @port = Service.free_port
      @redis = launch(REDIS, "--port", @port.to_s, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                      "--dir", directory)
      Clock.wait_until(START) do
        raise Failed, "Redis ended early: #{complaint}" if @redis.ended?

        listening?(@port)
      end or raise Failed, "no Redis after #{START} s: #{complaint}"
    end

    def environment
      super.merge("REDIS_URL" => "redis://127.0.0.1:#{@port}/0")
    end

    def command
      in_bundle("sidekiq", *arguments)
    end

    # It watches the default queue.
    def arguments
      %w[--concurrency 5 --require .]
    end
  end

  # A parent loads the application and forks 4 such processes.
  class SidekiqSwarm < Sidekiq
    NAME = "sidekiq, swarm of 4"
    PROCESSES = 4

    private

    def command
      in_bundle(@build.path, configuration("sidekiq_swarm.rb"), PROCESSES.to_s, *arguments)
    end
  end
end

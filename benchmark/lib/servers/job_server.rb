# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../measure/registry"
require_relative "service"

module CowBench
  # A server that takes jobs from a queue. A subclass is one way to run one. Jobs note in a file that they
  # were done (apps/jobs/app/jobs).
  class JobServer < Service
    extend Registry

    REHEARSED = "jobs"
    # The jobs of the application (ApplicationJob::KINDS there).
    KINDS = %w[ReportJob PageJob ChangeJob].freeze
    # Seconds; bounds only.
    ENQUEUING = 180
    DOING = 300
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

    # "worker", "dispatcher", ... by a process' title.
    def self.role(title)
      self::ROLE.match(title)&.[](1) || "parent"
    end

    private

    def before_start
      @done = File.join(directory, "done")
      FileUtils.touch(@done)
    end

    # [number, time] of each job so far.
    def done
      File.readlines(@done).map(&:split).map { |number, time| [Integer(number), Float(time)] }
    end

    # Gives the time at which it began.
    def enqueue(from, to)
      output, status = Supervised.capture(*in_bundle(@build.path, "enqueue.rb", from.to_s, to.to_s),
                                          seconds: ENQUEUING, environment: environment,
                                          chdir: @app.directory)
      raise Failed, "jobs cannot be enqueued: #{output.lines.last&.strip}" unless status&.success?

      Float(output[/^begun ([\d.]+)$/, 1])
    end

    def environment
      more = @settings[:rehearsed] ? rehearsal_without_a_line("COWRUBY_REHEARSAL_JOBS", KINDS.join(",")) : {}
      super.merge("DONE" => @done, "QUEUE" => self.class::QUEUE, **more)
    end
  end

  # The supervisor forks a dispatcher, a worker of 3 threads and a scheduler, as set up by its own generator.
  class SolidQueueFork < JobServer
    NAME = "solid_queue, fork"
    QUEUE = "solid_queue"
    WORKER = /\Asolid-queue-(?:dispatcher|worker|scheduler)\(/
    ROLE = /\Asolid-queue-(dispatcher|worker|scheduler|\S*supervisor)\(/
    CHILDREN = 3

    private

    def command
      in_bundle(@build.path, "bin/jobs")
    end

    def ready?
      workers.size == self.class::CHILDREN
    end
  end

  # The same in threads of one process.
  class SolidQueueAsync < SolidQueueFork
    NAME = "solid_queue, async"
    WORKER = /\Asolid-queue-/
    CHILDREN = 1

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
    REDIS = "redis-server"

    def self.missing
      return if system(REDIS, "--version", out: File::NULL, err: File::NULL)

      "redis-server is not installed (Debian package redis-server)"
    end

    def stop
      super
      @redis&.stop(:TERM, STOP)
      @redis = nil
    end

    private

    # On a port of its own, with nothing on disk.
    def before_start
      super
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

    def ready?
      workers.size == self.class::PROCESSES
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

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "erb"
require_relative "../measure/registry"
require_relative "service"

module CowBench
  # A server for HTTP. A subclass is one kind of server; its configuration is a file in benchmark/servers.
  class Server < Service
    extend Registry

    WORKERS = 4
    REHEARSAL = File.join(LIBRARY, "cowruby/rehearsal")
    # The values of :rehearsed for a server that takes what was noted, and for one with a list as a person
    # would write it.
    AUTO = "auto"
    FORMS = "forms"
    # Where workers note what they are asked for, below the application (lib/cowruby/rehearsal/start.rb).
    NOTES = "tmp/cowruby/rehearsal.txt"
    # How many requests a worker has taken that it has not answered, at most.
    AT_WORK = 1

    attr_reader :port

    # +settings+ holds also :oob_gc where workers shall collect between requests, :rehearsed where the
    # application shall be rehearsed before the first fork (lib/cowruby/rehearsal.rb; true: by the requests
    # that will be sent, FORMS: by one of each form, AUTO: by what was noted), and in :census the file for the
    # master's census, if it can write one (gc/census.c); in :workers how many there are, else WORKERS.
    def initialize(app, build, directory, settings)
      super
      @port = Server.free_port
    end

    # Another process has taken the master's place: the old one is asked to go.
    def handed_over(successor)
      raise Failed, "the old master does not go" unless @master.hand_over(successor, :QUIT, STOP)
    end

    def number_of_workers
      @settings.fetch(:workers, WORKERS)
    end

    private

    def ready?
      super && listening?(port)
    end

    def environment
      more = { "PORT" => port.to_s, "WORKERS" => number_of_workers.to_s,
               "COWRUBY_CENSUS" => @settings[:census],
               "BEFORE_FORK" => configuration("before_fork.rb"),
               "REHEARSAL" => (REHEARSAL if @settings[:rehearsed] == true) }
      value = list
      more.update(rehearsal_without_a_line("COWRUBY_REHEARSAL", value)) if value
      super.merge(more)
    end

    # The value of COWRUBY_REHEARSAL.
    def list
      case @settings[:rehearsed]
      when AUTO then AUTO
      when FORMS then @app.write_forms(File.join(@directory, "forms.txt"))
      end
    end

    # COMMAND is a program of a gem, its option for a configuration, and the name of that.
    def command
      program, option, file = self.class::COMMAND
      in_bundle(program, option, configuration(file), "config.ru")
    end
  end
end

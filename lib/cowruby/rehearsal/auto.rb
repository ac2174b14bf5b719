# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# auto: rehearses without a line in the application. Whoever sets COWRUBY_REHEARSAL or
# COWRUBY_REHEARSAL_JOBS has this file loaded before all else (CowRuby does it; elsewhere
# RUBYOPT=-rcowruby/rehearsal/auto). It waits for a server's class and gets in where that server's
# master has the whole application and is about to fork. Rack::Builder#to_app would be one place for
# all servers, but it is called for each part of an application (map), at times for each request,
# and does not know whether workers will be forked. A server knows.
#
# It loads nothing but itself until a server is there: this may be any ruby.
module CowRuby
  class Rehearsal
    module Auto
      module_function

      # Is there anything to do in this process?
      def wanted?
        ENV["COWRUBY_REHEARSAL"] != "off" &&
          %w[COWRUBY_REHEARSAL COWRUBY_REHEARSAL_JOBS].any? { |name| !ENV[name].to_s.empty? }
      end

      # Waits for the classes of servers, or takes those that are there.
      def install
        return if @waiting || !wanted?

        HOOKS.each_key { |name| attach(name, Object.const_get(name)) if loaded?(name) }
        # A module that is prepended at the beginning of a class is in front of all methods that
        # the class will get. It is heard of each class, so only its name is asked for.
        name_of = Module.instance_method(:name)
        @waiting = TracePoint.new(:class) do |point|
          name = name_of.bind_call(point.self)
          attach(name, point.self) if name && HOOKS.key?(name)
        end
        @waiting.enable
        Process.singleton_class.prepend(SwarmFork) unless ENV["COWRUBY_REHEARSAL_JOBS"].to_s.empty?
      end

      # Not what an autoload stands for: that would load the server.
      def loaded?(name)
        name.split("::").inject(Object) do |scope, part|
          return false if scope.autoload?(part) || !scope.const_defined?(part, false)

          scope.const_get(part, false)
        end
        true
      end

      def attach(name, server)
        hook = HOOKS.fetch(name)
        server = server.singleton_class if hook == Passenger
        server.prepend(hook) unless server.include?(hook)
      end

      # To be called by a server's hook: the block loads the application in the process that will
      # fork, and gives it. Gives the application that the workers shall call. If config.ru itself
      # has rehearsed (+before+: how often something was rehearsed until then), that is enough.
      # +reload+: workers of an application that was loaded before have been stopped already.
      def preload(name, before: made, reload: false)
        app = yield
        # A server of jobs may come later, in a thread or a child of this one.
        @waiting&.disable if ENV["COWRUBY_REHEARSAL_JOBS"].to_s.empty?
        safely { Start.new(name, app, reload: reload).run(done: made != before) } || app
      end

      # To be called in a server that forks nothing, or forks before it loads.
      def not_preloaded(name, advice)
        safely { Start.not_preloaded(name, advice) }
      end

      # To be called before a server of jobs forks its first worker.
      def jobs
        return if @jobs_done

        @jobs_done = true
        safely { Start.jobs }
      end

      def made
        Rehearsal.respond_to?(:made) ? Rehearsal.made : 0
      end

      # What goes wrong here must not keep a server from its start.
      def safely
        require_relative "start"
        yield
      rescue StandardError, ScriptError => e
        begin
          $stderr.puts("rehearsal: #{e.class}: #{e.message.to_s.tr("\n", " ")}")
        rescue StandardError
          nil # nobody can be told
        end
      end

      # Unicorn::HttpServer: build_app! is called in the master only where the application is
      # preloaded, otherwise in each worker; at a reload (HUP) once more, after the workers were told
      # to end. A worker that is executed anew has worker data.
      module Unicorn
        def start
          Auto.not_preloaded("Unicorn", "preload_app true") unless preload_app || @worker_data
          super
        end

        def build_app!
          return super if !preload_app || @worker_data

          reload = @rehearsal_built
          @rehearsal_built = true
          self.app = Auto.preload("Unicorn", reload: reload) { super; app }
        end
      end

      # Pitchfork::HttpServer: build_app! is called in the process that forks, and nowhere else.
      module Pitchfork
        def build_app!
          self.app = Auto.preload("Pitchfork") { super; app }
        end
      end

      # Puma::Cluster: load_and_bind is called in the master, where the application is preloaded. It
      # asks the configuration for the application, once, and then binds. The rehearsal comes between,
      # for until it ends nobody would answer who connects. A worker is another class.
      module PumaCluster
        def run
          Auto.not_preloaded("Puma", "preload_app!") unless preload?
          super
        end

        def load_and_bind
          (@config || @launcher.config).extend(PumaConfiguration)
          super
        end
      end

      # The Puma::Configuration of such a master.
      module PumaConfiguration
        def app
          Auto.preload("Puma") { super }
        end
      end

      # Puma::Single: one process.
      module PumaSingle
        def run
          Auto.not_preloaded("Puma", "workers 2 and preload_app!")
          super
        end
      end

      # PhusionPassenger::LoaderSharedHelpers: only smart spawning loads the other helpers, in the
      # process that forks. The application is in PhusionPassenger::App.
      module Passenger
        def after_loading_app_code(*)
          result = super
          place = ::PhusionPassenger::App
          if defined?(::PhusionPassenger::PreloaderSharedHelpers) && place.class_variable_defined?(:@@app)
            app = Auto.preload("Passenger", before: 0) { place.class_variable_get(:@@app) }
            place.class_variable_set(:@@app, app)
          end
          result
        end
      end

      # SolidQueue::Supervisor: it forks its workers there.
      module SolidQueue
        def start_processes(...)
          Auto.jobs
          super
        end
      end

      # Process: no class of Sidekiq's swarm is known here, but its program forks when all is loaded.
      module SwarmFork
        def _fork
          Auto.jobs if $PROGRAM_NAME.include?("sidekiqswarm")
          super
        end
      end

      HOOKS = {
        "Unicorn::HttpServer" => Unicorn, "Pitchfork::HttpServer" => Pitchfork,
        "Puma::Cluster" => PumaCluster, "Puma::Single" => PumaSingle,
        "PhusionPassenger::LoaderSharedHelpers" => Passenger, "SolidQueue::Supervisor" => SolidQueue
      }.freeze
    end
  end
end

CowRuby::Rehearsal::Auto.install

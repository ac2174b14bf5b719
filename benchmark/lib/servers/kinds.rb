# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "server"

module CowBench
  class Unicorn < Server
    NAME = "unicorn"
    COMMAND = %w[unicorn -c unicorn.rb].freeze
    WORKER = /\Aunicorn worker\[\d+\]/
  end

  class Puma < Server
    NAME = "puma"
    COMMAND = %w[puma -C puma.rb].freeze
    WORKER = /\Apuma: cluster worker \d+:/
    # Its threads take connections before a thread is free.
    AT_WORK = Float::INFINITY
  end

  # As Puma 8 is if nothing is said: 5 threads, the application preloaded; and as many workers as there are
  # processors, which it says at its start.
  class PumaDefaults < Puma
    NAME = "puma-defaults"
    COMMAND = %w[puma -C puma-defaults.rb].freeze

    def number_of_workers
      logged(/\* +Workers: \d+/).first&.then { |line| Integer(line[/\d+/]) }
    end
  end

  # Worker 0 forks the others; after 1,000 requests it does so anew.
  class PumaForkWorker < Puma
    NAME = "puma-fork_worker"
    ENVIRONMENT = { "FORK_WORKER" => "1000" }.freeze
  end

  class Pitchfork < Server
    NAME = "pitchfork"
    COMMAND = %w[pitchfork -c pitchfork.conf.rb].freeze
    WORKER = /\Apitchfork \(gen:\d+\) worker\[\d+\]/

    # The kernel gives the mold's children to the monitor.
    def origin(_worker)
      processes.find { |process| ProcessTable.title(process).match?(/\Apitchfork \(gen:\d+\) mold/) }
    end
  end

  class PitchforkReforking < Pitchfork
    NAME = "pitchfork-reforking"
    ENVIRONMENT = { "REFORK_AFTER" => "50,100,1000" }.freeze
  end

  # What both ways to use Apache share.
  module Apache
    MODULES = "/usr/lib/apache2/modules"

    def self.missing(*names)
      return "apache2 is not installed (Debian package apache2-bin)" unless program

      name = names.find { |file| !File.exist?(File.join(MODULES, file)) }
      package = name == "mod_passenger.so" ? "libapache2-mod-passenger" : "apache2-bin"
      name && "Apache has no #{name} (Debian package #{package})"
    end

    def self.program
      %w[/usr/sbin/apache2 /usr/bin/apache2].find { |file| File.executable?(file) }
    end

    private

    # Writes a configuration from benchmark/servers.
    def write_configuration(name, **values)
      template = ERB.new(File.read(configuration("#{name}.erb")), trim_mode: "-")
      # Apache's children run as another user and read files here.
      File.chmod(0o755, directory)
      FileUtils.mkdir_p(File.join(directory, "public"))
      user = apache_user
      values = { modules: MODULES, port: port, directory: directory, workers: Server::WORKERS,
                 apache_user: user&.name, apache_group: user && group_of(user) }.merge(values)
      File.join(directory, name).tap { |file| File.write(file, template.result_with_hash(values)) }
    end

    # Started by root, Apache wants another user for its own children, and a group.
    def apache_user
      return unless Process.euid.zero?

      Etc.passwd { |entry| return entry if %w[www-data nobody].include?(entry.name) }
    end

    def group_of(user) = Etc.getgrgid(user.gid).name

    def apache(configuration)
      [Apache.program, "-f", configuration, "-D", "FOREGROUND"]
    end
  end

  class ApachePassenger < Server
    include Apache
    NAME = "passenger"
    WORKER = /\APassenger RubyApp/
    ROOT = "/usr/lib/ruby/vendor_ruby/phusion_passenger/locations.ini"

    def self.missing
      Apache.missing("mod_passenger.so", "mod_env.so") ||
        ("passenger is not installed (Debian package passenger)" unless File.exist?(ROOT))
    end

    # One worker has answered PassengerPreStart, without which there would be none. It is killed and
    # another one takes its place, so that no worker has served a request.
    def start
      super
      asked = workers.min_by { |worker| [ProcessTable.stat(worker)&.started.to_i, worker] }
      @master.signal(:KILL, asked)
      wait("worker in place of one that was killed", START) { (workers - [asked]).size == WORKERS }
      settle
    end

    # Apache itself: it was started first here.
    def front
      pid
    end

    # Passenger looks at this file's time.
    def restart_application
      FileUtils.touch(restart_file)
    end

    private

    def restart_file
      File.join(directory, "restart", "restart.txt")
    end

    def before_start
      FileUtils.mkdir_p(File.dirname(restart_file))
      user = Etc.getpwuid
      values = { ruby: wrapper, app: @app.directory, passenger_root: ROOT,
                 restart: File.dirname(restart_file) }
      @file = write_configuration("apache-passenger.conf", user: user.name, group: group_of(user),
                                                              **values)
    end

    # Passenger hands on only a part of its environment.
    def wrapper
      variables = environment.then do |all|
        all.merge("RUBYOPT" => "-rbundler/setup #{all["RUBYOPT"]}",
                  "PASSENGER_USE_RUBY_NATIVE_SUPPORT" => "0")
      end
      lines = variables.map do |key, value|
        value ? "export #{key}='#{value.gsub("'", "'\\\\''")}'" : "unset #{key}"
      end
      File.join(directory, "ruby").tap do |file|
        File.write(file, ["#!/bin/sh", *lines, "exec '#{@build.path}' \"$@\"", ""].join("\n"))
        File.chmod(0o755, file)
      end
    end

    def command
      apache(@file)
    end

    def logs
      [*%w[error.log passenger.log].map { |name| File.join(directory, name) }, *super]
    end
  end

  # Apache takes the requests and passes them on to a Puma.
  class ApachePuma < Puma
    include Apache
    NAME = "apache-puma"

    def self.missing
      Apache.missing("mod_proxy.so", "mod_proxy_http.so")
    end

    # Apache's number.
    def front
      @front.pid
    end

    # The ports are the same after a restart.
    def start
      @port = behind = (@behind ||= port)
      super
      @port = @before ||= Server.free_port
      @front = launch(*apache(write_configuration("apache-proxy.conf", behind: behind)))
      wait("Apache", START) { listening?(port) }
      settle
    rescue StandardError, Interrupt
      stop
      raise
    end

    private

    def halt
      @front&.stop(:TERM, STOP)
      @front = nil
      super
    end

    def processes
      @front ? super + @front.processes : super
    end

    def logs
      [File.join(directory, "error.log"), *super]
    end
  end
end

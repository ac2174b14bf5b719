# frozen_string_literal: true

require_relative "server"

class Unicorn < Server
  NAME = "unicorn"
  WORKER = /\Aunicorn worker\[\d+\]/

  # The masters that a USR2 has started, in the order of their age.
  def successors
    (tree - [@pid]).select { |pid| title_of(pid).match?(/\Aunicorn master/) }
  end

  private

  def command
    bundle_exec("unicorn", "-c", configuration("unicorn.rb"), "config.ru")
  end
end

class Puma < Server
  NAME = "puma"
  WORKER = /\Apuma: cluster worker \d+:/

  private

  def command
    bundle_exec("puma", "-C", configuration("puma.rb"), "config.ru")
  end
end

# Worker 0 forks the others; after 1,000 requests it does so anew.
class PumaForkWorker < Puma
  NAME = "puma-fork_worker"

  private

  def environment
    super.merge("FORK_WORKER" => "1000")
  end
end

class Pitchfork < Server
  NAME = "pitchfork"
  WORKER = /\Apitchfork \(gen:\d+\) worker\[\d+\]/

  # The kernel gives the mold's children to the monitor.
  def origin(_worker)
    tree.find { |pid| title_of(pid).match?(/\Apitchfork \(gen:\d+\) mold/) }
  end

  private

  def command
    bundle_exec("pitchfork", "-c", configuration("pitchfork.conf.rb"), "config.ru")
  end
end

class PitchforkReforking < Pitchfork
  NAME = "pitchfork-reforking"

  private

  def environment
    super.merge("REFORK_AFTER" => "50,100,1000")
  end
end

# What both ways to use Apache share.
module Apache
  MODULES = "/usr/lib/apache2/modules"

  def self.missing(*names)
    return "apache2 is not installed (Debian package apache2-bin)" unless program

    name = names.find { |file| !File.exist?(File.join(MODULES, file)) }
    name && "Apache has no #{name} (Debian package #{name == "mod_passenger.so" ? "libapache2-mod-passenger" : "apache2-bin"})"
  end

  def self.program
    %w[/usr/sbin/apache2 /usr/bin/apache2].find { |file| File.executable?(file) }
  end

  private

  # Writes a configuration from benchmark/servers.
  def write_configuration(name, **values)
    template = ERB.new(File.read(configuration("#{name}.erb")), trim_mode: "-")
    apache_user = Etc.passwd { |entry| break entry.name if %w[www-data nobody].include?(entry.name) } if Process.euid.zero?
    # Apache's children reach what stands here.
    File.chmod(0o755, directory)
    FileUtils.mkdir_p(File.join(directory, "public"))
    values = { modules: MODULES, port: port, directory: directory, workers: Server::WORKERS, apache_user: apache_user }.merge(values)
    File.join(directory, name).tap { |file| File.write(file, template.result_with_hash(values)) }
  end

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
    Apache.missing("mod_passenger.so", "mod_env.so") || ("passenger is not installed (Debian package passenger)" unless File.exist?(ROOT))
  end

  # One worker has answered PassengerPreStart, without which there were none: another one
  # takes its place, so that nobody has served a request.
  def start
    super
    asked = workers.min_by { |pid| [started(pid), pid] }
    signal(:KILL, asked)
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
    @file = write_configuration("apache-passenger.conf", ruby: wrapper, app: @app.directory, passenger_root: ROOT, restart: File.dirname(restart_file),
                                                         user: user.name, group: Etc.getgrgid(user.gid).name)
  end

  # Passenger hands on only a part of its environment.
  def wrapper
    settings = environment.merge("RUBYOPT" => "-rbundler/setup", "PASSENGER_USE_RUBY_NATIVE_SUPPORT" => "0")
    lines = settings.map { |key, value| value ? "export #{key}='#{value.gsub("'", "'\\\\''")}'" : "unset #{key}" }
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
  attr_reader :front

  def start
    super
    @behind = port
    @port = Server.free_port
    @front = Process.spawn(*apache(write_configuration("apache-proxy.conf", behind: @behind)), in: File::NULL, out: [@log, "a"], err: [@log, "a"],
                                                                                               pgroup: true)
    wait("Apache", START) { listening? }
    settle
  rescue StandardError, Interrupt
    stop
    raise
  end

  def stop
    front = @front
    @front = nil
    if front
      known = Memory.tree(front)
      signal(:TERM, front)
      Process.wait(front)
      known.each { |pid| signal(:KILL, pid) if alive?(pid) }
    end
    super
  end

  private

  def tree
    @front ? super + Memory.tree(@front) : super
  end

  def logs
    [File.join(directory, "error.log"), *super]
  end
end

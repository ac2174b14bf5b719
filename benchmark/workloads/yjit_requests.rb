# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What YJIT holds in a master and in a worker that it forks: requests of the Rails application of apps/,
# without a server, in the application's directory and under its Gemfile.
#
# Arguments: requests before the fork (a rehearsal; 0: none), then after how many requests the worker stops.
# Each process prints a line of JSON at each stop, and waits there until somebody answers.
require "json"

rehearsed, *stops = ARGV.map { |text| Integer(text) }
OUT = $stdout.dup
$stdout.reopen(File::NULL, "w")
ENV["YJIT"] ||= "1"
require "./config/environment"
require "rack/mock"

PATHS = File.readlines("requests.txt").filter_map { |line| line[/\AGET (\S+)/, 1] }
# The same requests in the same order each time.
CHOICE = Random.new(1)

def serve(count)
  count.times do
    request = Rack::MockRequest.env_for(PATHS.sample(random: CHOICE), "HTTP_HOST" => "localhost")
    _, _, body = Rails.application.call(request)
    body.each { } # a lazy body does its work here
    body.close if body.respond_to?(:close)
  end
end

def stop(name, served = nil)
  map = RubyVM::YJIT.memory if RubyVM::YJIT.respond_to?(:memory)
  cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  private_kb = File.read("/proc/self/smaps_rollup")[/^Private_Dirty:\s+(\d+)/, 1].to_i
  OUT.syswrite("#{JSON.generate(name: name, served: served, pid: Process.pid, private_kb: private_kb,
                                cpu: cpu, stats: RubyVM::YJIT.runtime_stats, map: map)}\n")
  $stdin.gets or exit!(1)
end

stop("master, booted")
if rehearsed.positive?
  serve(rehearsed)
  stop("master, after #{rehearsed} requests")
end
ActiveRecord::Base.connection_handler.clear_all_connections!
pid = fork do
  done = 0
  stops.each do |count|
    serve(count - done)
    done = count
    stop("worker, after #{count} requests", count)
  end
  exit!(0)
end
exit Process.wait2(pid).last.success?

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Run in the image of the application: gems with compiled parts, the environment, and Puma with two workers.
require "bigdecimal"
require "etc"
require "msgpack"
require "net/http"
require "openssl"
require "puma/cli"

def check(what, good)
  puts "#{good ? "good" : "bad "} #{what}"
  exit 1 unless good
end

check RUBY_DESCRIPTION, RUBY_DESCRIPTION.include?("+CowRuby")
check "RUBY_VERSION is #{ENV.fetch("RUBY_VERSION")}", ENV["RUBY_VERSION"] == RUBY_VERSION
check "runs as user #{Process.uid}", Process.uid == 1000
check "ruby is #{RbConfig.ruby}", RbConfig.ruby == "/usr/local/bin/ruby"
gems = %w[msgpack puma nio4r].map { |name| Gem.loaded_specs.fetch(name).gem_dir }
check "gems are in #{ENV.fetch("BUNDLE_PATH")}", gems.all? { |dir| dir.start_with?(ENV["BUNDLE_PATH"]) }
check "MessagePack", MessagePack.unpack([1, "two"].to_msgpack) == [1, "two"]
certificates = Dir.children(OpenSSL::X509::DEFAULT_CERT_DIR).size
check "#{certificates} certificates in #{OpenSSL::X509::DEFAULT_CERT_DIR}", certificates > 10
check "malloc is #{GC.malloc_stat[:allocator]}", GC.malloc_stat[:allocator] == "jemalloc"

reader, writer = IO.pipe
server = fork do
  $stdout.reopen(writer)
  exec("bundle", "exec", "puma", "--workers", "2", "--preload", "--bind", "tcp://127.0.0.1:0", "config.ru")
end
writer.close
begin
  port = nil
  workers = 0
  while workers < 2 && (line = reader.gets)
    port ||= line[%r{http://127\.0\.0\.1:(\d+)}, 1]
    workers += 1 if line.match?(/Worker \d+ \(PID: \d+\) booted/)
  end
  body = Net::HTTP.get(URI("http://127.0.0.1:#{port}/"))
  check "a worker answers: #{body}", body.include?("CowRuby")
  memory = `cowruby-memory #{server}`
  check "cowruby-memory\n#{memory}", $?.success?
ensure
  Process.kill(:TERM, server)
  Process.wait(server)
end

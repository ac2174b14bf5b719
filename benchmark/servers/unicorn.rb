# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Unicorn, as it is set up in production: one master that loads the application
# and forks.
listen "127.0.0.1:#{ENV.fetch("PORT")}", backlog: 256
worker_processes Integer(ENV.fetch("WORKERS"))
preload_app true
timeout 60

warm = ENV["WARMUP"] == "1"
before_fork do |_server, _worker|
  ActiveRecord::Base.connection_handler.clear_all_connections! if defined?(ActiveRecord::Base)
  # Once, before the first fork. A worker that is forked later finds it done.
  Process.warmup if warm
  warm = false
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "before_fork"

# Unicorn, as it is set up in production: one master that loads the application
# and forks.
listen "127.0.0.1:#{ENV.fetch("PORT")}", backlog: 256
worker_processes Integer(ENV.fetch("WORKERS"))
preload_app true
timeout 60

# Once, before the first fork. A worker that is forked later finds it done.
prepared = false
before_fork do |_server, _worker|
  prepare_for_fork unless prepared
  prepared = true
end

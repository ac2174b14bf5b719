# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Puma in cluster mode.
bind "tcp://127.0.0.1:#{ENV.fetch("PORT")}"
workers Integer(ENV.fetch("WORKERS"))
threads 3, 3
preload_app!
# Worker 0 forks the others anew once it has served so many requests.
fork_worker Integer(ENV["FORK_WORKER"]) if ENV["FORK_WORKER"]

before_fork do
  ActiveRecord::Base.connection_handler.clear_all_connections! if defined?(ActiveRecord::Base)
  Process.warmup if ENV["WARMUP"] == "1"
end

# Collects when no request waits.
out_of_band { GC.start } if ENV["OOB_GC"] == "1"

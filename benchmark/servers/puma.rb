# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "before_fork"

# Puma in cluster mode.
bind "tcp://127.0.0.1:#{ENV.fetch("PORT")}"
workers Integer(ENV.fetch("WORKERS"))
threads 3, 3
preload_app!
# Worker 0 forks the others anew once it has served so many requests.
fork_worker Integer(ENV["FORK_WORKER"]) if ENV["FORK_WORKER"]

before_fork { prepare_for_fork }

# Collects when no request waits; no other collection is a full one.
if ENV["OOB_GC"] == "1"
  before_worker_boot { GC.config(rgengc_allow_full_mark: false) } if GC.respond_to?(:config)
  out_of_band { GC.start }
end

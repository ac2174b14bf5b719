# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "before_fork"

# Pitchfork: a monitor, a mold that has loaded the application, and workers
# that are forked from the mold.
listen "127.0.0.1:#{ENV.fetch("PORT")}", backlog: 256
worker_processes Integer(ENV.fetch("WORKERS"))
timeout 60
spawn_timeout 60
# After so many requests a worker becomes the new mold.
refork_after ENV["REFORK_AFTER"].split(",").map(&:to_i) if ENV["REFORK_AFTER"]

# In each mold, the first and those that workers became, before it forks.
after_mold_fork { |_server, _mold| prepare_for_fork }

# Collects after every tenth request, when its answer is sent.
if ENV["OOB_GC"] == "1"
  after_request_complete { |_server, worker, _env| GC.start if worker.requests_count % 10 == 0 }
end

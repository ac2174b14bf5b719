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

# Each worker stays on one of the processors that it may run on, to measure what that is worth
# (sched/README.md).
if ENV["PIN_WORKERS"] == "1"
  allowed = File.read("/proc/self/status")[/^Cpus_allowed_list:\s*(\S+)/, 1].split(",").flat_map do |range|
    first, last = range.split("-").map(&:to_i)
    [*first..(last || first)]
  end
  before_worker_boot do |index|
    processor = allowed[index % allowed.size]
    done = system("taskset", "--all-tasks", "--cpu-list", "--pid", processor.to_s, Process.pid.to_s,
                  out: File::NULL)
    abort "worker #{index} cannot be kept on processor #{processor}" unless done
  end
end

# Collects when no request waits; no other collection is a full one.
if ENV["OOB_GC"] == "1"
  before_worker_boot { GC.config(rgengc_allow_full_mark: false) } if GC.respond_to?(:config)
  out_of_band { GC.start }
end

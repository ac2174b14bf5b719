# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Puma 8 as it is by itself: 5 threads, preloaded in cluster mode. One worker a processor.
bind "tcp://127.0.0.1:#{ENV.fetch("PORT")}"
workers :auto

before_fork do
  ActiveRecord::Base.connection_handler.clear_all_connections! if defined?(ActiveRecord::Base)
  Process.warmup if ENV["WARMUP"] == "1"
end

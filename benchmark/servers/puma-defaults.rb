# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "before_fork"

# Puma 8 as it is by itself: 5 threads, preloaded in cluster mode. One worker a processor.
bind "tcp://127.0.0.1:#{ENV.fetch("PORT")}"
workers :auto

before_fork { prepare_for_fork }

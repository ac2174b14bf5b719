# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Before Solid Queue's supervisor forks.
SolidQueue.on_start { Process.warmup } if defined?(SolidQueue) && ENV["WARMUP"] == "1"

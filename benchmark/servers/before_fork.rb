# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What careful users do in the process that forks, before it does. WARMUP is 1 for Process.warmup, and
# "compact" for what was done before there was one, and still is (the gem nakayoshi_fork does so).
def prepare_for_fork
  ActiveRecord::Base.connection_handler.clear_all_connections! if defined?(ActiveRecord::Base)
  case ENV.fetch("WARMUP")
  when "1" then Process.warmup
  when "compact"
    3.times { GC.start }
    GC.compact
  end
end

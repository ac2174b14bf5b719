# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# QUEUE says who runs the jobs.
Rails.application.configure do
  queue = ENV.fetch("QUEUE")
  config.active_job.queue_adapter = queue.to_sym
  config.solid_queue.connects_to = { database: { writing: :queue } } if queue == "solid_queue"
end

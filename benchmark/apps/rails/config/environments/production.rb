# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

Rails.application.configure do
  config.enable_reloading = false
  config.eager_load = true
  config.consider_all_requests_local = false
  config.action_controller.perform_caching = true
  # One store a worker, in its own memory.
  config.cache_store = :memory_store, { size: 8.megabytes }
  config.secret_key_base = ENV.fetch("SECRET_KEY_BASE")
  # The list of requests is fixed and cannot hold a token.
  config.action_controller.allow_forgery_protection = false
  config.logger = ActiveSupport::Logger.new($stderr)
  config.log_level = :error
  config.active_support.report_deprecations = false
  config.hosts.clear
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "bundler/setup"
require "rails/all"
# With what runs its jobs, if it has some (apps/jobs).
Bundler.require(:default, *ENV["QUEUE"])

module CatalogueApp
  class Application < Rails::Application
    config.load_defaults 8.1
    config.root = File.expand_path("..", __dir__)
    config.autoload_lib(ignore: [])
    config.i18n.available_locales = %i[en de]
    config.i18n.load_path += Dir[File.expand_path("locales/**/*.yml", __dir__)]
    config.active_storage.variant_processor = :disabled
    # An axis of the benchmark. Rails itself would switch it on.
    config.yjit = ENV["YJIT"] != "0"
  end
end

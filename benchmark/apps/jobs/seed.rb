# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: QUEUE=solid_queue ruby seed.rb   (environment: DATABASE, SECRET_KEY_BASE, RAILS_ENV)
# Sets Solid Queue up as its own generator does, makes its tables in a database of their own, and fills the
# application's database.
require_relative "config/environment"
require "rails/generators"

Rails::Generators.invoke("solid_queue:install", %w[--force --quiet], destination_root: Rails.root)
ActiveRecord::Schema.verbose = false
ActiveRecord::Base.establish_connection(:queue)
load Rails.root.join("db/queue_schema.rb")
ActiveRecord::Base.establish_connection(:primary)
load Rails.root.join("seed_records.rb")

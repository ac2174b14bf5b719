# frozen_string_literal: true

require_relative "config/environment"

run Rails.application
# The other servers call it in a hook of their own before they fork.
Process.warmup if ENV["WARMUP"] == "1" && defined?(PhusionPassenger)

# frozen_string_literal: true

require_relative "config/environment"

# Unicorn sends no length by itself, and wrk takes an answer that ends with its
# connection for a broken one.
use Rack::ContentLength
run Rails.application
# The other servers call it in a hook of their own before they fork.
Process.warmup if ENV["WARMUP"] == "1" && defined?(PhusionPassenger)

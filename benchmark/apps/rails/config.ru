# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "config/environment"

# Unicorn sends no length by itself, and wrk takes an answer that ends with its
# connection for a broken one.
use Rack::ContentLength
# Unicorn's own way to collect between requests.
if ENV["OOB_GC"] == "1" && defined?(Unicorn::HttpServer)
  require "unicorn/oob_gc"
  use Unicorn::OobGC, 10
end
if ENV["REHEARSAL"]
  require ENV["REHEARSAL"]
  run CowRuby::Rehearsal.of(Rails.application, File.join(__dir__, "requests.txt"))
else
  run Rails.application
end
# The other servers call it in a hook of their own before they fork.
if defined?(PhusionPassenger)
  require ENV.fetch("BEFORE_FORK")
  prepare_for_fork
end

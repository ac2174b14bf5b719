# frozen_string_literal: true

require "bundler/setup"
require_relative "library"

run Library.new
# The other servers call it in a hook of their own before they fork.
Process.warmup if ENV["WARMUP"] == "1" && defined?(PhusionPassenger)
RubyVM::YJIT.enable if ENV["YJIT"] != "0" && defined?(RubyVM::YJIT.enable)

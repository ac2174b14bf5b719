# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# In place of Bundler, where a suite asks it to set the load path up: tool/check-others has done that, and the
# suite's Gemfile names more than its tests need.
module Bundler
  BundlerError = Class.new(StandardError)

  class << self
    def setup(*) = nil
    def require(*) = nil
    def with_unbundled_env = yield
    alias with_clean_env with_unbundled_env
  end
end

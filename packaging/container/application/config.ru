# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

run ->(_) { [200, { "content-type" => "text/plain" }, ["#{RUBY_DESCRIPTION} in #{Process.pid}"]] }

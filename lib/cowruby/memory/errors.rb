# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowRuby
  module Memory
    # What can go wrong; the message is one line for the user.
    Error = Class.new(StandardError)
    # The process has ended, or never was.
    Gone = Class.new(Error)
    # This user may not read it.
    Forbidden = Class.new(Error)
    # This system does not say it.
    Unsupported = Class.new(Error)
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "open3"

module CowBench
  # The C compiler: cc, or what CC names.
  module Compiler
    MISSING = "there is no C compiler: install one, or name it in CC"

    class << self
      def there?
        !run("--version").nil?
      end

      # Makes +output+ of the file +source+. +flags+ follow the source, so libraries may be among them. Gives
      # nil, or why there is no output.
      def compile(source, output, *flags)
        text, status = run("-o", output, source, *flags)
        return MISSING unless status

        "#{File.basename(source)} does not compile: #{text.lines.first}" unless status.success?
      end

      private

      # Output and status; nil where there is no compiler.
      def run(*arguments)
        Open3.capture2e(*ENV.fetch("CC", "cc").split, *arguments)
      rescue Errno::ENOENT
        nil
      end
    end
  end
end

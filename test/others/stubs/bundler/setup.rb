# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "bundler"

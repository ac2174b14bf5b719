# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Loaded before the fork, as every worker needs it.
Rails.application.config.after_initialize { PlaceTable.load }

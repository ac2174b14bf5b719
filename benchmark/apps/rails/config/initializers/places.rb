# frozen_string_literal: true

# Loaded before the fork, as every worker needs it.
Rails.application.config.after_initialize { PlaceTable.load }

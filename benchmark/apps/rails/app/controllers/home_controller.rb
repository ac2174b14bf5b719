# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

class HomeController < ApplicationController
  skip_before_action :remember_visit, only: :up

  def index
    @kinds = ApplicationRecord.descendants.sort_by(&:name)
    @count = Rails.cache.fetch("home/count", expires_in: 300) { @kinds.sum(&:count) }
  end

  def up
    render plain: "up"
  end
end

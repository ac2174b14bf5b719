# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

Rails.application.routes.draw do
  root "home#index"
  get "up", to: "home#up"
  get "places", to: "places#index"
  get "places/:code", to: "places#show", as: :place
  get "session", to: "visits#show", as: :visit
  post "session", to: "visits#create"
  # The generated resources.
  draw :resources
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

class PlacesController < ApplicationController
  def index
    codes = PlaceTable.in_region(params[:region].presence_in(PlaceTable::REGIONS) || "north")
    places = codes.each_slice(25).to_a[(page - 1) % 100] || []
    render json: places.map { |code| entry(PlaceTable.by_code[code]) }
  end

  def show
    place = PlaceTable.by_code[params[:code]] or return head(:not_found)
    render json: entry(place).merge(near: PlaceTable.near(place.code).map { |other| entry(other) })
  end

  private

  def entry(place)
    { code: place.code, label: place.label, slug: place.slug,
      at: [place.latitude.round(3), place.longitude.round(3)], tags: place.tags }
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

class ApplicationController < ActionController::Base
  before_action :remember_visit
  around_action :in_locale
  rescue_from(ActiveRecord::RecordNotFound) { head :not_found }

  private

  def in_locale(&block)
    I18n.with_locale(params[:locale].presence_in(%w[en de]) || I18n.default_locale, &block)
  end

  def remember_visit
    session[:visits] = session[:visits].to_i + 1
    session[:last] = ((session[:last] || []) + [request.path]).last(5)
  end

  def page
    [params[:page].to_i, 1].max
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Shows and changes what the session holds.
class VisitsController < ApplicationController
  def show
    render json: { visits: session[:visits], last: session[:last], name: session[:name] }
  end

  def create
    session[:name] = params[:name].to_s.first(40)
    redirect_to visit_path
  end
end

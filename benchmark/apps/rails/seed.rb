# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# usage: ruby seed.rb   (environment: DATABASE, SECRET_KEY_BASE, RAILS_ENV)
# Makes the tables and fills them: the same rows at every call.
require_relative "config/environment"

ActiveRecord::Schema.verbose = false
load Rails.root.join("db/schema.rb")
ROWS = 60
WORDS = %w[amber basin cedar delta ember fjord grove harbor inlet juniper kernel lagoon meadow north orchard
           prairie quarry river summit timber].freeze
random = Random.new(99)
value = lambda do |column|
  case column.type
  when :string then WORDS.sample(random: random).capitalize
  when :text then Array.new(20 + random.rand(60)) { WORDS.sample(random: random) }.join(" ")
  when :integer then column.name.end_with?("_id") ? 1 + random.rand(ROWS) : random.rand(10_000)
  when :decimal then random.rand(100_000) / 100r
  when :date then Date.new(2025, 1, 1) + random.rand(700)
  when :boolean then random.rand(2).zero?
  else Time.utc(2026, 1, 1)
  end
end
ApplicationRecord.descendants.sort_by(&:name).each do |model|
  columns = model.columns.reject { |column| %w[id title code].include?(column.name) }
  rows = Array.new(ROWS) do |i|
    { "title" => "#{WORDS.sample(random: random).capitalize} #{i}",
      "code" => "#{model.name[0, 2].upcase}-#{i}" }
      .merge(columns.to_h { |column| [column.name, value.call(column)] })
  end
  model.insert_all!(rows)
end
routes = Rails.application.routes.routes.count { |route| route.defaults[:controller] }
puts "#{ApplicationRecord.descendants.size} models, #{routes} routes"

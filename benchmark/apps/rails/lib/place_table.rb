# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A table of places that is kept in memory, as applications keep postal codes,
# tax rates or translations. Entries work out their labels when first asked:
# in a worker that is a write to an inherited object.
module PlaceTable
  SIZE = 40_000
  REGIONS = %w[north south east west centre coast hills plain lakes woods].freeze
  SYLLABLES = %w[ba den fel gor hau kir lin mon nor ost pal ris sta tor ul vel wen zar].freeze

  Place = Struct.new(:code, :name, :region, :latitude, :longitude, :tags) do
    def label
      @label ||= "#{code} #{name} (#{region})"
    end

    def slug
      @slug ||= name.parameterize
    end
  end

  class << self
    attr_reader :by_code

    def load
      random = Random.new(8_413)
      @by_code = Array.new(SIZE) { |i| place(random, format("%05d", i * 2)) }
                      .to_h { |place| [place.code, place] }
    end

    def near(code, count = 8)
      number = code.to_i / 2
      Array.new(count) { |i| by_code[format("%05d", (number + i) % SIZE * 2)] }
    end

    def in_region(region)
      (@in_region ||= {})[region] ||= by_code.each_value.select { |place| place.region == region }.map(&:code)
    end

    private

    def place(random, code)
      name = Array.new(2 + random.rand(3)) { SYLLABLES.sample(random: random) }.join.capitalize
      Place.new(code, name, REGIONS.sample(random: random), random.rand(-90.0..90.0),
                random.rand(-180.0..180.0), SYLLABLES.sample(3, random: random))
    end
  end
end

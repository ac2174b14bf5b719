# frozen_string_literal: true

require_relative "app"
require_relative "server"

# What is measured under servers: the axes, and which of their combinations.
module ServerMatrix
  # One combination. +measure+ is :curve (memory, speed) or :pages (which pages
  # a worker lost, and to whom).
  Setting = Struct.new(:measure, :app, :server, :warmup, :malloc, :yjit, :rehearsed, keyword_init: true) do
    # Names the files of its runs.
    def id
      [measure, app, server, warmup ? "warmup" : "cold", malloc, yjit ? "yjit" : "interpreter", *("rehearsed" if rehearsed)].join("-")
    end

    def label
      [server, warmup ? "warmup" : "no warmup", malloc, *("no YJIT" unless yjit), *("rehearsed" if rehearsed)].join(", ")
    end
  end

  AXES = {
    measure: %i[curve pages],
    app: App::NAMES,
    server: Server.all.map(&:title),
    warmup: [true, false],
    malloc: %w[glibc arenas2 jemalloc],
    yjit: [true, false],
    rehearsed: [false, true]
  }.freeze
  # What holds where nothing else is said.
  USUAL = { measure: :curve, app: "rails", server: "unicorn", warmup: true, malloc: "glibc", yjit: true, rehearsed: false }.freeze

  class << self
    # Every combination of +axes+; those that are not named are whole.
    def product(axes = {})
      axes = AXES.merge(axes)
      first, *rest = axes.values
      first.product(*rest).map { |values| Setting.new(**axes.keys.zip(values).to_h) }
    end

    # Each server with Rails, then one axis at a time with Unicorn, then Rack.
    def chosen
      [
        *AXES[:server].map { |server| usual(server: server) },
        usual(warmup: false), usual(measure: :pages), usual(malloc: "jemalloc"), usual(malloc: "arenas2"), usual(yjit: false),
        *(AXES[:server] - ["unicorn"]).map { |server| usual(server: server, warmup: false) },
        usual(warmup: false, malloc: "jemalloc"), usual(warmup: false, malloc: "arenas2"), usual(warmup: false, yjit: false),
        usual(server: "puma", malloc: "jemalloc"), usual(server: "pitchfork-reforking", malloc: "jemalloc"),
        usual(measure: :pages, warmup: false), usual(measure: :pages, server: "puma"),
        *%w[unicorn puma].map { |server| usual(server: server, malloc: "jemalloc", warmup: false, rehearsed: true) },
        usual(warmup: false, rehearsed: true),
        *AXES[:server].map { |server| usual(app: "rack", server: server) }
      ]
    end

    # Each server once, and once rehearsed those that are set up differently.
    def quick
      [
        *AXES[:server].map { |server| usual(app: "rack", server: server) },
        *%w[unicorn puma pitchfork passenger].map { |server| usual(app: "rack", server: server, warmup: false, rehearsed: true) },
        usual, usual(server: "passenger"), usual(app: "rack", measure: :pages)
      ]
    end

    # The axes that were named, the others as usual.
    def only(axes)
      product(USUAL.transform_values { |value| [value] }.merge(axes))
    end

    private

    def usual(**axes)
      Setting.new(**USUAL, **axes)
    end
  end
end

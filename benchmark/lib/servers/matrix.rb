# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "app"
require_relative "kinds"

module CowBench
  # What is measured under servers: the axes, and which of their combinations.
  module ServerMatrix
    AUTO = Server::AUTO
    FORMS = Server::FORMS
    # In place of a warmup: some collections and a compaction.
    COMPACT = "compact"

    # One combination. +measure+ is :curve (memory, speed), :speed (all builds side by side), :pages (which
    # pages a worker lost, and which functions wrote them) or :pressure (UnderPressure). +rehearsed+ is true
    # with the list of requests, FORMS with one of each form, AUTO with what a server before it has noted of
    # them.
    Setting = Struct.new(:measure, :app, :server, :warmup, :malloc, :yjit, :rehearsed, keyword_init: true) do
      # From a hash of a results file.
      def self.of(hash)
        new(**hash.transform_keys(&:to_sym))
      end

      # Names the files of its runs.
      def id
        [measure, app, server, preparation || "cold", malloc, yjit ? "yjit" : "interpreter",
         *rehearsal].join("-")
      end

      def label
        [server, preparation || "no warmup", malloc, *("no YJIT" unless yjit),
         *rehearsal].join(", ")
      end

      # What is the same on one chart, and what the lines on it are of one ruby.
      def chart
        [app, server, *(malloc unless malloc == "glibc"), *("interpreter" unless yjit)]
      end

      def case_on_chart
        words = [*preparation, *rehearsal]
        words.empty? ? "plain" : words.join(", ")
      end

      # "warmup", "compact" or nil.
      def preparation
        warmup == true ? "warmup" : (warmup || nil)
      end

      def rehearsal
        rehearsed == true ? "rehearsed" : (rehearsed || nil)
      end
    end

    AXES = {
      measure: %i[curve speed pages pressure],
      app: App::NAMES,
      server: Server.all.map(&:title),
      warmup: [true, false, COMPACT],
      malloc: %w[glibc arenas2 jemalloc],
      yjit: [true, false],
      rehearsed: [false, true, FORMS, AUTO]
    }.freeze
    # What holds where nothing else is said.
    USUAL = { measure: :curve, app: "rails", server: "unicorn", warmup: true, malloc: "glibc", yjit: true,
              rehearsed: false }.freeze
    # The servers of README's table (tool/readme-table).
    SHOWN = %w[puma unicorn passenger].freeze

    class << self
      # Every combination of +axes+; those that are not named are whole.
      def product(axes = {})
        axes = AXES.merge(axes)
        first, *rest = axes.values
        first.product(*rest).map { |values| Setting.new(**axes.keys.zip(values).to_h) }
      end

      # What README shows first: the best that a careful user gets from CRuby, and with a rehearsal. Then
      # what doc/servers.md says of those who set nothing. Then each server with Rails, one axis at a time
      # with Unicorn, and Rack.
      def chosen
        servers = AXES[:server]
        [
          *SHOWN.map { |server| usual(server: server, malloc: "jemalloc") },
          *SHOWN.map { |server| usual(server: server, malloc: "jemalloc", warmup: false, rehearsed: true) },
          *SHOWN.map { |server| usual(server: server, warmup: false) }, usual(measure: :pages, warmup: false),
          *%w[unicorn puma].map do |server|
            usual(measure: :speed, server: server, malloc: "jemalloc", warmup: false)
          end,
          *servers.map { |server| usual(server: server) },
          usual(measure: :pages), usual(malloc: "arenas2"), usual(yjit: false),
          *servers.map { |server| usual(server: server, warmup: false) },
          usual(warmup: false, malloc: "jemalloc"), usual(warmup: false, malloc: "arenas2"),
          usual(warmup: false, yjit: false), usual(server: "pitchfork-reforking", malloc: "jemalloc"),
          usual(measure: :pages, server: "puma"), usual(warmup: false, rehearsed: true),
          *%w[unicorn puma].map { |server| usual(server: server, warmup: COMPACT) },
          *%w[unicorn puma].map do |server|
            usual(server: server, malloc: "jemalloc", warmup: false, rehearsed: AUTO)
          end,
          usual(malloc: "jemalloc", warmup: false, rehearsed: FORMS),
          usual(measure: :pressure, malloc: "jemalloc"),
          *servers.map { |server| usual(app: "rack", server: server) }
        ].uniq
      end

      # Each server once, and once rehearsed those that are set up differently.
      def quick
        [
          *AXES[:server].map { |server| usual(app: "rack", server: server) },
          *%w[unicorn puma pitchfork passenger].map do |server|
            usual(app: "rack", server: server, warmup: false, rehearsed: true)
          end,
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
end

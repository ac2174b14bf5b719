# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "process_tree"

module CowRuby
  module Memory
    # Finds servers by what their processes call themselves.
    module Servers
      # How a process of a server looks: by its title, or by the program that was started.
      Look = Struct.new(:title, :programs)
      ALL = {
        "puma" => Look.new(/\Apuma(?: \d|: )/, %w[puma]),
        "unicorn" => Look.new(/\Aunicorn(?:_rails)? (?:master|worker)/, %w[unicorn unicorn_rails]),
        "pitchfork" => Look.new(/\Apitchfork /, %w[pitchfork]),
        # The preloader of each application and its workers; Passenger's own programs are no Ruby.
        "passenger" => Look.new(/\APassenger (?:AppPreloader|RubyApp)/, []),
        "apache" => Look.new(nil, %w[apache2 httpd]),
        "solid_queue" => Look.new(/\Asolid-queue-/, []),
        "sidekiq" => Look.new(/\Asidekiq(?:swarm)? /, %w[sidekiq sidekiqswarm])
      }.freeze

      class << self
        # The masters of all servers of a name: { number => title }. Takes a ProcessTree that is fresh. A
        # master that another one has started, as Unicorn does for an upgrade, belongs to that one's server.
        def masters(name, procfs, tree)
          look = ALL.fetch(name)
          titles = tree.titles
          pids = titles.keys.select { |pid| pid != Process.pid && match?(look, procfs, pid, titles[pid]) }
          roots = pids.map { |pid| tree.root_of(pid) }.uniq
          roots = roots.reject { |pid| tree.ancestors(pid).any? { |ancestor| roots.include?(ancestor) } }
          roots.sort.to_h { |pid| [pid, titles[pid]] }
        end

        private

        def match?(look, procfs, pid, title)
          return true if look.title&.match?(title)

          named = look.programs.any? { |program| title.include?(program) }
          named && look.programs.include?(program(procfs.command_line(pid)))
        end

        # The name of the program that was started by +words+, also by ruby or Bundler; nil if there is none. It
        # stands in front, and a stranger's process may have a million words.
        def program(words)
          name, *rest = words.first(16).map { |word| File.basename(word) }
          return name unless name&.match?(/\A(?:ruby|bundle)[\d.]*\z/)

          rest = rest.drop_while { |word| word.start_with?("-") || word == "exec" }
          program(rest)
        end
      end
    end
  end
end

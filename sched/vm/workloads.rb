# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowSched
  # How the loader is called for each policy; without it, the kernel's own scheduler is at work.
  POLICIES = { "default" => nil, "scx" => "--no-rule", "rule" => "", "rule-0" => "--bonus 0",
               "rule-1" => "--bonus 1", "rule-20" => "--bonus 20", "homes" => "--homes" }.freeze

  # What runs in the guest. +command+: prints, as its last line, JSON with "messages" and "ms"; $SIZE is its
  # size. +names+: the processes whose switches and waits count. +prepare+: shell before all runs.
  Workload = Struct.new(:command, :size, :quick, :names, :policies, :cpus, :memory, :prepare, :needs, :image,
                        keyword_init: true) do
    def counts?(name) = names.any? { |one| name.start_with?(one) }

    # Each run twice: with the observer, and, where instructions can be counted, without.
    def script(policy, quick, runs)
      given = POLICIES.fetch(policy)
      <<~SHELL
        SIZE=#{quick ? self.quick : size}
        #{WAIT}
        #{prepare}
        #{(1..runs).map { |run| one(given, run) }.join}
      SHELL
    end

    # start ARGUMENTS: the loader, attached.
    WAIT = <<~'SHELL'
      start() {
        aggregate "$@" >/tmp/loader 2>&1 &
        loader=$!
        while ! grep -q -E '^(attached|observing)' /tmp/loader; do
          usleep 20000
          kill -0 $loader 2>/dev/null || { cat /tmp/loader >&2; exit 1; }
        done
      }
      finish() { kill $loader; wait $loader || { cat /tmp/loader >&2; exit 1; }; }
    SHELL

    def one(given, run)
      counted = given ? given : "--observe"
      text = "start --json /out/counted#{run}.json #{counted}\n" \
             "#{command} >/out/said#{run} || exit 1\nfinish\n"
      return text if cpus > 1

      text << "start --no-statistics #{given}\n" if given
      text << "#{command} >/out/plain#{run} || exit 1\n"
      text << "finish\n" if given
      text
    end
  end

  def self.chatroom(processes, cpus: 1, policies: %w[default scx rule rule-20], rooms: 1)
    Workload.new(command: "chatroom #{processes} #{rooms} 20 $SIZE", size: 100, quick: 10, names: ["chatroom"],
                 policies: policies, cpus: cpus, memory: 1024)
  end

  WORKLOADS = {
    "chatroom-2" => chatroom(2, rooms: 4),
    "chatroom-8" => chatroom(8, policies: %w[default scx rule rule-0 rule-1 rule-20]),
    "chatroom-16" => chatroom(16),
    "chatroom-8-cpus-2" => chatroom(8, cpus: 2, policies: %w[default scx rule homes]),
    "chatroom-8-cpus-4" => chatroom(8, cpus: 4, policies: %w[default scx rule homes])
  }.freeze
end

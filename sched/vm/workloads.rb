# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "image"

module CowSched
  # How the loader is called for each policy; without it, the kernel's own scheduler is at work.
  POLICIES = { "default" => nil, "scx" => "--no-rule", "rule" => "", "rule-0" => "--bonus 0",
               "rule-1" => "--bonus 1", "rule-20" => "--bonus 20", "homes" => "--homes" }.freeze

  # start ARGUMENTS: the loader, attached. What an earlier one said goes first: the shell may look before the
  # new one has begun.
  WAIT = <<~'SHELL'
    start() {
      : >/tmp/loader
      aggregate "$@" >/tmp/loader 2>&1 &
      loader=$!
      while ! grep -q -E '^(attached|observing)' /tmp/loader; do
        usleep 20000
        kill -0 $loader 2>/dev/null || { cat /tmp/loader >&2; exit 1; }
      done
    }
    finish() { kill $loader; wait $loader || { cat /tmp/loader >&2; exit 1; }; }
  SHELL

  # What runs in the guest. +command+: prints, as its last line, JSON with "messages" and "ms"; $SIZE is its
  # size. +names+: the processes whose switches and waits count. +prepare+: shell before it. +share+: it
  # prints the times of spin instead. +needs+: what the measuring machine is asked for, see lacks.
  Workload = Struct.new(:command, :size, :quick, :names, :policies, :cpus, :memory, :prepare, :needs, :image,
                        :share, keyword_init: true) do
    def counts?(name) = names.any? { |one| name.start_with?(one) }

    # What is missing to run it, in words, or nil.
    def lacks(command)
      return unless needs
      return "wrk (Debian's wrk)" unless File.executable?("/usr/bin/wrk")
      return "apache2 (Debian's apache2-bin)" if needs == :apache && !File.executable?("/usr/sbin/apache2")

      "--ruby and --gems" if needs == :ruby && !(command.ruby && command.gems)
    end

    # One run: with the observer, and then, for the instructions, without.
    def script(policy, quick, ruby)
      given = POLICIES.fetch(policy)
      <<~SHELL
        RUBY=#{ruby}/bin/ruby
        SIZE=#{quick ? self.quick : size}
        #{WAIT}
        #{prepare}
        start --json /out/counted.json #{given || "--observe"}
        #{command} >/out/said || exit 1
        finish
        #{plain(given) unless share}
      SHELL
    end

    def plain(given)
      <<~SHELL
        #{given && "start --no-statistics --json /out/plain.json #{given}"}
        grep '^cpu[0-9]' /proc/stat >/out/before
        #{command} >/out/plain || exit 1
        grep '^cpu[0-9]' /proc/stat >/out/after
        #{given && "finish"}
      SHELL
    end

    # The same on two CPUs.
    def on_two
      dup.tap do |copy|
        copy.cpus = 2
        copy.policies = %w[default scx rule homes]
      end
    end
  end

  def self.chatroom(processes, cpus: 1, policies: %w[default scx rule rule-20], rooms: 1)
    Workload.new(command: "chatroom #{processes} #{rooms} 20 $SIZE", size: 40, quick: 10,
                 names: ["chatroom"], policies: policies, cpus: cpus, memory: 1024)
  end

  # Files of a chroot at /mnt. /tmp is the guest's memory.
  CHROOT = <<~'SHELL'
    for part in proc sys dev; do mount --bind /$part /mnt/$part; done
    mount -t tmpfs tmp /mnt/tmp
    mount -t tmpfs run /mnt/run
    # load PORT/PATH: the load generator; prints requests and ms as JSON.
    load() {
      chroot /mnt /usr/bin/wrk -t 2 -c 64 -d $SIZE http://127.0.0.1:$1 >/tmp/wrk ||
        { cat /tmp/wrk >&2; return 1; }
      awk '/requests in/ { n = $1; sub(/s,$/, "", $4); ms = ($4 ~ /m/ ? 0 : $4 * 1000) }
           /Non-2xx|Socket errors/ { bad = 1 }
           END { if (bad || !n) exit 1; printf "{\"messages\": %d, \"ms\": %.1f}\n", n, ms }' /tmp/wrk
    }
    # serving PORT/PATH: waits until a server answers.
    serving() {
      tries=0
      until wget -q -O /dev/null http://127.0.0.1:$1 2>/tmp/wget; do
        usleep 100000
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "no server at $1: $(cat /tmp/wget)" >&2; exit 1; }
      done
    }
  SHELL
  APACHE = <<~'SHELL'
    chroot /mnt /usr/sbin/apache2 -f /srv/apache.conf
    serving 8080/index.html
  SHELL
  PUMA = <<~'SHELL'
    puma=/gems/gems/$(ls /mnt/gems/gems | grep '^puma-')/bin/puma
    GEM_PATH=/gems GEM_HOME=/gems chroot /mnt $RUBY $puma -e production -w 4 -t 5:5 --preload \
      -b tcp://127.0.0.1:9292 /srv/puma.ru >/out/puma.log 2>&1 &
    serving 9292/
    load 9292/ >/dev/null
  SHELL
  # share: two processes that compute beside chatrooms that follow one another; in the groups $compute and
  # $talk, if these are set.
  SHARE = <<~'SHELL'
    share() {
      { [ -z "$talk" ] || sh -c 'echo $PPID' >$talk/cgroup.procs
        while :; do chatroom 8 1 20 20 >/dev/null; done; } &
      talker=$!
      usleep 200000
      spin $SIZE 1${compute:+,cgroup=$compute} 3${compute:+,cgroup=$compute}
      status=$?
      kill $talker
      killall chatroom
      return $status
    }
  SHELL
  SHARE_GROUPS = <<~'SHELL'
    compute=/sys/fs/cgroup/compute talk=/sys/fs/cgroup/talk
    mkdir $compute $talk
  SHELL
  WORKLOAD = File.expand_path("../workload", __dir__)

  def self.apache_image(_command)
    modules = %w[worker].map { |name| "/usr/lib/apache2/modules/mod_mpm_#{name}.so" }
    Image.build("apache", paths: ["/usr/sbin/apache2", "/usr/bin/wrk", *modules,
                                  "/usr/lib/apache2/modules/mod_authz_core.so"],
                          files: { "/srv/index.html" => "#{WORKLOAD}/../README.md",
                                   "/srv/apache.conf" => "#{WORKLOAD}/apache.conf" })
  end

  def self.puma_image(command)
    gems = command.gems
    wanted = Dir["#{gems}/{gems,specifications,extensions/*/*}/{puma,nio4r}-*"]
    raise CowBench::CommandLine::Bad, "no gem puma in #{gems}" if wanted.empty?

    Image.build("puma", paths: [command.ruby, "/usr/bin/wrk"],
                        files: { "/srv/puma.ru" => "#{WORKLOAD}/puma.ru",
                                 **wanted.to_h { |path| ["/gems#{path.delete_prefix(gems)}", path] } })
  end

  ON_ONE = {
    "chatroom-2" => chatroom(2, rooms: 4),
    "chatroom-8" => chatroom(8, policies: %w[default scx rule rule-0 rule-20]),
    "apache" => Workload.new(command: "load 8080/index.html", size: "1s", quick: "1s", names: ["apache2"],
                             policies: %w[default scx rule rule-20], cpus: 1, memory: 1024,
                             prepare: CHROOT + APACHE, image: method(:apache_image), needs: :apache),
    "puma" => Workload.new(command: "load 9292/", size: "1s", quick: "1s", names: %w[ruby puma],
                           policies: %w[default scx rule rule-20], cpus: 1, memory: 2048,
                           prepare: CHROOT + PUMA, image: method(:puma_image), needs: :ruby),
    # Two processes that compute, one of them with three threads, beside the chatroom of 8 processes.
    "share" => Workload.new(command: "share", size: 1500, quick: 500, names: ["chatroom"], share: true,
                            policies: %w[default scx rule rule-20], cpus: 1, memory: 1024, prepare: SHARE)
  }.freeze

  # The chatrooms in one group and what computes in another one of the same weight: then 125 ms a second are
  # the fair share of each of the four threads, if the chatrooms' group always has something to do.
  IN_GROUPS = ON_ONE["share"].dup.tap do |copy|
    copy.size = 4000
    copy.prepare = SHARE_GROUPS + SHARE
  end

  WORKLOADS = {
    **ON_ONE, "chatroom-16" => chatroom(16), "share-groups" => IN_GROUPS,
    **ON_ONE.to_h { |name, workload| ["#{name}-cpus-2", workload.on_two] },
    "chatroom-8-cpus-4" => chatroom(8, cpus: 4, policies: %w[default scx rule homes])
  }.freeze
end

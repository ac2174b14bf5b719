# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What the tests of the scheduler share: each test boots a guest, runs a shell script in it and judges what
# came back. A test that cannot run here says why.
require "minitest/autorun"
require_relative "../vm/guest"

module InGuest
  # Shell functions for the guest. start NAME ARGUMENTS: starts the loader and waits until it has attached;
  # finish NAME: ends it, and the script, if the loader ends with another status than 0. Its words and its
  # counts come back as NAME.txt and NAME.json; the names of those that were ended so stand in `finished`.
  FUNCTIONS = <<~'SHELL'
    start() {
      name=$1; shift
      : >/out/$name.txt
      aggregate --json /out/$name.json "$@" >/out/$name.txt 2>&1 &
      loader=$!
      while ! grep -q -E '^(attached|observing)' /out/$name.txt; do
        usleep 20000
        kill -0 $loader 2>/dev/null || { echo "the loader has ended: $(cat /out/$name.txt)" >&2; return 1; }
      done
    }
    finish() {
      kill $loader; wait $loader; ended=$?
      echo "$name: status $ended"
      [ $ended = 0 ] || { echo "the loader has failed: $(cat /out/$name.txt)" >&2; exit 1; }
      echo $name >>/out/finished
    }
    state() { cat /sys/kernel/sched_ext/state; }
    # becomes STATE: waits for it, and prints which one it is.
    becomes() {
      tries=0
      while [ "$(state)" != $1 ] && [ $tries -lt 1000 ]; do usleep 20000; tries=$((tries+1)); done
      state
    }
    stopped() { becomes disabled; }
    # anew N: waits until the scheduler has been attached anew N times; prints how often, and its state.
    anew_times() { grep -c '^attached anew' /out/$name.txt; }
    anew() {
      tries=0
      while [ "$(anew_times)" -lt $1 ] && [ $tries -lt 4000 ]; do usleep 20000; tries=$((tries+1)); done
      echo "$(anew_times) $(becomes enabled)"
    }
  SHELL

  # What the guest's kernel says when a CPU goes or comes, and a scheduler is unloaded because of it.
  HOTPLUG = /disabled \(unregistered from the main kernel\)|sched_ext: .*going (off|on)line/

  # Boots a guest with Guest.new's options, and gives its result. The script must end with status 0, the
  # kernel must not complain but of what matches +expected+, and each scheduler that the script has finished
  # must have been at work until then.
  def guest(script, name: self.name, expected: nil, **options)
    missing = %w[qemu-system-x86_64 busybox cpio].reject { |tool| system("command -v #{tool} >/dev/null") }
    skip "no #{missing.join(", ")} here (tool/bootstrap --with sched)" unless missing.empty?
    result = Guest.new(**options).run(FUNCTIONS + script, name: name)
    assert_equal 0, result.status, "the guest's script failed: #{result.stdout}#{result.stderr}"
    assert_empty result.complaints(expected), "the kernel complained"
    assert_at_work(result)
    result
  end

  def assert_at_work(result)
    return unless File.exist?("#{result.directory}/finished")

    result.file("finished").split.each do |name|
      report = result.json("#{name}.json")
      next if report["policy"] == "default"

      assert_equal 0, report["ending"]["kind"], "#{name}: the kernel ended the scheduler: #{report["ending"]}"
      assert_operator report["decisions"]["dispatches"], :>, 0, "#{name}: the scheduler decided nothing"
    end
  end

  # The last line of JSON that a workload has printed to a file.
  def printed(result, name) = JSON.parse(result.file(name).lines.last)

  # ms of CPU time of each process of spin.
  def used(report) = report["processes"].map { |process| process["threads"].sum }
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What the tests of the scheduler share: each test boots a guest, runs a shell script in it and judges what
# came back. A test that cannot run here says why.
require "minitest/autorun"
require_relative "../vm/guest"

module InGuest
  # Shell functions for the guest. start NAME ARGUMENTS: starts the loader and waits until it has attached;
  # finish NAME: ends it. Its words and its counts come back as NAME.txt and NAME.json.
  FUNCTIONS = <<~'SHELL'
    start() {
      name=$1; shift
      aggregate --json /out/$name.json "$@" >/out/$name.txt 2>&1 &
      loader=$!
      while ! grep -q -E '^(attached|observing)' /out/$name.txt; do
        usleep 20000
        kill -0 $loader 2>/dev/null || { echo "the loader has ended: $(cat /out/$name.txt)" >&2; return 1; }
      done
    }
    finish() { kill $loader; wait $loader; echo "$name: status $?"; }
    state() { cat /sys/kernel/sched_ext/state; }
    stopped() {
      tries=0
      while [ "$(state)" != disabled ] && [ $tries -lt 1000 ]; do usleep 20000; tries=$((tries+1)); done
      state
    }
  SHELL

  # Boots a guest with Guest.new's options, and gives its result. The script must end with status 0.
  def guest(script, name: self.name, **options)
    missing = %w[qemu-system-x86_64 busybox cpio].reject { |tool| system("command -v #{tool} >/dev/null") }
    skip "no #{missing.join(", ")} here (tool/bootstrap --with sched)" unless missing.empty?
    result = Guest.new(**options).run(FUNCTIONS + script, name: name)
    assert_equal 0, result.status, "the guest's script failed: #{result.stdout}#{result.stderr}"
    complaints = result.file("dmesg")[/.*(WARNING:|BUG:|stall).*/]
    assert_nil complaints, "the kernel complained" unless @complaints
    result
  end

  # The last line of JSON that a workload has printed to a file.
  def printed(result, name) = JSON.parse(result.file(name).lines.last)

  # ms of CPU time of each process of spin.
  def used(report) = report["processes"].map { |process| process["threads"].sum }
end

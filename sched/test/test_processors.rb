# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# Several CPUs, each a thread of the emulator: with and without processor aggregation.
class TestProcessors < Minitest::Test
  include InGuest

  def test_no_cpu_idles_beside_a_queue_and_shares_are_fair
    result = guest(<<~SHELL, cpus: 2)
      for policy in homes shared no-rule; do
        case $policy in shared) option= ;; *) option=--$policy ;; esac
        start $policy $option || exit 1
        idle() { awk '/^cpu / { print $5 }' /proc/stat; }
        before=$(idle); spin 2000 4 >/out/$policy.one; echo $(($(idle) - before)) >/out/$policy.idle
        spin 3000 1 1 1 >/out/$policy.three
        spin 3000 1,cpu=0 1,cpu=0 1 >/out/$policy.pinned
        spin 1000 8,rest=0.3/0.3 8,rest=0.5/0.2 1 >/out/$policy.mixed || exit 1
        chatroom 4 1 10 20 || exit 1
        finish
      done
    SHELL
    %w[homes shared no-rule].each do |policy|
      # Of 2 s on 2 CPUs; a tenth is for the start and the end of the processes, outside of the 2 s.
      idle = result.file("#{policy}.idle").to_i
      assert_operator idle, :<=, 100, "#{policy}: hundredths of a second that CPUs idled beside four threads"
      three = used(printed(result, "#{policy}.three"))
      three.each { |time| assert_in_delta 1, time / (three.sum / 3), 0.1, "#{policy}: #{three}" }
      pinned = used(printed(result, "#{policy}.pinned"))
      # Rough: the third one moves virtual time on at twice their pace, so that what they are owed is cut.
      assert_in_delta 1, pinned[0] / pinned[1], 0.25, "#{policy}: two on one CPU, #{pinned}"
      assert_operator pinned[2], :>, pinned[0] * 1.5, "#{policy}: the third has a CPU alone, #{pinned}"
    end
    homes = result.json("homes.json")["decisions"]
    assert_operator homes["taken"] + homes["spilled"], :>, 0, homes
  end
end

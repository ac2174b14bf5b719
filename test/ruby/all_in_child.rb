# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# For ruby -r: runs the program in a forked child that inherits an application, that is, as many iseqs as
# a process must inherit to wait before it compiles (gc/yjit_policy.rs). The parent passes on signals and
# ends as the child does.
#
# tool/check, stage yjit: the runner of CRuby's test-all and each of its workers run so.
FILLERS = Object.new
FILLERS.instance_eval((0...10_500).map { |i| "def filler#{i} = #{i}\n" }.join)
pid = fork
if pid
  %w[HUP INT QUIT USR1 USR2 ALRM TERM CONT].each { |signal| trap(signal) { Process.kill(signal, pid) } }
  [STDIN, STDOUT, STDERR].each { |stream| stream.reopen(File::NULL) }
  status = Process.wait2(pid).last
  exit!(status.exitstatus || 128 + status.termsig)
end

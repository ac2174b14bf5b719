# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# For ruby -r: runs the program in a forked child (run_in_child.rb) that inherits an application, that is, as
# many iseqs as a process must inherit to wait before it compiles (gc/yjit_policy.rs).
#
# tool/check, stage yjit: the runner of CRuby's test-all and each of its workers run so.
FILLERS = Object.new
FILLERS.instance_eval((0...10_500).map { |i| "def filler#{i} = #{i}\n" }.join)
load File.join(__dir__, "run_in_child.rb")

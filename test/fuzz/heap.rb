# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Operations on the heap at random, in one process and the children that it forks:
#
#   ruby -I lib test/fuzz/heap.rb SEED OPERATIONS [TRACE [ONLY]]
#
# The operation of a number depends on the seed and that number alone, so that some can be left out: ONLY are
# numbers and ranges ("3,10-40") of those to run. TRACE is a file that gets a line for each operation before
# it begins: process, depth of forks, number, name. All that is known of the heap stands outside of it
# (shadow.rb), and is compared after each change and again and again.
#
# The last line of output says that all went well. Whatever differs ends the process with status 1, and the
# number of the operation on standard error.
require_relative "shadow"
require_relative "operations"

# So many objects that a heap counts as a large one.
$ballast = Array.new(ENV["FUZZ_BALLAST"].to_i / 2) { |i| [i.to_s] }
Thread.report_on_exception = false
Fuzz::Machine.new(Integer(ARGV.fetch(0)), Integer(ARGV.fetch(1)), trace: ARGV[2], only: ARGV[3]).run

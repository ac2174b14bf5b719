# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Counts the arrays that can be held, in a list, until there is no memory. Prints the KB that are
# mapped at first, and a dot for each thousand of arrays (test_address_space.rb, doc/arenas.md).
DOT = "."
$stdout.syswrite("#{File.read("/proc/self/status")[/^VmSize:\s+(\d+)/, 1]} ")
kept = nil
begin
  loop do
    i = 0
    while i < 1_000
      kept = [kept]
      i += 1
    end
    $stdout.syswrite(DOT)
  end
rescue NoMemoryError
  kept = nil
end

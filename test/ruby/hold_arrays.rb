# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Makes arrays, each of which refers to the one before, until there is no memory. Prints the KB that are
# mapped at first, the KB of it that may be written to, and then a dot for each 1,000 arrays.
# test_address_space.rb and benchmark/cases/address_space.rb run it.
DOT = "."
$stdout.syswrite(File.read("/proc/self/status").scan(/^Vm(?:Size|Data):\s+(\d+)/).join(" "))
$stdout.syswrite(" ")
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

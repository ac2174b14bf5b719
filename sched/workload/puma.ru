# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What Puma serves in the guest: some work on strings and hashes, and a wait as for a database.
words = Array.new(200) { |i| "word#{i * 7919 % 1000}" }
run(lambda do |_env|
  counts = Hash.new(0)
  words.each { |word| counts[word[0, 5]] += word.length }
  sleep 0.002
  body = counts.map { |word, count| "#{word}: #{count}" }.sort.join("\n")
  [200, { "content-type" => "text/plain" }, [body]]
end)

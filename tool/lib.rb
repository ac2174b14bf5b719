# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What the tools in Ruby share. Loaded, not run.
require "fileutils"

TOP = File.expand_path("..", __dir__)

# What the caller's environment would change in builds and tests: names with nil, so that
# they are unset, and the locale.
CLEAN = ENV.keys.grep(/\A(RUBY|GEM_|BUNDLE|MT_|MAKE|MFLAGS|MALLOC_|LD_PRELOAD\z|COW_|TESTS|MSPECOPT|CI\z)/)
           .to_h { |name| [name, nil] }.merge("LANG" => "C.UTF-8", "LC_ALL" => nil).freeze

def clock = Process.clock_gettime(Process::CLOCK_MONOTONIC)

# Prints the comment at the head of the tool that runs, for --help.
def usage
  lines = File.readlines($PROGRAM_NAME, chomp: true).drop_while { |line| !line.match?(/\A# (?!frozen|SPDX)/) }
  puts lines.take_while { |line| line.start_with?("#") }.map { |line| line.sub(/\A# ?/, "") }
end

# The kinds of builds in tool/builds.
def builds
  File.readlines(File.join(TOP, "tool/builds")).grep_v(/\A#/).map { |line| line.split.first }
end

# Runs a command and gives its status. In a process group of its own, unless +group+ is false,
# it is killed with all it started when it outlives +limit+ seconds, which the block is for, or
# when an exception ends this process; what it leaves behind in its group is killed as well. Signals
# that +forward+ names go on to it.
def supervise(*command, limit: nil, group: true, forward: [], **options)
  pid = Process.spawn(*command, in: File::NULL, pgroup: group || nil, **options)
  target = group ? -pid : pid
  waiter = Process.detach(pid)
  forward.each { |signal| trap(signal) { Process.kill(signal, target) if waiter.alive? } }
  unless waiter.join(limit)
    Process.kill(:KILL, target)
    yield
  end
  waiter.value
ensure
  begin
    Process.kill(:KILL, target) if target && (group || waiter&.alive?)
  rescue Errno::ESRCH
    nil # nothing is left
  end
end

# Runs a command with its output in the file +log+; gives [output, status].
def run_logged(log, *command, env: {}, dir: TOP, limit: 1800)
  FileUtils.mkdir_p(File.dirname(log))
  status = supervise(CLEAN.merge(env), *command, limit: limit, chdir: dir, out: log, err: %i[child out]) do
    File.write(log, "\n#{File.basename($PROGRAM_NAME)}: killed after #{limit} s\n", mode: "a")
  end
  [File.read(log).scrub, status]
end

# The result that each mark of Minitest's verbose lines stands for.
def minitest_result(mark) = { "." => "passed", "S" => "skipped" }.fetch(mark, "failed")

# frozen_string_literal: true

# What the tools in Ruby share. Loaded, not run.
require "fileutils"

TOP = File.expand_path("..", __dir__)

# What the environment of whoever calls would change in builds and tests: names
# with nil, so that they are unset, and the locale.
CLEAN = ENV.keys.grep(/\A(RUBY|GEM_|BUNDLE|MAKE|MFLAGS|MALLOC_|LD_PRELOAD\z|COW_|TESTS|MSPECOPT|CI\z)/)
           .to_h { |name| [name, nil] }.merge("LANG" => "C.UTF-8", "LC_ALL" => nil).freeze

# Runs a command with its output in the file +log+; gives [output, status]. One
# that outlives +limit+ seconds is killed with all it started.
def run_logged(log, *command, env: {}, dir: TOP, limit: 1800)
  FileUtils.mkdir_p(File.dirname(log))
  pid = Process.spawn(CLEAN.merge(env), *command, chdir: dir, in: File::NULL, out: log, err: %i[child out], pgroup: true)
  waiter = Process.detach(pid)
  unless waiter.join(limit)
    Process.kill(:KILL, -pid)
    waiter.join
    File.write(log, "\n#{File.basename($PROGRAM_NAME)}: killed after #{limit} s\n", mode: "a")
  end
  [File.read(log).scrub, waiter.value]
end

# The result that each mark of Minitest's verbose lines stands for.
def minitest_result(mark) = { "." => "passed", "S" => "skipped" }.fetch(mark, "failed")

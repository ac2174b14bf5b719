# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# For `load`: forks. The child goes on after the load, once the parent can pass on signals; the parent ends as
# the child does. Nothing that is defined here stays for the program to see.
lambda do
  # What a parent can pass on.
  signals = %w[HUP INT QUIT USR1 USR2 ALRM TERM CONT]
  # prctl(PR_SET_PDEATHSIG, SIGKILL): a parent that is killed takes the child along.
  die_with_parent = lambda do
    verbose, $VERBOSE = $VERBOSE, nil
    syscall(157, 1, 9) if RUBY_PLATFORM.start_with?("x86_64-linux")
  ensure
    $VERBOSE = verbose
  end

  ready, parent_ready = IO.pipe
  pid = fork
  if pid
    signals.each { |signal| trap(signal) { Process.kill(signal, pid) } }
    [ready, parent_ready].each(&:close)
    [STDIN, STDOUT, STDERR].each { |stream| stream.reopen(File::NULL) }
    status = Process.wait2(pid).last
    exit!(status.exitstatus) unless status.signaled?
    Process.setrlimit(:CORE, 0)
    exec("/bin/sh", "-c", "kill -#{status.termsig} $$") # as a ruby it would catch some of them
  end
  die_with_parent.call
  parent_ready.close
  ready.read # until the parent has closed its end
  ready.close
end.call

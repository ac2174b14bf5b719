# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# A child works although the other threads and Ractors of its parent do not exist in it.
class TestFork < Minitest::Test
  include CowTest

  # Ruby source for scripts: two Ractors that take the VM lock and cause collections all the time.
  BUSY = IN_CHILD + <<~'RUBY'
    2.times do |k|
      Ractor.new(k) { |n| 3_000_000.times { |i| "symbol #{n} #{i}".to_sym }; Ractor.receive }
    end
  RUBY

  # Pristine hangs at one of the first forks: the child waits for a lock whose holder does not exist
  # in it.
  def test_fork_beside_ractors_that_hold_the_lock
    run_ruby(BUSY + "40.times { in_child { GC.start; 'in the child'.to_sym } }\nexit!(0)", options: ["-W0"])
  end

  # A fork looks for signals, but it is no blocking call.
  def test_an_exception_that_is_put_off_until_a_blocking_call
    assert_equal "not raised", run_ruby(<<~'RUBY')
      at_fork = nil
      masked = Queue.new
      thread = Thread.new do
        Thread.handle_interrupt(RuntimeError => :on_blocking) do
          masked << true
          Thread.pass until Thread.pending_interrupt?
          begin
            pid = fork { exit!(0) }
            at_fork = "not raised"
          rescue RuntimeError
            at_fork = "raised"
          end
          Process.wait(pid) if pid
        end
      rescue RuntimeError
        nil # raised in wait
      end
      masked.pop
      thread.raise("put off")
      thread.join
      print at_fork
    RUBY
  end

  def test_a_child_of_a_child_and_its_own_ractors
    run_ruby(BUSY + <<~'RUBY', options: ["-W0"])
      5.times do
        in_child do
          taken = Ractor.new { GC.start; "of the child".to_sym }.take
          raise "the child's Ractor gives #{taken.inspect}" unless taken == :"of the child"
          in_child { GC.start }
        end
      end
      exit!(0)
    RUBY
  end

  def test_daemon_beside_ractors
    out = run_ruby(BUSY + <<~'RUBY', options: ["-W0"])
      reader, writer = IO.pipe
      5.times do
        pid = fork do
          Ractor.new { 3_000_000.times { |i| "symbol #{i}".to_sym } }
          Process.daemon(true, true)
          GC.start
          writer.write("sound ")
          exit!(0)
        end
        Process.wait(pid)
      end
      writer.close
      puts reader.read
      $stdout.flush
      exit!(0)
    RUBY
    assert_equal "sound " * 5, out.chomp
  end

  # Ractors that wait for a processor when the parent forks do not exist in the child. Its timer
  # thread must not wake up for them a hundred times a second (0175-fork-run-queue).
  def test_a_child_does_not_wake_for_the_parents_ractors
    out = run_ruby(IN_CHILD + <<~'RUBY', options: ["-W0"])
      20.times { Ractor.new { loop { 1_000.times(&:to_s) } } }
      sleep 0.3
      switches = lambda do
        Dir["/proc/self/task/*/status"].sum do |file|
          File.read(file)[/^voluntary_ctxt_switches:\s*(\d+)/, 1].to_i
        rescue SystemCallError # the thread has ended meanwhile
          0
        end
      end
      in_child do
        Thread.new {}.join
        before = switches.call
        sleep 1
        puts switches.call - before
      end
      exit!(0)
    RUBY
    assert_operator numbers(out).first, :<=, 20, "context switches in a second of sleep"
  end

  # A fork that fails at the limit of processes is tried again every second. Other threads and
  # Ractors run meanwhile.
  def test_fork_that_fails_at_first
    run_ruby(BUSY + <<~'RUBY', options: ["-W0"])
      Process::UID.change_privilege(65_534) if Process.uid.zero? # root is not limited
      most = Process.getrlimit(:NPROC).last
      refused = Thread.new do
        sleep 0.5
        GC.start
        "while it waits".to_sym
        Process.setrlimit(:NPROC, most)
      end
      Process.setrlimit(:NPROC, 1, most)
      in_child { "in the child".to_sym }
      refused.join
      exit!(0)
    RUBY
  end

  # What is raised while fork waits for room goes on, whatever the handler has done with errno before.
  def test_an_exception_while_fork_waits
    run_ruby(IN_CHILD + <<~'RUBY', options: ["-W0"])
      Process::UID.change_privilege(65_534) if Process.uid.zero? # root is not limited
      most = Process.getrlimit(:NPROC).last
      trap(:USR1) do
        Process.kill(0, 4_194_303) rescue nil
        raise "stop"
      end
      waker = Thread.new { sleep 0.3; Process.kill(:USR1, $$) }
      killed = Thread.new do
        Thread.stop
        fork { nil }
      rescue StandardError => e
        raise "expected to be killed, found #{e.inspect}"
      end
      Thread.pass until waker.stop? && killed.stop?
      Process.setrlimit(:NPROC, 1, most)
      begin
        fork { nil }
      rescue RuntimeError => e
        raise e unless e.message == "stop"
      else
        raise "forked"
      end
      killed.wakeup
      sleep 0.3
      killed.kill.join
      Process.setrlimit(:NPROC, most)
      in_child { nil }
      exit!(0)
    RUBY
  end

  # A fork that takes the last process leaves no room for the timer thread, neither in the parent nor in the
  # child. As soon as there is room, a thread that computes lets others run (0137-timer-thread).
  def test_fork_that_takes_the_last_process
    skip "needs a user that has no other process" unless Process.uid.zero?
    out = run_ruby(IN_CHILD + <<~'RUBY', options: ["-W0"])
      def no_limit = print("skip").then { exit!(0) }
      most = Process.getrlimit(:NPROC).last
      begin
        Process::UID.change_privilege(60_000 + Process.pid % 5_000)
        used = Dir["/proc/[0-9]*/task/*"].count { |task| File.stat(task).uid == Process.uid rescue false }
        Process.setrlimit(:NPROC, used, most)
        Thread.new {}.join
        no_limit # the kernel does not keep it
      rescue ThreadError
        Process.setrlimit(:NPROC, most)
      rescue SystemCallError
        no_limit # there are no such users here
      end
      expect = lambda do |threads|
        found = Dir.children("/proc/self/task").size
        raise "expected #{threads} threads of the system, found #{found}" unless found == threads
      end
      work = lambda do
        expect.call(1)
        exec("/nonexistent/program") rescue nil # ends and begins the timer thread, too
        expect.call(1)
        Process.setrlimit(:NPROC, most)
        busy = Thread.new { loop {} }
        sleep 0.1
        busy.kill.join
      end

      go_on, forked = IO.pipe
      expect.call(2)
      Process.setrlimit(:NPROC, used, most)
      pid = fork do
        forked.close
        go_on.read(1)
        work.call
        exit!(0)
      end
      work.call
      forked << "1"
      _, status = Process.wait2(pid)
      raise "child: #{status}" unless status.success?
      in_child { nil }
      exit!(0)
    RUBY
    skip "the kernel keeps no limit of processes for users without any" if out == "skip"
  end

  # A child of C code that forks and then calls rb_thread_atfork has a timer thread, though its parent's was
  # not stopped before.
  def test_a_fork_of_c_code_has_a_timer_thread
    out = run_ruby(<<~'RUBY')
      require "fiddle"
      c = Fiddle::Handle::DEFAULT
      # C code that forks for Ruby has the turn.
      fork = Fiddle::Function.new(c["fork"], [], Fiddle::TYPE_INT, need_gvl: true)
      atfork = Fiddle::Function.new(c["rb_thread_atfork"], [], Fiddle::TYPE_VOID, need_gvl: true)
      if (pid = fork.call).zero?
        atfork.call
        $stdout.syswrite(Dir.children("/proc/self/task").size)
        exit!(0)
      end
      Process.wait(pid)
    RUBY
    assert_equal "2", out
  end

  # A native thread that starts notes itself as the one that runs; in a child it does not exist
  # (0177-fork-running-ec). A native thread that is not Ruby's, as profilers have, interrupts the one that is
  # noted. Without the patch 19 of 20 children wait for ever.
  def test_fork_while_a_thread_starts
    run_ruby(<<~'RUBY')
      require "fiddle"
      function = lambda do |name, *types|
        Fiddle::Function.new(Fiddle::Handle::DEFAULT[name], types, Fiddle::TYPE_INT, need_gvl: true)
      end
      pointer = Fiddle::TYPE_VOIDP
      ran = false
      job = Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_VOID, [pointer]) { ran = true }
      handle = function["rb_postponed_job_preregister", Fiddle::TYPE_INT, pointer, pointer].call(0, job, nil)
      create_thread = function["pthread_create", pointer, pointer, pointer, pointer]
      trigger = Fiddle::Handle::DEFAULT["rb_postponed_job_trigger"]

      20.times do
        Thread.new { sleep }
        100_000.times { }
        pid = fork do
          create_thread.call(Fiddle.malloc(8), nil, trigger, handle)
          100_000_000.times { break if ran }
          exit!(ran)
        end
        Process.wait2(pid).last.success? or raise "a job did not run in the child"
      end
    RUBY
  end

  # What runs before a fork may raise: a finalizer, or Process._fork.
  def test_popen_whose_fork_raises_closes_its_pipes
    out = run_ruby(<<~'RUBY')
      def Process._fork = raise("no fork")
      files = Dir.children("/proc/self/fd").size
      %w[r w r+].each do |mode|
        IO.popen("-", mode)
      rescue RuntimeError
        puts Dir.children("/proc/self/fd").size - files
      end
    RUBY
    assert_equal [0, 0, 0], numbers(out)
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# What the end of an object does outside of the process (finalizers, buffers of files, free functions of
# extensions) happens as often as with upstream: a fork neither doubles nor loses it.
class TestDuties < Minitest::Test
  include CowTest

  # A heap that is worth sealing, and a log that each process appends whole lines to.
  HEAP = <<~'RUBY'
    require "tmpdir"
    $log = File.join(Dir.mktmpdir, "log")
    def note(word) = File.write($log, "#{word}\n", mode: "a")
    def notes = File.exist?($log) ? File.readlines($log, chomp: true) : []
    # Ends with nothing but what is given, so that no end of an object is seen after it.
    def finish(word)
      $stdout.print(word)
      $stdout.flush
      exit!(true)
    end
    $kept = Array.new(100_000) { |i| [i] }
  RUBY

  # Objects with finalizers and files with something in their buffers, dead when it returns.
  DEAD = <<~'RUBY'
    DIRECTORY = Dir.mktmpdir
    def final(i) = proc { note("#{i} #{Process.pid}") }
    def die(count)
      count.times do |i|
        ObjectSpace.define_finalizer(Object.new, final(i))
        File.new(File.join(DIRECTORY, i.to_s), "w").write("once ")
      end
    end
    # Overwrites what the machine stack still has of them.
    def clear(depth) = depth.zero? ? Array.new(100) { Object.new }.size : clear(depth - 1)
  RUBY

  ENVIRONMENTS = [{}, ({ "RUBY_GC_FORK_COMPACT" => "1" } if COMPACTS)].compact

  DEATHS = 30
  # Objects that a word left on the machine stack may keep alive.
  STRAY = 3

  def died_before_fork(ending, env = {})
    out = run_ruby(HEAP + DEAD + <<~RUBY, env: env)
      Thread.new { die(#{DEATHS}) }.join
      clear(100)
      pid = fork do
        clear(100)
        GC.start
        #{ending}
      end
      Process.wait(pid)
      child, parent = notes.map(&:split).partition { |_, id| id == pid.to_s }
      both = child.map(&:first) & parent.map(&:first)
      GC.start
      twice = Dir.children(DIRECTORY).count { |name| File.read(File.join(DIRECTORY, name)).length > 5 }
      finish [parent.size, child.size, both.size, twice].join(" ")
    RUBY
    numbers(out)
  end

  # On 2222f26: 30 in the parent, 30 in the child, 30 in both, 29 files written twice.
  def check_died_before_fork(ending, env = {})
    parent, child, both, twice = died_before_fork(ending, env)
    assert_operator parent, :>=, DEATHS - STRAY, "finalizers that ran in the parent"
    assert_operator child, :<=, STRAY, "finalizers that ran in the child"
    assert_equal 0, both, "finalizers that ran in both"
    assert_operator twice, :<=, STRAY, "files whose buffer was written twice"
  end

  def test_what_died_before_a_fork_is_finalized_once = check_died_before_fork("exit")

  def test_what_died_before_a_fork_is_finalized_once_where_the_child_leaves_at_once = check_died_before_fork("exit!")

  def test_what_died_before_a_fork_that_compacts_is_finalized_once
    needs_compaction
    check_died_before_fork("exit", { "RUBY_GC_FORK_COMPACT" => "1" })
  end

  def test_what_died_before_a_fork_of_a_fork_is_finalized_once
    out = run_ruby(HEAP + DEAD + <<~RUBY)
      pid = fork do
        more = Array.new(200_000) { |i| [i] }
        Thread.new { die(#{DEATHS}) }.join
        clear(100)
        Process.wait(fork { GC.start })
        exit!
      end
      Process.wait(pid)
      print notes.map { |line| line.split.first }.tally.count { |_, times| times > 1 }
    RUBY
    assert_operator out.to_i, :<=, STRAY
  end

  # What a finalizer prints is in the buffer of the parent alone.
  def test_output_of_a_finalizer_before_a_fork_appears_once
    ENVIRONMENTS.each do |env|
      out = run_ruby(HEAP + <<~'RUBY', env: env)
        def final(i) = proc { puts "final #{i}" }
        def die = 30.times { |i| ObjectSpace.define_finalizer(Object.new, final(i)) }
        Thread.new { die }.join
        Process.wait(fork {})
      RUBY
      assert_equal 30, out.lines.uniq.size, "finalizers that printed"
      assert_operator out.lines.size, :<=, 30 + STRAY, "lines that they printed"
    end
  end

  # A thing of an extension whose free function removes a file: unlink(2), called by Fiddle.
  THING = HEAP + <<~'RUBY'
    require "fiddle"
    UNLINK = Fiddle::Handle::DEFAULT["unlink"]
    def thing(name)
      path = "#{$log}.#{name}"
      File.write(path, "")
      text = Fiddle.malloc(path.bytesize + 1)
      Fiddle::Pointer.new(text)[0, path.bytesize + 1] = "#{path}\0"
      ($things ||= []) << Fiddle::Pointer.new(text, path.bytesize + 1, UNLINK)
      path
    end
  RUBY

  def needs_fiddle
    _, status = run_ruby_status('require "fiddle"')
    skip "no fiddle here" unless status.success?
  end

  def things_left(script)
    needs_fiddle
    run_ruby(THING + script, options: ["-W0"])
  end

  # On 2222f26 it is left.
  def test_daemon_frees_what_its_extensions_hold
    assert_equal "false", things_left(<<~'RUBY')
      path = thing("held")
      reader, writer = IO.pipe
      pid = fork do # as a daemon leaves, nobody waits for it
        Process.daemon(true, true)
        reader.close
        exit
      end
      writer.close
      reader.read
      finish File.exist?(path)
    RUBY
  end

  def test_process_that_lives_on_in_its_child_frees_what_its_extensions_hold
    assert_equal "false", things_left(<<~'RUBY')
      path = thing("held")
      reader, writer = IO.pipe
      pid = fork do
        exit! if fork
        reader.close
        exit
      end
      writer.close
      reader.read
      finish File.exist?(path)
    RUBY
  end

  # What it made itself before it forked.
  def test_child_that_forks_frees_what_its_extensions_hold
    assert_equal "false", things_left(<<~'RUBY')
      pid = fork do
        path = thing("held")
        more = Array.new(200_000) { |i| [i] }
        Process.wait(fork { exit! })
        note(path)
      end
      Process.wait(pid)
      print File.exist?(notes.last)
    RUBY
  end

  # An extension may open late what it holds: its data has another type from then on. On 9ca8644 the
  # child that is forked after that leaves it in 3 of 3 runs.
  def test_child_frees_what_has_got_a_type_with_a_free_function_after_a_fork
    assert_equal "false", things_left(<<~'RUBY')
      word = Fiddle::TYPE_UINTPTR_T
      wrap = Fiddle::Function.new(Fiddle.dlopen(nil)["rb_data_typed_object_wrap"], [word] * 3, word, need_gvl: true)
      text = ->(string) { Fiddle.malloc(string.bytesize + 1).tap { |place| Fiddle::Pointer.new(place)[0, string.bytesize + 1] = "#{string}\0" } }
      # rb_data_type_t: its name, the functions (the second is free), parent, data and flags.
      type = ->(free) { Fiddle.malloc(72).tap { |place| Fiddle::Pointer.new(place)[0, 72] = [text["late"], 0, free, *[0] * 6].pack("Q9") } }
      path = "#{$log}.late"
      File.write(path, "")
      idle = type[0]
      klass = Fiddle.dlwrap($class = Class.new)
      many = Array.new(4_000) { wrap.call(klass, text[path], idle).then { |object| Fiddle.dlunwrap(object) } }
      $late = many[2_000] # on a page where nothing else has a duty
      Process.wait(fork { exit! }) # seals
      raise "nothing is sealed" if GC.stat(:sealed_slots).zero?
      Fiddle::Pointer.new(Fiddle.dlwrap($late))[16, 8] = [type[UNLINK.to_i]].pack("Q")
      Process.wait(fork { exit })
      finish File.exist?(path)
    RUBY
  end

  # As with upstream, each process that ends calls it: two processes, two calls.
  def test_each_process_calls_a_free_function_once
    needs_fiddle
    calls = things_left(<<~'RUBY').to_i
      path = thing("held")
      pid = fork { exit }
      Process.wait(pid)
      print File.exist?(path) ? 0 : 1
    RUBY
    assert_equal 1, calls
  end

  # On 2222f26 and, by Process.warmup, on pristine it never ends: the finalizer held the lock of the VM.
  def test_fork_in_a_finalizer_beside_a_ractor
    ENVIRONMENTS.each do |env|
      out = run_ruby(HEAP + <<~'RUBY', env: env, options: ["-W0"], timeout: 60)
        ractor = Ractor.new { Ractor.receive }
        def forks = proc { Process.wait(fork { exit! }); note(:forked) }
        def die = 10.times { ObjectSpace.define_finalizer(Object.new, forks) }
        Thread.new { die }.join
        Process.warmup
        Thread.new { die }.join
        $kept.concat(Array.new(100_000) { |i| [i] }) # sealed anew
        Process.wait(fork { exit! })
        ractor.send(nil)
        finish notes.size
      RUBY
      assert_operator out.to_i, :>=, 20 - 2 * STRAY
    end
  end

  # The code that forks knows of no finalizer. So at a fork they run as they do between two
  # instructions of it: without signals, locks and throws. On 6926173 each of the three failed always.
  def finalizers_at_a_fork(setup, final, call = "forked")
    ENVIRONMENTS.map do |env|
      run_ruby(HEAP + <<~RUBY, env: env, options: ["-W0"], timeout: 60)
        #{setup}
        def final = proc { note(:final); #{final} }
        def die = 10.times { ObjectSpace.define_finalizer(Object.new, final) }
        Thread.new { die }.join
        def forked
          pid = fork { sleep(0.1); exit! }
          Process.wait(pid)
        end
        #{call}
        finish notes.join(" ")
      RUBY
    end
  end

  def test_a_finalizer_at_a_fork_waits_for_no_lock
    setup = <<~RUBY
      $lock, told = Mutex.new, Queue.new
      Thread.new { $lock.synchronize { told << 1; sleep } }
      told.pop
    RUBY
    finalizers_at_a_fork(setup, "$lock.synchronize { note(:locked) }").each do |out|
      assert_operator out.scan("final").size, :>=, 10 - STRAY
      refute_includes out, "locked"
    end
  end

  def test_a_signal_in_a_finalizer_at_a_fork_is_the_parents
    setup = 'trap(:USR1) { note("signal-#{Process.pid == $id}") }; $id = Process.pid; $sent = false'
    finalizers_at_a_fork(setup, "$sent ||= Process.kill(:USR1, $$); sleep(0.01)").each do |out|
      assert_equal ["signal-true"], out.split.grep(/signal/)
    end
    finalizers_at_a_fork("$sent = false", "$sent ||= Process.kill(:INT, $$); sleep(0.01)", "begin; forked; rescue Interrupt; note(:interrupted); end").each do |out|
      assert_equal ["interrupted"], out.split.grep(/interrupted/)
    end
  end

  def test_a_finalizer_at_a_fork_throws_to_nobody
    finalizers_at_a_fork("", "throw :tag", "catch(:tag) { forked; note(:after) }").each do |out|
      assert_includes out.split, "after"
    end
    # Where they run in the midst of the code, as by GC.start, pristine crashes.
    finalizers_at_a_fork("$VERBOSE = false", "throw :tag", "catch(:tag) { GC.start; note(:after) }").each do |out|
      assert_includes out.split, "after"
    end
  end

  # A second preparation of the heap that begins in the middle of a first one.
  def test_warmup_during_another_keeps_the_ratios
    needs_compaction
    slots = [false, true].map do |both|
      run_ruby(HEAP + ALL_SLOTS + <<~RUBY).to_i
        queue, done = Queue.new, Queue.new
        def die(queue, done) = ObjectSpace.define_finalizer(Object.new, proc { queue << 1; done.pop })
        Thread.new { die(queue, done) }.join
        # The other begins while this one waits in its finalizer, and ends after it.
        other = Thread.new do
          queue.pop
          if #{both}
            def again(done) = ObjectSpace.define_finalizer(Object.new, proc { done.pop })
            Thread.new { again(done) }.join
            Process.warmup
          end
          2.times { done << 1 }
        end
        Process.warmup
        other.join
        Array.new(400_000) { |i| [i] }.clear
        GC.start
        GC.start
        finish all_slots
      RUBY
    end
    assert_in_delta(*slots, slots.first / 10, "slots that the heap keeps")
  end
end

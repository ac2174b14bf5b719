# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# Finalizers, the buffers of files and the free functions of extensions: the end of an object is seen outside
# the process as often as with upstream. A fork neither repeats it nor loses it (gc/exit_duties.h).
class TestDuties < Minitest::Test
  include CowTest

  # A heap that is large enough to be sealed, and a log to which each process appends whole lines.
  HEAP = <<~'RUBY'
    require "tmpdir"
    LOG = File.join(Dir.mktmpdir, "log").freeze # finalizers that run in another Ractor read it
    def note(word) = File.write(LOG, "#{word}\n", mode: "a")
    def notes = File.exist?(LOG) ? File.readlines(LOG, chomp: true) : []
    # Prints +word+ and ends the process at once, so that it finalizes nothing after that.
    def finish(word)
      $stdout.print(word)
      $stdout.flush
      exit!(true)
    end
    $kept = Array.new(100_000) { |i| [i] }
  RUBY

  # die(count) makes objects with finalizers, and files with data in their buffers. All are dead when it
  # returns.
  DEAD = <<~'RUBY'
    DIRECTORY = Dir.mktmpdir
    def final(i) = proc { note("#{i} #{Process.pid}") }
    def die(count)
      count.times do |i|
        ObjectSpace.define_finalizer(Object.new, final(i))
        File.new(File.join(DIRECTORY, i.to_s), "w").write("once ")
      end
    end
    # Overwrites the references to them that are left on the machine stack.
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

  def test_objects_that_died_before_a_fork_are_finalized_once
    check_died_before_fork("exit")
  end

  def test_objects_that_died_before_a_fork_are_finalized_once_if_the_child_leaves_at_once
    check_died_before_fork("exit!")
  end

  def test_objects_that_died_before_a_fork_that_compacts_are_finalized_once
    needs_compaction
    check_died_before_fork("exit", { "RUBY_GC_FORK_COMPACT" => "1" })
  end

  def test_objects_that_died_before_a_child_forks_are_finalized_once
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
    assert_operator out.to_i, :<=, STRAY, "finalizers that ran more than once"
  end

  # The output of a finalizer is in the parent's buffer only.
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

  # thing(name) makes an object of an extension whose free function removes a file: Fiddle calls unlink(2).
  THING = HEAP + <<~'RUBY'
    require "fiddle"
    UNLINK = Fiddle::Handle::DEFAULT["unlink"]
    def thing(name)
      path = "#{LOG}.#{name}"
      File.write(path, "")
      text = Fiddle.malloc(path.bytesize + 1)
      Fiddle::Pointer.new(text)[0, path.bytesize + 1] = "#{path}\0"
      ($things ||= []) << Fiddle::Pointer.new(text, path.bytesize + 1, UNLINK)
      path
    end
  RUBY

  def needs_fiddle
    _, status = run_ruby_status('require "fiddle"')
    skip "fiddle is not there" unless status.success?
  end

  def things_left(script)
    needs_fiddle
    run_ruby(THING + script, options: ["-W0"])
  end

  # On 2222f26 the file was left.
  def test_daemon_frees_what_its_extensions_hold
    assert_equal "false", things_left(<<~'RUBY')
      path = thing("held")
      reader, writer = IO.pipe
      pid = fork do # no process waits for a daemon
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

  # The child made the object itself, before it forked.
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

  # Ruby source: wrap.call(class, data, type) makes an object of the C type that type[free function] gives.
  DATA_TYPE = <<~'RUBY'
    require "fiddle"
    word = Fiddle::TYPE_UINTPTR_T
    wrap = Fiddle.dlopen(nil)["rb_data_typed_object_wrap"]
    wrap = Fiddle::Function.new(wrap, [word] * 3, word, need_gvl: true)
    stored = lambda do |bytes|
      Fiddle.malloc(bytes.bytesize).tap { |place| Fiddle::Pointer.new(place)[0, bytes.bytesize] = bytes }
    end
    text = ->(string) { stored["#{string}\0"] }
    # rb_data_type_t: its name, the functions (the second is free), parent, data and flags.
    type = ->(free) { stored[[text["late"], 0, free, *[0] * 6].pack("Q9")] }
  RUBY

  # An extension may give its data another type when it opens a resource later. On 9ca8644 a child that was
  # forked after that did not call the free function, in 3 of 3 runs.
  def test_child_frees_data_that_got_a_type_with_a_free_function_after_a_fork
    assert_equal "false", things_left(DATA_TYPE + <<~'RUBY')
      path = "#{LOG}.late"
      File.write(path, "")
      idle = type[0]
      klass = Fiddle.dlwrap($class = Class.new)
      many = Array.new(4_000) { Fiddle.dlunwrap(wrap.call(klass, text[path], idle)) }
      $late = many[2_000] # on a heap page where no other object has a duty
      Process.wait(fork { exit! }) # seals
      raise "nothing is sealed" if GC.stat(:sealed_slots).zero?
      Fiddle::Pointer.new(Fiddle.dlwrap($late))[16, 8] = [type[UNLINK.to_i]].pack("Q")
      Process.wait(fork { exit })
      finish File.exist?(path)
    RUBY
  end

  # As with upstream, each process that ends calls it: the child has removed the file before the parent ends.
  def test_a_child_that_ends_calls_a_free_function
    needs_fiddle
    calls = things_left(<<~'RUBY').to_i
      path = thing("held")
      pid = fork { exit }
      Process.wait(pid)
      print File.exist?(path) ? 0 : 1
    RUBY
    assert_equal 1, calls
  end

  # A child that ends clears no marks, and its slots are used again: by free functions that make objects.
  def test_a_free_function_that_makes_objects_when_a_child_ends
    needs_fiddle
    preloading(<<~'C') do |env|
      extern unsigned long rb_ary_new(void);
      void make_objects(void *unused) { for (int i = 0; i < 20; i++) rb_ary_new(); }
    C
      out = run_ruby(DATA_TYPE + <<~'RUBY', env: env, options: ["-W0"])
        made = type[Fiddle.dlopen(nil)["make_objects"].to_i]
        klass = Fiddle.dlwrap($class = Class.new)
        kept = Array.new(80_000) { Object.new }
        pid = fork do
          $many = Array.new(3_000) { Fiddle.dlunwrap(wrap.call(klass, 1, made)) }
          4.times { GC.start } # they become old
        end
        puts Process.wait2(pid).last.success?, kept.size
        $stdout.flush
        exit!(true)
      RUBY
      assert_equal "true", out.lines.first.to_s.chomp
    end
  end

  # On 2222f26 the script never ended, because the finalizer held the lock of the VM. On pristine CRuby it
  # does not end either, because of Process.warmup.
  def test_fork_in_a_finalizer_beside_a_ractor
    least = 20 - 2 * STRAY
    ENVIRONMENTS.each do |env|
      out = run_ruby(HEAP + <<~'RUBY', least, env: env, options: ["-W0"], timeout: 60)
        ractor = Ractor.new { Ractor.receive }
        def wait_for_child = Process.wait2(fork { exit!(true) }).last.success? || raise("a child failed")
        def forks = proc { wait_for_child; note(:forked) }
        def die = 10.times { ObjectSpace.define_finalizer(Object.new, forks) }
        Thread.new { die }.join
        Process.warmup
        Thread.new { die }.join
        $kept.concat(Array.new(100_000) { |i| [i] }) # so many that the next fork seals again
        wait_for_child
        # The Ractor's thread may have begun to run them, and goes on beside this one.
        2_000.times { sleep 0.01 if notes.size < Integer(ARGV[0]) }
        ractor.send(nil)
        finish notes.size
      RUBY
      assert_operator out.to_i, :>=, least, "finalizers that forked"
    end
  end

  # A thread forks, and runs the finalizers before it; in the middle of one another thread forks. That child
  # has no thread that would go on with them. It once ran none, also of its own, and its files lost what was
  # in their buffers.
  def test_a_fork_while_another_thread_runs_finalizers
    ENVIRONMENTS.each do |env|
      out = run_ruby(HEAP + DEAD + <<~'RUBY', env: env, timeout: 60)
        waits = proc { |id| note("parent #{id} #{Process.pid}"); sleep(0.6) }
        Thread.new { 5.times { ObjectSpace.define_finalizer(Object.new, waits) } }.join
        clear(100)
        other = Thread.new { Process.wait(fork { exit! }) }
        Thread.pass until notes.any?
        pid = fork do
          $file = File.open(File.join(DIRECTORY, "file"), "w")
          $file.write("data")
          die(3)
          clear(100)
          GC.start
          GC.verify_internal_consistency
          ObjectSpace.define_finalizer($file, proc { note("child") })
        end
        Process.wait(pid)
        other.join
        GC.verify_internal_consistency
        ids = notes.grep(/parent/).map { |line| line[/\d+/] }
        finish [File.read(File.join(DIRECTORY, "file")), notes.count("child"), ids.uniq == ids,
                notes.grep(/\A[012] #{pid}\z/).size > 0].inspect
      RUBY
      assert_equal '["data", 1, true, true]', out, env.inspect
    end
  end

  # Code that forks does not expect finalizers to run. So at a fork they run as they do between two of its
  # instructions: they handle no signals, wait for no locks and throw nothing out of the fork. On 6926173 each
  # of the following three tests failed in every run.
  def finalizers_at_a_fork(setup, final, call = "forked", **rest)
    ENVIRONMENTS.map do |env|
      run_ruby(HEAP + <<~RUBY, env: env, options: ["-W0"], timeout: 60, **rest)
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
      $lock, held = Mutex.new, Queue.new
      Thread.new { $lock.synchronize { held << 1; sleep } }
      held.pop
    RUBY
    finalizers_at_a_fork(setup, "$lock.synchronize { note(:locked) }").each do |out|
      assert_operator out.scan("final").size, :>=, 10 - STRAY, "finalizers that ran"
      refute_includes out, "locked", "a finalizer has the lock that another thread holds"
    end
  end

  def test_the_parent_handles_a_signal_that_a_finalizer_sends_at_a_fork
    setup = 'trap(:USR1) { note("signal-#{Process.pid == $id}") }; $id = Process.pid; $sent = false'
    finalizers_at_a_fork(setup, "$sent ||= Process.kill(:USR1, $$); sleep(0.01)").each do |out|
      assert_equal ["signal-true"], out.split.grep(/signal/)
    end
    call = "begin; forked; rescue Interrupt; note(:interrupted); end"
    final = "$sent ||= Process.kill(:INT, $$); sleep(0.01)"
    # A shell starts what runs in the background with SIGINT ignored.
    finalizers_at_a_fork('trap(:INT, "DEFAULT"); $sent = false', final, call).each do |out|
      assert_equal ["interrupted"], out.split.grep(/interrupted/)
    end
  end

  def test_a_throw_in_a_finalizer_does_not_leave_the_fork
    finalizers_at_a_fork("", "throw :tag", "catch(:tag) { forked; note(:after) }").each do |out|
      assert_includes out.split, "after", "the throw skipped the code after the fork"
    end
    # Pristine CRuby crashes if a finalizer that runs in the middle of a program's code, as in GC.start,
    # throws.
    call = "catch(:tag) { GC.start; note(:after) }"
    warning = /warning: Exception in finalizer/
    finalizers_at_a_fork("$VERBOSE = false", "throw :tag", call, warning: warning).each do |out|
      assert_includes out.split, "after", "the throw skipped the code after GC.start"
    end
  end

  # One Process.warmup begins while that of another thread waits in a finalizer. Each sets a ratio of free
  # slots for its collections; when both have ended the program's own ratio must be in force again.
  def test_warmup_during_another_keeps_the_ratios
    needs_compaction
    slots = [false, true].map do |both|
      run_ruby(HEAP + ALL_SLOTS + <<~RUBY).to_i
        queue, done = Queue.new, Queue.new
        def die(queue, done) = ObjectSpace.define_finalizer(Object.new, proc { queue << 1; done.pop })
        Thread.new { die(queue, done) }.join
        # The second warmup begins while the first one waits in its finalizer, and ends after it.
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

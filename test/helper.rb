# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What the Ruby tests share. The tests run on the ruby under test; what must
# stand in a process of its own (a fork, a stress run, other options) is a
# script run by that same ruby.
#
# Nothing that is installed at this ruby's prefix, or where the environment points, is seen:
# minitest would load the plugins of its gems, and a gem there may be another version. Also
# by the scripts, which inherit this.
%w[GEM_HOME GEM_PATH].each { |name| ENV[name] = File.expand_path("../build/no-gems", __dir__) }
ENV["MT_NO_PLUGINS"] = "1"
Gem.clear_paths if defined?(Gem)
require "minitest/autorun"
require "open3"
require "timeout"
require "tmpdir"

# A shell lets what it starts in the background ignore these, and the scripts would inherit that.
%w[INT QUIT].each { |signal| trap(signal, "DEFAULT") }

module CowTest
  ROOT = File.expand_path("..", __dir__)

  # The ruby under test. In a build tree this is the runner, which sets the
  # library path; RbConfig.ruby would name the place it is to be installed at.
  RUBY = ENV["RUBY"] || RbConfig.ruby

  # What a command has in its environment unless the test says otherwise. Pressure is on, as in programs. Only
  # where collections are counted, or what a heap and malloc keep, it must not matter that others on this
  # machine need memory (doc/pressure.md).
  def surroundings = {}
  CALM = { "RUBY_GC_PRESSURE" => "off" }.freeze

  # What a ruby prints when it, or a child whose status nobody looks at, has failed.
  FAILED = /\[BUG\]|Exception in finalizer|ERROR: AddressSanitizer/

  # Runs +script+ in a fresh process of the ruby under test, without RubyGems: its objects would take half of
  # the time of what collects again and again. +options+ may enable it.
  # Gives its output; fails the test, with what it printed, unless it exits with status 0 within +timeout+
  # seconds, and prints nothing of FAILED but +warning+, which it must print if a test gives it.
  def run_ruby(script, *args, env: {}, options: [], timeout: 120, warning: nil)
    out, status = run_ruby_status(script, *args, env: env, options: options, timeout: timeout)
    assert status.success?, "#{status.inspect}\n--- script\n#{script}\n--- output\n#{out}"
    told = out.scrub
    assert_match warning, told if warning
    refute_match FAILED, warning ? told.gsub(warning, "") : told, "--- script\n#{script}"
    out
  end

  # The same, but gives standard output and error together and the status.
  def run_ruby_status(script, *args, env: {}, options: [], timeout: 120)
    command = [RUBY, "--disable-gems", *options, "-e", script, *args.map(&:to_s)]
    run_command(*command, env: env, timeout: timeout)
  end

  # Runs a command; gives standard output and error together, or +apart+, and the status. Until +timeout+
  # seconds it must have ended, and whoever holds its output: a child, or a daemon. Otherwise it is killed
  # with its children, and the test fails. Where all is slower, as under assertions, it may take longer
  # (tool/check).
  def run_command(*command, env: {}, input: "", timeout: 120, apart: false, **rest)
    till = now + scaled(timeout)
    start = Open3.method(apart ? :popen3 : :popen2e)
    start.call(surroundings.merge(env), *command, pgroup: true, **rest) do |stdin, *outputs, thread|
      readers = outputs.map { |output| reader_of(output) }
      writer = Thread.new { feed(stdin, input) }
      unless [thread, *readers, writer].all? { |one| one.join([till - now, 0].max) }
        what = thread.alive? ? "no end" : "no end of the output"
        kill_group(thread.pid)
        readers.each { |reader| reader.join(5) } # a daemon is in no group of ours
        told = readers.map { |reader| reader[:text] }.join
        flunk "#{what} after #{scaled(timeout)} s\n--- command\n#{command.join("\n")}\n--- output\n#{told}"
      end
      [*readers.map(&:value), thread.value]
    end
  end

  # Gives what the block gives. It talks to +pid+, which leads a group of processes; they are killed after so
  # many seconds, so that the block finds an end of file.
  def with_limit(pid, timeout = 120)
    watch = Thread.new { sleep(scaled(timeout)); kill_group(pid) }
    yield
  ensure
    watch.kill.join
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  def scaled(seconds) = seconds * ENV.fetch("RUBY_TEST_TIMEOUT_SCALE", "1").to_f

  def kill_group(pid)
    Process.kill(:KILL, -pid)
  rescue Errno::ESRCH
    nil # all of them have ended
  end

  # A thread that reads to the end. Its :text is what it has read so far.
  def reader_of(output)
    Thread.new do
      Thread.current.report_on_exception = false # where the test gives up, the pipe is closed
      text = Thread.current[:text] = +""
      output.each_line { |line| text << line }
      text
    end
  end

  def feed(stdin, input)
    stdin.write(input)
    stdin.close
  rescue Errno::EPIPE, IOError
    nil # the command did not want it all
  end
  private :now, :scaled, :kill_group, :reader_of, :feed

  # Yields the environment in which a program loads a library of the C source +source+ first.
  def preloading(source)
    Dir.mktmpdir do |directory|
      text, library = %w[library.c library.so].map { |name| File.join(directory, name) }
      File.write(text, source)
      _, status = Open3.capture2e("cc", "-shared", "-fPIC", "-o", library, text, "-ldl", "-lpthread")
      skip "no C compiler" unless status.success?
      yield({ "LD_PRELOAD" => library, "ASAN_OPTIONS" => "verify_asan_link_order=0" })
    end
  rescue Errno::ENOENT
    skip "no C compiler"
  end

  # Not on every system, and not where heap pages are malloc's.
  COMPACTS = GC.respond_to?(:compact)

  def needs_compaction
    skip "no compaction here" unless COMPACTS
  end

  # Built with AddressSanitizer, which keeps a byte for eight and takes an address space
  # of its own: memory that is counted is not the ruby's alone.
  ASAN = RbConfig::CONFIG["cflags"].include?("-fsanitize=address")

  # Built with CRuby's assertions (make debug): where all takes several times as long.
  ASSERTIONS = GC::OPTS.include?("RGENGC_CHECK_MODE")

  # How the ruby under test finds mark bits; nil where it is not ours.
  LOCATOR = GC::INTERNAL_CONSTANTS[:MARK_LOCATOR]&.to_s

  # Ruby source for scripts: the slots of all heap pages, also those that a seal keeps closed.
  ALL_SLOTS = "def all_slots = GC.stat.values_at(:heap_available_slots, :closed_slots).sum\n"

  # Ruby source for scripts: os_page_of(objects) gives the address of an OS page that only these fill;
  # protect(page, access) sets how it may be accessed, 0: not at all, 3: as usual.
  OS_PAGE_ACCESS = <<~'RUBY'
    require "fiddle"
    require "objspace"

    def os_page_of(objects)
      addresses = objects.map { |object| ObjectSpace.dump(object)[/0x(\h+)/, 1].to_i(16) }.sort
      # Runs of objects in neighbouring slots, long enough to fill whole OS pages.
      size = GC::INTERNAL_CONSTANTS[:BASE_SLOT_SIZE]
      runs = addresses.slice_when { |a, b| b - a != size }.select { |run| run.size > 400 }
      page = runs[runs.size / 2][110] & -4096
      # At the beginning of a heap page it is the address of a slot as well, which a call with it leaves on
      # the machine stack.
      page % GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE] == 0 ? page + 4096 : page
    end

    types = [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT]
    MPROTECT = Fiddle::Function.new(Fiddle.dlopen(nil)["mprotect"], types, Fiddle::TYPE_INT)
    def protect(page, access) = MPROTECT.call(page, 4096, access)
  RUBY

  # The whole numbers that a script printed.
  def numbers(out)
    out.split.map { |word| Integer(word) }
  end

  # Ruby source for scripts: private_dirty(pid) gives the KB that a process
  # has for itself alone, as the kernel counts them.
  PRIVATE_DIRTY = <<~'RUBY'
    def private_dirty(pid = "self")
      File.read("/proc/#{pid}/smaps_rollup")[/^Private_Dirty:\s+(\d+)/, 1].to_i
    end
  RUBY

  # Ruby source for scripts: each_mapping(pid) { |kind, text| ... } with what the kernel
  # says of each; with PLACE in the environment.
  EACH_MAPPING = <<~'RUBY'
    require "#{ENV.fetch("ROOT")}/benchmark/lib/memory/page_kinds"
    ARENA, SIGN = CowBench::PageKinds::ARENA, CowBench::PageKinds::ARENA_SIGN

    def each_mapping(pid)
      space = CowBench::AddressSpace.new(pid)
      kinds = CowBench::PageKinds.new(space)
      File.read("/proc/#{pid}/smaps").split(/(?=^\h+-\h+ )/).each do |text|
        mapping = space.mapping_of(text.to_i(16)) or next
        in_arena = mapping.writable? && space.words(mapping.first / ARENA * ARENA, 1)&.first == SIGN
        yield in_arena ? "GC pages" : kinds.of(mapping.first, mapping), text
      end
    ensure
      space&.close
    end

    # KB that this process alone holds of a kind.
    def private_dirty(wanted)
      sum = 0
      each_mapping($$) { |kind, text| sum += text[/^Private_Dirty: +(\d+)/, 1].to_i if kind == wanted }
      sum
    end
  RUBY
  PLACE = { "ROOT" => ROOT }.freeze

  # Ruby source for scripts: os_pages(objects) gives the numbers of the OS pages that more than
  # five of them begin in; count_pages(pages, bit) how many of them have a bit in pagemap.
  OS_PAGES = <<~'RUBY'
    require "objspace"
    PRESENT, ALONE = 63, 56 # mapped at all; by nobody else

    def os_pages(objects)
      pages = objects.map { |object| ObjectSpace.dump(object)[/0x(\h+)/, 1].to_i(16) / 4096 }
      pages.tally.select { |_, count| count > 5 }.keys
    end

    def count_pages(pages, bit)
      File.open("/proc/self/pagemap", "rb") do |file|
        pages.count do |page|
          file.pos = page * 8
          file.read(8).unpack1("Q")[bit] == 1
        end
      end
    end
  RUBY

  # Ruby source for scripts: so many objects that the heap is sealed before the first fork, and sealed!, which
  # raises unless it was. In a smaller heap a child inherits nothing (COW_SEAL_LEAST_LIVE).
  BALLAST = <<~'RUBY'
    BALLAST = Array.new(100_000) { |i| "ballast #{i}" }
    def sealed! = GC.stat(:sealed_slots) > 0 || raise("nothing is sealed")
  RUBY

  # Ruby source for scripts: in_child { ... } runs the block in a forked child
  # and raises unless the child comes to its end without an exception.
  IN_CHILD = <<~'RUBY'
    def in_child
      pid = fork do
        yield
        $stdout.flush
        exit!(0)
      rescue Exception => e
        warn e.full_message
        exit!(1)
      end
      raise "child: #{$?}" unless Process.wait2(pid).last.success?
    end
  RUBY

  # Collections of both kinds, and objects in the place of whatever was freed by mistake.
  COLLECT = <<~'RUBY'
    def collect(full = 1)
      GC.start(full_mark: false)
      full.times { GC.start }
      Array.new(20_000) { |i| ["x#{i}", i.to_s * 30, Object.new] }
      GC.start
      GC.verify_internal_consistency
    end
  RUBY
end

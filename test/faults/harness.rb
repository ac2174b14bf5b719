# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "open3"
require "tempfile"
require "tmpdir"
require_relative "scenarios"
require_relative "known"

# Runs the scenarios with calls that fail (faults.c), and judges how they end.
module Faults
  ROOT = File.expand_path("../..", __dir__)

  # As in faults.c.
  KINDS = %i[mmap madvise munmap mprotect malloc realloc calloc memalign fork thread open read].freeze
  MODES = %i[count once onwards randomly].freeze
  FRAMES = 20
  RECORD = (2 + FRAMES) * 8
  SPARED = 64
  HEAD = (10 + SPARED * 2) * 8
  MALLOC = %i[malloc realloc calloc memalign].freeze
  ERRNOS = { nil => 0, eintr: Errno::EINTR::Errno, enomem: Errno::ENOMEM::Errno,
             eagain: Errno::EAGAIN::Errno }.freeze
  ROOM = 400_000

  # One call that was counted: its number, its kind, and where in the program it was made.
  Call = Struct.new(:number, :kind, :frames)

  # What fails in a run.
  Plan = Struct.new(:mode, :kinds, :number, :seed, :error, keyword_init: true) do
    def to_s
      what = { once: "call #{number} of", onwards: "all from call #{number} of",
               randomly: "#{number} of 65536, seed #{seed}, of", count: "none of" }.fetch(mode)
      "#{what} #{kinds == KINDS ? "all kinds" : kinds.join(",")}#{" with #{error.to_s.upcase}" if error}"
    end

    def head(at_start, room, spared)
      bits = kinds.sum { |kind| 1 << KINDS.index(kind) }
      numbers = [MODES.index(mode), bits, number || 0, seed || 0, at_start ? 1 : 0, ERRNOS.fetch(error), room,
                 0, 0, 0]
      (numbers + spared.flatten).pack("Q*").ljust(HEAD, "\0")
    end
  end

  # How a run ended. +verdict+ is :untouched (no call failed), :passed, :raised, :refused (an end with a clear
  # message, as pristine's), :known (known.rb) or what is a finding: :crashed, :hung, :wrong, :silent.
  Result = Struct.new(:scenario, :plan, :verdict, :output, :status, :failed, :first, :calls, :armed,
                      keyword_init: true) do
    def finding? = %i[crashed hung wrong silent].include?(verdict)
  end

  # The names of the functions of a program, by address.
  class Symbols
    # Functions that do not ask whether malloc gave them anything, or end the process. Nothing of that is
    # ours, so their calls do not fail: prism, the parser before it, the conversion of floats, and the thread
    # of the timers, which ends the process if it cannot read its pipe.
    CARELESS = /\A(?:timer_thread_func|consume_communication_pipe|ruby_dtoa|Balloc|d2b|n?rv_alloc)\z/
    PARSERS = /\A(?:pm_|prism_|parse_|parser_|lex_|context_|ruby_yyparse|yyparse|yylex|rb_parser_)/

    def initialize(program)
      lines = IO.popen(["nm", "-C", "--defined-only", program], err: File::NULL, &:read).lines
      found = lines.filter_map { |line| [$1.to_i(16), $2] if line =~ /\A(\h+) [tTwWiu] (.*)/ }.sort
      @addresses = found.map(&:first)
      @names = found.map { |_, name| name.sub(/::h\h{16}\z|\.(?:constprop|isra|part|cold)\b.*/, "") }
    end

    # Is it stripped? Then no place in it is known.
    def none? = @names.empty?

    def name(place)
      i = @addresses.bsearch_index { |address| address > place } || @addresses.size
      i.zero? ? format("%#x", place) : @names[i - 1]
    end

    # The parts of the program, [from, to], whose calls do not fail. Of the parsers the longest: a few
    # functions of other names between them belong to them.
    def spared
      careless = @names.each_index.select { |i| CARELESS.match?(@names[i]) }.map { |i| part(i, i) }
      runs = @names.each_index.select { |i| PARSERS.match?(@names[i]) && i + 1 < @names.size }
                   .slice_when { |a, b| b - a > 8 }.map { |run| part(run.first, run.last) }
      careless + runs.max_by(SPARED - careless.size) { |from, to| to - from }
    end

    private

    # From the beginning of a function to the end of another one, or of the same.
    def part(first, last) = [@addresses[first], @addresses[last + 1]]
  end

  # Does a chain of callers lead through code of ours: gc/ and what the patches from 0300 on touch?
  class Ours
    NEAR = 4
    GENERIC = /\A(?:rb_gc_impl_\w*alloc|(?:ruby_|rb_|objspace_)?x|rb_st_|rb_id_table|rebuild_table)/

    def initialize
      files = Dir[File.join(ROOT, "gc/*.{c,h}")].map { |file| File.read(file).scan(/^(\w+)\(/) }
      patches = Dir[File.join(ROOT, "patches/0[3-9]*.patch")].map do |file|
        File.read(file).scan(/^(?:@@ .*@@ .*?|[+ ])(\w+)\(/)
      end
      @names = (files + patches).flatten.to_h { |name| [name, true] }
    end

    def include?(places)
      places.reject { |name| GENERIC.match?(name) }.first(NEAR).any? { |name| @names[name] }
    end
  end

  class Harness
    SECONDS = 60

    # Messages with which CRuby itself says that there is no memory, before or without an exception: of a
    # process that may end by a signal, and of one that ends with a status.
    FATAL = [/\[FATAL\] failed to allocate memory/,
             /^memory allocation of \d+ bytes failed/].freeze # Rust, in YJIT
    REFUSALS = [
      /[Cc]annot allocate memory|Resource temporarily unavailable|Too many open files/,
      /NoMemoryError|failed to allocate memory|Input\/output error|Interrupted system call/
    ].freeze

    attr_reader :ruby

    def initialize(ruby, directory, scenarios: SCENARIOS, glibc: false, objects: nil, seconds: nil)
      @ruby = ruby
      @directory = directory
      @scenarios = scenarios
      @objects = objects
      @seconds = (seconds || SECONDS) * ENV.fetch("RUBY_TEST_TIMEOUT_SCALE", "1").to_f
      @library = File.join(directory, glibc ? "faults-glibc.so" : "faults.so")
      compile(glibc)
      @preload = glibc ? "#{@library} libc.so.6" : @library
    end

    def compile(glibc)
      command = ["cc", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-shared", "-fPIC", "-o", @library,
                 *("-DFAULTS_GLIBC" if glibc), File.join(__dir__, "faults.c"), "-ldl", "-lpthread"]
      output, status = Open3.capture2e(*command)
      raise "faults.c does not compile: #{output}" unless status.success?
    end

    def symbols
      # The program that runs, not the one that finds it in a build tree.
      print_it = "print File.readlink('/proc/self/exe')"
      @symbols ||= Symbols.new(IO.popen([@ruby, "--disable-gems", "-e", print_it], &:read))
    end

    # The calls of a scenario in their order, none of which fails.
    def count(scenario, kinds: KINDS)
      result, calls = run_plan(scenario, Plan.new(mode: :count, kinds: kinds), room: ROOM)
      [result, calls]
    end

    def run(scenario, plan) = run_plan(scenario, plan).first

    def places(call) = call.frames.map { |place| symbols.name(place) }

    private

    def run_plan(scenario, plan, room: 0)
      file = Tempfile.create("plan", @directory)
      file.binmode
      file.write(plan.head(scenario == :boot, room, symbols.spared))
      file.truncate(HEAD + RECORD * (room + 1))
      file.flush
      output, status = execute(scenario, file.path)
      file.rewind
      head = file.read(HEAD).unpack("Q*")
      first = record(file.read(RECORD))
      calls = []
      calls = Array.new([head[7], room].min) { record(file.read(RECORD)) } if room > 0
      result = Result.new(scenario: scenario, plan: plan, output: output, status: status, calls: head[7],
                          failed: head[8], armed: head[9], first: (first if head[8] > 0))
      result.verdict = judge(result)
      result.verdict = :known if result.finding? && KNOWN.any? { |known| known.covers?(result, self) }
      [result, calls]
    ensure
      if file
        file.close
        File.unlink(file.path)
      end
    end

    def record(bytes)
      kind, number, *frames = bytes.unpack("Q*")
      Call.new(number, KINDS[kind], frames.reject(&:zero?))
    end

    def execute(scenario, path)
      # The first part is compiled into what cannot fail in boot: it is armed from the start.
      env = { "LD_PRELOAD" => @preload, "COWRUBY_FAULTS" => path,
              "FAULTS_OBJECTS" => (@objects || OBJECTS[scenario]).to_s,
              "MALLOC_CONF" => "", "RUBYOPT" => nil, "RUBYLIB" => nil,
              "ASAN_OPTIONS" => "verify_asan_link_order=0:detect_leaks=0" }
      command = [@ruby, "--disable-gems", "-I", File.join(ROOT, "lib"), *OPTIONS[scenario], script(scenario)]
      text = +""
      Open3.popen2e(env, *command, pgroup: true, chdir: @directory) do |stdin, output, thread|
        stdin.close
        reader = Thread.new { output.read }
        ended = thread.join(@seconds)
        # Children that outlive their parent hang as well.
        ended &&= reader.join(@seconds)
        kill_group(thread.pid) unless ended
        text = (reader.join(@seconds) ? reader.value : "").scrub
        return [text, ended ? thread.value : nil]
      end
    end

    def kill_group(pid)
      Process.kill(:KILL, -pid)
    rescue Errno::ESRCH
      nil
    end

    # In a file, so that a crash report does not contain the program.
    def script(scenario)
      path = File.join(@directory, "#{scenario}.rb")
      unless File.exist?(path)
        File.write("#{path}.#{$$}", "# frozen_string_literal: true\n" + ALIVE + @scenarios.fetch(scenario))
        File.rename("#{path}.#{$$}", path)
      end
      path
    end

    def judge(result)
      out = result.output
      status = result.status
      return :hung if status.nil?
      return :crashed if out =~ /\[BUG\]|^-- C level backtrace|Sanitizer|panicked at|Assertion failed/
      return :wrong if out =~ /WRONG|verify_internal_consistency/
      if (out =~ /^CHILD/ || !status.success?)
        abnormal = status.signaled? || out =~ /^CHILD.*SIG/
        # What another process has raised and survived does not say why this one ended.
        words = out.lines.grep_v(/ right, /).join
        refusals = abnormal ? FATAL : FATAL + REFUSALS
        return refusals.any? { |refusal| words =~ refusal } ? :refused : (abnormal ? :crashed : :silent)
      end
      return :silent unless out =~ /^#{result.scenario} right/ || out =~ /^SKIP/
      return :untouched if result.failed.zero?
      out =~ /right, raised/ ? :raised : :passed
    end
  end

  # Which calls of a scenario shall fail one by one: of the calls of the system's every one; of malloc's,
  # which are many, the first and the last of each place in the program, that is of each chain of +depth+
  # callers.
  class Choice
    MOST = 400

    # +depth+ nil: every call. The block says whether a call is of interest.
    def initialize(calls, depth: 6, &wanted)
      @calls = calls
      @depth = depth
      @wanted = wanted
    end

    # The numbers of the calls, counted from 1 among those of the kind.
    def numbers(kind)
      of_kind = @calls.select { |call| call.kind == kind }
      chosen = (1..of_kind.size).to_a
      if @depth && (MALLOC.include?(kind) || of_kind.size > MOST)
        places = chosen.group_by { |n| of_kind[n - 1].frames.first(@depth) }
        chosen = places.values.flat_map(&:minmax).uniq.sort
      end
      @wanted ? chosen.select { |n| @wanted.call(of_kind[n - 1]) } : chosen
    end
  end

  # Many runs, some at a time, and what they came to.
  class Suite
    # Errors besides the usual one of the kind.
    MORE_ERRORS = { read: %i[eintr], open: %i[eintr], fork: %i[enomem], madvise: %i[eagain] }.freeze
    # Of 65,536 calls so many fail at random: of the system's, and of malloc's.
    SHARES = { (KINDS - MALLOC) => 6_000, MALLOC => 150, KINDS => 600 }.freeze

    def initialize(harness, modes: %i[once onwards], kinds: KINDS, jobs: 2, depth: 6, stride: 1, random: 4,
                   seed: 1, ours: false)
      @harness = harness
      @ours = Ours.new if ours
      @modes = modes
      @kinds = kinds
      @jobs = jobs
      @depth = depth
      @stride = stride
      @random = random
      @seed = seed
    end

    # Gives true if there was no finding. Prints each as soon as it is there, of the same place one.
    def run(scenarios, out)
      findings = scenarios.flat_map do |scenario|
        seen = {}
        results = results(scenario) do |result|
          next unless result.finding?
          key = place(result)
          report([result], out) unless seen[key]
          seen[key] = true
        end
        out.puts line(scenario, results)
        results.select(&:finding?)
      end
      out.puts "#{findings.size} findings"
      findings.empty?
    end

    # Gives the results of all plans of a scenario; yields each when it is there. A run that has hung beside
    # others is made once more when they are over, and that one counts.
    def results(scenario)
      result, calls = @harness.count(scenario, kinds: @kinds)
      if result.finding? || result.output.include?("SKIP")
        yield result if block_given?
        return [result]
      end
      first = in_threads(plans(calls)) do |plan|
        @harness.run(scenario, plan).tap { |found| yield found if block_given? && found.verdict != :hung }
      end
      first.map do |found|
        next found unless found.verdict == :hung
        @harness.run(scenario, found.plan).tap { |again| yield again if block_given? }
      end
    end

    # In order, but by strides, so that a part of them still has all kinds.
    def plans(calls)
      choice = Choice.new(calls, depth: @depth) do |call|
        !MALLOC.include?(call.kind) || @ours.nil? || @ours.include?(@harness.places(call))
      end
      single = @kinds.flat_map { |kind| choice.numbers(kind).flat_map { |number| plans_of(kind, number) } }
      offset = single.empty? ? 0 : @seed % @stride
      single.each_slice(@stride).filter_map { |slice| slice[offset] || slice[0] } + random_plans
    end

    def line(scenario, results)
      tally = results.map(&:verdict).tally.map { |verdict, count| "#{count} #{verdict}" }
      "#{scenario}: #{results.size} runs, #{tally.join(", ")}"
    end

    def report(found, out)
      found.group_by { |result| place(result) }.each do |(verdict, places), results|
        result = results.first
        out.puts "FINDING #{result.scenario}, #{verdict} (#{results.size}): #{result.plan} " \
                 "#{result.status ? result.status.inspect[/(exit|SIG).*(?=>)/] : "no end"}",
                 "  at #{places&.join(" < ")}",
                 result.output.lines.first(12).map { |text| "  | #{text[0, 200]}" }
      end
    end

    private

    def place(result) = [result.verdict, result.first && @harness.places(result.first).first(5)]

    # CRuby tries fork(2) again for ever where it fails with EAGAIN.
    def plans_of(kind, number)
      plans = @modes.map do |mode|
        error = :enomem if kind == :fork && mode == :onwards
        Plan.new(mode: mode, kinds: [kind], number: number, error: error)
      end
      return plans unless @modes.include?(:once)
      plans + MORE_ERRORS.fetch(kind, []).map do |error|
        Plan.new(mode: :once, kinds: [kind], number: number, error: error)
      end
    end

    def random_plans
      SHARES.flat_map do |kinds, share|
        kinds &= @kinds
        next [] if kinds.empty?
        Array.new(@random) do |i|
          Plan.new(mode: :randomly, kinds: kinds, number: share, seed: (@seed * 1_000 + i) * 7_919)
        end
      end
    end

    def in_threads(items)
      left = Queue.new(items.each_with_index.to_a).close
      results = Array.new(items.size)
      Array.new(@jobs) do
        Thread.new do
          while (item, i = left.pop)
            results[i] = yield item
          end
        end
      end.each(&:join)
      results
    end
  end
end

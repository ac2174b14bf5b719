# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "zlib"
require_relative "recording"

module Scheduling
  # Reads what the kernel's ftrace printed of a scheduler (sched_switch, sched_waking or sched_wakeup,
  # sched_process_fork) and the table of its processes, and makes a Workload of it. Other events are left out.
  class Trace
    # A fault of the files: its message is one line for the user.
    Bad = Class.new(StandardError)

    # "comm-pid (tgid) [cpu] flags seconds: event: text"; the tgid and the flags may be missing.
    LINE = /\A\s*(?<comm>.*)-(?<pid>\d+)\s+(?:\(\s*(?:\d+|-+)\)\s+)?\[(?<cpu>\d+)\]\s+
            (?:(?<flags>[^\s:]{4,6})\s+)?(?<second>\d+)\.(?<part>\d{6}|\d{9}):\s+
            (?<event>\w+):\s?(?<text>.*)\z/x
    SWITCH = Regexp.new('\Aprev_comm=(.*) prev_pid=(\d+) prev_prio=(-?\d+) prev_state=(\S+) ==> ' \
                        'next_comm=(.*) next_pid=(\d+) next_prio=(-?\d+)')
    WAKING = /\Acomm=(.*) pid=(\d+) prio=(-?\d+)/
    FORK = /\Acomm=(.*) pid=(\d+) child_comm=(.*) child_pid=(\d+)/
    ENTRIES = %r{\A# entries-in-buffer/entries-written: (\d+)/(\d+)(?: +#P:(\d+))?}
    LOST = /\ACPU:(\d+) \[LOST (\d+) EVENTS\]/
    GZIP = "\x1F\x8B".b

    # Reads both files; a trace may be packed by gzip. Threads of the names +without+ are left out, and what
    # is not in +part+, seconds from the first event.
    def self.read(trace, pids, **options)
      new(File.basename(trace), text_of(trace), Pids.read(pids), **options).workload
    rescue SystemCallError => e
      raise Bad, e.message.sub(/ @ .* - /, ": ")
    end

    def self.text_of(path)
      data = File.binread(path)
      data = Zlib.gunzip(data) if data.start_with?(GZIP)
      data.force_encoding(Encoding::UTF_8).scrub
    rescue Zlib::Error
      raise Bad, "#{File.basename(path)}: it is cut off or damaged: gzip cannot unpack it"
    end
    private_class_method :text_of

    # +spaces+: { pid => address space }, 0 for threads of the kernel.
    def initialize(name, text, spaces, without: [], part: nil)
      @part = part && part.map { |second| (second * 1_000_000_000).round }
      @name = name
      @text = text
      @spaces = spaces
      @without = pids_of(without)
    end

    def workload
      raise Bad, "#{@name}: the trace is empty" if @text.strip.empty?
      raise Bad, "#{@name}: the trace ends in the middle of a line" unless @text.end_with?("\n")

      @events = 0
      @text.each_line(chomp: true).with_index(1) { |line, number| read(line, number) }
      finish
    end

    private

    # { pid => true } of all whose last name is one of these. Before its exec a program has its parent's.
    def pids_of(names)
      return {} if names.empty?

      last = @text.scan(/comm=(.*?) (?:prev_|next_|child_)?pid=(\d+)/).to_h { |comm, pid| [pid.to_i, comm] }
      last.select { |_, comm| names.include?(comm) }.transform_values { true }
    end

    # Who is left out is taken for the idle thread.
    def pid(text)
      @without.key?(text.to_i) ? 0 : text.to_i
    end

    def read(line, number)
      @number = number
      if line.start_with?("#")
        @entries, @written, @processors = $~.captures.map(&:to_i) if line =~ ENTRIES
      elsif line =~ LOST
        bad("the kernel lost #{$2} events here: record with a larger buffer")
      elsif !line.strip.empty?
        match = LINE.match(line) or bad("this is no line of ftrace")
        @events += 1
        event(match)
      end
    end

    def event(match)
      time = time(match)
      @limits ||= limits(time)
      return unless @limits.cover?(time)

      start(time) unless @recording
      bad("the time goes back") if time < @last

      @last = time
      send(*known(match), time, match)
    rescue Recording::Torn => e
      bad(e.message)
    end

    KINDS = { "sched_switch" => :switch, "sched_waking" => :waking, "sched_wakeup" => :waking,
              "sched_process_fork" => :fork }.freeze

    def known(match)
      kind = match[:event]
      kind == "sched_wakeup" && @waking ? :other : KINDS.fetch(kind, :other)
    end

    # Of the times that are read; +first+ is that of the first event. Where older events were written over,
    # each CPU's begin at another time: when the last of them has begun, all are there.
    def limits(first)
      from = @entries && @entries < @written ? complete_from : first
      return (from..) unless @part

      [from, first + @part[0]].max..first + @part[1]
    end

    def complete_from
      firsts = {}
      @text.each_line(chomp: true) do |line|
        match = LINE.match(line) or next
        firsts[match[:cpu]] ||= time(match)
      end
      firsts.values.max
    end

    def time(match)
      match[:second].to_i * 1_000_000_000 + match[:part].ljust(9, "0").to_i
    end

    # Where sched_waking is recorded, sched_wakeup says the same again, and by the wrong CPU.
    def start(time)
      @waking = @text.include?(" sched_waking: ")
      @recording = Recording.new(time, @spaces)
      @last = time
    end

    def other(_time, _match); end

    def switch(time, match)
      prev_comm, prev, prev_prio, state, comm, pid, prio = SWITCH.match(match[:text])&.captures
      bad("sched_switch lacks its fields") unless pid

      at(time, match)
      bad("it is #{match[:pid]} that runs here, not #{prev}") unless match[:pid] == prev
      @recording.meet(pid(prev), prev_comm, prev_prio.to_i)
      @recording.meet(pid(pid), comm, prio.to_i)
      @recording.switch(time, match[:cpu].to_i, pid(prev), state, pid(pid))
    end

    def waking(time, match)
      comm, pid, prio = WAKING.match(match[:text])&.captures
      bad("#{match[:event]} lacks its fields") unless pid

      at(time, match)
      @recording.meet(pid(pid), comm, prio.to_i)
      waker = pid(match[:pid])
      device = match[:flags]&.match?(/[hHzZ]/) || waker.zero?
      @recording.waking(time, device ? nil : waker, pid(pid))
    end

    def fork(time, match)
      _, parent, comm, child = FORK.match(match[:text])&.captures
      bad("sched_process_fork lacks its fields") unless child

      at(time, match)
      @recording.fork(time, pid(parent), pid(child), comm)
    end

    # Who ran here, as each line says.
    def at(time, match)
      pid = pid(match[:pid])
      @recording.meet(pid, match[:comm].strip, nil)
      @recording.at(time, match[:cpu].to_i, pid)
    end

    def finish
      raise Bad, "#{@name}: there is no event in #{@part ? "that part of it" : "it"}" unless @recording
      if @entries && @entries != @events && @entries == @written
        raise Bad, "#{@name}: it has #{@events} of the #{@entries} events that its head names: it is cut off"
      end

      @recording.workload(@name.sub(/\.trace(\.gz)?\z|\.gz\z/, ""), @last, @processors)
    rescue Recording::Torn => e
      raise Bad, "#{@name}: #{e.message}"
    end

    def bad(words)
      raise Bad, "#{@name}:#{@number}: #{words}"
    end
  end

  # The table of processes: lines "pid tgid", and more words, which are left out. A tgid of 0 says that it
  # is a thread of the kernel.
  module Pids
    def self.read(path)
      name = File.basename(path)
      rows = File.readlines(path, chomp: true).each.with_index(1).filter_map { |line, i| row(line, name, i) }
      raise Trace::Bad, "#{name}: the table of processes is empty" if rows.empty?

      rows.to_h
    rescue ArgumentError
      raise Trace::Bad, "#{name}: the table of processes is no text"
    end

    def self.row(line, name, number)
      return if line.strip.empty? || line.start_with?("#")
      return [$1.to_i, $2.to_i] if line =~ /\A\s*(\d+)\s+(\d+)(\s|\z)/

      raise Trace::Bad, "#{name}:#{number}: \"pid tgid\" is wanted, two numbers"
    end
    private_class_method :row
  end
end

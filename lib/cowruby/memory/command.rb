# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require "optparse"
require "rbconfig"
require_relative "explanation"
require_relative "html"
require_relative "http_server"
require_relative "prometheus"
require_relative "servers"
require_relative "text"
require_relative "text_file"

module CowRuby
  module Memory
    # The program cowruby-memory: see its man page.
    class Command
      # A mistake of the user: its message is one line that says what to do.
      Bad = Class.new(OptionParser::ParseError) do
        def message
          args.join
        end
      end
      NAME = "cowruby-memory"
      FAILED = 1
      USAGE = 2
      INTERRUPTED = 130
      SECONDS = 5.0
      # What --watch may be.
      PAUSES = (0.1..1_000_000.0).freeze
      # The part of a processor that reading may take while it watches. Printing and finding processes take
      # some as well.
      SHARE = 0.007
      # Ways to print, of which one is chosen at a time.
      OUTPUTS = %i[json prometheus textfile listen html].freeze
      LOOPBACK = /\A(?:127(?:\.\d{1,3}){3}|::1|localhost)\z/
      # Seconds for which an answer over HTTP serves further requests.
      FRESH = 1
      BANNER = <<~TEXT
        Usage: #{NAME} PID [options]
               #{NAME} --server #{Servers::ALL.keys.join("|")} [options]
        Prints what the processes of a forking server share. PID is any process of it.

      TEXT

      def self.run(arguments, **streams)
        new(arguments, **streams).run
      end

      def initialize(arguments, out: $stdout, err: $stderr, procfs: Procfs.new)
        # Bytes that are no text here, as in the name of a file, stay as they are.
        @arguments = arguments.map { |text| text.valid_encoding? ? text : text.b }
        @out = out
        @err = err
        @procfs = procfs
        @options = {}
        # Whether the file of --textfile may stay as it is.
        @settled = false
      end

      # Gives the exit status.
      def run
        rest = parser.parse(@arguments)
        if @options[:say]
          @settled = true
          return say(@options[:say])
        end

        @target = target(rest)
        check_options
        @procfs.check
        work
        0
      rescue OptionParser::ParseError => e
        fail_with(e.message, USAGE)
      rescue Errno::EPIPE
        0
      rescue Error, SystemCallError, SocketError => e
        fail_with(e.message, FAILED)
      rescue Interrupt
        @err.puts if @out.tty?
        watch? || @options[:listen] ? 0 : INTERRUPTED
      ensure
        # Whoever reads the file would take it for what is now.
        TextFile.drop(textfile) if !@settled && textfile
      end

      private

      # Also where a mistake stands before it, and where its name is cut short.
      def textfile
        @options[:textfile] || @arguments.each_with_index.filter_map do |text, i|
          name, value = text.split("=", 2)
          (value || @arguments[i + 1]) if name && name.size > 2 && "--textfile".start_with?(name)
        end.first
      end

      def parser
        OptionParser.new(BANNER) do |options|
          # Checked later: OptionParser would rewrite the message of what is raised here.
          options.on("--server NAME", "the server of that name, in place of PID") do |name|
            @options[:server] = name
          end
          options.on("--explain", "what a worker has lost, by kind and cause, and what to do:",
                     "of worker PID, else of the one with the most private memory") do
            @options[:explain] = true
          end
          options.on("--watch [SECONDS]",
                     "look again and again (every #{SECONDS.to_i} s) until the master ends") do |text|
            @options[:watch] = text || true
          end
          define_outputs(options)
          options.on("-V", "--version", "say which version this is") { @options[:say] = version }
          options.on("-h", "--help", "say this") { @options[:say] = options.to_s }
        end
      end

      def define_outputs(options)
        options.on("--json", "print JSON; with --watch an object a line") { @options[:json] = true }
        options.on("--prometheus", "print Prometheus' text format") { @options[:prometheus] = true }
        options.on("--textfile FILE", "write that to FILE, for node_exporter's textfile collector") do |file|
          @options[:textfile] = file
        end
        options.on("--html FILE", "write a page for a browser to FILE; with --watch again and again") do |file|
          @options[:html] = file
        end
        options.on("--listen ADDRESS:PORT", "answer GET /metrics there until interrupted") do |address|
          @options[:listen] = address
        end
        options.on("--listen-anywhere", "let --listen take an address that others can reach") do
          @options[:anywhere] = true
        end
      end

      # A process number, or nil if --server names it. The number after --watch may be meant for it.
      def target(rest)
        watch = @options[:watch]
        if rest.empty? && !@options[:server] && watch.is_a?(String) && watch.match?(/\A\d+\z/)
          rest = [watch]
          @options[:watch] = true
        end
        named = !@options[:server].nil?
        raise Bad, "which server? Give a PID or --server NAME; see --help" if rest.empty? && !named
        raise Bad, "a PID or --server NAME, not both" if rest.any? && named
        raise Bad, "not understood: #{rest[1]}" if rest.size > 1

        number(rest.first) if rest.any?
      end

      def number(text)
        pid = Integer(text, 10, exception: false)
        pid&.positive? ? pid : raise(Bad, "not a process number: #{text}")
      end

      def check_options
        check_server
        outputs = OUTPUTS & @options.keys
        raise Bad, "choose one: #{outputs.map { |name| "--#{name}" }.join(", ")}" if outputs.size > 1

        others = outputs - [:json] + (@options.keys & [:watch])
        raise Bad, "--explain does not go with --#{others.first}" if @options[:explain] && others.any?

        once = outputs & %i[prometheus listen]
        raise Bad, "--watch does not go with --#{once.first}" if watch? && once.any?

        @seconds = seconds if watch?
        @address = address if @options[:listen]
        raise Bad, "--listen-anywhere wants --listen ADDRESS:PORT" if @options[:anywhere] && !@address
      end

      def check_server
        name = @options[:server]
        return if name.nil? || Servers::ALL.key?(name)

        raise Bad, "--server wants one of #{Servers::ALL.keys.join(", ")}, not #{name}"
      end

      def watch?
        @options.key?(:watch)
      end

      def seconds
        return SECONDS if @options[:watch] == true

        seconds = Float(@options[:watch], exception: false)
        return seconds if seconds && PAUSES.cover?(seconds)

        raise Bad, "--watch wants seconds, from 0.1 to 1000000, not #{@options[:watch]}"
      end

      # Host and port of --listen.
      def address
        found = /\A(?:\[(?<six>[\h:.]+)\]|(?<four>[^:\[\]]+)):(?<port>\d{1,5})\z/.match(@options[:listen])
        port = found && found[:port].to_i
        raise Bad, "--listen wants ADDRESS:PORT, as 127.0.0.1:9394" unless port&.between?(0, 65_535)

        host = found[:six] || found[:four]
        return [host, port] if @options[:anywhere] || host.match?(LOOPBACK)

        raise Bad, "--listen #{@options[:listen]}: others could reach it, and nothing asks for a password. " \
                   "Take 127.0.0.1, or say --listen-anywhere"
      end

      def work
        return listen if @options[:listen]

        watch? ? watch : show(observer.look)
        @settled = true
      rescue Gone
        write_end
        @settled = true
        raise
      end

      # Looks at the server that is meant; raises Error if there is none.
      def observer
        tree = ProcessTree.new(@procfs).refresh
        Observer.new(@target || master(tree), procfs: @procfs, tree: tree)
      end

      def master(tree)
        name = @options[:server]
        masters = Servers.masters(name, @procfs, tree)
        return masters.keys.first if masters.size == 1
        raise Gone, "there is no #{name} that this user may see" if masters.empty?

        list = masters.map { |pid, title| "\n  #{pid}  #{title}" }.join
        raise Bad, "#{masters.size} servers look like #{name}; give the PID of one:#{list}"
      end

      def show(report)
        check_rights(report)
        case (OUTPUTS & @options.keys).first
        when :textfile then TextFile.write(@options[:textfile], Prometheus.text(report))
        when :prometheus then @out.write(Prometheus.text(report))
        when :json then json(report)
        when :html then TextFile.write(@options[:html], (@html ||= Html.new(@target)).page(report))
        else text(report)
        end
        @out.flush
      end

      # Raises Forbidden if this user may not read the process that was asked for.
      def check_rights(report)
        pid = @target || report.root
        @procfs.read(pid, "smaps") if report.unreadable.any? { |row| row.member.pid == pid }
      end

      def json(report)
        hash = report.to_h
        hash[:explanation] = explanation(report).to_h if @options[:explain]
        @out.puts(watch? ? JSON.generate(hash) : JSON.pretty_generate(hash))
      end

      def text(report)
        return @out.write(explanation(report)) if @options[:explain]

        table = Text.new(report, colour: @out.tty? && ENV.fetch("NO_COLOR", "").empty?).to_s
        table = "#{report.time.strftime("%H:%M:%S")}, every #{format("%g", @seconds)} s\n#{table}" if watch?
        @out.write(watch? && @out.tty? ? "\e[H\e[J#{table}" : table)
      end

      def explanation(report)
        Explanation.new(report, @target, procfs: @procfs)
      end

      # Until the master ends.
      def watch
        observer = self.observer
        report = observer.look
        while report
          show(report)
          separate
          sleep(@seconds)
          report = look_again(observer)
        end
      end

      def look_again(observer)
        observer.look(seconds: @seconds * SHARE)
      rescue Gone => e
        @err.puts "#{NAME}: #{e.message}"
        write_end
        nil
      end

      # A file that stayed would say that the server is there.
      def write_end
        TextFile.write(@options[:textfile], Prometheus.text(nil)) if @options[:textfile]
      end

      # Between two tables, where one does not replace the other.
      def separate
        @out.puts unless @out.tty? || @options[:json] || @options[:textfile] || @options[:html]
      end

      def listen
        @observer = observer if @target
        server = HttpServer.new(*@address, any_host: @options[:anywhere]) { metrics }
        @err.puts "#{NAME}: answers on port #{server.port}"
        server.run
      end

      # The server that a name means may come and go. A number is for the first process that has it.
      def metrics
        return Prometheus.text(nil) if @ended
        return @metrics if @metrics && Memory.now - @looked < FRESH

        @observer ||= observer
        report = @observer.look
        @looked = Memory.now
        @metrics = Prometheus.text(report)
      rescue Gone
        @ended = !@target.nil?
        restarted = @observer && !@ended
        @observer = @metrics = nil
        restarted ? retry : Prometheus.text(nil)
      end

      def say(text)
        @out.puts text
        0
      end

      def version
        revision = RbConfig::CONFIG["COWRUBY_REVISION"]
        "#{NAME} #{revision ? "of CowRuby #{revision}" : "on another ruby"} (ruby #{RUBY_VERSION})"
      end

      def fail_with(message, status)
        @err.puts "#{NAME}: error: #{message}"
        status
      end
    end
  end
end

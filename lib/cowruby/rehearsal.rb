# frozen_string_literal: true

require "stringio"
require "timeout"
require "uri"

module CowRuby
  # Runs requests through a Rack application before a server forks its workers, so
  # that what the first requests make (caches, compiled templates, machine code) is
  # made once and shared by all workers.
  #
  # In config.ru, for a server that loads the application before it forks:
  #
  #   require "cowruby/rehearsal"
  #   run CowRuby::Rehearsal.of(Rails.application, "config/rehearsal.txt")
  #
  # The file has a request a line ("/posts", "HEAD /posts/1", # begins a comment), or
  # is an access log (common or combined format) or a Rails log. A list of such
  # lines does as well. Only GET and HEAD are sent unless +methods+ says otherwise;
  # of a log only what was answered with a status below 400.
  #
  # The list is repeated until +count+ requests were sent or +seconds+ are over. A
  # request that fails is reported, never raised. COWRUBY_REHEARSAL=off skips it all.
  # The application sees "cowruby.rehearsal" in the environment of each request.
  #
  # At the end the connections of Active Record are closed, then +after+ (or the
  # block) is called: close there what must not cross a fork.
  #
  # It is plain Ruby and works with any ruby.
  class Rehearsal
    COUNT = 3_000
    SECONDS = 30
    METHODS = %w[GET HEAD].freeze
    # A log is read from its end, up to so many bytes.
    TAIL = 16 * 1024 * 1024
    # Failures that are told in words.
    TOLD = 5

    # What is wrong with the arguments.
    class Unusable < ArgumentError; end

    Request = Struct.new(:method, :target) do
      def to_s = "#{method} #{target}"
    end

    # +sent+ requests took +seconds+; +statuses+ counts them by status; +failures+ are
    # [request, what happened] of those that raised or had a status from 500;
    # +left_out+ lines were no request, or had another method.
    Report = Struct.new(:sent, :seconds, :statuses, :failures, :left_out, keyword_init: true) do
      def to_s
        answers = statuses.sort.map { |status, count| "#{count} with #{status}" }
        text = +"rehearsal: #{sent} requests in #{format("%.1f", seconds)} s"
        text << " (#{answers.join(", ")})" if answers.any?
        text << ", #{failures.size} failed" if failures.any?
        text << ", #{left_out} lines left out" if left_out.positive?
        failures.uniq { |request, _| request }.first(TOLD).each { |request, what| text << "\nrehearsal: #{request}: #{what}" }
        text
      end
    end

    LOG_LINE = %r{"(?<method>[A-Z]+) (?<target>/\S*) HTTP/[\d.]+" (?<status>\d{3})}
    RAILS_LINE = %r{\bStarted (?<method>[A-Z]+) "(?<target>/[^"\s]*)"}
    LIST_LINE = %r{\A\s*(?:(?<method>[A-Z]+)\s+)?(?<target>/\S*)\s*\z}
    NO_LINE = /\A\s*(?:#.*)?\z/

    # Rehearses and gives +app+ back. Takes what new takes.
    def self.of(app, ...)
      new(app, ...).run
      app
    end

    # +requests+ is a file's name or a list of lines. +host+, +https+ and +headers+ say
    # what the requests look like; +output+ takes the progress (nil: nobody).
    # Raises Unusable where there is nothing that could be sent.
    def initialize(app, requests, count: COUNT, seconds: SECONDS, methods: METHODS, host: "localhost", https: false, headers: {},
                   after: nil, output: $stderr, &block)
      raise Unusable, "not a Rack application: #{app.class}" unless app.respond_to?(:call)
      raise Unusable, "count and seconds must be above 0" unless count.positive? && seconds.positive?

      @app = app
      @count = count
      @seconds = seconds
      @methods = methods.map { |method| method.to_s.upcase }
      @common = common(host, https, headers)
      @after = [after, block].compact
      @output = output
      @left_out = 0
      @source = requests
    end

    # Sends the requests. Gives a Report, or nil where it was switched off or there
    # was nothing to send.
    def run
      return if ENV["COWRUBY_REHEARSAL"] == "off"

      requests = read
      return tell("rehearsal: nothing to send, #{@left_out} lines left out") if requests.empty?

      rehearse(requests)
      tell(@report.to_s)
      @report
    rescue SystemCallError => e
      tell("rehearsal: #{e.message}")
    end

    private

    # Each line's request, in their order.
    def read
      lines.filter_map do |line|
        match = LOG_LINE.match(line) || RAILS_LINE.match(line) || LIST_LINE.match(line)
        next if match.nil? && NO_LINE.match?(line)

        request = request_of(match)
        @left_out += 1 unless request
        request
      end
    end

    # Nil for what is not sent.
    def request_of(match)
      return unless match
      return if match.names.include?("status") && match[:status].to_i >= 400

      method = match[:method] || "GET"
      Request.new(method, match[:target]) if @methods.include?(method)
    end

    def lines
      return @source.map { |line| line.to_s.scrub } unless @source.is_a?(String) || @source.respond_to?(:to_path)

      File.open(@source, "rb") do |file|
        cut = file.size > TAIL
        file.seek(-TAIL, IO::SEEK_END) if cut
        all = file.each_line(chomp: true).map { |line| line.force_encoding(Encoding::UTF_8).scrub }
        cut ? all.drop(1) : all
      end
    end

    # In a thread of its own, so that what requests leave in a thread's variables ends.
    def rehearse(requests)
      @report = Report.new(sent: 0, seconds: 0.0, statuses: Hash.new(0), failures: [], left_out: @left_out)
      thread = Thread.new { send_all(requests) }
      thread.report_on_exception = false
      thread.join
    ensure
      close
    end

    def send_all(requests)
      started = @told = now
      requests.cycle do |request|
        left = @seconds - (now - started)
        break if @report.sent >= @count || left <= 0

        send_one(request, left)
        @report.seconds = now - started
        progress
      end
    end

    # The application's errors of all kinds end here, but for what ends the process
    # from outside.
    def send_one(request, seconds)
      @report.sent += 1
      status = Timeout.timeout(seconds) { call(request) }
      @report.statuses[status] += 1
      @report.failures << [request, "status #{status}"] if status >= 500
    rescue Timeout::Error
      @report.failures << [request, "no answer within the time that was left"]
    rescue StandardError, ScriptError, SystemStackError, SystemExit => e
      @report.failures << [request, "#{e.class}: #{e.message.to_s.scrub[0, 200]}"]
    end

    # As a server does: the body is read and closed. Gives the status.
    def call(request)
      environment = environment(request)
      status, headers, body = @app.call(environment)
      begin
        body.each { |_part| nil } if body.respond_to?(:each)
      ensure
        body.close if body.respond_to?(:close)
      end
      environment["rack.response_finished"].reverse_each { |callback| callback.call(environment, status, headers, nil) }
      Integer(status)
    end

    def environment(request)
      path, query = request.target.split("?", 2)
      @common.merge("REQUEST_METHOD" => request.method, "PATH_INFO" => URI::DEFAULT_PARSER.unescape(path), "QUERY_STRING" => query.to_s,
                    "REQUEST_PATH" => path, "REQUEST_URI" => request.target, "rack.input" => StringIO.new("".b), "rack.response_finished" => [])
    end

    def common(host, https, headers)
      name, port = host.split(":", 2)
      port ||= https ? "443" : "80"
      extra = headers.to_h { |key, value| ["HTTP_#{key.to_s.upcase.tr("-", "_")}", value.to_s] }
      { "SCRIPT_NAME" => "", "SERVER_NAME" => name, "SERVER_PORT" => port, "SERVER_PROTOCOL" => "HTTP/1.1", "HTTP_HOST" => host,
        "HTTP_VERSION" => "HTTP/1.1", "HTTP_ACCEPT" => "*/*", "HTTP_USER_AGENT" => "CowRuby rehearsal", "REMOTE_ADDR" => "127.0.0.1",
        "HTTPS" => https ? "on" : "off", "rack.url_scheme" => https ? "https" : "http", "rack.errors" => $stderr, "rack.version" => [1, 6],
        "rack.multithread" => false, "rack.multiprocess" => true, "rack.run_once" => false, "cowruby.rehearsal" => true, **extra }
    end

    # Whatever happened, nothing that was opened crosses the fork.
    def close
      [method(:close_active_record), *@after].each do |step|
        step.call
      rescue StandardError => e
        tell("rehearsal: at the end: #{e.class}: #{e.message}")
      end
    end

    def close_active_record
      return unless defined?(::ActiveRecord::Base)

      handler = ::ActiveRecord::Base.connection_handler
      handler.method(:clear_all_connections!).arity.zero? ? handler.clear_all_connections! : handler.clear_all_connections!(:all)
    end

    def progress
      return if now - @told < 5

      @told = now
      tell("rehearsal: #{@report.sent} of #{@count} requests, #{@report.seconds.round} of #{@seconds} s")
    end

    def tell(text)
      @output&.puts(text)
      nil
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end

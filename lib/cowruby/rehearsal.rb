# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "ipaddr"
require "stringio"

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
  # is an access log (common or combined format, also with the host in front) or a
  # Rails log. A list of such lines does as well. Only GET and HEAD are sent unless
  # +methods+ says otherwise.
  #
  # **Strangers write a log.** Its requests must not be trusted more than they were when
  # they came: each is sent with the address (of a Rails log: ADDRESS) and the host that
  # its line has. A line without a public address or a public host is left out, unless
  # +address+ or +host+ gives one; so is what was not answered with success, and what
  # somebody was logged in for. Only a list of the user's own is sent from 127.0.0.1 to localhost.
  # doc/rehearsal.md says more.
  #
  # The list is repeated until +count+ requests were sent or +seconds+ are over. A
  # request that fails is reported. Nothing that it raises ends the process, except a
  # SignalException. COWRUBY_REHEARSAL=off skips it all.
  # The application sees "cowruby.rehearsal" in the environment of each request.
  #
  # At the end the connections of Active Record and Sequel are closed, then +after+ (or
  # the block) is called: close there what must not cross a fork.
  #
  # A server can rehearse without this line (rehearsal/auto.rb), and jobs have a rehearsal
  # of their own (rehearsal/jobs.rb).
  #
  # It is plain Ruby and works with any ruby.
  class Rehearsal
    COUNT = 3_000
    SECONDS = 30
    METHODS = %w[GET HEAD].freeze
    # A log is read from its end, up to so many bytes.
    TAIL = 16 * 1024 * 1024
    # Longer lines are left out: servers take no request line of that length.
    LINE = 16 * 1024
    # From here come requests that were noted, and those of a Rails log: a rehearsal of these writes to the
    # log that the next start reads, and so knows its own lines. Set apart for documents, nobody has it.
    ADDRESS = "203.0.113.1"
    # Failures that are told in words.
    TOLD = 5
    # Seconds that a request has to end in when the time is over, and its thread when it was killed.
    GRACE = 1

    # What is wrong with the arguments.
    class Unusable < ArgumentError; end

    # +address+ and +host+ are what its line in a log has; nil in a list.
    Request = Struct.new(:method, :target, :address, :host) do
      def to_s = "#{method} #{target}"
    end

    # +sent+ requests took +seconds+; +statuses+ counts them by status; +failures+ are
    # [request, what happened] of those that raised or had a status from 500;
    # +left_out+ lines were not sent, +reasons+ counts them by the reason. +kind+ names
    # what was sent.
    Report = Struct.new(:sent, :seconds, :statuses, :failures, :left_out, :reasons, :kind,
                        keyword_init: true) do
      def to_s
        answers = statuses.sort.map { |status, count| "#{count} with #{status}" }
        text = +"#{sent} #{kind} in #{format("%.1f", seconds)} s"
        text << " (#{answers.join(", ")})" if answers.any? && kind == "requests"
        text << ", #{failures.size} failed" if failures.any?
        text << ", #{omissions}" if left_out.positive?
        failures.uniq(&:first).first(TOLD).each { |request, what| text << "\nrehearsal: #{request}: #{what}" }
        text
      end

      def omissions
        "#{left_out} lines left out (#{reasons.map { |reason, count| "#{count} #{reason}" }.join(", ")})"
      end
    end

    # Of the whole line, so that nothing a client sends (user, referrer, user agent) is
    # taken for the request.
    LOG_LINE = %r{\A(?:(?<host>[^\s:]+)(?::(?<port>\d{1,5}))?\ )?
                  (?<address>\S+)\ \S+\ (?<user>\S+)\ \[[^\]]*\]
                  \ "(?<method>[A-Z]+)\ (?<target>\S+)\ HTTP/[\d.]+"\ (?<status>\d{3})(?:\s|\z)}x
    RAILS_LINE = /\A(?:\S,\ \[[^\]]*\]\ +[A-Z]+\ --\ [^:]*:\ )?(?:\[[^\]]*\]\ )*
                  Started\ (?<method>[A-Z]+)\ "(?<target>[^"\s]*)"\ for\ (?<address>\S+)\ at\ /x
    LIST_LINE = %r{\A\s*(?:(?<method>[A-Z]+)\s+)?(?<target>/\S*)(?<rest>\s.*)?\z}
    NO_LINE = /\A\s*(?:#.*)?\z/
    # What a client may send (RFC 3986, and a little of what browsers do). A log escapes
    # by backslashes. Some libraries take the "//host" of a target for a host.
    TARGET = %r{\A/(?!/)[!-~&&[^"\\#<>]]*\z}
    DOT_SEGMENT = %r{/\.\.?(?:/|\z)}
    # A name of the public DNS: with a dot, and no number at the end.
    PUBLIC_HOST = /\A(?:[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?\.)+[a-z](?:[a-z0-9-]*[a-z0-9])?\z/i
    LOCAL_HOST = /\.(?:localhost|localdomain|local|internal|lan|home\.arpa)\z/i
    # A proxy may have these, and is trusted for it (Rack, Rails).
    LOCAL_ADDRESSES = %w[
      0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.168.0.0/16
      198.18.0.0/15 224.0.0.0/3
    ].map { |network| IPAddr.new(network) }.freeze
    PUBLIC_ADDRESSES6 = IPAddr.new("2000::/3")
    # A host given by the user, with or without a port.
    HOST = /\A(?<name>\[[\h:.]+\]|[^\s:\/\[\]]+)(?::(?<port>\d{1,5}))?\z/
    # The headers that the environment of a request has without "HTTP_" (RFC 3875, and so Rack).
    UNPREFIXED = %w[CONTENT_TYPE CONTENT_LENGTH].freeze
    # Of +headers+, what is sent with the requests of a log: nothing that says who asks.
    NEUTRAL = /\AHTTP_(?:ACCEPT(?:_CHARSET|_ENCODING|_LANGUAGE)?|USER_AGENT)\z/

    @made = 0

    class << self
      # How often this process and its ancestors have sent a list to an application.
      attr_accessor :made

      # Rehearses and gives +app+ back. Takes what new takes.
      def of(app, ...)
        new(app, ...).run
        app
      end

      # Warms the code of the job classes that +names+ name, before a server of jobs forks, and
      # never runs +perform+. Takes the options and the block that Jobs.new takes, and gives a
      # Report, or nil where rehearsals are switched off.
      def jobs(*names, **options, &block)
        return if off?

        require_relative "rehearsal/jobs"
        Jobs.new(names, **options, &block).run
      end

      # Seconds by a clock that nobody sets.
      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # Writes a line, where it can be written: an output that is closed must not end anything.
      def tell(text, output = $stderr)
        output&.puts("rehearsal: #{text}")
        nil
      rescue StandardError
        nil
      end

      # Has the environment switched all rehearsals off?
      def off?
        ENV["COWRUBY_REHEARSAL"] == "off"
      end
    end

    # +requests+ is a file's name or a list of lines. +host+, +address+, +https+ and
    # +headers+ say what the requests look like. +host+ and +address+ are used for all
    # requests, also of a log, whatever its lines have. +only+ and +except+ choose by
    # the target (anything with ===), or are called with the Request.
    # +output+ takes the progress (nil: nobody).
    # +drop+ is called after each request with the Request, its status and the seconds that it
    # took; where it gives true, the Request is not sent again. The status is nil for one that
    # failed, and :unanswered for one that ran when the time was over.
    # Raises Unusable where there is nothing that could be sent.
    def initialize(app, requests, count: COUNT, seconds: SECONDS, methods: METHODS, host: nil, address: nil,
                   https: nil, headers: {}, only: nil, except: nil, after: nil, output: $stderr, drop: nil, &block)
      raise Unusable, "not a Rack application: #{app.class}" unless app.respond_to?(:call)
      raise Unusable, "no file and no list: #{requests.class}" unless file?(requests) || requests.respond_to?(:map)
      raise Unusable, "count and seconds must be numbers above 0" unless above_0?(count) && above_0?(seconds)
      raise Unusable, "no list of methods: #{methods.inspect}" unless methods.respond_to?(:map)
      raise Unusable, "not a host: #{host.inspect}" unless host.nil? || host?(host)
      raise Unusable, "not an address: #{address.inspect}" unless address.nil? || address?(address)
      raise Unusable, "no headers: #{headers.inspect}" unless headers.respond_to?(:to_h)

      @app = app
      @source = requests
      @count = count
      @seconds = seconds
      @methods = methods.map { |method| method.to_s.upcase }
      @host = host
      @address = address
      @https = https
      @headers = headers.to_h { |name, value| [variable(name), value.to_s] }
      @only = only
      @except = except
      @after = [after, block].compact
      @output = output
      @drop = drop
      @reasons = Hash.new(0)
      @cut = false
      @mistake = nil
      @process = nil
    end

    # Sends the requests. Gives a Report, or nil where it was switched off or there
    # was nothing to send.
    def run
      return if Rehearsal.off?

      @requests = guarded { read } or return
      @report = Report.new(sent: 0, seconds: 0.0, statuses: Hash.new(0), failures: [],
                           left_out: @reasons.values.sum, reasons: @reasons, kind: kind)
      return tell("nothing to send, #{@report.omissions}#{@mistake}") if @requests.empty?

      guarded { rehearse }
      sent
      tell(@report.to_s)
      @report
    end

    private

    def kind = "requests"

    def sent
      Rehearsal.made += 1
    end

    # A Duration of Active Support does as well.
    def above_0?(number) = number.respond_to?(:positive?) && number.positive?

    # What a regular expression can be matched with.
    def text?(value) = value.is_a?(String) || value.is_a?(Symbol)

    def host?(host) = text?(host) && host.to_s.valid_encoding? && HOST.match?(host)

    def address?(address) = text?(address) && ip(address)

    # The name of a header in the environment of a request.
    def variable(header)
      name = header.to_s.upcase.tr("-", "_")
      UNPREFIXED.include?(name) ? name : "HTTP_#{name}"
    end

    # What the block gives. What it raises is reported, except what ends the process: a
    # signal, or the exit of a handler that runs in the main thread.
    def guarded(where = nil)
      yield
    rescue SignalException, SystemExit
      raise
    rescue Exception => e
      raise if child?

      tell("#{where}#{e.is_a?(SystemCallError) ? printable(e.message) : describe(e)}")
    end

    # Each line's request, in their order.
    def read
      lines = self.lines
      log = log?(lines)
      lines.filter_map do |line|
        next if NO_LINE.match?(line)

        found = line.bytesize > LINE ? "too long" : request_of(line, log)
        next found if found.is_a?(Request)

        @reasons[found] += 1
        nil
      end
    end

    # Whether strangers wrote it: a file is the user's own only where each line is a
    # request, so that a line which an application put into its log without its format is
    # not taken for one of the user's. Nobody writes a list longer than TAIL.
    def log?(lines)
      return true if @cut || lines.any? { |line| [LOG_LINE, RAILS_LINE].any? { |form| form.match?(line) } }
      return false unless file?(@source)

      number = lines.index { |line| !LIST_LINE.match?(line) && !NO_LINE.match?(line) } or return false
      @mistake = ": line #{number + 1} is neither a request nor a comment"
    end

    # A Request, or the reason why there is none.
    def request_of(line, log)
      match = log ? LOG_LINE.match(line) || RAILS_LINE.match(line) : LIST_LINE.match(line)
      return "no request" unless match

      fields = match.named_captures
      request = Request.new(fields["method"] || "GET", fields["target"])
      return "of another method" unless @methods.include?(request.method)
      return "no request" unless fields["rest"].to_s.strip.empty?
      return "without a usable target" unless usable?(request.target)

      (log && log_refusal(fields, request)) || (wanted?(request) ? request : "not wanted")
    end

    def usable?(target)
      TARGET.match?(target) && !DOT_SEGMENT.match?(decoded(target[/\A[^?]*/]))
    end

    # Fills in address and host, or gives the reason why it must not be sent. An answer
    # other than success may be a proxy's, which then kept the request from the
    # application; what a user was logged in for would be sent without the user.
    def log_refusal(fields, request)
      return "without success" unless fields["status"].nil? || fields["status"].match?(/\A(?:2..|304)\z/)
      return "of a logged in user" unless [nil, "-"].include?(fields["user"])

      rails = fields["status"].nil?
      return "of a rehearsal" if rails && fields["address"] == ADDRESS

      request.address = @address || (rails ? ADDRESS : fields["address"] if public_address?(fields["address"]))
      return "without a public address (see address:)" unless request.address

      name, port = fields.values_at("host", "port")
      request.host = @host || ([name, port].compact.join(":") if public_host?(name))
      "without a public host (see host:)" unless request.host
    end

    def public_host?(name)
      !name.nil? && PUBLIC_HOST.match?(name) && !LOCAL_HOST.match?(name)
    end

    def public_address?(text)
      address = ip(text)&.native
      return false unless address
      return PUBLIC_ADDRESSES6.include?(address) if address.ipv6?

      LOCAL_ADDRESSES.none? { |network| network.include?(address) }
    end

    # Nil for what is no single address.
    def ip(text)
      IPAddr.new(text) if /\A[\h.:]+\z/.match?(text)
    rescue IPAddr::Error
      nil
    end

    # As it was sent and decoded: by "/%61dmin" nobody gets round a filter for "/admin".
    def wanted?(request)
      forms = [request.target, decoded(request.target)].uniq
      (@only.nil? || forms.all? { |form| chosen?(@only, request, form) }) &&
        forms.none? { |form| chosen?(@except, request, form) }
    end

    def chosen?(filters, request, form)
      Array(filters).any? { |filter| filter.respond_to?(:call) ? filter.call(request) : filter === form }
    end

    def decoded(target)
      text(target.b.gsub(/%(\h\h)/) { $1.hex.chr })
    end

    def file?(source)
      source.is_a?(String) || source.respond_to?(:to_path)
    end

    # A pipe or a device has no end.
    def lines
      return @source.map { |line| text(line.to_s) } unless file?(@source)
      raise IOError, "no regular file: #{File.path(@source)}" unless File.stat(@source).file?

      File.open(@source, "rb") do |file|
        @cut = file.size > TAIL
        file.seek(-TAIL, IO::SEEK_END) if @cut
        all = text(file.read(TAIL).to_s).delete_prefix("\uFEFF").each_line(chomp: true).to_a
        @cut ? all.drop(1) : all
      end
    end

    # In a thread of its own, so that what requests leave in a thread's variables ends.
    # A request that ends its thread is one that failed; the next thread goes on.
    def rehearse
      interrupted = true
      @process = Process.pid
      started = @told = now
      @deadline = started + @seconds
      until over?
        thread = Thread.new { guarded("between requests: ") { send_all(started) } }
        thread.report_on_exception = false
        thread.join([@deadline - now, 0].max) or break
      end
      interrupted = false
    ensure
      begin
        stop(thread, interrupted) if thread&.alive?
      ensure
        @report.seconds = now - started
        close = [method(:close_active_record), method(:close_sequel)]
        [*close, *@after].each { |step| guarded("at the end: ") { step.call } }
      end
    end

    def over?
      @requests.empty? || @report.sent >= @count || now >= @deadline
    end

    # The request that runs may end by itself: one that is killed leaves half of what it was making, as a
    # file that it was requiring, to all workers. It may also refuse to end. Then its thread stays behind in
    # the master; workers do not have it.
    def stop(thread, interrupted)
      @deadline = 0
      begin
        return if !interrupted && thread.join(GRACE)
      ensure
        thread.kill if thread.alive?
      end
      return if thread.join(GRACE)

      tell("a request does not end, its thread is left behind: #{@running}")
      drop(@running, :unanswered, now - @began) if @drop && @running
    end

    def send_all(started)
      until over?
        @running = @requests.shift
        @requests.push(@running)
        @began = now
        send_one(@running)
        # A child that a request has forked, and that came back, is no master.
        exit!(true) if child?

        @report.seconds = now - started
        progress
      end
    end

    def child?
      @process && Process.pid != @process
    end

    # The application's exceptions of all kinds end here, also SystemExit: an operator stops
    # the server by a signal, and the exit of a signal's handler is raised in the main thread.
    # So an exit here comes from a request, which would keep the server from every start.
    # A child that a request has forked ends as the application wants it.
    def send_one(request)
      @report.sent += 1
      what = status = nil
      settled = false
      status = call(environment(request))
      @report.statuses[status] += 1
      what = "status #{status}" if status >= 500
      settled = true
    rescue SignalException
      settled = true
      raise
    rescue Exception => e
      settled = true
      raise if child?

      what = describe(e)
    ensure
      # The call neither came back nor raised: its thread was killed.
      unless settled
        cut = now >= @deadline
        what = cut ? "no answer within the time that was left" : "it ended its thread"
      end
      @report.failures << [request, what] if what
      drop(request, cut ? :unanswered : status, now - @began) if @drop && !child?
    end

    def drop(request, status, seconds)
      @requests.delete(request) if @drop.call(request, status, seconds)
    end

    # As a server does: the body is read and closed, the callbacks are called, these also
    # after an exception. A file is not read: that is the server's work. Gives the status.
    def call(environment)
      status, headers, body = @app.call(environment)
      begin
        body.each { |_part| nil } if body.respond_to?(:each) && !body.respond_to?(:to_path)
      ensure
        body.close if body.respond_to?(:close)
      end
      Integer(status)
    ensure
      error = $!
      finished = environment["rack.response_finished"].reverse
      in_turn(environment["rack.after_reply"].map { |callback| -> { callback.call } } +
              finished.map { |callback| -> { callback.call(environment, status, headers, error) } })
    end

    # Each is called, also after one that raises.
    def in_turn(calls)
      calls.shift&.call
    ensure
      in_turn(calls) unless calls.empty?
    end

    # The path is not decoded, as by Puma and Unicorn: an application that decodes it must
    # not see something else than it did when the request came.
    def environment(request)
      path, query = request.target.split("?", 2)
      host = HOST.match(request.host || @host || "localhost")
      https = @https.nil? ? host[:port] == "443" : @https
      default = https ? "443" : "80"
      headers = request.address ? @headers.select { |key, _| NEUTRAL.match?(key) } : @headers
      {
        "REQUEST_METHOD" => request.method, "SCRIPT_NAME" => "", "PATH_INFO" => path, "QUERY_STRING" => query.to_s,
        "REQUEST_PATH" => path, "REQUEST_URI" => request.target, "SERVER_PROTOCOL" => "HTTP/1.1",
        "SERVER_NAME" => host[:name], "SERVER_PORT" => host[:port] || default,
        "REMOTE_ADDR" => request.address || @address || "127.0.0.1",
        "HTTP_HOST" => host[:port] == default ? host[:name] : host[0], "HTTP_VERSION" => "HTTP/1.1",
        "HTTP_ACCEPT" => "*/*", "HTTP_USER_AGENT" => "CowRuby rehearsal",
        "HTTPS" => https ? "on" : "off", "rack.url_scheme" => https ? "https" : "http",
        "rack.input" => StringIO.new("".b), "rack.errors" => $stderr, "rack.version" => [1, 6],
        "rack.multithread" => false, "rack.multiprocess" => true, "rack.run_once" => false,
        "rack.after_reply" => [], "rack.response_finished" => [], "cowruby.rehearsal" => true, **headers
      }
    end

    def close_active_record
      return unless defined?(::ActiveRecord::Base)

      handler = ::ActiveRecord::Base.connection_handler
      if all_is_no_role?(handler)
        handler.all_connection_pools.each(&:disconnect!)
      elsif handler.method(:clear_all_connections!).arity.zero?
        handler.clear_all_connections!
      else
        handler.clear_all_connections!(:all)
      end
    end

    # In Active Record 6.1 and 7.0 :all is the name of a role that nobody has.
    def all_is_no_role?(handler)
      handler.respond_to?(:all_connection_pools) && ::ActiveRecord.respond_to?(:version) &&
        ::ActiveRecord.version < Gem::Version.new("7.1.0.a")
    end

    def close_sequel
      ::Sequel::DATABASES.each(&:disconnect) if defined?(::Sequel::DATABASES)
    end

    # An exception in words, also one whose message raises.
    def describe(exception)
      "#{printable(exception.class)}: #{printable(exception.message)}"
    rescue Exception
      "an exception that cannot be described"
    end

    # On one line, whatever a stranger has put into it.
    def printable(message)
      text(message.to_s[0, 1_000]).gsub(/[^[:print:]]/, " ")[0, 200]
    end

    # As UTF-8, whatever it claims to be.
    def text(string)
      String.new(string, encoding: Encoding::UTF_8).scrub
    end

    def progress
      return if now - @told < 5

      @told = now
      tell("#{@report.sent} of #{@count} requests, #{@report.seconds.round} of #{@seconds} s")
    end

    def tell(text)
      Rehearsal.tell(text, @output)
    end

    def now = Rehearsal.now
  end
end

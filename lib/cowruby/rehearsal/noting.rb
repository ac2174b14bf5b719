# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "notes"

module CowRuby
  class Rehearsal
    # noting: the Rack application that a worker calls in place of its own. It calls that one, and notes of
    # some GET requests that they were answered: the path, and nothing else of the request; and which part of
    # the application answered with which type.
    #
    # A request costs two looks at the clock, and one noted at most each PAUSE seconds some 25 microseconds
    # more. All that is written is the process's own: what was inherited gets a few words, at the first
    # request of a worker.
    class Noting
      # Seconds between two requests that are noted. Of what comes faster it is a sample; that takes three
      # thousandths of a processor at most. With 0.05, a few minutes of many kinds of requests left some out.
      PAUSE = 0.01
      # Seconds within which an application must have answered.
      SLOW = 1.0
      # Seconds until the first writing, and until the next, which double up to the longest: what many workers
      # of a long life append has its place in a journal of bounded size.
      FIRST = 10
      INTERVAL = 60
      LONGEST = 3_600
      # Seconds to wait at the end of a process for others that write.
      PATIENCE = 2

      # +notes+ takes what is noted. +query+: also with the query.
      def initialize(app, notes, query: false)
        @app = app
        @notes = notes
        @query = query
        @counts = nil
      end

      def call(env)
        return @app.call(env) unless env["REQUEST_METHOD"] == "GET"

        path = env["PATH_INFO"]
        query = env["QUERY_STRING"] if @query
        started = Rehearsal.now
        response = @app.call(env)
        ended = Rehearsal.now
        counts = @counts
        counts = @counts = Counts.new(@notes, @query) unless counts&.mine?
        counts.note(env, path, query, response) if ended >= counts.next && ended - started < SLOW
        response
      end

      # What one process has noted since it wrote last. Two threads that come first may make one
      # each; then both are written at the end.
      class Counts
        @mutex = Mutex.new
        # Those that are written at the end of this process. Before its first they are its parent's.
        @kept = []

        class << self
          # A process has what its parent wanted to be done at the end. So that is said once: a server
          # that forks its molds from workers (Pitchfork) has had many parents, and must not keep the
          # counts of each.
          def keep(counts)
            @mutex.synchronize do
              at_exit { @kept.each(&:finish) } if @kept.empty?
              @kept = [*@kept.select(&:mine?), counts]
            end
          end
        end

        # From when on the next request may be noted, by the monotonic clock.
        attr_reader :next

        def initialize(notes, query)
          @notes = notes
          @process = Process.pid
          @mutex = Mutex.new
          @query = query
          @seen = Notable::Seen.new
          @next = 0.0
          @due = Rehearsal.now + FIRST
          @interval = INTERVAL
          Counts.keep(self)
        end

        def finish
          write(patience: PATIENCE) if mine?
        end

        # A process that was forked from a worker has none yet.
        def mine?
          @process == Process.pid
        end

        # Nothing that happens here reaches the request.
        def note(env, path, query, response)
          time = Rehearsal.now
          @next = time + PAUSE
          target = query.nil? || query.empty? ? path : "#{path}?#{query}"
          look(target, env, response)
          write_soon(env, time) if time >= @due
        rescue StandardError => e
          give_up(e)
        end

        private

        # An answer that cannot be looked at, as its headers are no headers, is left out; noting goes on.
        def look(target, env, response)
          status, headers, body = response
          return unless answered?(env, status, headers, body) && Notable.target?(target, query: @query)

          type = headers.find { |name, _| name.to_s.casecmp?("content-type") }&.last
          kind = Notable.answered_by(env, type)
          secure = https?(env)
          @mutex.synchronize { @seen.add(target, secure, kind: kind) } unless kind == false
        rescue StandardError
          nil
        end

        def answered?(env, status, headers, body)
          status = Integer(status, exception: false).to_i
          return false unless status.between?(200, 299) || status == 304
          return false if env["HTTP_AUTHORIZATION"] || env["cowruby.rehearsal"] || body.respond_to?(:to_path)

          headers.respond_to?(:none?) && headers.none? { |name, value| unwanted?(name, value.to_s) }
        end

        # A stream of events has no end that a rehearsal could wait for.
        def unwanted?(name, value)
          case name.to_s.downcase
          when "cache-control" then value.downcase.include?("no-store")
          when "content-type" then value.downcase.include?("text/event-stream")
          end
        end

        # A proxy may have taken the encryption off.
        def https?(env)
          env["rack.url_scheme"] == "https" || env["HTTP_X_FORWARDED_PROTO"].to_s.start_with?("https")
        end

        # After the answer is sent, where the server has a place for that.
        def write_soon(env, time)
          @due = time + @interval * (1 + rand / 10)
          @interval = [@interval * 2, LONGEST].min
          after = env["rack.after_reply"]
          after.is_a?(Array) && !after.frozen? ? after << ->(*) { write } : write
        end

        # What another process keeps us from writing now is written the next time.
        def write(patience: 0)
          seen = @mutex.synchronize { @seen.take }
          return if seen.empty? || @notes.append(seen, patience: patience)

          @mutex.synchronize { @seen.put_back(seen) }
        rescue StandardError => e
          give_up(e)
        end

        def give_up(error)
          return if @next == Float::INFINITY

          @next = Float::INFINITY
          Rehearsal.tell("nothing more is noted in process #{@process}: #{error.message}")
        end
      end
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../rehearsal"
require_relative "noting"
require_relative "notes"

module CowRuby
  class Rehearsal
    # start: what COWRUBY_REHEARSAL asks for, done where a server has loaded the application and is
    # about to fork. auto.rb says when that is. Whatever goes wrong is one line, and the server starts.
    class Start
      # Where workers note what they answer: below the server's working directory.
      NOTES = "tmp/cowruby/rehearsal.txt"
      # Noted requests came from strangers. They must not look as if they came from this machine
      # (doc/rehearsal.md): like ADDRESS the host is set apart for documents and nobody has it.
      HOST = "www.example.org"
      # Seconds that a request may take without being left out from then on.
      SLOW = 2.0
      # The first of its kind may be slower, but not so slow that it takes the time of the others.
      TOO_LONG = 10.0

      class << self
        def not_preloaded(name, advice)
          return if value.empty? || Rehearsal.off?

          Rehearsal.tell("not made: #{name} does not load the application before it forks; " \
                         "this needs #{advice}")
        end

        # The jobs that COWRUBY_REHEARSAL_JOBS names.
        def jobs
          names = ENV["COWRUBY_REHEARSAL_JOBS"].to_s.scrub("?").split(/[\s,]+/).reject(&:empty?)
          Rehearsal.jobs(*names) if names.any?
        end

        def value
          ENV["COWRUBY_REHEARSAL"].to_s
        end
      end

      # +name+ is the server's, +app+ the Rack application that it has loaded, for the second time or
      # later where it is a +reload+.
      def initialize(name, app, reload: false)
        @name = name
        @app = app
        @reload = reload
        @value = Start.value
        @process = Process.pid
      end

      # Rehearses unless that is +done+. Gives the application that workers shall call: @app, or
      # one around it that notes requests. A server's configuration may have switched it off meanwhile.
      def run(done: false)
        return @app if Rehearsal.off?

        if done && !@value.empty?
          Rehearsal.tell("config.ru has made one; COWRUBY_REHEARSAL=#{@value} is not used")
        elsif @value == "auto"
          return learn
        elsif !@value.empty?
          rehearse(file, host: host, https: https)
        end
        @app
      end

      private

      # A name that begins with ~ may be of no user: then it is a file's.
      def file
        File.expand_path(@value)
      rescue ArgumentError
        File.absolute_path(@value)
      end

      # What the user says of all requests; nil: nothing.
      def host
        ENV["COWRUBY_REHEARSAL_HOST"].to_s.then { |name| name unless name.empty? }
      end

      def https
        switch("COWRUBY_REHEARSAL_HTTPS", ENV["COWRUBY_REHEARSAL_HTTPS"].to_s)
      end

      # nil where it is not set, or to nothing that could be used.
      def switch(name, value)
        return value == "1" if ["0", "1"].include?(value)

        Rehearsal.tell("#{name} is 0 or 1, not #{value.inspect}") unless value.empty?
      end

      def rehearse(list, app: @app, **options)
        if list.is_a?(String) && !File.exist?(list)
          return Rehearsal.tell("there is no file #{list}: COWRUBY_REHEARSAL is off, auto, or a file")
        end

        return Rehearsal.tell("not made at a reload of #{@name}, whose workers have ended already") if @reload

        Rehearsal.new(app, list, **options).run
      rescue Unusable => e
        Rehearsal.tell("#{e.message} (see COWRUBY_REHEARSAL_HOST)")
      end

      # Rehearses what was noted, and has more noted.
      def learn
        query = switch("COWRUBY_REHEARSAL_QUERY", ENV["COWRUBY_REHEARSAL_QUERY"].to_s) || false
        notes = Notes.new(File.expand_path(NOTES), query: query)
        complaint = notes.unwritable
        rehearse_noted(notes, told: complaint)
        return Noting.new(@app, notes, query: query) unless complaint

        Rehearsal.tell("nothing will be noted: #{complaint}")
        @app
      rescue Notes::Refused, SystemCallError => e
        Rehearsal.tell("nothing is rehearsed, and nothing will be noted: #{e.message}")
        @app
      end

      # +told+: is it said already why nothing is there?
      def rehearse_noted(notes, told:)
        content = notes.read
        requests = content.requests(COUNT)
        return nothing_noted(notes, told) if requests.empty?
        return if !told && ended?(notes)

        judge = Judge.new
        secure = https
        report = rehearse(requests, app: told ? @app : telling(notes), host: host || HOST, address: ADDRESS,
                                    drop: judge, https: secure.nil? ? content.https? : secure)
        forget(notes, judge) if report && !told
      ensure
        notes.sent if Process.pid == @process
      end

      # The application; it writes down what it is asked for, in case that ends the process.
      def telling(notes)
        lambda do |env|
          notes.sending(env["REQUEST_URI"])
          @app.call(env)
        end
      end

      # Did a page end the process of the rehearsal before? It would do so at each start. It may have been
      # another one, as where memory was short, so the server starts now and rehearses the next time.
      def ended?(notes)
        target = notes.begin_sending or return false
        left_out = left_out?(notes, target)
        notes.sent(keep: !left_out)
        done = ", which is left out from now on" if left_out
        Rehearsal.tell("the one before ended with its process, at #{target}#{done}; none is made this time")
        true
      end

      # Where it cannot be, as on a full disk, the next start tries again.
      def left_out?(notes, target)
        notes.leave_out([target], patience: 1)
      rescue Notes::Refused, SystemCallError
        false
      end

      def nothing_noted(notes, told)
        return if told

        Rehearsal.tell("nothing is noted yet; workers will note which pages are asked for in " \
                       "#{File.dirname(notes.path)}")
      end

      # What is left out stays out for weeks. But where most requests went wrong it is not they that
      # are, except those that were slow: one that hangs takes the time of all others, at each start.
      def forget(notes, judge)
        all = judge.bad.size + judge.good.size
        if judge.mostly_wrong?
          Rehearsal.tell("most of what is noted is not answered as it was (#{judge.words}): " \
                         "does it need COWRUBY_REHEARSAL_HOST, COWRUBY_REHEARSAL_HTTPS=1, or a login?")
          judge.bad.keep_if { |_, reason| reason == Judge::TOO_SLOW }
        end
        return if judge.bad.empty? || !notes.leave_out(judge.bad.keys, patience: 1)

        Rehearsal.tell("#{judge.bad.size} of #{all} pages are left out from now on (#{judge.words})")
      rescue Notes::Refused, SystemCallError => e
        Rehearsal.tell("what was slow or failed cannot be left out: #{e.message}")
      end

      # Says after each request whether it shall be sent again, and remembers why not.
      class Judge
        TOO_SLOW = "slow"
        # The status where an address has sent too many requests. That is no fault of the page.
        LIMITED = 429

        # The targets; bad with the reason.
        attr_reader :good, :bad

        def initialize
          @good = {}
          @bad = {}
          @slow = {}
        end

        def call(request, status, seconds)
          return true if status == LIMITED

          reason = reason(request.target, status, seconds)
          if reason
            @good.delete(request.target)
            @bad[request.target] = reason
          else
            @good[request.target] = true
          end
          !reason.nil?
        end

        # Did more go wrong than well?
        def mostly_wrong?
          @bad.count { |_, reason| reason != TOO_SLOW } > @good.size
        end

        # How many of which kind.
        def words
          @bad.values.tally.map { |reason, count| "#{count} #{reason}" }.join(", ")
        end

        private

        # What ran when the time was over may be any request, unless it ran for long.
        def reason(target, status, seconds)
          return TOO_SLOW if seconds > TOO_LONG || seconds > SLOW && (status == :unanswered || @slow[target])
          return if status == :unanswered

          @slow[target] = true if seconds > SLOW
          return "failed" if status.nil? || status >= 500
          return "redirected" if status.between?(300, 399) && status != 304

          "refused" unless status.between?(200, 299) || status == 304
        end
      end
    end
  end
end

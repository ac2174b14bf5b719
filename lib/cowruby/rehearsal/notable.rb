# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../rehearsal"

module CowRuby
  class Rehearsal
    # notable: which targets may be noted and sent again without anybody having chosen them, and how
    # many of a kind. It errs on the side of leaving out: what is not rehearsed costs some memory,
    # what should not have been noted may be a key to somebody's account.
    module Notable
      # Bytes of the longest target.
      LONGEST = 200
      # Paths in all, and of one kind: those that the same code answers.
      PATHS = 1_000
      PER_KIND = 25
      # Bytes of the longest name of a kind.
      LONGEST_KIND = 120

      # A path with one of these words does something, or has a key or a person in the next part.
      TELLING = /(?<![a-z])(?:
        (?:log|sign)[_-]?(?:in|on|out|off|up)|(?:un)?subscri\w*|confirm\w*|verif\w*|(?:de)?activat\w*|
        unlock\w*|reset\w*|recover\w*|password\w*|passwd|token\w*|secret\w*|invit\w*|magic|oauth\w*|auth|
        callbacks?|sso|saml|sessions?|delet\w*|destroy\w*|remov\w*|cancel\w*|export\w*|download\w*|admin\w*|shared?|
        api[_-]?keys?|webhooks?
      )(?![a-z])/ix
      # A path with such a part does something, whatever its method is.
      ACTING = %r{/(?:
        accept|add|approve|archive|buy|checkout|clear|create|decline|deny|disable|dislike|downvote|enable|flush|
        follow|like|mark|pay|publish|purge|rebuild|refresh|reject|resend|restart|restore|revoke|run|send|start|
        stop|sync|toggle|track|trigger|undo|unfollow|unlike|unpublish|upvote|vote
      )(?:[/?]|\z)}ix
      PERSON = /@/
      # Parts of a target: between these a token stands alone.
      PART = %r{[/?&=;,+:~!$'()*|]+}
      # Letters of both kinds and digits mixed, as keys and short links have it; a long word of letters
      # and digits (also hexadecimal); the groups of a UUID; many digits.
      MIXED = /\A(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{6,}\z/m
      LONG_WORD = /(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}/
      # Letters and digits in turn, in a shorter one.
      MIXTURE = /(?<![a-z\d])(?=[a-z\d]{8})[a-z\d]*(?:[a-z]\d+[a-z]+\d|\d[a-z]+\d+[a-z])/i
      # Small and capital letters in turn.
      JUMBLE = /(?:[a-z][A-Z].*?){4}/m
      UUID = /\h{8}-?\h{4}-?\h{4}-?\h{4}-?\h{12}/
      MANY_DIGITS = /\d{11,}/
      DOT = /%2e/i

      module_function

      # +query+: may it have one?
      def target?(target, query: false)
        return false if target.nil? || target.bytesize > LONGEST

        plain = target.b
        return false if !TARGET.match?(plain) || (!query && plain.include?("?"))
        return false if DOT_SEGMENT.match?(plain) || DOT.match?(plain)

        plain = plain.gsub(/%(\h\h)/) { $1.hex.chr } if plain.include?("%")
        [TELLING, ACTING, PERSON].none? { |form| form.match?(plain) } &&
          plain.split(PART).none? { |part| token?(part) }
      end

      def token?(part)
        part.size >= 6 && [MIXED, LONG_WORD, MIXTURE, JUMBLE, UUID, MANY_DIGITS].any? { |form| form.match?(part) }
      end

      # The kind of a target by what the application's framework says of a request that it has answered, and by
      # the type of its answer; nil where it says nothing. Rails names controller and action, Sinatra the route.
      def answered_by(env, type)
        parameters = env["action_dispatch.request.path_parameters"]
        name = if parameters.is_a?(Hash) && parameters[:controller]
                 "#{parameters[:controller]}##{parameters[:action]}"
               else
                 env["sinatra.route"]
               end
        "#{name}:#{type.to_s[/\A[^;]*/]}".b.delete("^!-~")[0, LONGEST_KIND] if name
      end

      # A guess of the kind, by the target alone: /posts/1 and /posts/some-title are of the kind /posts/*. A
      # single word is a kind of its own, and so is what ends as another format does.
      def guess(target)
        path = target[/\A[^?]*/]
        return path if path.match?(%r{\A/[a-z_]{0,20}(?:\.[a-z]{1,5})?\z})

        "#{path[0..path.rindex("/")].gsub(%r{[^/]*\d[^/]*}, "*")}*#{path[/\.[a-z]{1,5}\z/]}"
      end

      # Of +all+, in the order given: so many as are allowed. The block gives the kind of each. Where not all are
      # allowed, each kind has its first before any has a second: what a rehearsal gains is code, not pages.
      def bounded(all)
        kinds = Hash.new(0)
        ranked = all.each_with_index.map { |one, i| [kinds[yield(one)] += 1, i, one] }
        ranked.select! { |rank,| rank <= PER_KIND }
        ranked.min_by(PATHS) { |rank, i,| [rank, i] }.sort_by { |_, i,| i }.map(&:last)
      end

      # Counts targets: [how often it was asked for, how often of these encrypted, its kind or nil].
      class Seen
        def initialize
          take
        end

        def empty? = @counts.empty?

        def each(&block) = @counts.each(&block)

        # Leaves out what is too much.
        def add(target, secure, count = 1, kind: nil)
          found = @counts[target]
          return if found.nil? && (@counts.size >= PATHS || (found = room(target, kind)).nil?)

          found[0] += count
          found[1] += count if secure
        end

        # What was counted; from now on it counts anew.
        def take
          taken = dup
          @counts = {}
          @kinds = Hash.new(0)
          taken
        end

        # Adds what was taken.
        def put_back(taken)
          taken.each do |target, (count, secure, kind)|
            add(target, true, secure, kind: kind) if secure.positive?
            add(target, false, count - secure, kind: kind) if count > secure
          end
        end

        private

        def room(target, kind)
          group = kind || Notable.guess(target)
          return if @kinds[group] >= PER_KIND

          @kinds[group] += 1
          @counts[target] = [0, 0, kind]
        end
      end
    end
  end
end

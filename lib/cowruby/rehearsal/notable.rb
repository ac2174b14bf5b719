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
      # Paths in all, and paths of one kind (the same code answers them) and one form (as guess gives it).
      # Which come first is decided by the kind alone.
      PATHS = 1_000
      PER_KIND = 25
      # Single words below / that are a kind each: strangers can ask for any word.
      WORDS = 200
      # Bytes of the longest name of a kind.
      LONGEST_KIND = 120

      # A path with one of these words does something, or has a key or a person in the next part.
      TELLING = /(?<![a-z])(?:
        (?:log|sign)[_-]?(?:in|on|out|off|up)|(?:un)?subscri\w*|confirm\w*|verif\w*|(?:de)?activat\w*|
        unlock\w*|reset\w*|recover\w*|password\w*|passwd|token\w*|secret\w*|invit\w*|magic|oauth\w*|auth|
        callbacks?|sso|saml|sessions?|delet\w*|destroy\w*|remov\w*|cancel\w*|export\w*|download\w*|admin\w*|shared?|
        api[_-]?keys?|webhooks?
      )(?![a-z])/ix
      # A path with such a part, or one that begins so (add_to_cart), does something, whatever its method is.
      ACTING = %r{/(?:
        accept|add|approve|archive|buy|checkout|clear|create|decline|deny|disable|dislike|downvote|enable|flush|
        follow|like|mark|pay|publish|purge|rebuild|refresh|reject|resend|restart|restore|revoke|run|send|start|
        stop|sync|toggle|track|trigger|undo|unfollow|unlike|unpublish|upvote|vote
      )(?:[/?_]|\z)}ix
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
      # Names of parameters that are keys.
      KEY = /token|secret|signature|nonce|\A(?:key|otp|ticket|uuid)\z/i
      WORD = %r{\A/[a-z_]{0,20}(?:\.[a-z]+)?\z}
      # Types and endings that tell formats apart. What is none of them is one kind, as some applications
      # let their users choose it.
      FORMATS = %w[html json xml rss atom csv txt js css pdf].freeze
      ENDING = /\.(?:#{FORMATS.join("|")})\z/
      TYPES = %r{\A(?:text|application)/(?:vnd\.)?
                 (html|json|xml|rss|atom|csv|plain|javascript|css|pdf|turbo-stream\.html|api\+json)
                 (?![\w.-])|\A(image)/}x

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

      # The kind of a target by what the framework says of a request that was answered, and by the type of
      # the answer: Rails names controller and action, Sinatra the route. Gives nil where it says nothing,
      # or the answer has no type (304); false for what should not be asked for unasked.
      def answered_by(env, type)
        type = Array(type).first.to_s.b
        name, *words = named(env)
        return false if name && !harmless?(words)
        return if name.nil? || type.empty?

        format = TYPES.match(type)&.captures&.compact&.first || "other"
        "#{name.delete("^!-~")[0, LONGEST_KIND - 20]}:#{format}"
      end

      # The name, and the words in it that say what is done.
      def named(env)
        parameters = env["action_dispatch.request.path_parameters"]
        if parameters.is_a?(Hash) && parameters[:controller]
          parts = parameters.values_at(:controller, :action).map { |part| part.to_s.b }
          [parts.join("#"), *parts, *parameters.keys.map { |key| ":#{key}".b }]
        elsif (route = env["sinatra.route"])
          [route.to_s.b, *route.to_s.b.split("/")]
        end
      end

      def harmless?(words)
        keys, names = words.partition { |word| word.start_with?(":") }
        path = "/#{names.join("/")}"
        return false if TELLING.match?(path) || ACTING.match?(path)

        keys.none? { |key| KEY.match?(key.delete_prefix(":")) }
      end

      # A guess of the kind, by the target alone: /posts/1 and /posts/some-title are of the kind /posts/*. A
      # single word is a kind of its own, and so is what ends as another format does.
      def guess(target)
        path = target[/\A[^?]*/]
        return path if WORD.match?(path)

        "#{path[0..path.rindex("/")].gsub(%r{[^/]*\d[^/]*}, "*")}*#{path[ENDING]}"
      end

      # Of +all+, in the order given: so many as are allowed. The block gives the target of each, and its
      # kind or nil. Where not all are allowed, each kind has its first before any has a second: what a
      # rehearsal gains is code, not pages.
      def bounded(all)
        ranks = Hash.new(0)
        alike = Hash.new(0)
        words = 0
        ranked = all.each_with_index.filter_map do |one, i|
          target, kind = yield(one)
          form = guess(target)
          form = "/*" if WORD.match?(form) && (words += 1) > WORDS
          [ranks[kind || form] += 1, i, one] if (alike[[kind, form]] += 1) <= PER_KIND
        end
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

          found[2] ||= kind
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
          group = [kind, Notable.guess(target)]
          return if @kinds[group] >= PER_KIND

          @kinds[group] += 1
          @counts[target] = [0, 0, kind]
        end
      end
    end
  end
end

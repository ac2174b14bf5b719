# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../rehearsal"

module CowRuby
  class Rehearsal
    # jobs: a rehearsal of job classes, in the process that forks the workers of Solid Queue or of
    # Sidekiq's swarm. +perform+ is never run: a job sends mails and moves money. What goes before it
    # can be done without it: the class and all that its file loads, what the class is set up with, the
    # way of a job with no arguments into the queue's text and back, and the compiled chain of its
    # callbacks. What +perform+ itself would compile, look up and cache is not warmed by that. A class
    # that wants more has a method +rehearse+ of its own, or the caller gives a block: these are run,
    # as they are asked for.
    #
    # All limits and reports are those of a rehearsal of requests.
    class Jobs < Rehearsal
      SECONDS = 30

      # +names+ are classes or their names. The block takes each class.
      def initialize(names, seconds: SECONDS, output: $stderr, &block)
        raise Unusable, "no names of jobs" if names.empty?

        # Without the block, which would be called at the end.
        super(method(:warm), names, count: names.size, seconds: seconds, output: output, &nil)
        @block = block
      end

      private

      def kind = "jobs"

      # No list of requests was sent.
      def sent
      end

      def read
        @source.map { |name| Request.new("job", name.to_s) }
      end

      def environment(request)
        request
      end

      # Gives a status as requests have it.
      def call(request)
        warm(request.target)
        200
      end

      def warm(name)
        job = Object.const_get(name)
        return job.rehearse if job.respond_to?(:rehearse)

        warm_around_perform(job)
        @block&.call(job)
      end

      def warm_around_perform(job)
        raise NameError, "it has no method perform" unless job.method_defined?(:perform)

        if job.respond_to?(:deserialize) && job.respond_to?(:queue_adapter)
          active_job(job)
        elsif job.respond_to?(:get_sidekiq_options)
          sidekiq_job(job)
        end
      end

      # What a worker does until it would call perform_now.
      def active_job(job)
        job.queue_adapter
        job.deserialize(JSON.parse(JSON.generate(job.new.serialize)))
        chain = job.__callbacks[:perform] if job.respond_to?(:__callbacks)
        return unless chain.respond_to?(:compile)

        # Active Support 7.1 and later compile for a kind, nil being all.
        chain.method(:compile).arity.zero? ? chain.compile : chain.compile(nil)
      end

      def sidekiq_job(job)
        JSON.parse(JSON.generate(job.get_sidekiq_options.merge("class" => job.name, "args" => [])))
        job.new
      end
    end
  end
end

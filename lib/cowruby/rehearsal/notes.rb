# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require_relative "notable"

module CowRuby
  class Rehearsal
    # notes: the file that says what the workers of one server, or of several, have answered. It, its journal
    # and their directory belong to the user of the process and nobody else may write there; otherwise they
    # are neither read nor written. Who writes holds a lock file.
    #
    # A worker only appends what it has seen to the journal: reading the file, adding and writing it anew took
    # 1.5 MB of a worker's own memory. A master adds the journal to the file when it starts, and puts a new
    # file in its place, so that whoever reads it finds a whole one. What is not of this form is set aside as
    # .bad.
    #
    # A master that rehearses has one more file locked, with the target that it sends. Where that is there and
    # not locked, a master did not come to its end.
    class Notes
      # Not to be used: somebody else could have written it.
      class Refused < StandardError; end
      # Not of the form that Content writes.
      class Malformed < StandardError; end

      # Bytes of the longest file that is read.
      LARGEST = 1 << 20
      # Bytes from which on a journal becomes the old one, in the place of the one before. What one worker
      # appends is a third of LARGEST at most.
      FULL = LARGEST / 2
      # Bytes of the file that says what is being sent.
      MARK = Notable::LONGEST + 1
      OPEN = File::NOFOLLOW | File::NONBLOCK

      attr_reader :path

      # +path+ is the file's; its directory is made when it is needed, but not the one above. +query+:
      # are targets with a query among what may be noted?
      def initialize(path, query: false)
        @path = path
        @directory = File.dirname(path)
        @journal = "#{path}.journal"
        @journals = ["#{@journal}.old", @journal]
        @sending = "#{path}.sending"
        @query = query
        @usable = {}
      end

      # Gives the Content, an empty one where there is none, with what the journal says, and adds that to the
      # file if it can be written. Raises Refused or SystemCallError.
      def read
        return Content.new unless File.exist?(@directory)

        check_directory
        begin
          locked(1) { |held| held ? gathered : all_content(set_aside: false) }
        rescue SystemCallError
          # It cannot be locked or written, but it may be read.
          all_content(set_aside: false)
        end
      end

      # Why nothing can be noted, in words; nil if something can.
      def unwritable
        prepare
        locked(1) { [@path, *@journals].each { |path| open_own(path, File::RDONLY) { nil } } }
        "#{@directory} cannot be written" unless File.writable?(@directory)
      rescue Refused, SystemCallError => e
        e.message
      end

      # Appends what was +seen+ (as Notable::Seen) to the journal. False if others have kept the lock for
      # +patience+ seconds. Raises Refused or SystemCallError.
      def append(seen, patience: 0)
        prepare
        locked(patience) do |held|
          next false unless held

          File.rename(@journal, @journals.first) if File.size?(@journal).to_i > FULL
          # A process that was killed may have left half a line. With a blank it is not understood.
          text = Content.batch(seen, +" \n")
          open_own(@journal, File::WRONLY | File::APPEND | File::CREAT) { |file| write_all(file, text) }
          true
        end
      end

      # Leaves these targets out from now on. False if others have kept the lock for +patience+ seconds.
      # Raises Refused or SystemCallError.
      def leave_out(targets, patience: 0)
        prepare
        locked(patience) do |held|
          next false unless held

          content = content(set_aside: true)
          content.age(Content.today)
          content.add([], targets)
          write(content.to_s)
          true
        end
      end

      # To be called before a rehearsal. Gives what one that did not come to its end was sending; nil: nothing, or
      # another server rehearses. Raises Refused or SystemCallError, as where the disk is full.
      def begin_sending
        @mark = marked or return
        target = @mark.read(2 * MARK).to_s.b[/\A(\S+)\n+\z/, 1]
        return target if target && usable?(target)

        @mark.truncate(0)
        write_mark("")
        nil
      end

      # Writes down that +target+ is being sent.
      def sending(target)
        write_mark(target) if @mark
      rescue SystemCallError
        nil # it goes without
      end

      # Nothing is being sent any more. +keep+: let the next start see what was.
      def sent(keep: false)
        return unless @mark

        File.unlink(@sending) unless keep
      rescue SystemCallError
        nil
      ensure
        # A child that a request has forked has the file open too.
        @mark&.flock(File::LOCK_UN)
        @mark&.close
        @mark = nil
      end

      private

      # All marks have one size, so that there is room for each if there was for the first.
      def write_mark(target)
        @mark.pwrite(target.ljust(MARK, "\n"), 0)
      end

      def prepare
        parent = File.dirname(@directory)
        raise Refused, "there is no directory #{parent}" unless File.directory?(parent)

        begin
          Dir.mkdir(@directory, 0o700)
        rescue Errno::EEXIST
          nil
        end
        check_directory
      end

      # It may be a link of the user's own: those who deploy link it into each release.
      def check_directory
        raise Refused, "#{@directory} belongs to another user" if File.lstat(@directory).uid != Process.euid

        stat = File.stat(@directory)
        raise Refused, "#{@directory} is no directory" unless stat.directory?

        check_owner(@directory, stat)
      end

      def check_owner(path, stat)
        raise Refused, "#{path} belongs to another user" unless stat.uid == Process.euid
        raise Refused, "#{path} can be written by other users" if stat.mode.anybits?(0o022)
      end

      # All of the text or nothing.
      def write_all(file, text)
        size = file.size
        return if file.syswrite(text) == text.bytesize

        file.truncate(size)
        raise Errno::ENOSPC, @journal
      end

      # Yields the open file, or gives nil where there is none.
      def open_own(path, flags)
        file = opened(path, flags) or return
        begin
          check_plain(path, file)
          yield file
        ensure
          file.close
        end
      end

      def check_plain(path, file)
        stat = file.stat
        raise Refused, "#{path} is no regular file of its own" unless stat.file? && stat.nlink == 1

        check_owner(path, stat)
      end

      def opened(path, flags)
        File.open(path, flags | OPEN, 0o600)
      rescue Errno::ENOENT
        raise if flags.anybits?(File::CREAT)
      rescue Errno::ELOOP, Errno::ENXIO, Errno::EISDIR
        raise Refused, "#{path} is no regular file of its own"
      end

      # Yields whether it has the lock, after +patience+ seconds at most. A child that another thread
      # forks meanwhile has the file open too, so that closing it would not be enough.
      def locked(patience)
        open_own("#{@path}.lock", File::RDWR | File::CREAT) do |file|
          tries = 1 + (patience / 0.02).floor
          held = tries.times.any? do |number|
            sleep(0.02) if number.positive?
            file.flock(File::LOCK_EX | File::LOCK_NB)
          end
          yield held
        ensure
          file.flock(File::LOCK_UN)
        end
      end

      # The content with the journal's. Then the file says the same, and there is no journal. A master that is
      # killed between the two leaves it, and it counts once more at the next start.
      def gathered
        content = all_content(set_aside: true)
        content.age(Content.today)
        journals = @journals.select { |path| File.exist?(path) }
        write(content.to_s) if journals.any? || content.forgetful?
        File.unlink(*journals)
        content
      end

      def all_content(set_aside:)
        @usable = {}
        content = content(set_aside: set_aside)
        batches = @journals.filter_map do |path|
          text_of(path, set_aside) { |text| Content.batches(text) { |target| usable?(target) } }
        end.flatten(1)
        content.add_batches(batches) if batches.any?
        content
      ensure
        @usable = {}
      end

      def content(set_aside:)
        text_of(@path, set_aside) { |text| Content.parse(text) { |target| usable?(target) } } || Content.new
      end

      # A journal has the same targets again and again.
      def usable?(target)
        @usable.fetch(target) { @usable[target] = Notable.target?(target, query: @query) }
      end

      # What the block makes of the text of a file, which may raise Malformed; nil where there is none.
      def text_of(path, set_aside)
        text = open_own(path, File::RDONLY) { |file| file.read(LARGEST + 1).to_s } or return
        raise Malformed, "it is longer than #{LARGEST} bytes" if text.bytesize > LARGEST

        yield text
      rescue Malformed => e
        aside = "#{path}.bad"
        File.rename(path, aside) if set_aside
        where = "; it is now #{aside}" if set_aside
        Rehearsal.tell("#{path} is no list of noted pages (#{e.message})#{where}")
        nil
      end

      # The file of what is being sent, open and locked; nil where another server has it. One that was removed
      # between opening and locking is opened anew, a few times.
      def marked
        10.times do
          file = opened(@sending, File::RDWR | File::CREAT)
          return unless file.flock(File::LOCK_EX | File::LOCK_NB)
          next if file.stat.nlink.zero?

          check_plain(@sending, file)
          mark = file
          return mark
        ensure
          file&.close unless mark
        end
        raise Refused, "#{@sending} does not stay"
      end

      # Only whoever has the lock writes, so what is there is left of a process that was killed.
      def write(text)
        fresh = "#{@path}.new"
        FileUtils.rm_f(fresh)
        File.open(fresh, File::WRONLY | File::CREAT | File::EXCL | OPEN, 0o600) { |file| file.write(text) }
        File.rename(fresh, @path)
      rescue SystemCallError
        FileUtils.rm_f(fresh)
        raise
      end

      # What the file says:
      #
      #   cowruby-rehearsal 1 2026-11-27
      #   + 12.00 https /posts posts#index:html
      #   - 0.90 /account
      #
      # The version of the form and the day; after + how often a target was asked for, how, and its kind if
      # the framework has told it, most asked for first; after - what is left out. The numbers lose a tenth
      # a day, those after + at one start those of a week at most, and what is next to nothing is forgotten. A
      # journal is made of batches, each of this form.
      class Content
        FIRST_LINE = /\Acowruby-rehearsal 1 (\d{4})-(\d\d)-(\d\d)\z/
        GOOD = %r{\A\+ (?!0+\.00)(\d{1,12}\.\d\d) (https?) (/\S*)(?: (\S{1,#{Notable::LONGEST_KIND}}))?\z}
        BAD = %r{\A- (\d\.\d\d) (/\S*)\z}
        DAY = 24 * 60 * 60
        KEPT_A_DAY = 0.9
        LEAST = 0.1
        # Days by which what was asked for ages at one start at most: the clock may have been wrong.
        MOST_DAYS = 7

        class << self
          def today
            Time.now.to_i / DAY
          end

          # The block says whether a target may be used; others are forgotten.
          def parse(text)
            first, *lines = text.b.split("\n")
            day = FIRST_LINE.match(first.to_s) or raise Malformed, "its first line is not of version 1"

            content = new(day_of(day.captures))
            lines.each.with_index(2) do |line, number|
              target = content.line(line) or raise Malformed, "line #{number} is not understood"
              content.forget(target) unless yield(target)
            end
            content
          end

          # Appends what a worker has seen to +text+, and gives that.
          def batch(seen, text)
            text << first_line(today)
            seen.each do |target, (count, secure, kind)|
              text << good_line("#{count}.00", secure * 2 > count, target, kind)
            end
            text
          end

          def first_line(day) = "cowruby-rehearsal 1 #{Time.at(day * DAY).utc.strftime("%Y-%m-%d")}\n"

          def good_line(number, secure, target, kind)
            "+ #{number} http#{"s" if secure} #{target}#{" #{kind}" if kind}\n"
          end

          # The batches of a journal: [day, [[target, [count, secure, kind]], ...]] of each. A line that is
          # not understood is left out: a batch may have been cut off. The block says whether a target may
          # be used.
          def batches(text)
            found = []
            text.b.each_line do |whole|
              line = whole.chomp!("\n") or break # cut off
              if (first = FIRST_LINE.match(line))
                found << [day_of(first.captures).clamp(0, today), []]
              elsif (match = GOOD.match(line)) && found.any? && yield(match[3])
                count = match[1].to_f
                found.last[1] << [match[3], [count, match[2] == "https" ? count : 0, match[4]]]
              end
            end
            raise Malformed, "no batch begins in it" if found.empty?

            found
          end

          private

          def day_of(captures)
            Time.utc(*captures).to_i / DAY
          rescue ArgumentError
            raise Malformed, "its first line has no day"
          end
        end

        # +day+ is counted from 1970 on.
        def initialize(day = Content.today)
          @day = day
          @good = {}
          @bad = {}
          @forgetful = false
        end

        # Was there a target in the text that may not be used any more?
        def forgetful? = @forgetful

        # Takes a line. Gives its target, nil if it is not understood.
        def line(text)
          if (match = GOOD.match(text))
            @good[match[3]] = [match[1].to_f, match[2] == "https", match[4]]
            match[3]
          elsif (match = BAD.match(text))
            @bad[match[2]] = match[1].to_f
            match[2]
          end
        end

        def forget(target)
          @forgetful = true
          @good.delete(target)
          @bad.delete(target)
        end

        # So that yesterday's pages fade.
        def age(today)
          days = [today - @day, 0].max
          @day = today
          kept = KEPT_A_DAY**[days, MOST_DAYS].min
          @good.transform_values! { |weight, *others| [weight * kept, *others] }
          @bad.transform_values! { |weight| weight * KEPT_A_DAY**days }
          @good.select! { |_, (weight, _)| weight >= LEAST }
          @bad.select! { |_, weight| weight >= LEAST }
        end

        # Adds what workers have appended (batches), faded to today as the rest is; the last one by MOST_DAYS at
        # most.
        def add_batches(batches)
          today = Content.today
          late = [today - batches.map(&:first).max - MOST_DAYS, 0].max
          age(today)
          batches.each { |day, seen| count(seen, KEPT_A_DAY**(today - day - late)) }
          age(today)
          add([], [])
        end

        # Adds what was +seen+ and leaves out +bad+ targets.
        def add(seen, bad)
          count(seen)
          bad.each { |target| @bad[target] = 1.0 }
          @good.reject! { |target, _| @bad.key?(target) }
          @good = Notable.bounded(ranked) { |target, (_, _, kind)| [target, kind] }.to_h
          @bad = @bad.max_by(Notable::PATHS) { |_, weight| weight }.to_h
        end

        # Was more than half of it asked for encrypted?
        def https?
          weights = ->(pairs) { pairs.sum { |weight, _| weight } }
          weights.call(@good.values.select { |_, secure| secure }) * 2 > weights.call(@good.values)
        end

        # Targets, most asked for first. First each once, so that a rehearsal that is cut short has met as
        # many pages as it could; then each as often as it is asked for, of about +count+ requests. None is
        # sent more often than a tenth of that, or than its equal part, or a health check would be all.
        def requests(count)
          sum = @good.sum { |_, (weight, _)| weight }
          most = [count / 10, count / [@good.size, 1].max, 1].max
          left = ranked.map { |target, (weight, _)| [target, (count * weight / sum).round.clamp(1, most)] }
          all = []
          until left.empty?
            all.concat(left.map(&:first))
            left = left.filter_map { |target, times| [target, times - 1] if times > 1 }
          end
          all
        end

        def to_s
          good = ranked.map do |target, (weight, secure, kind)|
            Content.good_line(number(weight), secure, target, kind)
          end
          bad = @bad.map { |target, weight| "- #{number(weight)} #{target}\n" }
          [Content.first_line(@day), *good, *bad].join
        end

        private

        def count(seen, part = 1)
          seen.each do |target, (count, secure, kind)|
            weight, _, before = @good[target]
            @good[target] = [weight.to_f + count * part, secure * 2 > count, kind || before]
          end
        end

        def ranked
          @good.sort_by { |target, (weight, _)| [-weight, target] }
        end

        def number(weight)
          format("%.2f", [weight, 999_999_999.0].min)
        end
      end
    end
  end
end

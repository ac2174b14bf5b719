# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "json"
require_relative "../measure/chart"
require_relative "../measure/command_line"
require_relative "../measure/table"
require_relative "soak_result"

module CowBench
  # The tables of one soak: what happened, and how the memory went.
  class SoakReport
    EVENTS = ["event", "times", "failed", "not excused", "longest until all were back (s)", "remarks"].freeze
    ROUNDS = ["time", "event", "private a worker (MB)", "Pss (MB)", "sent", "answered", "failed",
              "workers"].freeze

    # +facts+ are Machine's, +build+ the ruby's name.
    def initialize(result, facts, build)
      @result = result
      @facts = facts
      @build = build
    end

    # Writes it below +directory+; gives the text for the terminal.
    def write(directory)
      head = ["#{@facts[:date]}, commit #{@facts[:commit] || "none"}", *@facts[:commands]]
      text = ["# #{@facts[:name]}", "", *head.map { |line| "- #{line}" }, "",
              *tables.map(&:to_markdown)].join("\n")
      File.write(File.join(directory, "tables.md"), CommandLine.without_root(text))
      chart.draw(directory) if Chart.available? && @result.rounds.any?
      tables.first.to_text
    end

    # "3 cut, 1 status 502"
    def self.kinds(failed)
      failed.map { |kind, number| "#{number} #{kind}" }.join(", ")
    end

    # What is told of a soak beside its failures, and not judged.
    def self.remarks(result)
      jobs, records = result[:jobs].to_h, result[:records].to_h
      gone, left_out = result.gone, result[:not_happened].to_a
      [*("#{jobs[:twice]} jobs were done twice, #{jobs[:raised]} times one raised" if jobs.any?),
       *(format("slowest answer %.1f s, %d requests left out", *records.values_at(:slowest, :left_out)) \
         if records.any?),
       *("#{gone} workers ended by themselves in the last third" if gone.positive?),
       *("too late for: #{left_out.join(", ")}" if left_out.any?)].join("; ")
    end

    # "+1.2 ± 0.4", MB an hour.
    def self.slope(line)
      line ? format("%+.1f ± %.1f", line.slope, line.error) : "-"
    end

    # "memory in the last third: flat, +1.2 ± 0.4 (standard error) MB an hour ..."
    def self.memory(result)
      line = result.line or return "memory: too short to judge"
      format("memory in the last third: %s, %s (standard error) MB an hour for a worker of %.1f MB, %+.2f %%",
             result.memory, slope(line), line.mean, line.rise * 100)
    end

    private

    def title
      "soak: #{@result.name}, #{@build}"
    end

    def tables
      @tables ||= [Table.new(title, EVENTS, event_rows, note: [*early, *sentences].join("; ")),
                   Table.new("looks", ROUNDS, @result.rounds.map { |round| round_row(round) })]
    end

    def early
      @result[:ended_early] && "ENDED EARLY: #{@result[:ended_early]}"
    end

    def sentences
      what = @result.jobs? ? "jobs" : "requests"
      [format("%d %s sent, %d %s, %d failed, of which %d are excused", @result[:sent], what,
              @result[:answered], @result.jobs? ? "done" : "answered", @result.failures, @result.excused),
       *(@result.jobs? ? jobs : records), SoakReport.memory(@result), *@result[:notes]]
    end

    def records
      records = @result[:records]
      return [] if records.empty?

      [format("%d records were made, %d of them are lost", *records.values_at(:made, :lost)),
       SoakReport.remarks(@result)]
    end

    def jobs
      jobs = @result[:jobs]
      return [] if jobs.empty?

      [format("%d jobs were never done", jobs[:lost]), SoakReport.remarks(@result),
       *("given up and put back: #{SoakReport.kinds(jobs[:failed])}" if jobs[:failed].any?)]
    end

    def event_rows
      failed, unexcused = @result.failed, @result.unexcused
      rows = @result.events.group_by { |event| event[:name] }.map do |name, events|
        [name, events.size.to_s, SoakReport.kinds(failed[name]), SoakReport.kinds(unexcused[name]),
         format("%.1f", events.map { |event| event[:took] }.max), remarks(events)]
      end
      none = SoakResult::NONE
      kinds = SoakReport.kinds(failed[none])
      [*rows, [none, "-", kinds, kinds, "-", ""]]
    end

    def remarks(events)
      notes = events.filter_map { |event| event[:note] }.tally.map { |note, times| "#{times} times: #{note}" }
      [*limit(events.select { |event| event[:hits] }), *notes].join("; ")
    end

    def limit(events)
      return if events.empty?

      hits, ended = %i[hits deaths].map { |key| events.sum { |event| event[key] } }
      "reached #{hits} times, #{ended} processes ended by the kernel"
    end

    def round_row(round)
      sizes = round.values_at(:private, :tree).map { |mb| mb ? format("%.1f", mb) : "-" }
      [Clock.minutes(round[:seconds]), round[:event] || "", *sizes,
       *round.values_at(:sent, :answered, :failed, :workers).map(&:to_s)]
    end

    def chart
      points = @result.rounds.select { |round| round[:private] }
                      .map { |round| [round[:seconds] / 60.0, round[:private]] }
      title = "#{@result.name}: private dirty memory of a worker (less is better)"
      Chart::Lines.new(name: "soak", title: title, x_title: "minutes", y_title: "private memory (MB)",
                       lines: [Chart::Line.new(@build, nil, points)])
    end
  end

  # One table of all soaks that were made, with those of one server beside each other, and one of what failed
  # because of which event.
  class SoakSummary
    HEAD = ["server, ruby", "minutes", "sent", "answered", "failed", "excused", "not excused", "lost",
            "events", "ended by the kernel", "MB a worker", "slope and its error (MB an hour)",
            "in the last third", "memory", "remarks"].freeze

    # +results+: [[build's name, is it CowRuby, SoakResult], ...]
    def initialize(results)
      @results = results.sort_by { |build, ours, result| [result.name, ours ? 1 : 0, build] }
    end

    def to_markdown
      tables = [Table.new("soak: all", HEAD, @results.map { |build, _, result| row(build, result) })]
      tables << Table.new("soak: what failed because of which event", ["server, event", *builds], event_rows)
      [*tables.map(&:to_markdown), "#{verdict}\n"].join("\n")
    end

    private

    def row(build, result)
      line = result.line
      numbers = [result[:sent], result[:answered], result.failures, result.excused, result.unexcused_failures,
                 result.lost, result.events.size, result.ended].map(&:to_s)
      minutes = result.rounds.empty? ? 0 : result.rounds.last[:seconds] / 60
      ["#{result.name}, #{build}", format("%.0f", minutes), *numbers, line ? format("%.1f", line.mean) : "-",
       SoakReport.slope(line), line ? format("%+.2f %%", line.rise * 100) : "-",
       result[:ended_early] ? "ENDED EARLY" : result.memory, SoakReport.remarks(result)]
    end

    def builds
      @results.map(&:first).uniq
    end

    def event_rows
      @results.group_by { |_, _, result| result.name }.flat_map do |server, same|
        by_build = same.to_h { |build, _, result| [build, result] }
        names = by_build.values.flat_map { |result| result.events.map { |event| event[:name] } }.uniq
        [*names, SoakResult::NONE].map do |event|
          ["#{server}: #{event}", *builds.map { |build| cell(by_build[build], event) }]
        end
      end
    end

    # "5 times: 3 cut"
    def cell(result, event)
      return "-" unless result

      times = result.events.count { |one| one[:name] == event }
      kinds = SoakReport.kinds(result.failed[event])
      said = kinds.empty? ? "0" : kinds
      event == SoakResult::NONE ? said : "#{times} times: #{said}"
    end

    # Of CowRuby's soaks that have pristine's beside them.
    def verdict
      pairs = @results.select { |_, ours, _| ours }.filter_map do |_, _, result|
        base = @results.find do |_, ours, other|
          !ours && other.name == result.name && other[:asked] == result[:asked]
        end
        [result, base.last] if base
      end
      return "No server was soaked in the same way on pristine and on CowRuby." if pairs.empty?

      worse = pairs.flat_map { |ours, base| worse(ours, base) }
      if worse.empty?
        return "#{pairs.size} servers: nothing failed that pristine did not fail as well, beside the remarks."
      end

      "Failed on CowRuby and not on pristine: #{worse.join("; ")}."
    end

    # What no event excuses, as far as it is more than on pristine after that event.
    def worse(ours, base)
      return ["#{ours.name}: #{ours[:ended_early]}"] if ours[:ended_early] && !base[:ended_early]

      lost = ours.jobs? ? 0 : ours.lost - base.lost
      found = { "memory grows faster" => faster?(ours, base), "#{lost} records more" => lost.positive? }
      worse = found.select { |_, here| here }.keys.map { |what| "#{ours.name}: #{what}" }
      worse + more(ours, base.unexcused)
    end

    # Beyond what their errors may make of it.
    def faster?(ours, base)
      return false unless ours.memory == "grows" && base.line

      errors = Math.hypot(ours.line.error, base.line.error)
      ours.line.slope - base.line.slope > SoakResult::ERRORS * errors
    end

    def more(ours, theirs)
      ours.unexcused.flat_map do |event, kinds|
        kinds.filter_map do |kind, number|
          more = number - theirs[event][kind]
          "#{ours.name}, #{event}: #{more} #{kind} more" if more.positive?
        end
      end
    end
  end
end

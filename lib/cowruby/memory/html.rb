# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../memory"
require_relative "heap_map"
require_relative "html_charts"

module CowRuby
  module Memory
    # One page that shows a server: what its processes share, how that went on, what each worker has of its
    # own, and the heap of one of them. It needs no network and no script, and names no host.
    class Html
      include HtmlCharts

      # Kinds of PageKinds that are shown together, and their colours.
      GROUPS = {
        "objects" => [:blue, ["GC pages", "GC metadata"]], "VM words" => [:purple, ["VM words"]],
        "YJIT" => [:orange, ["YJIT data", "JIT code"]], "malloc" => [:green, ["malloc"]],
        "other" => [:grey, ["stacks", "files", "anonymous other"]]
      }.freeze
      STATES = {
        "shared, sealed" => :pale, "shared" => :sky, "lost" => :vermilion, "own" => :blue, "absent" => :white
      }.freeze
      MEANINGS = {
        "shared, sealed" => "shared, and sealed: the worker makes no objects in it", "shared" => "shared",
        "lost" => "lost: inherited, and now the worker's own copy", "own" => "made since the fork"
      }.freeze
      # Workers whose pages are told by kind: each takes a second or so for a GB.
      MOST_WORKERS = 16
      # Looks that are kept; when there are more, every second one of the older half goes.
      MOST_LOOKS = 600
      # The part of a processor that details may take while it goes on.
      SHARE = 0.01

      STYLE = <<~CSS
        body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; padding: 1em;
               max-width: 60em; }
        h1 { font-size: 1.4em; line-height: 1.25; overflow-wrap: anywhere; }
        h2 { font-size: 1.15em; margin-top: 2em; border-top: 1px solid #ccc; padding-top: .6em; }
        p { max-width: 42em; }
        dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10em, 1fr)); gap: 1em; }
        dt { color: #555; } dd { margin: 0; font-size: 1.6em; font-weight: 600; }
        .wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
        th, td { text-align: right; padding: .15em .8em .15em 0; } th:first-child { text-align: left; font-weight: 400; }
        .process { margin: .7em 0; } .process span { display: flex; justify-content: space-between; gap: 1em; }
        .process em { font-style: normal; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
        .process q { quotes: none; white-space: nowrap; }
        .bar { display: flex; height: 1.3em; background: #f4f4f4; } .bar i { display: block; height: 100%; }
        .striped { background-image: repeating-linear-gradient(135deg, transparent 0 4px, #fff 4px 6px); }
        .legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em; }
        .key { display: inline-block; width: .9em; height: .9em; margin-right: .4em; border: 1px solid #888;
               vertical-align: -.1em; }
        .chart { position: relative; margin: 1em 0; } .chart svg { width: 62%; height: 100%; overflow: visible; }
        .chart polyline { fill: none; stroke-width: 2.5; vector-effect: non-scaling-stroke; }
        .chart .grid { stroke: #ddd; vector-effect: non-scaling-stroke; }
        .chart b { position: absolute; left: 64%; right: 0; font-weight: 500; font-size: 1em; line-height: 1.4em;
                   white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
        .map { display: block; width: 100%; border: 1px solid #ccc; background: #fff; }
      CSS

      def initialize(target = nil)
        @target = target
        @looks = []
        @details_at = nil
      end

      # Takes a Report into account, and gives the page. What takes long to find is as new as it may be: it
      # takes a hundredth of the time.
      def page(report)
        @report = report
        note
        find_details if details_due?
        text
      end

      private

      def note
        workers = rows_of_workers.filter_map { |row| row.usage.private_total }
        @looks << [Memory.now, @report.sum(:pss), workers.any? ? workers.sum / workers.size : nil, workers.max]
        return unless @looks.size > MOST_LOOKS

        older = @looks.shift(MOST_LOOKS / 2)
        @looks.unshift(*older.each_slice(2).map(&:first))
      end

      def rows_of_workers
        @report.rows.select { |row| row.member.origin }
      end

      def details_due?
        @details_at.nil? || Memory.now - @details_at > @details_took / SHARE
      end

      def find_details
        began = Memory.now
        rows = rows_of_workers.select { |row| row.usage.shares? }
        rows = rows.max_by(MOST_WORKERS) { |row| row.usage.private_total }
        shown = rows.find { |row| row.member.pid == @target } || rows.first
        @unread = nil
        @details = rows.to_h { |row| [row.member.pid, details(row, row == shown)] }.compact
        @shown = shown&.member&.pid
        @details_at = Memory.now
        @details_took = @details_at - began
      end

      # nil if it may not be read, or has ended.
      def details(row, map)
        (map ? HeapMap : LostPages).new(row.member.origin, row.member.pid, contents: map)
      rescue AddressSpace::Unreadable => e
        return details(row, false) if map

        @unread = e.message
        nil
      end

      def text
        name = @report.rows.first.member.title
        <<~HTML
          <!DOCTYPE html>
          <html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
          <title>#{escape(name)}: memory</title><style>
          #{STYLE}</style></head><body>
          <h1>#{escape(name)}</h1>
          <p>Process #{@report.root} and what it has started, at
          #{escape(@report.time.utc.strftime("%Y-%m-%d %H:%M:%S"))} UTC. MB are 1,048,576 bytes.</p>
          #{[summary, over_time, processes, heap].compact.join("\n")}
          </body></html>
        HTML
      end

      def mb(bytes)
        Memory.megabytes(bytes)
      end

      def summary
        workers = rows_of_workers
        shares = workers.filter_map(&:share)
        tiles = { "the whole server (the sum of Pss)" => mb(@report.sum(:pss)),
                  "workers" => workers.size.to_s,
                  "a worker's own, on average" => mb(@looks.last[2]),
                  "of the parent's memory a worker still shares" =>
                    percent(shares.any? ? shares.sum / shares.size : nil) }
        notes = @report.notes.map { |note| "<p>Note: #{escape(note)}</p>" }
        "<dl>#{tiles.map { |name, value| "<div><dt>#{escape(name)}</dt><dd>#{escape(value)}</dd></div>" }.join}</dl>" \
          "#{notes.join}"
      end

      # Colour, name and place in a look of each line.
      LINES = [[:blue, "server", 1], [:vermilion, "largest worker", 3], [:green, "mean worker", 2]].freeze

      def over_time
        if @looks.size < 2
          return "<h2>Over time</h2><p>One look has been made. With --watch the page is written again and again, " \
                 "and shows here how it goes on.</p>"
        end
        times = @looks.map { |look| look.first - @looks.first.first }
        most = mb(@looks.flat_map { |look| look.drop(1) }.compact.max)
        chart = LINES.map do |colour, name, i|
          [COLOURS[colour], "#{name} #{mb(@looks.last[i])}", @looks.map { |look| look[i] }]
        end
        "<h2>Over time</h2><p>The last #{duration(times.last)}: the sum of Pss of all processes, and what workers " \
          "have for themselves alone. The upper line is #{most}, the lower one 0.</p>#{lines(chart, times)}"
      end

      def duration(seconds)
        minutes = (seconds / 60).floor
        minutes.zero? ? "#{seconds.round} s" : "#{minutes} min"
      end

      def processes
        most = @report.rows.map { |row| row.usage.private_total || row.usage.rss || 0 }.max
        bars = @report.rows.map { |row| process(row, most) }
        groups = GROUPS.map { |name, (colour, _)| [COLOURS[colour], name] }
        "<h2>What each process has for itself</h2>" \
          "<p>Memory that no other process has, by what it is used for. What a worker has inherited and then " \
          "changed, so that it has its own copy, is striped; what it made since is not.</p>" \
          "#{legend([*groups, [COLOURS[:sky], "not told apart"], [COLOURS[:grey], "striped: a copy", true]])}" \
          "#{bars.join}#{"<p>Note: #{escape(@unread)}.</p>" if @unread}"
      end

      def process(row, most)
        usage, member = row.usage, row.member
        title = member.title.empty? ? "(without a title)" : member.title
        shown = usage.private_total ? "#{mb(usage.private_total)} of #{mb(usage.rss)}" : "#{mb(usage.rss)}, RSS"
        %(<div class="process"><span><em>#{member.pid} #{escape(title)}</em><q>#{escape(shown)}</q></span>) +
          "#{bar(parts(member.pid, usage), [most, 1].max)}</div>"
      end

      def parts(pid, usage)
        lost = @details[pid]
        lost ? parts_by_kind(lost, usage) : [[COLOURS[:sky], usage.private_total || 0, "not told apart"]]
      end

      # The kinds' pages were counted at another moment than the sum: they take their part of it.
      def parts_by_kind(lost, usage)
        parts = GROUPS.flat_map do |name, (colour, kinds)|
          tallies = lost.tallies.values_at(*kinds)
          [[COLOURS[colour], tallies.sum(&:lost) * AddressSpace::PAGE, "#{name}, a copy", true],
           [COLOURS[colour], tallies.sum(&:own) * AddressSpace::PAGE, name, false]]
        end
        sum = parts.sum { |_, bytes| bytes }
        factor = sum.positive? && usage.private_total ? usage.private_total.fdiv(sum) : 1
        parts.map do |colour, bytes, words, striped|
          [colour, bytes * factor, "#{words}: #{mb((bytes * factor).round)}", striped]
        end
      end

      def heap
        head = "<h2>The heap of a worker</h2>"
        map = @details[@shown]
        return "#{head}<p>There is no worker that was forked and may be read.</p>" unless map
        unless map.is_a?(HeapMap) && map.pages.any?
          return "#{head}<p>Its heap pages could not be told from malloc's memory: the contents of memory may not be " \
                 "read (run as root).</p>"
        end
        "#{head}#{pages(map)}#{sizes(map)}#{arenas(map)}"
      end

      def pages(map)
        cells = map.pages.each_slice([(map.pages.size + MOST_CELLS - 1) / MOST_CELLS, 1].max).to_a
        size = "#{map.pages.first.size >> 10} KB#{" (#{cells.first.size} in a cell)" if cells.first.size > 1}"
        "<p>#{count(map.pages.size, "heap page")} of #{size} of process #{@shown}, in the order of their addresses.</p>" \
          "#{legend(states(map))}" \
          "#{cell_map(cells.map { |cell| colour(state(cell)) }, "heap pages by what they share")}" \
          "<p>The same pages by how full they are. Of all slots #{percent(map.fragmentation)} are free: that is how " \
          "fragmented the heap is.</p>" \
          "#{legend(SHADES.each_with_index.map { |shade, i| [shade, "#{i * 20} to #{i * 20 + 20} %"] })}" \
          "#{cell_map(cells.map { |cell| shade(cell) }, "heap pages by how full they are")}"
      end

      def states(map)
        found = map.pages.map { |page| state([page]) }.uniq
        MEANINGS.filter_map { |name, words| [colour(name), words] if found.include?(name) }
      end

      def colour(state)
        COLOURS.fetch(STATES.fetch(state))
      end

      def shade(cell)
        full = cell.sum(&:used).fdiv(cell.sum(&:slots))
        SHADES[[(full * SHADES.size).floor, SHADES.size - 1].min]
      end

      # Of the pages of a cell the one that costs most decides.
      def state(cell)
        page = cell.max_by { |one| HeapMap::STATES.index(one.state) }
        page.state == "shared" && page.sealed ? "shared, sealed" : page.state
      end

      def count(number, noun)
        "#{number} #{noun}#{"s" unless number == 1}"
      end

      def sizes(map)
        head = ["slots of", "pages", "slots", "in use", "shared", "lost", "own", *("sealed" if sealed?(map))]
        rows = map.pages.group_by(&:slot_size).sort.map do |size, pages|
          slots = pages.sum(&:slots)
          states = %w[shared lost own].map { |state| pages.count { |page| page.state == state } }
          ["#{size} bytes", pages.size, slots, percent(pages.sum(&:used).fdiv(slots)), *states,
           *(pages.count(&:sealed) if sealed?(map))]
        end
        table([head, *rows])
      end

      def sealed?(map)
        map.pages.any? { |page| !page.sealed.nil? }
      end

      def arenas(map)
        return if map.arenas.empty?

        bars = map.arenas.map do |arena|
          bar([[COLOURS[:blue], arena.used, "#{arena.used} used"],
               [COLOURS[:sky], arena.committed - arena.used, "#{arena.committed - arena.used} free"]], arena.pages) +
            "<p>#{arena.used} of #{count(arena.pages, "page")} used</p>"
        end
        "<h2>Its arenas</h2><p>Address space that is reserved for heap pages. The kernel gives memory for those that " \
          "are used.</p>#{legend([[COLOURS[:blue], "used"], [COLOURS[:sky], "head, or free"]])}#{bars.join}"
      end
    end
  end
end

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

      # Kinds of PageKinds that are shown together.
      GROUPS = {
        "objects" => [:objects, ["GC pages", "GC metadata"]], "VM words" => [:words, ["VM words"]],
        "YJIT" => [:yjit, ["YJIT data", "JIT code"]], "malloc" => [:malloc, ["malloc"]],
        "other" => [:other, ["stacks", "files", "anonymous other"]]
      }.freeze
      MEANINGS = {
        sealed: "shared, and sealed: the worker makes no objects in it", shared: "shared",
        own: "made since the fork", lost: "lost: inherited, and now the worker's own copy",
        absent: "not in memory"
      }.freeze
      # Workers whose pages are told by kind: each takes a second or so for a GB.
      MOST_WORKERS = 16
      # Looks that are kept; when there are more, every second one of the older half goes.
      MOST_LOOKS = 600
      # The part of a processor that details may take while it goes on.
      SHARE = 0.01
      LINES = ["server", "largest worker", "mean worker"].freeze

      # What takes long to find: tallies of bytes by kind of the workers' numbers, the HTML of one's heap.
      Details = Struct.new(:at, :took, :time, :kinds, :shown, :heap, :complaint)

      STYLE = <<~CSS
        body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; padding: 1em;
               max-width: 60em; }
        h1 { font-size: 1.4em; line-height: 1.25; overflow-wrap: anywhere; }
        h2 { font-size: 1.15em; margin-top: 2em; border-top: 1px solid #ccc; padding-top: .6em; }
        p { max-width: 42em; } small { color: #444; font-size: .85em; }
        dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10em, 1fr)); gap: 1em; }
        dt { color: #444; } dd { margin: 0; font-size: 1.6em; font-weight: 600; }
        .wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
        th, td { text-align: right; padding: .15em .8em .15em 0; white-space: nowrap; }
        th:first-child { text-align: left; font-weight: 400; }
        .process { margin: .9em 0; } .process span { display: flex; justify-content: space-between; gap: 1em; }
        .process em { font-style: normal; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
        .process q { quotes: none; white-space: nowrap; }
        .bar { display: flex; height: 1.3em; background: #f4f4f4; } .bar i { display: block; height: 100%; }
        .striped { background-image: repeating-linear-gradient(135deg, transparent 0 4px, #fff 4px 6px); }
        .legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em; }
        .key { display: inline-block; width: .9em; height: .9em; margin-right: .4em; border: 1px solid #888;
               vertical-align: -.1em; }
        .chart { position: relative; margin: 1em 0; height: 14em; }
        .chart > svg { width: 62%; height: 100%; overflow: visible; }
        polyline, .sample path { fill: none; stroke: #0b3c6e; stroke-width: 2.5; vector-effect: non-scaling-stroke; }
        .chart .grid { stroke: #ddd; vector-effect: non-scaling-stroke; }
        .chart b { position: absolute; left: 64%; font-weight: 500; line-height: 1.4; white-space: nowrap; }
        .sample { width: 2.5em; height: .6em; margin-right: .5em; }
        .map { display: block; width: 100%; max-height: 30em; border: 1px solid #ccc; background: #fff; }
        @media (max-width: 40em) {
          .chart { height: auto; } .chart > svg { width: 100%; height: 12em; }
          .chart b { position: static; display: block; }
        }
      CSS

      # +target+: the worker whose heap is shown, if it is one. +compare+: gives LostPages, or a HeapMap, of two
      # numbers of processes.
      def initialize(target = nil, compare: nil)
        @target = target
        @compare = compare || lambda do |master, worker, map|
          map ? HeapMap.new(master, worker, contents: false) : LostPages.new(master, worker, contents: false)
        end
        @looks = []
      end

      # Takes a Report into account, and gives the page. What takes long to find is as new as it may be: it
      # takes a hundredth of the time.
      def page(report)
        @report = report
        note
        find_details if @details.nil? || Memory.now - @details.at > @details.took / SHARE
        text
      end

      private

      def workers
        @report.rows.select { |row| row.member.origin && row.member.role == "worker" }
      end

      def note
        sizes = workers.filter_map { |row| row.usage.private_total }
        @looks << [Memory.now, @report.sum(:pss), sizes.max, sizes.any? ? sizes.sum / sizes.size : nil]
        return unless @looks.size > MOST_LOOKS

        older = @looks.shift(MOST_LOOKS / 2)
        @looks.unshift(*older.each_slice(2).map(&:first))
      end

      def find_details
        began = Memory.now
        rows = workers.select { |row| row.usage.shares? }.sort_by { |row| [-row.usage.private_total, row.member.pid] }
        shown = rows.find { |row| row.member.pid == @target } || rows.first
        @details = Details.new(nil, nil, @report.time, {}, shown&.member&.pid)
        [shown, *rows].compact.uniq.first(MOST_WORKERS).each { |row| look_into(row, row == shown) }
        @details.at = Memory.now
        @details.took = @details.at - began
      end

      def look_into(row, shown)
        lost = @compare.call(row.member.origin, row.member.pid, shown)
        @details.kinds[row.member.pid] = lost.tallies
        @details.heap = heap_of(lost) if shown
      rescue AddressSpace::Unreadable => e
        @details.complaint = e.message
      end

      def text
        name = @report.rows.first.member.title
        <<~HTML
          <!DOCTYPE html>
          <html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
          <title>#{escape(name)}: memory</title><style>
          #{STYLE}</style></head><body>
          <h1>#{escape(name)}</h1>
          <p>Process #{@report.root} and what it has started, at #{time(@report.time)}. MB are 1,048,576 bytes.</p>
          #{[summary, over_time, processes, heap].join("\n")}
          </body></html>
        HTML
      end

      def time(time)
        time.utc.strftime("%Y-%m-%d %H:%M:%S UTC")
      end

      def mb(bytes)
        Memory.megabytes(bytes)
      end

      def summary
        shares = workers.filter_map(&:share)
        tiles = { "the whole server (the sum of Pss)" => mb(@report.sum(:pss)),
                  "workers" => workers.size.to_s,
                  "a worker's own, on average" => mb(@looks.last.last),
                  "of the parent's memory a worker still shares" =>
                    percent(shares.any? ? shares.sum / shares.size : nil) }
        tiles = tiles.map { |name, value| "<div><dt>#{escape(name)}</dt><dd>#{escape(value)}</dd></div>" }
        "<dl>#{tiles.join}</dl>#{@report.notes.map { |note| "<p>Note: #{escape(note)}</p>" }.join}"
      end

      def over_time
        if @looks.size < 2
          return "<h2>Over time</h2><p>One look has been made. With --watch the page is written again and again, " \
                 "and shows here how it goes on.</p>"
        end
        times = @looks.map { |look| look.first - @looks.first.first }
        values = @looks.map { |look| look.drop(1) }
        lines = LINES.each_with_index.map { |name, i| ["#{name} #{mb(values.last[i])}", values.map { |look| look[i] }] }
        "<h2>Over time</h2><p>The last #{duration(times.last)}: the sum of Pss of all processes, and what workers " \
          "have for themselves alone. The upper line is #{mb(values.flatten.compact.max)}, the lower one " \
          "0.</p>#{line_chart(lines, times)}"
      end

      def duration(seconds)
        minutes = (seconds / 60).floor
        minutes.zero? ? "#{seconds.round} s" : "#{minutes} min"
      end

      def processes
        most = @report.rows.map { |row| row.usage.private_total || 0 }.max
        groups = GROUPS.map { |name, (kind, _)| [KINDS[kind], name] }
        "<h2>What each process has for itself</h2>" \
          "<p>Memory that no other process has, by what it is used for. What a worker has inherited and then " \
          "changed, so that it has its own copy, is striped; what it made since is not.</p>" \
          "#{legend([*groups, [KINDS[:unknown], "not told apart"], [KINDS[:other], "a copy", true]])}" \
          "#{@report.rows.map { |row| process(row, [most, 1].max) }.join}" \
          "#{"<p>Note: #{escape(@details.complaint)}.</p>" if @details.complaint}"
      end

      def process(row, most)
        usage, member = row.usage, row.member
        title = member.title.empty? ? "(without a title)" : member.title
        shown = usage.private_total ? "#{mb(usage.private_total)} of #{mb(usage.rss)}" : "#{mb(usage.rss)}, RSS"
        parts = parts(member.pid, usage)
        words = parts.select { |_, bytes, _, name| name && bytes >= 1 << 16 }
                     .map { |_, bytes, striped, name| "#{name}#{" (copies)" if striped} #{mb(bytes)}" }
        %(<div class="process"><span><em>#{member.pid} #{escape(title)}</em><q>#{escape(shown)}</q></span>) +
          "#{bar(parts, most)}<small>#{escape(words.join(", "))}</small></div>"
      end

      # The kinds' pages were counted at another moment than the sum: they take their part of it.
      def parts(pid, usage)
        kinds = @details.kinds[pid] or return [[KINDS[:unknown], usage.private_total || 0]]
        parts = GROUPS.flat_map do |name, (kind, members)|
          tallies = kinds.values_at(*members)
          [[KINDS[kind], tallies.sum(&:lost) * AddressSpace::PAGE, true, name],
           [KINDS[kind], tallies.sum(&:own) * AddressSpace::PAGE, false, name]]
        end
        sum = parts.sum { |_, bytes| bytes }
        return parts unless sum.positive? && usage.private_total

        parts.map { |colour, bytes, *rest| [colour, bytes * usage.private_total / sum, *rest] }
      end

      def heap
        head = "<h2>The heap of a worker</h2>"
        return "#{head}<p>There is no worker that was forked and may be read.</p>" unless @details.heap

        ended = @report.rows.none? { |row| row.member.pid == @details.shown }
        "#{head}<p>Process #{@details.shown} at #{time(@details.time)}#{"; it has ended since" if ended}.</p>" \
          "#{@details.heap}"
      end

      def heap_of(map)
        unless map.pages.any?
          why = map.contents? ? "" : ": the contents of memory may not be read (run as root)"
          return "<p>Its heap pages could not be told from malloc's memory#{escape(why)}.</p>"
        end
        "#{pages(map)}#{sizes(map)}#{arenas(map)}"
      end

      def pages(map)
        cells = map.pages.each_slice([(map.pages.size + MOST_CELLS - 1) / MOST_CELLS, 1].max).to_a
        together = cells.first.size > 1 ? " A cell of the maps stands for #{cells.first.size} pages." : ""
        "<p>#{count(map.pages.size, "heap page")} of #{map.pages.first.size >> 10} KB, in the order of their " \
          "addresses.#{together} A page counts as lost if a part of it is.</p>" \
          "#{legend(states(map))}" \
          "#{cell_map(cells.map { |cell| STATES.fetch(state(cell)) }, "heap pages by what they share")}" \
          "<p>The same pages by how full they are. Of the memory of all slots #{percent(map.fragmentation)} is " \
          "free: so fragmented is the heap.</p>" \
          "#{legend(SHADES.each_with_index.map { |shade, i| [shade, "#{i * 20} to #{i * 20 + 20} %"] })}" \
          "#{cell_map(cells.map { |cell| shade(cell) }, "heap pages by how full they are")}"
      end

      def states(map)
        found = map.pages.map { |page| state([page]) }.uniq
        MEANINGS.filter_map { |name, words| [STATES.fetch(name), words] if found.include?(name) }
      end

      # Of the pages of a cell the one that costs most decides.
      def state(cell)
        page = cell.max_by { |one| HeapMap::STATES.index(one.state) }
        page.state == "shared" && page.sealed ? :sealed : page.state.to_sym
      end

      def shade(cell)
        full = cell.sum(&:full) / cell.size
        SHADES[[(full * SHADES.size).floor, SHADES.size - 1].min]
      end

      def count(number, noun)
        "#{number} #{noun}#{"s" unless number == 1}"
      end

      def sizes(map)
        seal = map.pages.any? { |page| !page.sealed.nil? }
        head = ["slots of", "pages", "slots", "in use", "shared", "lost", "own", *("sealed" if seal)]
        rows = map.pages.group_by { |page| page.slots.zero? ? 0 : page.slot_size }.sort.map do |size, pages|
          slots = pages.sum(&:slots)
          states = %w[shared lost own].map { |state| pages.count { |page| page.state == state } }
          [size.zero? ? "none: empty" : "#{size} bytes", pages.size, slots,
           slots.zero? ? "-" : percent(pages.sum(&:used).fdiv(slots)), *states, *(pages.count(&:sealed) if seal)]
        end
        table([head, *rows])
      end

      def arenas(map)
        return if map.arenas.empty?

        bars = map.arenas.map do |arena|
          bar([[KINDS[:objects], arena.used], [KINDS[:unknown], arena.committed - arena.used]], arena.pages) +
            "<p>#{arena.used} of #{count(arena.pages, "page")} used</p>"
        end
        "<h2>Its arenas</h2><p>Address space that is reserved for heap pages. The kernel gives memory for those that " \
          "are used.</p>#{legend([[KINDS[:objects], "used"], [KINDS[:unknown], "head, or free"]])}#{bars.join}"
      end
    end
  end
end

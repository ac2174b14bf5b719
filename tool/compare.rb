# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# What tool/check-gems and tool/check-others share: two rubies, the same tests run on both, their results
# compared name by name.
require "etc"
require "json"
require "optparse"
require_relative "lib"
require_relative "../benchmark/lib/measure/machine"

INSTALL_LIMIT = 600 # seconds

# Something the user must mend: one line.
Mistake = Class.new(StandardError)

# Why RubyGems did not do what it was asked for: one line, without the server's name.
def reason_in(output)
  lines = output.lines(chomp: true).map(&:strip)
  last = lines.grep(/^ERROR/).last || lines.reject(&:empty?).last || "no output"
  last.sub(/^ERROR:\s+/, "").gsub(%r{https?://\S+}, "(the gem server)")[0, 160]
end

# What tests did: results by name, and the end of what was printed if they did not come to their own end.
Result = Struct.new(:tests, :trouble, :status)

# One of the two rubies.
class Ruby
  # Those of make rubies: their paths by kind.
  def self.installed
    %w[stock cow].to_h { |kind| [kind, File.join(TOP, "build/rubies", kind, "bin/ruby")] }
  end

  attr_reader :kind, :path, :described

  def initialize(kind, path)
    @kind = kind
    @path = File.expand_path(path)
    unless File.executable?(@path)
      raise Mistake, "the #{kind} ruby is not there: #{path}; " \
                     "run make rubies, or name one with --ruby #{kind}=PATH"
    end

    @described, @gems = ask("puts RUBY_DESCRIPTION, Gem.default_dir")
    raise Mistake, "the #{kind} ruby does not run: #{path}" unless @gems
  end

  # The lines that it prints when it runs +script+.
  def ask(script)
    IO.popen(CLEAN, [@path, "-e", script], err: File::NULL) { |io| io.read.lines(chomp: true) }
  end

  # What must not have changed since a gem was built.
  def stamp = "#{@described} #{File.mtime(File.realpath(@path)).to_i}\n"

  # The gem's own directory, and what is bundled with this ruby.
  def environment(home) = { "GEM_HOME" => home, "GEM_PATH" => "#{home}:#{@gems}" }

  def gem(log, *arguments, **options)
    run_logged(log, @path, "-S", "gem", *arguments, limit: INSTALL_LIMIT, **options)
  end

  # -S looks in PATH: this ruby's own gem comes first there.
  def bin = File.dirname(@path)
end

# What became of one gem in one form: names and "passed", "failed", "skipped".
class Row
  attr_reader :title, :outcomes, :notes, :details

  def initialize(title)
    @title = title
    @outcomes = {}
    @details = {}
    @notes = []
  end

  def skip(reason)
    @outcomes["as a whole"] = "skipped"
    @notes << "skipped: #{reason}"
    self
  end

  def fail(name, reason)
    @outcomes[name] = "failed"
    @notes << "FAILED: #{name}: #{reason}"
    self
  end

  # A test that passes on pristine passes on ours; nothing else is judged.
  def compare(stock, cow)
    (stock.tests.keys | cow.tests.keys).each do |test|
      ours = cow.tests.fetch(test, "missing")
      theirs = stock.tests.fetch(test, "missing")
      @details[test] = { stock: theirs, cow: ours }
      judge(test, theirs, ours)
    end
    if stock.tests.empty?
      return skip("pristine ran no test: #{stock.trouble.grep(/Error|BUG/).first || stock.trouble.last}")
    end

    @notes.concat(cow.trouble.map { |line| "    #{line}" })
    ended = cow.trouble.empty? || stock.trouble.any? || @outcomes.value?("failed")
    fail("as a whole", "came to no end of its own") unless ended
    self
  end

  # How many passed, failed and were skipped.
  def counts = %w[passed failed skipped].map { |result| count(result) }

  def count(result) = @outcomes.values.count(result)

  private

  def judge(test, theirs, ours)
    if theirs == "passed"
      @outcomes[test] = ours == "passed" ? "passed" : "failed"
      @notes << "FAILED: #{test}: #{ours} on ours, passes on pristine" unless ours == "passed"
    else
      @outcomes[test] = "skipped"
      @notes << "skipped: #{test}: #{theirs} on pristine, #{ours} on ours"
    end
  end
end

# Rows that are shown as they come, and written at the end: results.json with every result, tables.md.
class Comparison
  # +name+: what is compared, the key of the rows in results.json; +columns+: the table's first two, which
  # the titles of rows hold; +command+: how all this was called.
  def initialize(name, columns, stock, cow, output, command)
    @name = name
    @columns = columns
    @stock = stock
    @cow = cow
    @output = output
    # What is tried is what stands here now, and not when it ends.
    @machine = CowBench::Machine.facts(TOP).merge(name: name, commands: [command])
    @rows = []
  end

  private

  # Gives whether nothing failed.
  def finish
    write
    puts "logs and results: #{@output}"
    puts format("%d passed, %d failed, %d skipped", *@rows.map(&:counts).transpose.map(&:sum))
    @rows.none? { |row| row.count("failed").positive? }
  end

  # Where nothing could be fetched or built, nothing was compared.
  def passed?
    return true if @rows.sum { |row| row.count("passed") }.positive?

    $stderr.puts "#{File.basename($PROGRAM_NAME)}: nothing has passed on both; see the reasons above"
    false
  end

  def show(row, started)
    @rows << row
    seconds = clock - started
    puts format("%-42s %4d passed, %d failed, %d skipped  (%d s)", "#{row.title}:", *row.counts, seconds)
    row.notes.each { |line| puts "    #{line}" }
    $stdout.flush
  end

  def write
    FileUtils.mkdir_p(@output)
    rows = @rows.to_h { |row| [row.title, kept(row)] }
    results = { machine: @machine, builds: [@stock, @cow].map { |ruby| { name: ruby.kind, path: ruby.path } },
                @name => rows }
    keep("results.json", JSON.pretty_generate(results) << "\n")
    keep("tables.md", "# #{@name}\n\n#{head}\n#{table}")
  end

  # What results.json has of a row.
  def kept(row) = { outcomes: row.outcomes, tests: row.details }

  # No path of this checkout is kept.
  def keep(name, text)
    File.write(File.join(@output, name), text.gsub("#{TOP}/", ""))
  end

  def head
    rubies = [@stock, @cow].map { |ruby| "#{ruby.kind}: #{ruby.described}" }
    [*CowBench::Machine.head(@machine), *rubies].map { |line| "- #{line}\n" }.join
  end

  def table
    head = ["| #{@columns.join(" | ")} | passed | failed | skipped |\n",
            "| --- | --- | ---: | ---: | ---: |\n"]
    lines = @rows.map { |row| "| #{[row.title.sub(/(\S+ \S+) /, "\\1 | "), *row.counts].join(" | ")} |\n" }
    [*head, *lines].join
  end
end

# The command line of such a tool. A tool adds its own options (options), names what it lists (NOUN), what it
# does (BANNER) and where it builds (OUTPUT), and runs what was chosen (list, compare).
class ComparisonCommand
  def self.main
    exit new(ARGV).run
  rescue Mistake => e
    abort "#{File.basename($PROGRAM_NAME)}: error: #{e.message}"
  end

  def initialize(arguments)
    @rubies = Ruby.installed
    @output = File.join(TOP, self.class::OUTPUT)
    @jobs = [Etc.nprocessors, 2].min
    @seed = 1
    @tool = "tool/#{File.basename($PROGRAM_NAME)}"
    @command = [@tool, *arguments].join(" ")
    rest = parser.parse(arguments)
    raise Mistake, "not understood: #{rest.first}" if rest.any?
  rescue OptionParser::ParseError => e
    raise Mistake, "#{e.message}; see #{@tool} --help"
  end

  # Gives the exit status.
  def run
    chosen = list
    raise Mistake, "nothing is chosen" if chosen.empty?

    if @listed
      chosen.each { |what| puts Array(what).join(" ") }
      return 0
    end
    stock, cow = @rubies.map { |kind, path| Ruby.new(kind, path) }
    compare(chosen, stock, cow) ? 0 : 1
  end

  private

  # Those of +entries+ that --only names; all without it.
  def named(entries)
    unknown = (@only || []) - entries.map(&:name)
    if unknown.any?
      raise Mistake, "no such #{self.class::NOUN} in the list: #{unknown.join(", ")}; there are " \
                     "#{entries.map(&:name).uniq.join(", ")}"
    end

    entries.select { |entry| @only.nil? || @only.include?(entry.name) }
  end

  def compilers = ENV.fetch("COW_CCACHE", nil)

  def parser
    OptionParser.new do |o|
      o.banner = "usage: #{@tool} [options]\n#{self.class::BANNER}\n\n"
      o.on("--only NAMES", Array, "only these, with commas between") { |names| @only = names }
      o.on("--list", "prints what would be done") { @listed = true }
      o.on("--rebuild", "builds anew what is there") { @rebuild = true }
      o.on("--jobs N", Integer, "compilers at once (default: #{@jobs})") { |n| @jobs = n.clamp(1, 64) }
      o.on("--seed N", Integer, "the order of the tests (default: 1)") { |n| @seed = n }
      o.on("--ruby KIND=PATH", /\A(stock|cow)=(.+)\z/,
           "stock or cow, and its ruby (default: from make rubies)") { |_, kind, path| @rubies[kind] = path }
      o.on("--output DIR", "where all is built (default: #{self.class::OUTPUT})") do |dir|
        @output = File.expand_path(dir)
      end
      options(o)
    end
  end
end

# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Objects of every class whose references compaction updates. A witness is a question about such objects whose
# answer needs those references. test_moved.rb asks all questions again when the objects have moved, and the
# answers must be the same.
Warning[:experimental] = false
require "coverage"
require "monitor"
require "objspace"
require "stringio"
require "strscan"
require "tempfile"
require "tmpdir"
require "socket"

# With a second Ractor some questions are asked in another way.
RACTORS = ARGV.include?("ractors")

WITNESSES = {}
def witness(name, &question)
  answer = question.call
  WITNESSES[name] = [answer, question]
end

def ask(names = WITNESSES.keys)
  names.each { |name|
    expected, question = WITNESSES.fetch(name)
    answer = question.call
    raise "#{name}: expected #{expected.inspect}, found #{answer.inspect}" unless answer == expected
  }
end

def library(name)
  require name
  yield
rescue LoadError => e
  raise unless e.message.include?(name)
end

# Makes objects in another thread: the collector does not move an object that it finds on a machine stack.
def apart = Thread.new { yield }.value

def text(i) = "a string number #{i}, too long to stand in the smallest slot"

# --- code: iseqs, method entries, scopes, caches
module Refined
  refine(String) { def shout = upcase + "!" }
end
using Refined

class Base
  @@count = [text(1)]
  CONSTANT = [text(2)]
  SCALE = Object.new
  attr_accessor :plain
  def greet(name = text(3), *rest, key: [text(4)], **opts, &block) = [name, rest, key, opts, block&.call]
  alias hello greet
  define_method(:dynamic) { |x = text(5)| [x, CONSTANT] }
  def count = @@count
  def once(x) = /#{x}/o.source
  def strings = ["one #{text(6)}", :symbol, 1r, 2i, (1..), { a: [text(7)] }]
  def respond_to_missing?(...) = true
  def method_missing(name, *args) = [name, args]
  protected def guarded = text(8)
  def call_guarded(other) = other.guarded
  def overloaded(a, b = text(30)) = [a, b]
end
module Prepended
  def greet(...) = [:prepended, super]
end
module Included
  def count = [:included, super]
end
class Derived < Base
  prepend Prepended
  include Included
  def count = super
  def hello(...) = super
end
class Derived
  def self.singleton = name
  class << self
    def nested = [singleton, Base::CONSTANT]
  end
end

witness(:call) do
  3.times.map do
    o = Derived.new
    o.plain = 1
    [o.greet, o.hello { 1 }, o.dynamic, o.count, o.plain, o.strings, o.overloaded(1)]
  end
end
witness(:missing) { Base.new.anything(text(9)) }
witness(:protected) { Base.new.call_guarded(Derived.new) }
witness(:once) { Base.new.once("first") }
witness(:constant) { [Base::CONSTANT, Base::SCALE.equal?(Derived::SCALE), Derived.nested] }
witness(:cvar) { [Base.class_variable_get(:@@count), Base.new.count] }
witness(:refinement) { text(10).shout }
witness(:super_method) { Derived.instance_method(:greet).super_method.owner.name }
$global = [text(11)]
alias $aliased $global
witness(:global) { [$global, $aliased] }
witness(:eval) { eval("x = [text(12)]; -> { x }").call }
witness(:iseq) { RubyVM::InstructionSequence.compile("[1, 'text', :sym, { a: 1 }]").eval }
ISEQ = apart { RubyVM::InstructionSequence.of(Base.instance_method(:strings)) }
witness(:iseq_object) { [ISEQ.path, ISEQ.label, ISEQ.disasm.size > 100] }
File.write(AUTOLOADED = File.join(Dir.mktmpdir, "autoloaded.rb"),
           "module Autoloaded; VALUE = 42; end\nmodule AutoloadedToo; end\n")
autoload :Autoloaded, AUTOLOADED
autoload :AutoloadedToo, AUTOLOADED
witness(:autoload) do
  [Object.autoload?(:AutoloadedToo), $LOAD_PATH.frozen?, $LOADED_FEATURES.grep(/strscan/).size]
end
TRACED = []
TRACE = apart { names = []; [TracePoint.new(:call) { |tp| names << tp.method_id }, names] }
witness(:tracepoint) do
  TRACE[1].clear
  TRACE[0].enable(target: Base.instance_method(:once)) { Base.new.once(1) }
  TRACE[1].dup
end
trap(:USR2) { TRACED << 1 }
witness(:trap) { TRACED.clear; Process.kill(:USR2, $$); Thread.pass until TRACED.any?; TRACED.size }
COVERED = File.join(Dir.mktmpdir, "covered.rb")
File.write(COVERED, "def covered\n  1\nend\ncovered\n")
Coverage.start(lines: true, methods: true)
load COVERED
witness(:coverage) { Coverage.peek_result.fetch(COVERED)[:methods].transform_keys { |key| key[1] } }

# --- procs, frames, threads
PROCS = apart {
  x = text(13)
  [proc { x }, lambda { |y = x| [x, y] }, :upcase.to_proc, Base.new.method(:greet).to_proc, binding,
   (proc { x } >> proc { |y| y.size })]
}
witness(:procs) do
  [PROCS[0].call, PROCS[1].call, PROCS[2].call("a"), PROCS[3].call, PROCS[4].local_variable_get(:x),
   PROCS[5].call]
end
METHODS = apart {
  [Base.new.method(:greet), Base.instance_method(:hello), "abc".method(:upcase), [1, 2].method(:map).unbind]
}
witness(:methods) { [METHODS[0].call, METHODS[1].bind_call(Base.new), METHODS[2].call, METHODS[3].owner] }
FIBERS = [
  Fiber.new { |x| y = text(14); loop { x = Fiber.yield([x, y]) } },
  Fiber.new(storage: { key: [text(15)] }) { loop { Fiber.yield(Fiber[:key]) } },
]
witness(:fibers) { [FIBERS[0].resume(1), FIBERS[1].resume] }
FIBER_THREAD = Thread.new {
  fiber = Fiber.new { y = [text(16)]; loop { Fiber.yield(y) } }
  loop { Thread.stop; Thread.current[:answer] = fiber.resume }
}
witness(:thread) do
  FIBER_THREAD[:answer] = nil
  (FIBER_THREAD.run; Thread.pass) until FIBER_THREAD[:answer]
  FIBER_THREAD[:answer]
end
Thread.current[:fiber_local] = [text(17)]
Thread.current.thread_variable_set(:thread_local, [text(18)])
witness(:thread_locals) { [Thread.current[:fiber_local], Thread.current.thread_variable_get(:thread_local)] }
LOCKS = apart {
  [Mutex.new, Monitor.new, Queue.new.push([text(19)]), SizedQueue.new(2).push(text(20)),
   ConditionVariable.new]
}
witness(:locks) do
  q = LOCKS[2].pop
  LOCKS[2] << q
  LOCKS[0].synchronize { LOCKS[1].synchronize { [q, LOCKS[3].size] } }
end
def deep(n) = n.zero? ? caller_locations(0) : deep(n - 1)
PLACES = apart {
  [deep(5), (raise text(21) rescue $!), (nil.unknown rescue $!), (unknown_name rescue $!),
   (Base.new.greet(k: 1, &1) rescue $!)]
}
witness(:backtraces) do
  [PLACES[0].map { |l| [l.path, l.label, l.lineno] },
   PLACES[1..].map { |e| [e.message, e.backtrace&.size, e.backtrace_locations&.first&.label] }]
end
witness(:name_error) { [PLACES[2].receiver, PLACES[2].name, PLACES[3].name, PLACES[3].receiver.equal?(self)] }
witness(:catch) { catch(:tag) { [1].each { throw :tag, text(22) } } }
witness(:flip_flop) { (1..9).select { |i| true if (i == 3)..(i == 5) } }
witness(:last_match) { text(23) =~ /(number) (\d+)/; [$~[1], $2, $`] }

# --- enumerators
ENUMERATORS = apart {
  { each: [1, 2].each, size: Enumerator.new(3) { |y| y << text(24) << 2 }, chain: [1].each + [text(25)],
    product: Enumerator.product([1, 2], [text(26)]), produce: Enumerator.produce([text(27)]) { |x| x + [1] },
    lazy: (1..).lazy.map { |x| [x, text(28)] }.select { |x, _| x.odd? }.zip([7]).with_index,
    arithmetic: 1.step(10, 3), slice: [1, 2, 3].each_slice(2), with: %w[a b].each.with_object([text(29)]) }
}
STARTED = apart { e = Enumerator.new { |y| loop { y << text(31) } }; e }
witness(:enumerators) do
  ENUMERATORS.map { |k, e| [k, e.first(2), k == :produce || k == :lazy ? nil : e.size] }
end
witness(:external) { STARTED.next }

# --- containers
Point = Struct.new(:x, :y)
Wide = Struct.new(*("a".."l").map(&:to_sym))
Datum = Data.define(:a, :b)
KEPT_KEYS = apart { Array.new(200) { |i| text(100 + i) } }
WEAK = apart { m = ObjectSpace::WeakMap.new; KEPT_KEYS.each { |k| m[k] = [k] && k }; m }
WEAK_KEYS = apart { m = ObjectSpace::WeakKeyMap.new; KEPT_KEYS.each_with_index { |k, i| m[k] = [i] }; m }
witness(:weak) do
  [WEAK.size, KEPT_KEYS.all? { |k| WEAK[k].equal?(k) },
   KEPT_KEYS.each_index.all? { |i| WEAK_KEYS[text(100 + i)] == [i] }]
end
VALUES = apart {
  h = { text(32) => [text(33)] }.compare_by_identity
  { struct: Point.new(text(34), [1]), wide: Wide.new(*Array.new(12) { |i| text(i) }),
    data: Datum.new(a: [text(35)], b: 1), identity: h, default: Hash.new { |hh, k| [k, text(36)] },
    big: (1..50).to_h { |i| [text(i), [i]] }, set: Set[text(37), [text(38)]], range: (text(39)..text(40)),
    complex: Complex(2**70, 3r / 7), rational: Rational(2**80, 3**60),
    shared: Array.new(40) { |i| text(i) }.then { |a| [a, a[10..30], a.first(20)] },
    string: text(41).then { |s| [s, s[10..], s.dup] }, symbol: text(42).to_sym, regexp: Regexp.new(text(43)),
    match: text(44).match(/(?<n>\d+)/) }
}
witness(:values) do
  [VALUES.except(:default, :identity, :match), VALUES[:identity].values, VALUES[:default][1],
   VALUES[:match].pre_match, VALUES[:match][:n], VALUES[:match].regexp.names]
end
GENERIC = apart {
  Array.new(50) { |i|
    s = text(i)
    s.instance_variable_set(:@a, [s, i])
    s.instance_variable_set(:@b, text(i))
    s
  }
}
COMPLEX_SHAPES = apart {
  Array.new(12) { |i|
    o = Base.new
    s = +""
    40.times { |j|
      o.instance_variable_set(:"@i#{i}_#{j}", [j])
      s.instance_variable_set(:"@i#{i}_#{j}", [j])
    }
    o.remove_instance_variable(:"@i#{i}_3")
    [o, s]
  }
}
witness(:generic) do
  GENERIC.map { |s| [s.instance_variable_get(:@a)[0].equal?(s), s.instance_variable_get(:@b)] }
end
witness(:shapes) do
  COMPLEX_SHAPES.map { |pair|
    pair.map { |o| o.instance_variables.sum { |n| o.instance_variable_get(n)[0] } }
  }
end
IDS = apart { KEPT_KEYS.to_h { |k| [k.object_id, k] } }
witness(:object_id) do
  IDS.all? { |id, k| k.object_id == id && (RACTORS || ObjectSpace._id2ref(id).equal?(k)) }
end
FINAL = apart { o = Object.new; ObjectSpace.define_finalizer(o, proc { }); o }
witness(:finalizer) do
  ObjectSpace.undefine_finalizer(FINAL)
  ObjectSpace.define_finalizer(FINAL, proc { })[0]
end
witness(:traced_allocation) do
  ObjectSpace.trace_object_allocations { o = Object.new; ObjectSpace.allocation_sourceline(o) - __LINE__ }
end
witness(:fstring) { [-text(45), -text(45)].then { |a, b| a.equal?(b) } }
witness(:singleton) do
  o = Object.new
  def o.only = text(46)
  [o.only, o.singleton_class.attached_object.equal?(o)]
end
witness(:subclasses) { [Base.subclasses, Derived.ancestors.first(3), Derived.superclass] }

# --- files, processes, encodings and libraries
FILE = apart {
  f = Tempfile.new
  f.write(text(47))
  f.flush
  File.open(f.path, "r:utf-8:utf-16le").then { |g| [f, g] }
}
witness(:io) do
  FILE[1].rewind
  [FILE[1].read.encode("utf-8"), FILE[1].path == FILE[0].path, FILE[1].external_encoding, STDERR.inspect]
end
PAIR = apart { UNIXSocket.pair }
witness(:socket) { PAIR[0].puts(text(48)); PAIR[1].gets }
STATUS = apart { system("exit 3"); $? }
witness(:status) { [STATUS.exitstatus, STATUS.pid.positive?] }
DIR = apart { Dir.new(Dir.mktmpdir) }
witness(:dir) { [DIR.path.size.positive?, DIR.each_child.to_a] }
witness(:random) { Random.new(42).then { |r| [r.bytes(3), r.rand(100), r.seed] } }
TIMES = apart { [Time.at(0, in: "+09:00"), Time.at(2**70, 1r / 3, in: "UTC")] }
witness(:time) { TIMES.map { |t| [t.year, t.zone, t.subsec] } }
witness(:marshal) do
  values = VALUES.slice(:struct, :range, :complex, :rational, :big)
  Marshal.load(Marshal.dump([values, Point.new(1, text(49)), Time.at(0).utc, Base])).first.size
end
CONVERTER = apart {
  Encoding::Converter.new("utf-8", "euc-jp", universal_newline: true, undef: :replace,
                          replace: text(50)[0, 2])
}
witness(:converter) { CONVERTER.convert("\u3042\r\n") + CONVERTER.replacement }
BUFFERS = apart { [StringIO.new(text(51)), StringScanner.new(text(52)), IO::Buffer.for(text(53).freeze)] }
witness(:buffers) do
  BUFFERS[0].rewind
  BUFFERS[1].reset
  [BUFFERS[0].read, BUFFERS[1].scan_until(/num(?<r>ber)/), BUFFERS[1][:r], BUFFERS[2].get_string]
end
RACTOR = RACTORS && Ractor.new { loop { Ractor.yield([text(54), Ractor.receive]) } }
witness(:ractor) { RACTOR.send([text(55)]); RACTOR.take } if RACTORS
witness(:shareable) { Ractor.make_shareable([text(56), { a: [1] }]).frozen? }
library("date") do
  DATES = apart { [Date.new(2**40, 1, 2), DateTime.new(2026, 11, 21, 1, 2, 3 + 1r / 7)] }
  witness(:date) { DATES.map { |d| [d.jd, d + 1] } }
end
library("json") do
  JSON_STATE = apart { JSON::State.new(indent: text(57), space: " ", object_nl: "\n", array_nl: "\n") }
  witness(:json) { [JSON_STATE.generate({ "a" => [1, text(58)] }), JSON_STATE.indent] }
end
library("psych") { witness(:psych) { Psych.load(Psych.dump({ "a" => [1, text(59)] })) } }
library("ripper") { witness(:ripper) { Ripper.sexp("def a(b = 1) = [b, 'c']").flatten.size } }
library("prism") { witness(:prism) { Prism.parse("a = [1, 'b']").value.statements.body.size } }
library("openssl") { witness(:openssl) { OpenSSL::Digest.new("SHA256").hexdigest(text(60)) } }
library("zlib") { witness(:zlib) { Zlib::Inflate.inflate(Zlib::Deflate.deflate(text(61) * 9)) } }
library("bigdecimal") do
  DECIMAL = apart { BigDecimal("1.23456789012345678901234567890") }
  witness(:bigdecimal) { (DECIMAL * 3).to_s }
end
library("fiddle") { witness(:fiddle) { p = Fiddle::Pointer[text(62)]; [p.size, p[0, 8]] } }
library("pty") { witness(:pty) { PTY.open { |m, s| s.puts "x"; m.gets } } }

# The other threads of the parent do not exist in a forked child.
ALIVE_IN_CHILD = WITNESSES.keys - %i[thread ractor]

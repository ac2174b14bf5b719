# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "objspace"
require_relative "calls"
require_relative "holders"
require_relative "shadow"

module Fuzz
  # machine: runs operations. Each has a method op_NAME(random), and a weight.
  class Machine
    WEIGHTS = {
      put: 600, check: 400, create: 90, drop: 40, refer: 130, churn: 280, churn_value: 250, copy: 50,
      garbage: 60, call: 120, define: 60, renew_calls: 2, finalizer: 20, object_id: 30, found_by_id: 15,
      symbols: 8, weak_garbage: 12, deep: 4, raising: 10, shapes: 8, code: 6, compiled: 6, refined: 3,
      classes: 8, traced: 3, marshal: 15, patterns: 15, strings: 60, sorted: 10, frozen: 12, lambdas: 6,
      deallocation: 4, big: 3, start: 8, begin_gc: 12, compact: 3, auto_compact: 3, verify: 4,
      stress: 2, disable: 4, config: 6, measured: 2, told: 6, warmup: 2, profiled: 1, walk: 4,
      walk_all: 1, sizes: 2, dump: 1, allocations: 1, threads: 3, fibers: 5, signal: 2, fork: 6,
      fork_inside: 2, pipe: 2, files: 4, ractor: 1, shareable: 6, rehearsal: 1
    }.freeze
    NAMES = WEIGHTS.flat_map { |name, weight| [name] * weight }.freeze
    # Those that take little time, for what runs others inside.
    LIGHT = %i[put check refer churn churn_value garbage call define strings].freeze
    # Kinds of values that are made of few objects.
    STRESSED = %i[float bignum short middle wide symbol array rational struct data few time proc].freeze
    COMPACTS = GC.respond_to?(:compact)
    DEPTH = 3
    # Children that have not been waited for.
    OUTSTANDING = 2

    def initialize(seed, operations, trace: nil, only: nil)
      @seed = seed
      @operations = operations
      @trace = trace && File.open(trace, "a")
      @only = only && numbers(only)
      @shadow = Shadow.new
      @holders = Array.new(Shadow::SLOTS)
      @calls = Calls.new(@shadow)
      @depth = 0
      @children = []
      @number = -1
      @name = nil
      @main = Thread.current
      @fiber = Fiber.current
    end

    def numbers(text)
      text.split(",").flat_map do |part|
        first, last = part.split("-").map { |number| Integer(number) }
        (first..(last || first)).to_a
      end.to_h { |number| [number, true] }
    end

    def run
      guarded do
        @operations.times { |number| step(number) if @only.nil? || @only[number] }
        @number = @operations
        finish
      end
      puts "seed #{@seed}: #{@operations} operations, #{GC.count} collections"
    end

    def step(number)
      random = Random.new(@seed * 1_000_003 + number)
      @number = number
      perform(NAMES[random.rand(NAMES.size)], random)
    end

    def perform(name, random)
      @name = name
      @trace&.syswrite("#{Process.pid} #{@depth} #{@number} #{name}\n")
      send(:"op_#{name}", random)
    end

    # Ends the process with a line that names the operation.
    def guarded
      yield
    rescue SystemExit
      raise
    rescue Exception => e
      GC.stress = false
      $stderr.syswrite("fuzz: seed #{@seed}, operation #{@number} (#{@name}), forks #{@depth}: " \
                       "#{e.full_message(highlight: false)}\n")
      exit!(1)
    end

    def finish
      wait_for_children
      check_all
      GC.start
      GC.verify_internal_consistency
      check_all
    end

    # -- the shadow

    def number(random)
      n = random.rand(1 << 40) + Values::KINDS
      Values.makes?(n) ? n : n + 1
    end

    def fail_at(slot, what)
      serial = @shadow.word(slot, Shadow::SERIAL)
      raise "slot #{slot} (#{@holders[slot].class.name}, serial #{serial}): #{what}"
    end

    def check_slot(slot)
      kind = @shadow.kind(slot)
      holder = @holders[slot]
      return holder.nil? || fail_at(slot, "it should be empty") if kind.zero?

      wanted = Holders::KINDS[kind - 1]
      fail_at(slot, "it should be a #{wanted}") unless holder.instance_of?(wanted)
      serial = @shadow.word(slot, Shadow::SERIAL)
      fail_at(slot, "its token is another one") unless holder.token.whole?(serial)
      Shadow::PLACES.times { |place| check_place(slot, place) }
      check_rest(slot, holder)
    end

    def check_place(slot, place)
      n = @shadow.value(slot, place)
      value = @holders[slot].fetch(place)
      return if Values.token?(n) ? token?(value, Values.serial_of(n)) : Values.same?(value, n)

      fail_at(slot, "place #{place} is no #{Values.kind_of(n)} of #{n}: #{value.inspect[0, 300]}")
    end

    def token?(value, serial) = value.instance_of?(Values::Token) && value.whole?(serial)

    def check_rest(slot, holder)
      id = @shadow.word(slot, Shadow::ID)
      fail_at(slot, "its id was #{id}, is #{holder.object_id}") unless id.zero? || holder.object_id == id
      finalizer = @shadow.word(slot, Shadow::FINALIZER)
      fail_at(slot, "its finalizer has run") unless finalizer.zero? || @shadow.runs(finalizer).zero?
    end

    def check_all
      Shadow::SLOTS.times { |slot| check_slot(slot) }
      @calls.check_all
    end

    def any_slot(random) = random.rand(Shadow::SLOTS)

    # A slot with a holder; makes one where there is none.
    def full_slot(random)
      slot = any_slot(random)
      create(slot, random) if @shadow.kind(slot).zero?
      slot
    end

    def put(slot, place, n, value = Values.make(n))
      @shadow.set_value(slot, place, n)
      @holders[slot].store(place, value)
      nil
    end

    def create(slot, random)
      empty(slot)
      kind = random.rand(Holders::KINDS.size)
      serial = @shadow.next_number(0)
      @holders[slot] = Holders::KINDS[kind].new(serial)
      @shadow.set(slot, Shadow::KIND, kind + 1)
      @shadow.set(slot, Shadow::SERIAL, serial)
      random.rand(Shadow::PLACES + 1).times { |place| put(slot, place, number(random)) }
    end

    def empty(slot)
      @holders[slot]&.release
      @holders[slot] = nil
      @shadow.clear(slot)
    end

    # -- operations on the model

    def op_put(random)
      slot, place = full_slot(random), random.rand(Shadow::PLACES)
      n = random.rand(20).zero? ? 0 : number(random)
      put(slot, place, n, n.zero? ? nil : Values.make(n))
      check_place(slot, place)
    end

    def op_check(random) = check_slot(any_slot(random))
    def op_create(random) = create(any_slot(random), random)

    def op_drop(random) = empty(any_slot(random))

    # An old object may get a reference to a young one, a holder one to itself.
    def op_refer(random)
      from, to = full_slot(random), full_slot(random)
      serial = @shadow.word(to, Shadow::SERIAL)
      put(from, random.rand(Shadow::PLACES), Values.token_number(serial), @holders[to].token)
    end

    def op_churn(random)
      slot = full_slot(random)
      @holders[slot].churn(random)
      check_place(slot, random.rand(Shadow::PLACES))
    end

    def op_churn_value(random)
      slot, place = full_slot(random), random.rand(Shadow::PLACES)
      Values.churn(@holders[slot].fetch(place), random)
      check_place(slot, place)
    end

    def op_copy(random)
      slot = full_slot(random)
      copy = @holders[slot].copy or return
      @holders[slot] = copy
      @shadow.set(slot, Shadow::ID, 0)
      @shadow.set(slot, Shadow::FINALIZER, 0)
      check_slot(slot)
    end

    def op_garbage(random)
      random.rand(150).times { Values.make(number(random)) }
    end

    def op_define(random)
      n = [Calls::NONE, Calls::UNDEFINED, random.rand(1..1_000), random.rand(1..1_000)].sample(random: random)
      family, layer = random.rand(Calls::CLASSES), random.rand(Calls::LAYERS)
      @calls.change(family, layer, random.rand(Calls::NAMES), n, random)
    end

    def op_call(random)
      4.times { @calls.check(random.rand(Calls::CLASSES), random.rand(Calls::NAMES), random.rand(6)) }
    end

    def op_renew_calls(random) = @calls.renew(random.rand(Calls::CLASSES))

    # Made where no local variable holds the object.
    def self.finalizer(shadow, number) = proc { shadow.note_run(number); Array.new(3) { |i| i.to_s } }

    def op_finalizer(random)
      number = @shadow.next_number(1)
      return if number >= Shadow::FINALIZERS

      if random.rand(3).zero?
        ObjectSpace.define_finalizer(Object.new, Machine.finalizer(@shadow, number)) # dies soon
        return
      end
      slot = full_slot(random)
      ObjectSpace.undefine_finalizer(@holders[slot])
      @shadow.set(slot, Shadow::FINALIZER, 0)
      return if random.rand(4).zero?

      ObjectSpace.define_finalizer(@holders[slot], Machine.finalizer(@shadow, number))
      @shadow.set(slot, Shadow::FINALIZER, number)
    end

    def op_object_id(random)
      slot = full_slot(random)
      @shadow.set(slot, Shadow::ID, @holders[slot].object_id)
      Object.new.object_id
    end

    def op_found_by_id(random)
      slot = full_slot(random)
      id = @shadow.word(slot, Shadow::ID)
      return if id.zero?

      fail_at(slot, "_id2ref gives another object") unless ObjectSpace._id2ref(id).equal?(@holders[slot])
    rescue RangeError => e
      raise unless e.message.include?("multi-ractor") # Ractors were made
    end

    def op_symbols(random)
      first = random.rand(1 << 30)
      symbols = Array.new(50) { |i| "dynamic #{first + i}".to_sym }
      random.rand(3).zero? && GC.start(full_mark: random.rand(2).zero?)
      symbols.each_with_index do |symbol, i|
        name = "dynamic #{first + i}"
        raise "a symbol is another one" unless symbol.equal?(name.to_sym) && symbol.name == name
      end
      members = symbols.first(3).map { |symbol| symbol.name.tr(" ", "_").to_sym }
      Struct.new(*members).new(1, 2, 3).to_h
    end

    def op_weak_garbage(random)
      @weak ||= ObjectSpace::WeakMap.new
      @weak_keys ||= ObjectSpace::WeakKeyMap.new
      random.rand(50).times do |i|
        @weak[Object.new] = Object.new
        @weak["k#{i}"] = i
        @weak_keys["w#{i}"] = Object.new
      end
      @weak.each { |key, value| [key, value].inspect }
      @weak.keys.each(&:hash)
      @weak.key?(Object.new) && raise("a weak map knows a new object")
    end

    # Values that nothing holds but the stack.
    def op_deep(random)
      deep(random.rand(1..60), number(random), random)
    end

    def deep(depth, n, random)
      n += 1 unless Values.makes?(n)
      value = Values.make(n)
      if depth.zero?
        GC.start(full_mark: random.rand(2).zero?, immediate_sweep: random.rand(2).zero?)
        GC.compact if COMPACTS && random.rand(4).zero?
      else
        deep(depth - 1, n + 7, random)
      end
      raise "a #{Values.kind_of(n)} on the stack is another one" unless Values.same?(value, n)
    end

    def op_raising(random)
      n = number(random)
      value = Values.make(n)
      found = catch(value) do
        [1, 2].each do
          raise(Holders::Raised::Kept, "raised")
        rescue Holders::Raised::Kept => e
          e.values = [value]
          GC.start(full_mark: false) if random.rand(4).zero?
          throw value, e.values.first
        ensure
          Array.new(20) { |i| i.to_s }
        end
      end
      raise "a thrown #{Values.kind_of(n)} is another one" unless Values.same?(found, n)
    end

    def op_shapes(random)
      klass = Class.new
      objects = Array.new(random.rand(1..20)) do
        names = (0..random.rand(20)).to_a.shuffle(random: random)
        klass.new.tap { |o| names.each { |i| o.instance_variable_set(:"@s#{i}", i.to_s) } }
      end
      objects.each do |object|
        object.instance_variables.each do |name|
          raise "#{name} is another one" unless object.instance_variable_get(name) == name[2..]

          object.remove_instance_variable(name) if random.rand(5).zero?
        end
        object.dup.freeze.clone.inspect
      end
    end

    def op_code(random)
      n = number(random)
      source = "x = #{n}; y = [x, 'literal #{n}', :sym_#{n}, 1.5e#{n % 200}, /r#{n}/, {a: x}, x..]; " \
               "z = ->(q) { q + x }; [y[0], y[1], y[2], z.call(1)]"
      found = eval(source, TOPLEVEL_BINDING.dup, "eval #{n}")
      raise "code gives #{found.inspect}" unless found == [n, "literal #{n}", :"sym_#{n}", n + 1]
    end

    def op_compiled(random)
      n = number(random)
      source = "def self.compiled = [#{n}, 'l#{n}', :s#{n}, 2**80]; compiled"
      iseq = RubyVM::InstructionSequence.compile(source)
      iseq = RubyVM::InstructionSequence.load_from_binary(iseq.to_binary) if random.rand(2).zero?
      GC.start(full_mark: random.rand(2).zero?) if random.rand(5).zero?
      raise "compiled code gives something else" unless iseq.eval == [n, "l#{n}", :"s#{n}", 2**80]
    end

    # Each program has refinements of its own.
    def op_refined(random)
      n = number(random)
      refinement = "refine(String) { def refined = size + #{n}; def upcase = super + '#{n}' }"
      code = "using(Module.new { #{refinement} })\n" \
             "3.times.map { ['abc'.refined, 'abc'.upcase, %w[a b].map(&:refined)] }.uniq"
      found = RubyVM::InstructionSequence.compile(code).eval
      raise "refinements give #{found.inspect}" unless found == [[3 + n, "ABC#{n}", [1 + n, 1 + n]]]
      raise "a refinement is used elsewhere" if "abc".respond_to?(:refined) || "abc".upcase != "ABC"
    end

    def op_classes(random)
      top = Class.new
      below = Array.new(random.rand(1..15)) { Class.new(top) { def one = 1 } }
      below.each { |klass| klass.new.one; klass.singleton_class.define_method(:two) { 2 }; klass.two }
      below.shuffle!(random: random).pop(random.rand(below.size))
      GC.start if random.rand(6).zero?
      missing = below - top.subclasses
      raise "#{missing.size} subclasses are missing" if missing.any?

      top.attached_object rescue below.first&.singleton_class&.attached_object
    end

    def op_traced(random)
      events = [%i[call return], %i[c_call], %i[line], %i[raise], %i[class end b_call]].sample(random: random)
      seen = 0
      point = TracePoint.new(*events) { |_| seen += 1; seen.to_s }
      point.enable { 3.times { send(:"op_#{LIGHT.sample(random: random)}", random) } }
    end

    def op_marshal(random)
      slot = full_slot(random)
      places = (0...Shadow::PLACES).select { |place| Values.marshals?(@shadow.value(slot, place)) }
      loaded = Marshal.load(Marshal.dump(places.map { |place| @holders[slot].fetch(place) }))
      loaded.each_with_index { |value, i| @holders[slot].store(places[i], value) }
      check_slot(slot)
    end

    def op_patterns(random)
      n = number(random)
      text = Values.text(n, 1_500)
      found = text.scan(%r{[^/;]+/})
      raise "scan gives something else" unless found.uniq == ["#{n.to_s(36)}/"]

      before, match, after = text.partition(";")
      raise "partition gives something else" unless before + match + after == text

      raise "gsub gives something else" unless text.gsub(";") { |c| c * 2 }.squeeze(";") == text

      text.each_line(";").with_index { |line, i| line.prepend(i.to_s) }
      case text
      when /(?<word>\w+)/ then $~[:word] == n.to_s(36) or raise "a match gives something else"
      end
    end

    # Parts of parts, of which some are changed.
    def op_strings(random)
      n = number(random)
      whole = Values.text(n, 200 + random.rand(3_000))
      kept = whole.dup
      list = [[whole, 0, whole.bytesize]]
      random.rand(2..12).times do
        from_string, at, length = list.sample(random: random)
        next if length < 2

        from = random.rand(length)
        part = from_string.byteslice(from, random.rand(length - from) + 1)
        list << [part, at + from, part.bytesize]
      end
      changed, at, length = list.sample(random: random)
      change_string(changed, random)
      list.each do |part, first, bytes|
        next if part.equal?(changed)
        raise "a part of a string is another one" unless part == kept.byteslice(first, bytes)
      end
      raise "impossible" if at + length > kept.bytesize
    end

    def change_string(string, random)
      case random.rand(8)
      when 0 then string << "more"
      when 1 then string.setbyte(0, 1)
      when 2 then string.clear
      when 3 then string.upcase!
      when 4 then string.replace("x" * random.rand(2_000))
      when 5 then string.slice!(0, random.rand(string.bytesize))
      when 6 then string.tr!("a-z", "b-za")
      when 7 then string.encode!("UTF-16BE") rescue nil
      end
    end

    def op_sorted(random)
      list = Array.new(random.rand(200)) { |i| [random.rand(1_000), i.to_s] }
      sorted = list.sort_by { |a, b| GC.start(full_mark: false) if a == 7; [a, b.to_i] }
      other = list.sort { |a, b| (a[0] <=> b[0]).nonzero? || a[1].to_i <=> b[1].to_i }
      raise "sort_by gives something else" unless sorted == other

      list.group_by(&:first).transform_values(&:size).max_by(&:last)
      list.flatten.each_slice(7).to_a.transpose rescue nil
      list.product([1, 2]).combination(2).first(20)
      list.inject({}) { |hash, (a, b)| hash.merge(a => b) } if list.size < 40
    end

    def op_frozen(random)
      n = number(random)
      strings = Array.new(20) { |i| -"interned #{n + i}" }
      strings.each_with_index { |s, i| raise "another interned string" unless s.equal?(-"interned #{n + i}") }
      [n].freeze.dup << 1
      { a: [n.to_s].freeze }.freeze.clone(freeze: false)[:b] = 1
      n.to_s.freeze.dup << "x"
    end

    def op_lambdas(random)
      n = number(random)
      add = ->(a, b = n, *c, d: 1, **e) { a + b + c.sum + d + e.size }
      sums = [add.curry(1).call(1), (add >> :to_s.to_proc).call(2)]
      raise "a lambda gives #{sums}" unless sums == [n + 2, (n + 3).to_s]

      list = [1, 2, 3].lazy.map { |i| i + n }.select(&:positive?).first(2)
      raise "a lazy list gives #{list}" unless list == [n + 1, n + 2]

      define_singleton_method(:"single_#{random.rand(5)}") { |&block| block.call(n) }
      method(:step).unbind.bind(self).owner
      ObjectSpace.garbage_collect if random.rand(10).zero?
    end

    # All die, so that whole pages become free.
    def op_deallocation(random)
      size = random.rand(2_000)
      kept = case random.rand(5)
             when 0 then Array.new(size) { Object.new }
             when 1 then Array.new(size) { |i| "x" * (i % 700) }
             when 2 then Array.new(size) { |i| [i] * (i % 20) }
             when 3 then Array.new(size / 10) { |i| { i => i.to_s } }
             when 4 then Array.new(size / 20) { Class.new }
             end
      kept.select!.with_index { |_, i| i % 37 == 0 }
      GC.start(immediate_sweep: false) if random.rand(3).zero?
      @some_kept = kept if random.rand(3).zero?
    end

    def op_big(random)
      big = "b" * random.rand(1 << 20)
      list = Array.new(random.rand(50_000), big)
      buffer = IO::Buffer.new(1 << 20)
      buffer.set_string(big[0, 1 << 19])
      held = buffer.get_string(0, [big.size, 1 << 19].min)
      raise "a buffer holds something else" unless held == big[0, 1 << 19]

      buffer.free if random.rand(2).zero?
      list.clear
    end

    # -- the collector

    def op_start(random)
      full, mark, sweep = Array.new(3) { random.rand(2).zero? }
      GC.start(full_mark: full, immediate_mark: mark, immediate_sweep: sweep)
    end

    # The operations that follow run between its steps.
    def op_begin_gc(random)
      GC.start(full_mark: random.rand(3).positive?, immediate_mark: false, immediate_sweep: false)
    end

    def op_compact(random)
      return unless COMPACTS

      GC.compact
      GC.latest_compact_info
      check_slot(any_slot(random))
    end

    def op_auto_compact(random)
      GC.auto_compact = random.rand(3).zero? if COMPACTS
    end

    def op_verify(_random) = GC.verify_internal_consistency

    # What is made meanwhile is little: each object costs a collection.
    def op_stress(random)
      slot, place = full_slot(random), random.rand(Shadow::PLACES)
      n = number(random)
      n += 1 until STRESSED.include?(Values.kind_of(n))
      GC.stress = [true, 1, 2].sample(random: random)
      put(slot, place, n)
    ensure
      GC.stress = false
    end

    def op_disable(random)
      GC.disable
      3.times { send(:"op_#{LIGHT.sample(random: random)}", random) }
      GC.start if random.rand(3).zero?
    ensure
      GC.enable
    end

    def op_config(random)
      case random.rand(7)
      when 0
        GC.config(rgengc_allow_full_mark: false)
        2.times { op_garbage(random) }
        GC.config(rgengc_allow_full_mark: true)
      when 1 then setting(:seal, %i[auto warmup off], random)
      when 2 then setting(:target_time, [0, 0.01, 5, 50], random)
      when 3 then setting(:pressure, %i[auto rusage psi cgroup off], random)
      when 4 then setting(:memory_limit, [nil, 1 << 20, 64 << 20, 1 << 40], random)
      when 5 then GC.config
      when 6
        begin
          GC.config(seal: random.rand(5), pressure: "nonsense")
        rescue ArgumentError, TypeError
          nil
        end
      end
    end

    # CRuby does not know ours.
    def setting(key, values, random)
      GC.config(key => values.sample(random: random))
    rescue ArgumentError
      raise if GC.config.key?(key)
    end

    def op_measured(random) = GC.measure_total_time = random.rand(3).positive?

    def op_told(random)
      GC.stat
      GC.stat_heap
      GC.stat_heap(random.rand(5))
      GC.latest_gc_info
      GC.count
      GC.total_time
      GC.malloc_stat if GC.respond_to?(:malloc_stat)
      stat = GC.stat
      sum = stat[:heap_live_slots] + stat[:heap_free_slots] + stat[:heap_final_slots]
      raise "available slots: #{stat}" unless (sum - stat[:heap_available_slots]).abs < 5_000

      return unless defined?(RubyVM::YJIT) && RubyVM::YJIT.enabled?

      RubyVM::YJIT.runtime_stats
      RubyVM::YJIT.memory if RubyVM::YJIT.respond_to?(:memory)
    end

    def op_warmup(_random) = Process.warmup

    def op_profiled(random)
      GC::Profiler.enable
      op_garbage(random)
      GC.start
      GC::Profiler.raw_data
      GC::Profiler.clear
    ensure
      GC::Profiler.disable
    end

    # -- walks

    def op_walk(random)
      classes = [String, Array, Hash, Class, Module, Values::Token, Holders::Base, Object]
      klass = classes.sample(random: random)
      made = []
      ObjectSpace.each_object(klass) do |object|
        made << [object.object_id.to_s] if random.rand(3_000).zero?
        GC.start(full_mark: false) if random.rand(20_000).zero?
      end
      return if klass != Values::Token || @ractors # after Ractors a walk meets what is shareable

      serials = ObjectSpace.each_object(Values::Token).map(&:serial)
      missing = @shadow.filled.map { |slot| @shadow.word(slot, Shadow::SERIAL) } - serials
      raise "a walk does not meet tokens: #{missing}" if missing.any?
    end

    def op_walk_all(random)
      count = 0
      ObjectSpace.each_object { |_| count += 1 }
      raise "only #{count} objects" if count < 1_000

      ObjectSpace.reachable_objects_from(@holders[full_slot(random)])
      ObjectSpace.reachable_objects_from_root if random.rand(3).zero?
    end

    def op_sizes(random)
      case random.rand(6)
      when 0 then ObjectSpace.memsize_of_all
      when 1 then ObjectSpace.count_objects_size
      when 2 then ObjectSpace.count_nodes
      when 3 then ObjectSpace.count_imemo_objects
      when 4 then ObjectSpace.count_tdata_objects
      when 5 then ObjectSpace.count_objects
      end
      ObjectSpace.memsize_of(@holders[full_slot(random)])
    end

    def op_dump(random)
      File.open(File::NULL, "w") do |out|
        ObjectSpace.dump_all(output: out, shapes: random.rand(2).zero?)
      end
      ObjectSpace.dump(@holders[full_slot(random)])
    end

    def op_allocations(random)
      ObjectSpace.trace_object_allocations do
        op_garbage(random)
        object = Object.new
        GC.start if random.rand(2).zero?
        ObjectSpace.allocation_sourceline(object) or raise "an allocation was not traced"
      end
      ObjectSpace.trace_object_allocations_clear
    end

    # -- other stacks, other processes

    def op_threads(random)
      numbers = Array.new(random.rand(1..4)) { number(random) }
      threads = numbers.map do |n|
        Thread.new do
          value = Values.make(n)
          100.times { |i| Values.make(n + i) if Values.makes?(n + i); Thread.pass if i % 30 == 0 }
          GC.start(full_mark: false) if n % 5 == 0
          Values.same?(value, n)
        end
      end
      op_check(random)
      raise "a value of a thread is another one" unless threads.all?(&:value)
    end

    def op_fibers(random)
      fibers = Array.new(random.rand(1..10)) do
        n = number(random)
        Fiber.new do
          value = Values.make(n)
          Fiber.yield
          raise "a value of a fiber is another one" unless Values.same?(value, n)
        end
      end
      fibers.each(&:resume)
      op_garbage(random)
      GC.start if random.rand(4).zero?
      fibers.shuffle!(random: random).drop(random.rand(3)).each(&:resume) # some die where they wait
    end

    def op_signal(random)
      got = nil
      old = trap(:USR1) { got = Values.make(7 * Values::KINDS + 4); op_garbage(Random.new(1)) }
      Process.kill(:USR1, Process.pid)
      op_garbage(random) until got
    ensure
      trap(:USR1, old || "DEFAULT")
    end

    # Numbers above those of the parent's.
    def op_fork(random) = in_child(random) { nil }

    def in_child(random)
      return if @depth >= DEPTH

      reap while @children.size >= OUTSTANDING
      seed = random.rand(1 << 40)
      way = random.rand(4)
      $stdout.flush
      pid = fork { child(seed, way) { yield } }
      @children << pid
      # Work goes on in both.
      op_garbage(random) if random.rand(2).zero?
      reap if random.rand(3).positive?
    end

    # A child of a child does less.
    def child(seed, way)
      guarded do
        @depth += 1
        @children = []
        @shadow.filled.each { |slot| forget(slot) unless usable?(slot) }
        yield
        random = Random.new(seed)
        count = random.rand(1..(40 >> @depth))
        count.times do |i|
          inner = Random.new(seed + i + 1)
          perform(NAMES[inner.rand(NAMES.size)], inner)
        end
        wait_for_children
        check_all
        GC.verify_internal_consistency if random.rand(2).zero?
      end
      way.zero? || own_stack_freed? ? exit!(0) : exit(0)
    end

    # With RUBY_FREE_AT_EXIT CRuby frees the fiber in which a child ends, and goes on on its stack.
    def own_stack_freed?
      ENV.key?("RUBY_FREE_AT_EXIT") && Thread.current == @main && Fiber.current != @fiber
    end

    # In a child that a thread has forked the fibers of the main one cannot be resumed.
    def usable?(slot)
      return false unless @holders[slot].inherited?

      return true if Thread.current == @main

      !@holders[slot].fiber? && @shadow.values(slot).none? { |n| Values.fiber?(n) }
    end

    def forget(slot)
      @holders[slot] = nil
      @shadow.clear(slot)
    end

    def reap
      pid = @children.shift or return
      _, status = Process.wait2(pid)
      raise "child #{pid}: #{status.inspect}" unless status.success?
    end

    def wait_for_children
      reap while @children.any?
    end

    # Where something is in the middle of its work.
    def op_fork_inside(random)
      case random.rand(8)
      when 0
        walked = 0
        ObjectSpace.each_object(Array) { |_| in_child(random) { nil } if (walked += 1) == 50 }
      when 1 then { a: 1, b: 2 }.each { |_, value| in_child(random) { nil } if value == 1 }
      when 2 then Thread.new { in_child(random) { nil } }.value
      when 3 then Fiber.new { in_child(random) { nil } }.resume
      when 4
        GC.start(immediate_mark: false, immediate_sweep: false)
        op_garbage(random)
        in_child(random) { nil }
      when 5
        thread = Thread.new { 50.times { |i| Array.new(100) { |j| (i + j).to_s }; Thread.pass } }
        in_child(random) { nil }
        thread.join
      when 6
        GC.disable
        op_garbage(random)
        in_child(random) { GC.enable }
        GC.enable
      when 7
        GC.start(full_mark: true, immediate_sweep: false)
        in_child(random) { nil }
      end
    end

    # A child says what its values are.
    def op_pipe(random)
      return if @depth >= DEPTH

      slot = full_slot(random)
      return unless @holders[slot].inherited?

      places = (0...Shadow::PLACES).select { |place| Values.marshals?(@shadow.value(slot, place)) }
      reader, writer = IO.pipe
      writer.binmode
      in_child(random) do
        reader.close
        GC.start if random.rand(2).zero?
        writer.write(Marshal.dump(places.map { |place| @holders[slot].fetch(place) }))
        writer.close
      end
      writer.close
      told = reader.read
      reader.close
      return if told.empty? # no child was made

      Marshal.load(told).zip(places) do |value, place| # rubocop:disable Security/MarshalLoad
        n = @shadow.value(slot, place)
        raise "a child tells another #{Values.kind_of(n)}" unless Values.same?(value, n)
      end
    end

    def op_files(random)
      File.open(__FILE__, "rb") do |file|
        file.seek(random.rand(1_000))
        buffer = +""
        while file.read(random.rand(100..5_000), buffer)
          raise "a file has no end" if file.pos > 1 << 20
        end
        file.rewind
        file.each_line { |line| line.chomp.split }
      end
      Dir.children("/proc/self").sort
      reader, writer = IO.pipe
      writer << Values.text(random.rand(1_000), 3_000)
      writer.close
      reader.read
      reader.close
    end

    # A process that has had Ractors is another one ever after, so half of the seeds have none.
    def op_ractor(random)
      return if @seed.even?

      @ractors = true
      n = random.rand(1_000)
      ractors = Array.new(random.rand(1..3)) do |i|
        Ractor.new(n + i) do |n|
          list = Array.new(300) { |j| ["r#{n} #{j}", j, { j => n }] }
          GC.start(full_mark: false) if n % 7 == 0
          moved = Ractor.receive
          Ractor.yield([moved, list.size])
          list[n % 300].first
        end
      end
      ractors.each_with_index do |ractor, i|
        message = ["moved #{i}", Array.new(20) { |j| j.to_s }]
        ractor.send(message, move: random.rand(2).zero?)
      end
      op_garbage(random)
      ractors.each_with_index do |ractor, i|
        moved, size = ractor.take
        same = size == 300 && moved == ["moved #{i}", Array.new(20) { |j| j.to_s }]
        raise "a ractor gives #{moved.inspect}" unless same

        raise "a ractor gives something else" unless ractor.take == "r#{n + i} #{(n + i) % 300}"
      end
    end

    def op_shareable(random)
      n = number(random)
      object = Ractor.make_shareable([n.to_s, { n => [Values.text(n, 50)] }, 2**70, n..(n + 1)])
      raise "it is not shareable" unless Ractor.shareable?(object) && object[1].frozen?

      Ractor.make_shareable(object, copy: true) == object or raise "a copy differs"
    end

    def op_rehearsal(random)
      require "cowruby/rehearsal"
      app = lambda do |env|
        Values.make(number(random))
        [200, { "content-type" => "text/plain" }, [env["PATH_INFO"]]]
      end
      list = Array.new(random.rand(1..5)) { |i| "/page/#{i}" }
      report = CowRuby::Rehearsal.new(app, list, count: 10, output: nil).run
      raise "a rehearsal sent #{report.inspect}" unless report && report.sent == 10 && report.failures.empty?
    end
  end
end

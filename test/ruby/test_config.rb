# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# GC.config (gc/config.c). What its keys do stands in the tests of what they are for.
class TestConfig < Minitest::Test
  include CowTest

  GOOD = "{ seal: :off, target_time: 7, pressure: :psi, memory_limit: 1 << 30, " \
         "rgengc_allow_full_mark: false }"

  SET = "(GC.config.slice(*#{GOOD}.keys) == #{GOOD})"

  def test_all_are_set_and_given_back
    assert_equal <<~TEXT, run_ruby("puts GC.config(#{GOOD}), #{SET}, GC.config({})")
      {rgengc_allow_full_mark: false, seal: :off, target_time: 7.0, pressure: :psi, memory_limit: 1073741824}
      true
      {rgengc_allow_full_mark: false, seal: :off, target_time: 7.0, pressure: :psi, memory_limit: 1073741824}
    TEXT
  end

  # Whatever stands before and behind a value that is wrong.
  def test_nothing_is_set_where_a_value_is_wrong
    run_ruby(<<~RUBY)
      before = GC.config
      wrong = { seal: [:some, "", nil, 1, "off\\0"], target_time: [99, -1, "5", nil, Float::NAN],
                pressure: [:some, "", nil], memory_limit: [-1, "much", 1.5e300] }
      wrong.each do |key, values|
        values.each do |value|
          good = #{GOOD}
          [good.except(key).merge(key => value), { key => value }.merge(good.except(key))].each do |hash|
            GC.config(hash)
            raise "\#{key}: \#{value.inspect} was taken"
          rescue ArgumentError, TypeError, RangeError
            raise "\#{hash} has set something" unless GC.config == before
          end
        end
      end
      keys = [{ seal: :off, "target_time" => 7 }, { "x" => 1, seal: :off }, { seal: :off, implementation: 1 }]
      keys.each do |hash|
        GC.config(hash)
        raise "\#{hash} was taken"
      rescue ArgumentError, TypeError
        raise "\#{hash} has set something" unless GC.config == before
      end
    RUBY
  end

  # A value's own method may change the hash, large or small, or give its memory back.
  def test_a_value_that_changes_the_hash
    run_ruby(<<~'RUBY', env: { "MALLOC_PERTURB_" => "165", "MALLOC_CONF" => "junk:true" })
      changes = { replace: ->(hash) { hash.replace(Array.new(40) { |i| [:"r#{i}", i] }.to_h) },
                  clear: ->(hash) { hash.clear }, grow: ->(hash) { 400.times { |i| hash[:"g#{i}"] = i } },
                  move: ->(hash) { hash.compare_by_identity; GC.compact if GC.respond_to?(:compact) } }
      [2, 40, 4_000].product(changes.to_a).each do |size, (name, change)|
        hash = Hash.new(capacity: 64)
        value = Object.new
        value.define_singleton_method(:to_s) do
          change.call(hash)
          10.times { "x" * 1_500 }
          GC.start
          "warmup"
        rescue RuntimeError => e # pristine would say so for any hash that is walked through
          raise "#{size} #{name}: #{e.message}"
        end
        hash[:seal] = value
        size.times { |i| hash[:"k#{i}"] = i }
        hash[:memory_limit] = size
        GC.config(seal: :off, memory_limit: 0)
        GC.config(hash)
        found = GC.config.values_at(:seal, :memory_limit)
        raise "#{size} #{name}: #{found}" unless found == [:warmup, size]
      end
    RUBY
  end

  # The method that converts a value may itself call GC.config, or fork.
  def test_conversions_that_call_config_and_fork
    run_ruby(IN_CHILD + <<~'RUBY')
      value = Object.new
      def value.to_s
        GC.config(target_time: 9, seal: :off)
        Process.wait(fork { exit!(GC.config[:seal] == :off ? 0 : 1) })
        $?.success? ? "auto" : raise("the child")
      end
      GC.config(pressure: value, target_time: 4)
      raise GC.config.inspect unless GC.config.values_at(:pressure, :target_time, :seal) == [:auto, 4.0, :off]
      in_child { raise GC.config.inspect unless GC.config[:target_time] == 4.0 }
    RUBY
  end

  def test_under_stress_and_in_a_ractor
    out = run_ruby(<<~RUBY, options: %w[-W0])
      GC.stress = true
      GC.config(#{GOOD})
      (GC.config(seal: :some) rescue p($!.message))
      GC.stress = false
      p #{SET}
      p Ractor.new { GC.config(seal: :warmup)[:seal] }.take
    RUBY
    assert_equal "\"seal must be :auto, :warmup or :off, not :some\"\ntrue\n:warmup\n", out
  end

  # Numbers of bytes in the environment.
  def test_sizes_of_the_environment
    script = "p GC.config[:memory_limit]"
    { "0" => 0, "00" => 0, "0K" => 0, "010" => 10, "3k" => 3072, "2G" => 2 << 30, " 2G\r" => 2 << 30, "" => 0,
      "9223372036854775807" => 2**63 - 1 }.each do |text, limit|
      assert_equal "#{limit}\n", run_ruby(script, env: { "RUBY_GC_MEMORY_LIMIT" => text }, options: %w[-w])
    end
    %w[99999999999999999999 9999999999G 0x10 1T -1].each do |text|
      out = run_ruby(script, env: { "RUBY_GC_MEMORY_LIMIT" => text })
      assert_match(/warning: RUBY_GC_MEMORY_LIMIT=#{text} is ignored: .*\n0\n\z/, out)
    end
    %w[0 0M].each do |text|
      refute_match(/warning/, run_ruby("", env: { "RUBY_GC_FORK_MALLOC_LEAVE" => text }, options: %w[-w]))
    end
  end
end

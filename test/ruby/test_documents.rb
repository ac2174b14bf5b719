# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# What CowRuby adds to GC.stat, GC.stat_heap, GC.config and the environment is documented where
# users look: in RDoc (gc.c) and in ruby(1). Both texts are read from the patches, so that the
# test needs no source of CRuby.
class TestDocuments < Minitest::Test
  include CowTest

  # The keys of upstream.pin's version.
  UPSTREAM_STAT = %i[
    count time marking_time sweeping_time heap_allocated_pages heap_empty_pages heap_allocatable_slots
    heap_available_slots heap_live_slots heap_free_slots heap_final_slots heap_marked_slots heap_eden_pages
    total_allocated_pages total_freed_pages total_allocated_objects total_freed_objects malloc_increase_bytes
    malloc_increase_bytes_limit minor_gc_count major_gc_count compact_count read_barrier_faults
    total_moved_objects remembered_wb_unprotected_objects remembered_wb_unprotected_objects_limit old_objects
    old_objects_limit oldmalloc_increase_bytes oldmalloc_increase_bytes_limit
  ].freeze
  UPSTREAM_STAT_HEAP = %i[
    slot_size heap_eden_pages heap_eden_slots total_allocated_pages force_major_gc_count
    force_incremental_marking_finish_count total_allocated_objects total_freed_objects
  ].freeze
  UPSTREAM_CONFIG = %i[rgengc_allow_full_mark implementation].freeze

  # Variables of upstream that our patches name as well. Upstream's ruby(1) has them.
  UPSTREAM_VARIABLES = %w[
    RUBY_GC_HEAP_FREE_SLOTS RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO
    RUBY_GC_HEAP_FREE_SLOTS_GOAL_RATIO RUBY_GC_HEAP_GROWTH_FACTOR RUBY_GC_HEAP_GROWTH_MAX_SLOTS
    RUBY_GC_HEAP_OLDOBJECT_LIMIT_FACTOR RUBY_GC_MALLOC_LIMIT RUBY_GC_MALLOC_LIMIT_MAX
    RUBY_GC_MALLOC_LIMIT_GROWTH_FACTOR RUBY_GC_OLDMALLOC_LIMIT RUBY_GC_OLDMALLOC_LIMIT_MAX
    RUBY_GC_OLDMALLOC_LIMIT_GROWTH_FACTOR
  ].freeze

  PATCHES = Dir[File.join(ROOT, "patches/*.patch")].sort.map { |path| File.read(path) }.freeze

  # What the patches add to a file of the source.
  def self.added_to(file)
    parts = PATCHES.flat_map { |patch| patch.split(/^(?=diff --git )/) }
    parts = parts.select { |part| part.start_with?("diff --git a/#{file} ") }
    parts.join.lines.grep(/\A\+(?!\+\+)/).map { |line| line[1..] }.join
  end

  RDOC = added_to("gc.c")[%r{/\*\s+\* Document-module: GC$.*?\*/}m].to_s
  MAN = added_to("man/ruby.1").freeze

  MODULES = Dir[File.join(ROOT, "gc/**/*.{c,h,rs}")].sort.map { |path| File.read(path) }.join.freeze

  # The names of the variables in our own code. Beginnings of names, as RUBY_GC_HEAP_, are left out.
  VARIABLES = begin
    added = PATCHES.map { |patch| patch.lines.grep(/\A\+/).join }
    library = Dir[File.join(ROOT, "lib/**/*.rb")].map { |path| File.read(path) }
    [MODULES, *added].join.scan(/\bRUBY_(?:GC|STRING|YJIT)_[A-Z_]*[A-Z]\b/) |
      library.join.scan(/ENV\["(\w+)"\]/).flatten
  end.sort.freeze

  def test_texts_and_names_are_found
    refute_empty RDOC, "RDoc of GC in what the patches add to gc.c"
    refute_empty MAN, "what the patches add to man/ruby.1"
    assert_includes VARIABLES, "RUBY_GC_SEAL"
    assert_includes VARIABLES, "COWRUBY_REHEARSAL"
  end

  def test_keys_of_stat
    keys = GC.stat.keys - UPSTREAM_STAT
    assert_equal keys.sort, RDOC.scan(/^ \*  \[(\w+)\]$/).flatten.map(&:to_sym).sort - GC.config.keys,
                 "keys that RDoc has; expected are those of GC.stat"
  end

  def test_keys_of_stat_heap
    sentence = RDOC[/GC\.stat_heap has.*?\./m].to_s
    keys = GC.stat_heap(0).keys - UPSTREAM_STAT_HEAP
    assert_equal keys.sort, sentence.scan(/\+:(\w+)\+/).flatten.map(&:to_sym).sort,
                 "keys that RDoc has; expected are those of GC.stat_heap"
  end

  def test_keys_of_config
    keys = GC.config.keys - UPSTREAM_CONFIG
    keys.each { |key| assert_match(/^ \*  \[#{key}\]$/, RDOC, "RDoc must have the key #{key} of GC.config") }
    assert_equal %i[seal target_time pressure memory_limit], keys
  end

  # ruby(1) has an entry for each of our variables; RDoc names those of the collector.
  def test_variables
    ours = VARIABLES - UPSTREAM_VARIABLES
    assert_equal ours, MAN.scan(/^\.It Ev (\w+)$/).flatten.sort, "variables that ruby(1) has"
    assert_equal ours.grep(/\ARUBY_GC_/), RDOC.scan(/\bRUBY_GC_\w+/).uniq.sort, "variables that RDoc has"
  end

  # ruby(1) names the values that gc/ accepts, and no other.
  def test_values_of_variables
    %w[seal sweep pressure].each do |mode|
      names = MODULES[/#{mode}_mode_names\[[^\]]*\] = \{(.*?)\};/m, 1].scan(/"([\w-]+)"/).flatten
      entry = MAN[/^\.It Ev RUBY_GC_#{mode.upcase}\n(.*?)(?=^\.It|^\.El)/m, 1]
      assert_equal names.sort, entry.scan(/^\.Li ([\w-]+) [:.]/).flatten.uniq.sort, "values that ruby(1) has"
    end
  end
end

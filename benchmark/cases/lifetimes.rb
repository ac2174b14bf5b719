# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "tmpdir"
require_relative "../lib/measure/compiler"

module CowBench
  # Whether short-lived objects can be told from others when they are made. A page whose objects all die is
  # the cheapest to sweep, but where one in a hundred survives hardly any page of 400 slots is such a one.
  # A group stands for itself in pages of its own, its objects survive independently of each other, and which
  # part of a group survives is known before: no rule that ships could know more.
  class Lifetimes < Benchmark
    SUMMARY = "how many pages would be free of survivors at each collection if objects of a group stood in " \
              "pages of their own: an estimate, from which objects of CRuby's benchmark/gc programs " \
              "die at once"
    SYNTHETIC = true
    BY_NAME = true
    GROUPS = { none: ->(_) {}, type: ->(group) { group.type }, place: ->(group) { group.place },
               all: ->(group) { [group.type, group.place] } }.freeze
    metric :young, "die before they have survived a collection", "% of the bytes", :more, 2
    metric :none, "pages without a survivor, all objects together", "%", :more, 0
    metric :type, "pages without a survivor, each type apart", "%", :more, 0
    metric :place, "pages without a survivor, each place of allocation apart", "%", :more, 0
    metric :all, "pages without a survivor, each type of each place apart", "%", :more, 0
    Group = Struct.new(:type, :size, :place, :made, :young)
    PAGE = 16_384
    SLOTS = [40, 80, 160, 320, 640].freeze
    PROGRAMS = %w[aobench binary_trees hash1 hash2 pentomino rdoc].freeze
    SHORT = %w[binary_trees].freeze
    SOURCE = File.expand_path("../workloads/lifetimes.c", __dir__)

    def ready
      raise Skip, "needs CRuby's source tree: give --source DIR" unless options.source
      raise Skip, Compiler::MISSING unless Compiler.there?
    end

    def cases
      (quick? ? SHORT : PROGRAMS).map do |name|
        Case.new(label: name, arguments: [File.join(options.source, "benchmark/gc/#{name}.rb")], needs: 1_500)
      end
    end

    def measure(build, kase)
      measured = Dir.mktmpdir do |directory|
        compile(build, directory)
        Measured.run(build, "lifetimes", *kase.arguments, directory)
      end
      groups = measured.result["groups"].map { |group| Group.new(*group) }
      Outcome.new(values: values(groups), raw: { groups: groups.size })
    end

    private

    # The headers of a ruby that is installed, or of one in its build directory.
    def compile(build, directory)
      objects = File.expand_path("..", File.dirname(build.path))
      headers = [File.join(options.source, "include"), *Dir[File.join(objects, ".ext/include/*-*")]]
      installed = Dir[File.join(objects, "include/ruby-*{,/*-*}")]
      flags = (installed.empty? ? headers : installed).flat_map { |path| ["-I", path] }
      library = File.join(directory, "lifetimes.so")
      error = Compiler.compile(SOURCE, library, "-O2", "-shared", "-fPIC", *flags)
      raise Measured::Failed, error if error
    end

    def values(groups)
      bytes = groups.sum { |group| group.made * slot(group) }
      young = groups.sum { |group| group.young * slot(group) }
      { young: young * 100.0 / bytes, **GROUPS.transform_values { |by| free_pages(groups, by) * 100 } }
    end

    # Which part of the pages has no survivor if objects with the same answer of +by+ stand apart. A slot is
    # never shared by two sizes.
    def free_pages(groups, by)
      apart = groups.group_by { |group| [slot(group), by.call(group)] }
      pages = apart.sum { |(size, _), members| members.sum(&:made).fdiv(PAGE / size) }
      free = apart.sum do |(size, _), members|
        made = members.sum(&:made)
        made.fdiv(PAGE / size) * members.sum(&:young).fdiv(made)**(PAGE / size)
      end
      free / pages
    end

    # The size of the slot: the extension was told of a few bytes more where an object has malloc's memory.
    def slot(group)
      SLOTS.find { |size| group.size < size * 2 } || SLOTS.last
    end
  end
end

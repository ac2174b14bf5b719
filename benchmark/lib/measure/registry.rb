# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

module CowBench
  # Extended by a class: +all+ are the classes below it, in the order in which they were defined.
  module Registry
    def all
      @all ||= []
    end

    def inherited(subclass)
      super
      root = ancestors.reverse.find { |ancestor| ancestor.is_a?(Registry) }
      root.all << subclass
    end

    def find(title)
      all.find { |entry| entry.title == title }
    end
  end
end

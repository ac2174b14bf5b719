# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# Runs a program and says how many of its objects died before they had survived a collection, by
# type, size and place (lifetimes.c, compiled in the directory that is named).
require_relative "workload"

program, library = ARGV.shift(2)
$LOAD_PATH.unshift(library)
require "lifetimes"
Lifetimes.begin
load program
groups = Lifetimes.groups
Workload.at(Workload.point("end"))
Workload.result(groups: groups)

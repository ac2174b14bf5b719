# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# The server of the first paper's experiment (section 4.1): a dictionary in a
# Hash, shared by processes that answer look-ups over TCP.
require_relative "crew"
require_relative "skk_server"

# What each collection cost while a process served. Marking and sweeping go on
# in steps between other work, so what is charged to one collection is what was
# spent from its start to the start of the next.
class CollectionLog
  TIMES = %i[time marking_time sweeping_time] & GC.stat.keys # older rubies tell less

  def initialize
    @count = GC.count
    @last = GC.stat
    @now = {}
    @longest = TIMES.to_h { |key| [key, 0] }
    @collections = 0
  end

  def look
    return if GC.count == @count

    close
    @collections += GC.count - @count
    @count = GC.count
  end

  def to_h
    close
    @longest.merge(collections: @collections)
  end

  private

  def close
    GC.stat(@now)
    TIMES.each { |key| @longest[key] = [@longest[key], @now[key] - @last[key]].max }
    @last.replace(@now)
  end
end

path, warmups, workers = ARGV
dictionary = SkkDictionary.load(path)
listener = TCPServer.new("127.0.0.1", 0)
listener.listen(128)
Workload.warm_up(warmups.to_i)

crew = Crew.new(workers.to_i) do |words, orders|
  if words == "serve"
    log = CollectionLog.new
    server = SkkServer.new(dictionary, listener) { log.look }
    server.serve(orders)
    log.to_h.merge(answered: server.answered)
  else
    before = GC.stat
    GC.start
    Workload.gc_delta(before)
  end
end

Workload.result(port: listener.local_address.ip_port)
crew.tell("serve")
Workload.at(Workload.point("serving"))
Workload.at(Workload.point("served"))
crew.tell("collect")
served = crew.hear
collected = crew.hear
Workload.at(Workload.point("collected"))
crew.dismiss
Workload.result(served: served, collected: collected)

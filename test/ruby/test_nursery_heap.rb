# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "../helper"

# The heap of a child with a nursery (gc/nursery_policy.h) is sound, whatever parent and child do meanwhile;
# its size: test_nursery.rb.
class TestNurseryHeap < Minitest::Test
  include CowTest

  def surroundings = CALM

  # Ruby source for scripts that look whether the heap of a child is sound.
  SOUND = IN_CHILD + <<~'RUBY'
    Node = Struct.new(:name, :others)

    # Objects that refer to each other.
    def web(size = 100_000)
      nodes = Array.new(size) { |i| Node.new("node #{i}", []) }
      nodes.each_with_index { |node, i| node.others << nodes[i - 1] << nodes[i / 2] }
    end

    # Raises unless the heap is consistent and the web is as it was made.
    def sound(nodes)
      GC.verify_internal_consistency
      nodes.each_with_index do |node, i|
        whole = node.name == "node #{i}" && node.others[0].equal?(nodes[i - 1]) &&
                node.others[1].equal?(nodes[i / 2])
        raise "node #{i} is #{node.name}, or refers to other nodes" unless whole
      end
    end

    # Makes objects and keeps a few, as requests do; raises unless the heap is sound afterwards.
    def work(nodes, requests = 300)
      own = []
      requests.times do |i|
        own << (0...200).map { |k| "object #{k} of #{i}" }.values_at(0, 100)
        nodes[i].others << own.last if i % 10 == 0
        own.shift(10) if own.size > 100
      end
      GC.start
      sound(nodes)
      last = ["object 0 of #{requests - 1}", "object 100 of #{requests - 1}"]
      raise "the last objects are #{own.last}" unless own.last == last
    end
  RUBY

  def test_fork_of_a_fork
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      in_child do
        work(nodes)
        in_child do
          work(nodes)
          in_child { work(nodes) }
        end
        work(nodes)
      end
      work(nodes)
    RUBY
  end

  def test_fork_with_nothing_allocated
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      in_child { GC.start; sound(nodes) }
      in_child {}
      in_child { GC.disable; sound(nodes) }
    RUBY
  end

  def test_fork_during_lazy_sweep_and_incremental_marking
    out = run_ruby(SOUND + <<~'RUBY')
      nodes = web
      { sweeping: { immediate_sweep: false },
        marking: { immediate_mark: false, immediate_sweep: false } }.each do |state, how|
        200_000.times { Object.new }
        GC.start(**how)
        puts GC.latest_gc_info(:state) == state
        in_child { work(nodes) }
        work(nodes)
      end
    RUBY
    assert_equal %w[true true], out.split, "true where GC.start left a lazy sweep, or a marking, unfinished"
  end

  def test_fork_in_a_thread_and_among_objects
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      others = Array.new(3) { Thread.new { loop { Object.new; Thread.pass } } }
      Thread.new { in_child { work(nodes) } }.join
      others.each(&:kill).each(&:join)
      first = true
      ObjectSpace.each_object(Node) do
        in_child { work(nodes) } if first
        first = false
      end
      work(nodes)
    RUBY
  end

  def test_fork_with_ractors
    [1, 2].each do |count|
      run_ruby(SOUND + <<~RUBY, options: ["-W0"])
        nodes = web
        # They begin after a pause, when the main Ractor waits.
        ractors = Array.new(#{count}) do
          Ractor.new do
            sleep 0.2
            50_000.times { |i| "ractor \#{i}" }
            Ractor.yield(:ready)
            Ractor.receive
          end
        end
        ractors.each(&:take)
        in_child { work(nodes) }
        ractors.each { |ractor| ractor.send(nil); ractor.take }
        work(nodes)
      RUBY
    end
  end

  def test_under_stress
    run_ruby(SOUND + <<~'RUBY', timeout: 300)
      nodes = web(20_000)
      GC.stress = true
      pid = fork do
        "a string".dup
        fork { [1, "two"].map(&:to_s); exit!(0) }
        exit!(Process.wait2.last.exitstatus)
      end
      status = Process.wait2(pid).last
      GC.stress = false
      raise status.inspect unless status.success?
      in_child { GC.stress = true; 3.times { |i| "child #{i}" }; GC.stress = false; work(nodes, 20) }
      work(nodes)
    RUBY
  end

  def test_only_minor_collections_allowed
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      GC.config(rgengc_allow_full_mark: false)
      in_child { work(nodes) }
      work(nodes)
    RUBY
  end

  def test_compaction_and_warmup_in_a_child
    needs_compaction
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      in_child do
        work(nodes)
        GC.compact
        work(nodes)
        Process.warmup
        in_child { GC.auto_compact = true; work(nodes) }
        work(nodes)
      end
    RUBY
  end

  def test_daemon
    run_ruby(SOUND + <<~'RUBY')
      nodes = web
      reader, writer = IO.pipe
      in_child do
        reader.close
        Process.daemon(true, true)
        work(nodes)
        writer.write("sound")
      end
      writer.close
      raise "the daemon did not come to its end" unless reader.read == "sound"
    RUBY
  end
end

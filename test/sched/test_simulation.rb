# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# sched/simulate: schedules that were computed by hand, and what holds in each run.
class TestSchedulingSimulation < Minitest::Test
  include SchedulingTest

  # -- one thread, two threads

  def test_a_thread_that_runs_and_sleeps
    figures, simulation = play([entry(1, [10, sleep_of(30)])], "scx", 100)
    # It runs from 0 to 10, from 40 to 50 and from 80 to 90.
    assert_equal 30, simulation.cpu_time(simulation.tasks[0])
    assert_in_delta 0.3, figures[:busy]
    assert_equal [3, 1, 0, 0], figures.values_at(:dispatches, :switches, :address_space_switches, :hand_overs)
    assert_equal 0, figures[:longest_wait_ms]
  end

  # A thread that wakes another and waits for it: 10 ns and 5 ns, by turns.
  def ping_pong(spaces = [1, 2])
    [entry(spaces[0], [10, 1], [0, WAIT]), entry(spaces[1], [0, WAIT], [5, 0])]
  end

  def test_two_threads_that_wait_for_each_other
    [1, 2].each do |cpus|
      figures, simulation = play(ping_pong, "scx", 60, cpus: cpus)
      # 0-10 the first, 10-15 the second, 15-25, 25-30, 30-40, 40-45, 45-55, 55-60.
      assert_equal [40, 20], simulation.tasks.map { |task| simulation.cpu_time(task) }
      assert_equal 8, figures[:hand_overs], "the last one is at 60 itself"
      assert_equal 0, figures[:longest_wait_ms]
    end
  end

  def test_switches_of_address_space
    figures, = play(ping_pong, "scx", 59)
    assert_equal 7, figures[:address_space_switches]
    assert_equal 8, figures[:switches]
    figures, = play(ping_pong([1, 1]), "scx", 59)
    assert_equal 0, figures[:address_space_switches]
    # On CPUs of their own, none has to be switched.
    figures, = play(ping_pong, "scx", 59, cpus: 2)
    assert_equal [0, 2], figures.values_at(:address_space_switches, :switches)
  end

  # A thread of the kernel uses the address space that is there.
  def test_a_thread_of_the_kernel_switches_no_address_space
    between = [entry(1, [10, 1], [0, WAIT]), entry(0, [0, WAIT], [5, 0])]
    figures, = play(between, "rule", 59)
    assert_equal [0, 8, 3], figures.values_at(:address_space_switches, :switches, :hand_overs)
  end

  def test_a_wake_up_that_comes_early_is_not_lost
    # The second is woken at 5 and at 10, while it waits for the CPU or runs; it needs two wake-ups a round.
    early = [entry(1, [5, 1], [5, 1], [0, sleep_of(1_000)]),
             entry(1, [0, WAIT], [20, GO], [0, WAIT], [20, 0])]
    _, simulation = play(early, "scx", 500)
    assert_equal [10, 40], simulation.tasks.map { |task| simulation.cpu_time(task) }
  end

  def test_a_delay
    figures, simulation = play([entry(1, [10, sleep_of(30)], delay: 50)], "scx", 100)
    assert_equal 20, simulation.cpu_time(simulation.tasks[0])
    assert_equal 2, figures[:dispatches]
  end

  # -- slices and weights

  def spinner(space, weight = 100) = entry(space, [1_000, GO], weight: weight)

  def test_slices_by_turns
    assert_equal [0, 1, 2, 0, 1, 2, 0], order([spinner(1), spinner(2), spinner(3)], "scx", 69)
    assert_equal [20, 20, 10], shares([spinner(1), spinner(2), spinner(3)], "scx", 50)
  end

  # After 10 ns the first has 10 of virtual time, and the second 5 and 10 after its slices; then the first
  # was queued first.
  def test_weights
    assert_equal [0, 1, 1, 0, 1, 1, 0], order([spinner(1, 100), spinner(2, 200)], "scx", 69)
    assert_equal [20, 40], shares([spinner(1, 100), spinner(2, 200)], "scx", 60)
    # Weights of 50, 100, 200 and 400, in slices whose virtual times are whole numbers.
    assert_equal [800, 1_600, 3_200, 6_400],
                 shares([1, 2, 4, 8].map { |times| spinner(times, 50 * times) }, "scx", 12_000, slice: 40)
  end

  # Who has slept for long may be one slice behind the others, no more: it runs twice in a row and not for
  # as long as it was away.
  def test_sleep_earns_one_slice
    sleeper = entry(2, [1, sleep_of(99)], [1_000, GO])
    found = order([spinner(1), sleeper], "scx", 200)
    assert_equal [0, 1, *[0] * 10], found.first(12)
    assert_equal [1, 1, 0, 1, 0], found.drop(12).first(5)
  end

  # -- the paper's rule

  # Figure 5: threads A and C and D share one address space, B and E another. In order they are
  # A-B-C-D-E, with three switches; the rule makes A-C-D-B-E of it, with one.
  def figure5 = [1, 2, 1, 1, 2].map { |space| entry(space, [10, sleep_of(100_000)]) }

  def test_the_figure_of_the_paper
    assert_equal [0, 1, 2, 3, 4], order(figure5, "scx", 50)
    assert_equal [0, 2, 3, 1, 4], order(figure5, "rule", 50)
    assert_equal [3, 1], %w[scx rule].map { |policy| play(figure5, policy, 50)[0][:address_space_switches] }
  end

  # Two threads of space 1 and one of space 2, slices of 10. With a bonus of 5 the first may go on only
  # within 5 of the head: at 10 its virtual time is 10, the head's 0.
  def test_the_bonus_is_the_limit
    threads = [spinner(1), spinner(2), spinner(1)]
    # Virtual times of 10 and 10 and 0 at 20, and of 10, 10, 10 at 30, where space 2 was last.
    [5, 9].each { |bonus| assert_equal [0, 2, 1, 1, 0, 2], order(threads, "rule", 59, bonus: bonus) }
    assert_equal [0, 2, 0, 2, 1], order(threads, "rule", 49, bonus: 10)
  end

  # The virtual times of queued threads, and which is taken with a bonus.
  def taken(bonus, last, queued)
    cpu = Simulation::CPU.new(0)
    policy = Policies::Shared.new([cpu], slice: 1_000, bonus: bonus)
    tasks = queued.each_with_index.map do |(space, vtime), i|
      Simulation::Task.new(i, entry(space, [1, GO]), 0).tap { |task| task.vtime = vtime }
    end
    tasks.each { |task| policy.put(task) }
    cpu.space = last
    queued.size.times.map { policy.take(cpu).tap { |task| cpu.space = task.space }.index }
  end

  def test_the_rule_exactly
    assert_equal [1, 0], taken(10, 1, [[2, 0], [1, 10]]), "at the head's time and the bonus it goes first"
    assert_equal [0, 1], taken(10, 1, [[2, 0], [1, 11]]), "not one later"
    assert_equal [0, 1], taken(0, 1, [[2, 0], [1, 1]])
    assert_equal [1, 0], taken(0, 1, [[2, 0], [1, 0]]), "the same time is no unfairness"
    assert_equal [0, 1], taken(10, nil, [[2, 0], [1, 5]]), "nothing has run before"
    assert_equal [0, 1], taken(10, 3, [[2, 0], [1, 5]]), "there is none of that address space"
    assert_equal [2, 1, 0, 3], taken(10, 1, [[2, 0], [1, 7], [1, 3], [2, 2]]), "its first, not any"
    assert_equal [0, 1, 2, 3], taken(nil, 1, [[2, 0], [1, 1], [2, 2], [1, 3]])
  end

  # -- processor aggregation

  def test_an_idle_cpu_takes_all_queued_threads_of_one_foreign_space
    # Space 1 on CPU 0; spaces 2 and 3 get CPU 1. CPU 0 is idle when its thread sleeps, and takes all of
    # space 3, of which two wait, rather than the one of space 2.
    threads = [entry(1, [30, sleep_of(100_000)]), spinner(2), spinner(2), spinner(3), spinner(3)]
    starts = []
    play(threads, noting("processor", starts), 200, cpus: 2)
    late = starts.last(12).group_by(&:last).transform_values { |found| found.map(&:first).uniq.sort }
    assert_equal({ 1 => [1, 2], 0 => [3, 4] }, late)
  end

  def test_one_process_uses_all_cpus
    %w[queues processor homes rule scx].each do |policy|
      figures, = play(Array.new(8) { spinner(1) }, policy, 1_000, cpus: 4)
      assert_in_delta 1.0, figures[:busy], 1e-9, policy
      assert_in_delta 1.0, figures[:jain], 0.1, policy
    end
  end

  def test_address_spaces_stay_on_their_cpus
    threads = [1, 2, 3, 4].flat_map { |space| Array.new(3) { spinner(space) } }
    switches = %w[scx processor homes].to_h do |policy|
      [policy, play(threads, policy, 10_000, cpus: 4, bonus: 10)[0][:address_space_switches]]
    end
    assert_operator switches["processor"], :<=, 12
    assert_operator switches["homes"], :<=, 12
    assert_operator switches["scx"], :>, 1_000
  end

  # -- costs

  # A switch costs 3 and one of address spaces 2 more: of each slice 5 are left for the program.
  def test_costs_of_switches
    _, simulation = play([spinner(1), spinner(2)], "scx", 100, costs: [3, 2])
    assert_equal [25, 25], simulation.tasks.map(&:progress)
    _, simulation = play([spinner(1), spinner(1)], "scx", 100, costs: [3, 2])
    assert_equal [5 + 7 * 4, 7 * 5], simulation.tasks.map(&:progress)
    assert_raises(ArgumentError) { play([spinner(1)], "scx", 100, costs: [8, 2]) }
  end

  # -- figures

  # Three spinners on one CPU: each waits for two slices of 10; at first for none, one and two.
  def test_waits
    figures, = play([1, 2, 3].map { |space| spinner(space) }, "scx", 69)
    assert_in_delta 20e-6, figures[:longest_wait_ms]
    assert_in_delta (0 + 10 + 20 * 5) / 7.0 / 1e6, figures[:mean_wait_ms], 1e-12
    assert_in_delta 20e-6, figures[:p99_wait_ms]
  end

  # Two on one CPU in slices of 100: at 90 the second has not had its turn.
  def test_who_waits_at_the_end_counts
    figures, = play([spinner(1), spinner(2)], "scx", 90, slice: 100)
    assert_in_delta 90e-6, figures[:longest_wait_ms]
    assert_equal [1, 0], figures.values_at(:dispatches, :mean_wait_ms)
    simulation = Simulation.new(workload(spinner(1), spinner(2)), "scx", cpus: 1, slice: 100, bonus: 0)
    simulation.tasks[1].bound = 80
    assert_raises(Simulation::Broken) { simulation.run(90e-9) }
  end

  def test_only_what_comes_after_the_beginning_is_counted
    simulation = Simulation.new(workload(spinner(1), spinner(2)), "scx", cpus: 1, slice: 10, bonus: 0)
    figures = simulation.run(99e-9, from: 55e-9)
    assert_equal [4, 4], figures.values_at(:switches, :address_space_switches), "at 60, 70, 80 and 90"
    assert_in_delta 1.0, figures[:busy]
    assert_in_delta 1.0, figures[:fair_share_least], 0.1
  end

  def test_fairness_against_the_fair_share
    figures, = play([spinner(1, 100), spinner(2, 200)], "scx", 600)
    assert_in_delta 1.0, figures[:fair_share_least], 0.001
    # Of who blocks nobody knows what is fair: it has what it wants, and the other one has the rest.
    figures, = play([spinner(1), entry(2, [10, sleep_of(30)])], "scx", 400)
    assert_nil figures[:fair_share_most]
    assert_in_delta 0.8, figures[:hungry_least], 0.001
    # A thread has one CPU at the most.
    figures, = play([spinner(1, 900), spinner(2), spinner(3)], "scx", 4_000, cpus: 2)
    assert_in_delta 1.0, figures[:fair_share_most], 0.02
    figures, = play([entry(1, [10, sleep_of(30)])], "scx", 400)
    assert_nil figures[:fair_share_least]
  end

  def test_shares_by_hand
    assert_equal [25, 25, 50], Fairness.shares([1, 1, 2], 100, 100)
    # With two CPUs for 100 ns, one thread can have 100 of the 200.
    assert_equal [50, 100, 50], Fairness.shares([1, 9, 1], 200, 100)
    # Of three CPUs the heavy ones have one each.
    assert_equal [50, 100, 50, 100], Fairness.shares([1, 8, 1, 3], 300, 100)
    assert_equal [100, 100], Fairness.shares([1, 2], 300, 100)
  end

  def test_jain
    assert_in_delta 1.0, Fairness.jain([2, 2, 2])
    assert_in_delta 0.25, Fairness.jain([8, 0, 0, 0])
    assert_in_delta 1.0, Fairness.jain([0, 0])
  end

  # -- the bound

  def test_the_bound_by_hand
    # 17 equal threads, 4 CPUs, slices of 20, a bonus of 5: 16 * (20 + 5 + 25 + 20) / 4 + 20, and the
    # rounding of 17 virtual times.
    assert_equal({ 100 => 300 + 17 }, Bound.table([100] * 17, cpus: 4, slice: 20, lag: 25, margin: 5))
    # Where a thread may be queued 5 beyond the clock: 16 * 5 / 4 more.
    assert_equal({ 100 => 320 + 17 },
                 Bound.table([100] * 17, cpus: 4, slice: 20, lag: 25, margin: 5, lead: 5))
    # One of weight 50 beside one of weight 100: (40 + 0 + 20) * 1 + 20 + 20; and (20 + 20) / 2 + 20 + 20.
    assert_equal({ 50 => 102, 100 => 62 }, Bound.table([50, 100], cpus: 1, slice: 20, lag: 20))
    assert_equal({ 100 => 20 + 1 }, Bound.table([100], cpus: 3, slice: 20, lag: 20))
  end

  # Two threads of one space against one of another. With a bonus of 100 the two go on until both are more
  # than that ahead: 11 slices each. Later all begin again from other places, and never wait longer than
  # the bound.
  def test_the_rule_makes_a_thread_wait_for_its_bonus_and_no_longer
    threads = [spinner(1), spinner(2), spinner(1)]
    assert_equal [*[0, 2] * 11, 1], order(threads, "rule", 229, bonus: 100)
    [5, 100, 1_000].each do |bonus|
      wait = play(threads, "rule", 20_000, bonus: bonus)[0][:longest_wait_ms] * 1e6
      bound = Bound.table([100] * 3, cpus: 1, slice: 10, lag: bonus + 10, margin: bonus, lead: bonus)[100]
      assert_operator wait, :>=, 2 * bonus
      assert_operator wait, :<=, bound
    end
  end

  # The bonus moves CPU time by itself and no more: in the long run the shares are those of the weights.
  def test_the_rule_is_fair_in_the_long_run
    threads = [spinner(1), spinner(1, 200), spinner(2), spinner(3, 50)]
    [0, 10, 100].each do |bonus|
      found = shares(threads, "rule", 90_000, bonus: bonus)
      [20_000, 40_000, 20_000, 10_000].zip(found) do |fair, share|
        assert_in_delta fair, share, 4 * (bonus + 10)
      end
    end
  end

  # Threads that give away what they are behind by more than the carry, whenever they have used up a slice,
  # are never behind by the bonus: where the carry is less, those of one address space go before those of
  # another and get more.
  def test_a_carry_of_less_than_the_bonus_is_unfair
    threads = [*[spinner(1)] * 8, spinner(2)]
    { nil => 20_000, 200 => 20_000, 100 => 16_000 }.each do |carry, expected|
      lone = shares(threads, "rule", 90_000, cpus: 2, bonus: 200, carry: carry).last
      assert_in_delta expected, lone, 500, "carry #{carry}"
    end
    # Where the clock goes on with who is ahead, a CPU stays with an address space for ever.
    assert_operator shares(threads, "rule", 90_000, cpus: 2, bonus: 200, carry: 100, clock: "start").last,
                    :>, 80_000
  end

  # Slices of 10 and a bonus of 5: the bonus and a slice, with homes twice that, and no less than the credit.
  def test_the_usual_carry
    { "scx" => [10, 60], "rule" => [15, 60], "homes" => [30, 60] }.each do |policy, expected|
      found = [10, 60].map do |credit|
        Simulation.new(workload(spinner(1)), policy, cpus: 2, slice: 10, bonus: 5, credit: credit).policy.lag
      end
      assert_equal expected, found, policy
    end
  end

  # One thread of a process beside eight of another: its share is two ninths of two CPUs.
  def lone(policy, bonus: 10, **options)
    shares([*[spinner(1)] * 8, spinner(2)], policy, 90_000, cpus: 2, bonus: bonus, **options).last
  end

  # A CPU goes by the head of another only when that is behind by more than the bonus and a slice. Whoever had
  # used up a slice was once brought up to the time of sleepers, and never was so far behind.
  def test_homes_are_fair_to_a_process_of_one_thread
    [10, 40].each { |bonus| assert_in_delta 20_000, lone("homes", bonus: bonus), 200 }
    %w[own start].each do |clock|
      assert_in_delta 20_000, lone("homes", clock: clock), 200
      assert_operator lone("homes", clock: clock, carry: 10), :>, 22_400
      assert_operator lone("homes", bonus: 40, clock: clock, carry: 10), :>, 55_000
    end
    # By the head of all queues nobody who waits falls behind, and nothing is given away.
    assert_in_delta 20_000, lone("homes", bonus: 40, carry: 10), 200
  end

  # A thread of which the clock knows nothing for 15,000, while the only other one runs. Then its own CPU is
  # idle, and at 16,000 three more come: of 6,000 on two CPUs each of the five has 2,400.
  def long_sleeper
    [spinner(1), entry(2, [1, sleep_of(14_999)], [100_000, GO]),
     *Array.new(3) { entry(3, [1_000, GO], delay: 16_000) }]
  end

  # As sched/ did it at first: only who was queued when it woke was brought up to the clock.
  def left_behind(policy)
    changed(policy, :arrive) { |task, woken| super(task, woken) if woken && !idle? }
  end

  def test_a_long_sleeper_that_wakes_on_an_idle_cpu_has_its_share
    %w[scx rule homes].product(Policies::CLOCKS) do |policy, clock|
      found = shares(long_sleeper, policy, 22_000, cpus: 2, clock: clock)
      assert_in_delta 1_001 + 2_400, found[1], 30, "#{policy}, #{clock}"
      # It is noticed; unnoticed, it would keep its CPU for as long as it has slept.
      former = left_behind(policy)
      assert_raises(Policies::Shared::Broken) { shares(long_sleeper, former, 22_000, cpus: 2, clock: clock) }
      unnoticed = ->(cpus, **options) { former.call(cpus, **options).tap { |made| def made.lag = 1 << 40 } }
      assert_equal 1_001 + 6_000, shares(long_sleeper, unnoticed, 22_000, cpus: 2, clock: clock)[1]
    end
  end

  # Two processes of which threads wake one another, beside two that never block, on one CPU: four threads
  # that are ready at any time.
  def talkers
    talk = Array.new(4) do |i|
      [entry(1 + i % 2, [7, 2 * i + 1], [0, WAIT]), entry(1 + i % 2, [0, WAIT], [7, 2 * i])]
    end
    [*talk.flatten, spinner(3), spinner(4)]
  end

  # Threads that wake must not pay for the lead that the rule gives to one of their own: those that never
  # block would have it.
  def test_a_lead_does_not_move_the_clock
    without = shares(talkers, "scx", 90_000).last(2)
    %w[rule homes].product([1, 2]) do |policy, cpus|
      found = %w[head start].map do |clock|
        shares(talkers, policy, 90_000, cpus: cpus, bonus: 100, clock: clock).last(2)
      end
      without.zip(*found) do |fair, head, start|
        assert_in_delta fair * cpus, head, 110, "#{policy}, #{cpus} CPUs"
        assert_operator start, :>, fair * cpus + 7_000
      end
    end
  end

  # -- by chance

  def test_all_policies_keep_all_invariants
    150.times do |seed|
      random = Random.new(seed)
      entries = chance(random)
      options = { cpus: 1 + random.rand(5), slice: 5 + random.rand(60), bonus: random.rand(100),
                  credit: random.rand(60), carry: [nil, random.rand(90)].sample(random: random),
                  clock: Policies::CLOCKS.sample(random: random),
                  costs: [random.rand(3), random.rand(2)] }
      Policies::ALL.each_key do |policy|
        figures, simulation = play(entries, policy, 3_000, **options)
        next unless simulation.bound

        assert_operator figures[:longest_wait_ms], :<=, figures[:bound_ms], "seed #{seed}, #{policy}"
      rescue StandardError => e
        flunk "seed #{seed}, #{policy}: #{e.class}: #{e.message} #{e.backtrace.first(3)}"
      end
    end
  end

  # The same order by a list that is searched from its beginning, as the rule says it.
  class Listed < Policies::Shared
    def put(task)
      @number += 1
      (@list ||= []) << [task.vtime, @number, task]
      @queued += 1
    end

    def take(cpu)
      return if @queued.zero?

      sorted = @list.sort_by { |vtime, number,| [vtime, number] }
      head = sorted.first
      chosen = sorted.find { |_, _, task| task.space == cpu.space } if @bonus && cpu.space
      chosen = head unless chosen && chosen[0] <= head[0] + @bonus
      @list.delete(chosen)
      @queued -= 1
      chosen[2]
    end

    private

    def first(_cpu) = @list&.map(&:first)&.min
  end

  def test_the_rule_is_that_of_a_list
    100.times do |seed|
      random = Random.new(seed)
      entries = chance(random)
      options = { cpus: 1 + random.rand(3), slice: 5 + random.rand(60), bonus: random.rand(100) }
      { "rule" => true, "scx" => false }.each do |policy, with|
        listed = ->(cpus, bonus:, **more) { Listed.new(cpus, bonus: with ? bonus : nil, **more) }
        wanted, found = [listed, policy].map { |one| play(entries, one, 3_000, **options)[0] }
        assert_equal wanted, found, "seed #{seed}, #{policy}"
      end
    end
  end

  def test_the_same_arguments_give_the_same
    Policies::ALL.each_key do |policy|
      first, second = Array.new(2) { play(chance(Random.new(7)), policy, 5_000, cpus: 3)[0] }
      assert_equal first, second
    end
  end

  # -- what is wrong is noticed

  # A policy of which one method is replaced.
  def changed(policy, method, &body)
    lambda do |cpus, **options|
      made = Policies::ALL.fetch(policy).call(cpus, **options)
      made.tap { made.define_singleton_method(method, &body) }
    end
  end

  def test_a_cpu_that_idles_beside_a_queue_is_noticed
    lazy = changed("scx", :idle_for) { |task| super(task) if task.index.zero? }
    error = assert_raises(Simulation::Broken) { play([spinner(1), spinner(2)], lazy, 100, cpus: 2) }
    assert_match(/beside a queue/, error.message)
  end

  def test_a_thread_before_its_turn_is_noticed
    unfair = changed("scx", :choose) { |_, _| @all.instance_variable_get(:@keys).max }
    assert_raises(Policies::Shared::Broken) do
      play([entry(1, [3, sleep_of(2)]), spinner(2), spinner(3, 50)], unfair, 500)
    end
  end

  def test_a_wait_beyond_the_bound_is_noticed
    simulation = Simulation.new(workload(spinner(1), spinner(2)), "scx", cpus: 1, slice: 10, bonus: 0)
    simulation.tasks[1].bound = 9
    error = assert_raises(Simulation::Broken) { simulation.run(100e-9) }
    assert_match(/waited 10 ns, more than the bound of 9/, error.message)
  end

  def test_cpu_time_that_is_lost_is_noticed
    _, simulation = play([spinner(1)], "scx", 105)
    simulation.tasks[0].cpu_ns -= 1
    assert_raises(Simulation::Broken) { simulation.send(:check) }
  end

  def test_a_lost_wake_up_is_noticed
    _, simulation = play(ping_pong, "scx", 105)
    simulation.tasks[0].tokens += 1
    assert_raises(Simulation::Broken) { simulation.send(:check) }
  end
end

class TestSchedulingHeap < Minitest::Test
  def test_order
    random = Random.new(3)
    200.times do |size|
      heap = Scheduling::Heap.new
      numbers = Array.new(size) { random.rand(-50..50) }
      numbers.each { |number| heap.push(number) }
      assert_equal numbers.min, heap.top if size.positive?
      assert_equal size, heap.size
      assert_equal numbers.sort, Array.new(size) { heap.pop }
      assert_nil heap.pop
      assert_nil heap.top
    end
  end

  def test_pushed_and_taken_by_turns
    random = Random.new(4)
    heap = Scheduling::Heap.new
    list = []
    5_000.times do
      if random.rand(3).positive?
        number = random.rand(1_000)
        heap.push(number)
        list << number
      else
        assert_equal list.min, heap.pop
        list.delete_at(list.index(list.min)) if list.any?
      end
    end
    assert_equal list.sort, heap.clear
    assert_equal 0, heap.size
  end
end

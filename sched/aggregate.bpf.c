/* SPDX-License-Identifier: BSD-2-Clause */
/* A scheduler that lets threads of one address space run one after the other.
 *
 * The rule is Kondoh's and Kusakabe's ("Constant-order Scheduling for Process Aggregation Using Context
 * Information"), on virtual time in place of the O(1) scheduler's priorities: X is the waiting thread with
 * the least virtual time, Y that among the threads of the address space that ran last. If
 *
 *     virtual time of Y <= virtual time of X + bonus
 *
 * Y goes next, else X.
 *
 * Each address space has a queue of its own in the order of virtual time, its slot, as in the paper; so Y is
 * the head of a queue. X is the least of all slots' heads. To look at all heads at each dispatch would cost
 * as much as the rule saves, so `floor` holds a value that no head is below: while Y <= floor + bonus, Y
 * goes and no other slot is looked at. Else the heads are compared, and floor becomes X's virtual time.
 *
 * Invariants, where `head` is a slot's field:
 *     a thread waits in slot s  =>  users(s) > 0  and  the bit of s is set in a domain
 *     head(s) <= virtual time of each thread in s
 *     floor(d) <= head(s) for each s whose bit is set in domain d
 *     vnow <= virtual time and the carry or credit of each thread that waits and may run on all CPUs
 * They hold whenever a program here starts on one CPU. On several, what a CPU has just enqueued counts when
 * its program has lowered head, then set the bit, then lowered floor. Who raises head or floor by what it has
 * seen in the queues takes it back where a thread came meanwhile (`arrivals` of a slot, `since` of a domain).
 * Virtual times do not wrap: 2^64 ns are 584 years at nice 0 and eight at nice 19.
 *
 * Invariants of cgroups, where p is one, and g goes through those directly below it that are `in`:
 *     in(g) == (sum(g) > 0)
 *     sum(p) == the weights of the runnable threads directly in p + the sum of counted(g)
 *     the sum of counted(g) * (time(g) - clock(p)) == what the threads directly in p are behind by, weighted;
 *         0 without such threads
 * The last one holds when a thread has run and when a group comes or goes (comes, goes), but for what is cut:
 * roundings, a group that comes and would be owed more than the credit, leads beyond a minute. Clocks wrap:
 * only differences are looked at, as signed numbers. While a group sleeps, the clock above it may go on by
 * more than 2^63, which takes 417 days of CPU time where one thread of nice 0 runs, and 29 hours where one
 * of a group with cpu.idle does. So comes takes a lead of more than MOST_AHEAD for such a sleep.
 *
 * Domain 0 holds the slots that every CPU serves, domain 1 + c those of CPU c. With processor aggregation,
 * each slot has a home, in whose domain it is. A CPU with nothing to run, or whose own head is ahead of
 * another CPU's by more than a bonus and a slice, takes an address space from there, by changing its home;
 * or, where that address space is what the other CPU runs at the moment, a single thread.
 *
 * Virtual time is CPU time divided by weight. A thread's weight is its own (nice), and its share of its
 * cgroups' weights: at each level, a group's weight against that of all that is runnable beside it. What a
 * group has had more than its share is kept as CPU time, and a thread that wakes there is so much later (see
 * ahead): else threads that hand on to one another would each be owed what the group had.
 *
 * Entry points: the operations of `struct sched_ext_ops` at the end of the file. They are called by the
 * kernel with the run queue's lock held, those that end in _init, _exit, init_task and exit_task without.
 * An mm_struct's address may be used anew after its address space has ended; threads of two are then taken
 * for one, which costs fairness no more than the bonus.
 */
#include <vmlinux.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "policy.h"

/* The kernel hands its kfuncs to GPL-compatible programs alone. This file is under BSD-2-Clause as well. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NO_SLOT (-1)
#define NEVER (~0ULL)
#define QUEUE(slot) ((u64)(slot) + 1)  /* the name of a slot's queue in the kernel */
#define SHARED 0
#define PF_KTHREAD_BIT 0x00200000
#define PF_EXITING_BIT 0x00000004
#define LOCKED (1U << 31)              /* in slot.users: the slot changes hands */
#define WEIGHT_0 1024                  /* the weight of nice 0; a cgroup's cpu.weight of 100 is as much */
#define WEIGHT_IDLE 3                  /* of SCHED_IDLE, and of a cgroup with cpu.idle */
#define POLICY_IDLE 5
#define MAX_RT_PRIO 100
#define MOST_CHARGED 10000000000ULL    /* virtual time for one stretch of running, at most */

/* A variable alone in a section: the loader finds it at offset 0. */
const volatile struct settings settings SEC(".rodata.settings");

struct ending ending SEC(".data.ending");

struct slot_state {
    u64 mm;
    u64 head;
    s32 pin;    /* the only CPU it may run on, or -1 */
    s32 home;   /* the CPU that serves it, or -1 for all */
    u32 users;  /* threads that wait in it, or have been sent to a CPU and do not run yet */
    u32 arrivals;
};

struct domain_state {
    struct bpf_spin_lock lock; /* of floor, since and scanners; with one CPU, nobody takes it */
    u32 scanners;          /* CPUs that compare its heads at the moment */
    u64 bits[SLOT_WORDS];  /* slots in which threads wait */
    u64 floor;
    u64 since;             /* least virtual time that came since the first of the scanners began */
    u64 waiting;           /* threads that wait and only this CPU may run; in domain 0, those that all may */
};

struct cpu_state {
    u64 mm;        /* the address space that ran last; kernel threads leave it */
    u64 running;   /* the one that runs, or 0 */
    u64 space;     /* see space_of */
    s32 slot;      /* where its threads wait, or NO_SLOT */
    u32 pad;
};

struct thread_state {
    u64 vtime;
    u64 since;     /* its CPU time when it was last charged */
    u64 space;     /* see space_of */
    u64 mm;        /* as of the hint */
    u64 waits_since;
    s32 hint;      /* slot of mm, if it still is */
    s32 waits_in;  /* slot, or NO_SLOT */
    s32 pin;       /* the only CPU that it waits or waited for last, or -1 */
    s32 group;
    s32 counts_in; /* the group in whose sum it is, or -1 */
    u32 counts;    /* with this weight */
    u32 life;      /* that group's, when it came in */
    u32 yielded;   /* it has called sched_yield, and has not been queued since */
};

struct group_state {
    struct bpf_spin_lock lock; /* of sum, counted and in */
    u32 in;        /* its weight is in its parent's sum; the root's is 1 */
    s64 sum;       /* weights of what is runnable directly below it: threads, and groups with a sum */
    u64 sample;    /* sum, when a thread below it began to run last; see sample */
    u64 time;      /* CPU time of its threads by its weight; see ahead */
    u64 clock;     /* CPU time of what is below it by the sum of the weights there */
    u32 weight;
    u32 counted;   /* its weight as it stands in its parent's sum */
    s32 parent;
    u32 used;
    u32 life;      /* changes when another group gets this place */
    u32 given;     /* its weight, unless it is idle */
    u32 idle;
    u32 pad;
};

struct space_key {
    u64 mm;
    s64 pin;
};

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SLOTS);
         __type(key, u32); __type(value, struct slot_state); } slots SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, CPUS + 1);
         __type(key, u32); __type(value, struct domain_state); } domains SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, CPUS);
         __type(key, u32); __type(value, struct cpu_state); } cpus SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, GROUPS);
         __type(key, u32); __type(value, struct group_state); } groups SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, SLOTS);
         __type(key, struct space_key); __type(value, s32); } spaces SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_TASK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC);
         __type(key, int); __type(value, struct thread_state); } threads SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_CGRP_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC);
         __type(key, int); __type(value, s32); } group_of SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1);
         __type(key, u32); __type(value, struct decisions); } decisions SEC(".maps");

static u64 vnow;           /* the virtual time that threads which wake are measured by; see advance */
static u64 least_head = NEVER; /* with homes, of all domains; see compare_homes */
static u64 in_use = 1;     /* words of a domain's bits that can have any set */
static u32 next_slot = SLOT_FIRST;
static u32 group_count;    /* groups besides the root */
static u64 runnable_weight; /* of all threads that run or wait: the sum of their own weights */
static u64 runnable_sample;
static u64 hastened_at;    /* see hasten */

#define OPERATION(name, arguments...) SEC("struct_ops/" #name) BPF_PROG(name, ##arguments)
#define SLEEPABLE_OPERATION(name, arguments...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##arguments)

/* The verifier looks at a function that is not static once, not at each call anew: it would find no end with
 * the loops below. */
#define OWN_PROGRAM __noinline

/* Leaves a loop whose end the verifier cannot see, after some million rounds. */
#define may_leave(label) asm volatile goto("may_goto %l[" #label "]" : : : : label)

static struct slot_state *
slot_at(s32 index)
{
    u32 key = (u32)index;
    return bpf_map_lookup_elem(&slots, &key);
}

static struct domain_state *
domain_at(u32 index)
{
    return bpf_map_lookup_elem(&domains, &index);
}

static struct cpu_state *
cpu_at(s32 index)
{
    u32 key = (u32)index;
    return bpf_map_lookup_elem(&cpus, &key);
}

static struct group_state *
group_at(s32 index)
{
    u32 key = (u32)index;
    return bpf_map_lookup_elem(&groups, &key);
}

static struct thread_state *
thread_of(struct task_struct *p)
{
    return bpf_task_storage_get(&threads, p, 0, 0);
}

static struct decisions *
count(void)
{
    u32 key = 0;
    return bpf_map_lookup_elem(&decisions, &key);
}

/* space_of(store, p): the address of p's mm_struct, or 0. To the verifier, what was stored is a number. */
static u64
space_of(u64 *store, struct task_struct *p)
{
    *(volatile u64 *)store = (u64)p->mm;
    return *(volatile u64 *)store;
}

/* Several CPUs may do this to one value at the same moment. */
static void
raise_to(u64 *at, u64 value)
{
    for (int tries = 0; tries < 8; tries++) {
        u64 now = *(volatile u64 *)at;
        if (now >= value || __sync_val_compare_and_swap(at, now, value) == now) return;
    }
}

static void
lower_to(u64 *at, u64 value)
{
    for (int tries = 0; tries < 8; tries++) {
        u64 now = *(volatile u64 *)at;
        if (now <= value || __sync_val_compare_and_swap(at, now, value) == now) return;
    }
}

/* domain_of(slot): the number of the domain in which its bit is to be. */
static u32
domain_of(struct slot_state *slot)
{
    return slot->home < 0 ? SHARED : 1 + slot->home;
}

/* Weights */

/* weight_of(p): by nice, in the kernel's 40 steps; p->scx.weight is in hundredths, too coarse for nice 15 up.
 * */
static u32
weight_of(struct task_struct *p)
{
    u32 step = (u32)p->static_prio - 100;
    u32 weight = p->policy == POLICY_IDLE ? WEIGHT_IDLE : settings.weights[step < 40 ? step : 20];
    return weight ? weight : 1;
}

/* weight_of_group(weight): of cpu.weight, of which 100 is nice 0. */
static u32
weight_of_group(u32 weight)
{
    weight = (weight * WEIGHT_0 + 50) / 100;
    return weight ? weight : 1;
}

/* Clocks of groups count in fine units: 2^18 for each ns of a thread, by its weight. They wrap some seconds
 * after they begin, so that tests see it. */
#define FINE_BITS 8
#define CLOCK_0 (-(1ULL << 40))
#define MOST_AHEAD (1LL << 52) /* five hours of CPU time at nice 0, 51 s of cpu.idle */

/* part_of(amount, part, whole): amount * part / whole, of either sign. */
static s64
part_of(s64 amount, u64 part, u64 whole)
{
    bool negative = amount < 0;
    u64 size = negative ? -(u64)amount : (u64)amount;

    if (size > 1ULL << 44) size = 1ULL << 44; /* a minute of CPU time */
    size = size * (part < 1 << 18 ? part : 1 << 18) / (whole ? whole : 1);
    return negative ? -(s64)size : (s64)size;
}

/* comes(group, parent): the group begins to have something runnable below it. It is owed no more than the
 * credit. A parent's clock stays the mean of its groups' times, so it goes where that is now. */
static void
comes(struct group_state *group, struct group_state *parent)
{
    s64 ahead = (s64)(group->time - parent->clock), least = -(s64)(settings.credit << FINE_BITS);

    if (ahead < least || ahead > MOST_AHEAD) {
        __sync_fetch_and_add(&group->time, (u64)least - (u64)ahead);
        ahead = least;
    }
    u64 sum = parent->sum > 0 ? parent->sum : 0;
    __sync_fetch_and_add(&parent->clock, (u64)part_of(ahead, group->counted, sum + group->counted));
}

/* goes(group, parent): it ceases to have something runnable. What it was ahead by, the others are no longer
 * behind by, as nobody is left who could give it back; when it comes again soon, all is as before. */
static void
goes(struct group_state *group, struct group_state *parent)
{
    s64 ahead = (s64)(group->time - parent->clock), rest = parent->sum - group->counted;

    if (rest > 0) ahead = part_of(ahead, group->counted, rest);
    else ahead = -ahead;
    __sync_fetch_and_add(&parent->clock, -(u64)ahead);
}

/* sum_changes(index, amount): of a group; where it begins or ceases to have something runnable below it, its
 * parent's as well, and so on. Changes of several CPUs add up in any order: `in` goes by the sum alone. */
OWN_PROGRAM int
sum_changes(s32 index, s64 amount)
{
    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index);
        if (!group || !amount) break;
        if (group->parent < 0) {
            __sync_fetch_and_add(&group->sum, amount);
            break;
        }
        bpf_spin_lock(&group->lock);
        group->sum += amount;
        amount = 0;
        if (group->sum > 0 && !group->in) {
            group->in = 1;
            amount = group->counted = group->weight;
        }
        else if (group->sum <= 0 && group->in) {
            group->in = 0;
            amount = -(s64)group->counted;
        }
        bpf_spin_unlock(&group->lock);
        index = group->parent;
        struct group_state *parent = group_at(index);
        if (!parent) break;
        if (amount > 0) comes(group, parent);
        if (amount < 0) goes(group, parent);
    }
    return 0;
}

/* group_weighs(group, weight): from now on; with 0, for the rest of its life, nothing. */
static void
group_weighs(struct group_state *group, u32 weight)
{
    s64 amount = 0;

    bpf_spin_lock(&group->lock);
    group->weight = weight;
    if (group->in) {
        amount = (s64)weight - group->counted;
        group->counted = weight;
    }
    bpf_spin_unlock(&group->lock);
    sum_changes(group->parent, amount);
}

/* begin_counting(t, weight): t is runnable, and its weight comes into the sums of its groups. */
static void
begin_counting(struct thread_state *t, u32 weight)
{
    struct group_state *group = group_at(t->group);

    __sync_fetch_and_add(&runnable_weight, weight);
    t->counts_in = t->group;
    t->counts = weight;
    t->life = group ? group->life : 0;
    sum_changes(t->group, weight);
}

static void
end_counting(struct thread_state *t)
{
    struct group_state *group = t->counts_in < 0 ? NULL : group_at(t->counts_in);
    s32 index = t->counts_in;

    if (!group) return;
    t->counts_in = -1;
    __sync_fetch_and_add(&runnable_weight, -(u64)t->counts);
    if (group->life == t->life) sum_changes(index, -(s64)t->counts);
}

/* sample(index): takes down the sums of a group and of those above, for the charge of a thread that begins to
 * run. It wakes others mostly at the end of its run, so a sum is higher when it is charged than while it ran.
 * */
OWN_PROGRAM int
sample(s32 index)
{
    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index);
        if (!group) break;
        s64 sum = *(volatile s64 *)&group->sum;
        group->sample = sum > 0 ? sum : 0;
        if (group->parent < 0) break;
        index = group->parent;
    }
    runnable_sample = runnable_weight;
    return 0;
}

/* sum_with(group, part): the group's sum, and not less than a part of it. */
static u64
sum_with(struct group_state *group, u64 part)
{
    u64 sum = *(volatile u64 *)&group->sample;
    return sum > part ? sum : part;
}

/* share_of(index, part): of a weight directly below group index, among all that is runnable; 32 bits behind
 * the point. */
OWN_PROGRAM u64
share_of(s32 index, u64 part)
{
    u64 share = 1ULL << 32;

    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index);
        if (!group) break;
        share = share * part / sum_with(group, part);
        if (group->parent < 0) break;
        part = group->counted;
        index = group->parent;
    }
    return share;
}

/* weight_for(share, all): the same as a weight, where all together weigh `all`; 20 bits behind the point. */
static u64
weight_for(u64 share, u64 all)
{
    if (all > 1ULL << 31) all = 1ULL << 31;
    u64 weight = all * share >> 12;
    return weight ? weight : 1;
}

/* used_in_groups(index, own, used): the virtual time of a thread of group index for `used` ns of CPU time;
 * its groups' times go on as well. The weights of all runnable threads among all make the sum of their own,
 * so that the bonus keeps its worth, wherever the threads are. */
OWN_PROGRAM u64
used_in_groups(s32 index, u32 own, u64 used)
{
    u64 all = runnable_sample > own ? runnable_sample : own, part = own;
    u64 gained = (used * WEIGHT_0 << 20) / weight_for(share_of(index, own), all);

    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index);
        if (!group) break;
        __sync_fetch_and_add(&group->clock, (used * WEIGHT_0 << FINE_BITS) / sum_with(group, part));
        if (group->parent < 0) break;
        part = group->counted ? group->counted : 1;
        __sync_fetch_and_add(&group->time, (used * WEIGHT_0 << FINE_BITS) / part);
        index = group->parent;
    }
    return gained < MOST_CHARGED ? gained : MOST_CHARGED;
}

/* charge(p, t): what p has run since it was charged last. */
static void
charge(struct task_struct *p, struct thread_state *t)
{
    u64 used = p->se.sum_exec_runtime - t->since;
    u32 own = weight_of(p);

    t->since = p->se.sum_exec_runtime;
    if (used > 1000000000) used = 1000000000; /* a tick that came late; keeps the products below 2^64 */
    if (group_count) used = used_in_groups(t->group, own, used);
    else if (own != WEIGHT_0) used = used * WEIGHT_0 / own;
    t->vtime += used;
}

/* Time */

/* waiting_for(cpu): how many threads wait for this CPU alone. */
static u64
waiting_for(s32 cpu)
{
    struct domain_state *own = domain_at(1 + cpu);
    return own ? own->waiting : 0;
}

/* now_at(pin): the virtual time that threads are measured by that may run on one CPU only. They may get less
 * than the others as long as there are many; then it is the head of those who wait for the CPU. */
static u64
now_at(s32 pin)
{
    u64 now = vnow, head = NEVER;

    if (pin < 0 || settings.cpus == 1) return now;
    struct domain_state *own = domain_at(1 + pin);
    if (own && own->waiting) head = own->floor;
    return head < now ? head : now;
}

/* keep_up(t, by): t is behind by so much at most. */
static void
keep_up(struct thread_state *t, u64 by)
{
    u64 now = now_at(t->pin);
    if (now > by && t->vtime < now - by) t->vtime = now - by;
}

/* ahead(index): by how much virtual time a thread of group index is ahead because its groups have had more
 * than their shares. That is kept as CPU time: with many runnable threads virtual time goes slowly, and what
 * a group is ahead by then would be made up for in a moment when there are few. */
OWN_PROGRAM s64
ahead(s32 index)
{
    struct group_state *own = group_at(index);
    s64 sum = 0;

    if (!own || own->parent < 0) return 0;
    u64 share = share_of(own->parent, own->counted);
    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index), *parent = group ? group_at(group->parent) : NULL;
        if (!group || group->parent < 0 || !parent) break;
        /* 10 bits behind the point */
        u64 pace = ((u64)group->counted << 30) / weight_for(share, runnable_sample);
        s64 difference = (s64)(group->time - parent->clock) >> FINE_BITS;
        if (pace > 1 << 20) pace = 1 << 20;
        if (difference > (s64)MOST_CHARGED) difference = MOST_CHARGED;
        if (difference < -(s64)MOST_CHARGED) difference = -(s64)MOST_CHARGED;
        sum += difference * (s64)pace >> 10;
        share = share * sum_with(parent, group->counted) / (group->counted ? group->counted : 1);
        if (share > 1ULL << 32) share = 1ULL << 32;
        index = group->parent;
    }
    return sum;
}

/* keep_up_with_groups(index, vtime, credit): the virtual time of a thread that wakes, or is new, there. */
static u64
keep_up_with_groups(s32 index, u64 vtime, u64 credit)
{
    s64 by = ahead(index);
    if (by > (s64)credit && vtime < vnow + by - credit) vtime = vnow + by - credit;
    return vtime;
}

/* wake(t, credit): t begins to wait for a CPU after a sleep, or is new. */
static void
wake(struct thread_state *t, u64 credit)
{
    keep_up(t, credit);
    if (group_count && t->group > 0 && now_at(t->pin) == vnow)
        t->vtime = keep_up_with_groups(t->group, t->vtime, credit);
}

/* Slots */

/* leave_slot(t): t no longer waits. */
static void
leave_slot(struct thread_state *t)
{
    s32 index = t->waits_in;
    if (index == NO_SLOT) return;
    t->waits_in = NO_SLOT;
    struct slot_state *slot = slot_at(index);
    if (!slot) return;
    __sync_fetch_and_add(&slot->users, -1);
    if (settings.cpus > 1) {
        struct domain_state *domain = domain_at(t->pin >= 0 ? 1 + t->pin : SHARED);
        if (domain) __sync_fetch_and_add(&domain->waiting, -1);
    }
}

/* enter(index, mm, pin): counts one more user of the slot, if it is that of mm and pin. */
static bool
enter(s32 index, u64 mm, s32 pin)
{
    struct slot_state *slot = slot_at(index);
    if (!slot) return false;
    u32 users = __sync_fetch_and_add(&slot->users, 1);
    if (!(users & LOCKED) && slot->mm == mm && slot->pin == pin) return true;
    __sync_fetch_and_add(&slot->users, -1);
    return false;
}

/* slot_with(mm, pin): the slot of an address space, or NO_SLOT; it may be another's the next moment. */
static s32
slot_with(u64 mm, s32 pin)
{
    struct space_key key = { mm, pin };
    s32 *index = bpf_map_lookup_elem(&spaces, &key);
    return index ? *index : NO_SLOT;
}

/* word_of(domain, index): where the bit of a slot is. The verifier wants the comparison here, whoever calls.
 * */
static u64 *
word_of(struct domain_state *domain, s32 index)
{
    u32 word = (u32)index / 64;
    barrier_var(word);
    return word < SLOT_WORDS ? &domain->bits[word] : NULL;
}

/* Sets or clears the bit of a slot in a domain. */
static void
mark(struct domain_state *domain, s32 index, bool on)
{
    u64 *word = word_of(domain, index), bit = 1ULL << (index & 63);
    if (!word) return;
    if (!on) __sync_fetch_and_and(word, ~bit);
    else if (!(*word & bit)) __sync_fetch_and_or(word, bit);
}

/* forget_bits(index): of a slot that changes hands; the one who had it may have left some. */
OWN_PROGRAM int
forget_bits(s32 index)
{
    for (u32 number = 0; number <= CPUS; number++) {
        may_leave(end);
        if (number > settings.cpus) break;
        struct domain_state *domain = domain_at(number);
        if (!domain) break;
        u64 *word = word_of(domain, index);
        if (word && *word & 1ULL << (index & 63)) mark(domain, index, false);
    }
end:
    return 0;
}

/* new_slot(mm, pin, home): gives a slot in which nothing waits to an address space, with one user. */
OWN_PROGRAM s32
new_slot(u64 mm, s32 pin, s32 home)
{
    struct space_key key = { mm, pin };

    for (int tries = 0; tries < 64; tries++) {
        u32 index = next_slot;
        next_slot = index + 1 < SLOTS ? index + 1 : SLOT_FIRST;
        struct slot_state *slot = slot_at(index);
        if (!slot) return NO_SLOT;
        if (__sync_val_compare_and_swap(&slot->users, 0, LOCKED) != 0) continue;
        struct space_key old = { slot->mm, slot->pin };
        s32 number = index;
        if (old.mm) bpf_map_delete_elem(&spaces, &old);
        forget_bits(index);
        slot->mm = mm;
        slot->pin = pin;
        slot->home = home;
        slot->head = NEVER;
        if (bpf_map_update_elem(&spaces, &key, &number, BPF_NOEXIST)) {
            slot->mm = 0; /* another CPU was first; it will be found there next time */
            __sync_fetch_and_add(&slot->users, -LOCKED);
            return NO_SLOT;
        }
        raise_to(&in_use, index / 64 + 1);
        __sync_fetch_and_add(&slot->users, 1 - LOCKED);
        return number;
    }
    return NO_SLOT;
}

/* enter_slot(t, mm, pin, cpu): the slot in which a thread is to wait, counted as one more user. */
static s32
enter_slot(struct thread_state *t, u64 mm, s32 pin, s32 cpu)
{
    s32 index;

    if (settings.rule && mm) {
        if (t->mm == mm && enter(t->hint, mm, pin)) return t->hint;
        index = slot_with(mm, pin);
        if (index != NO_SLOT && !enter(index, mm, pin)) index = NO_SLOT;
        if (index == NO_SLOT) index = new_slot(mm, pin, pin >= 0 ? pin : settings.homes ? cpu : -1);
        if (index != NO_SLOT) {
            t->mm = mm;
            t->hint = index;
            return index;
        }
        struct decisions *c = count();
        if (c) c->crowded++;
    }
    index = pin >= 0 ? SLOT_PINNED + pin : settings.rule && !mm ? SLOT_KERNEL : SLOT_CROWD;
    struct slot_state *slot = slot_at(index);
    if (slot) __sync_fetch_and_add(&slot->users, 1);
    return index;
}

/* lower_floor(domain, vtime): a thread has come into a slot of the domain. */
static void
lower_floor(struct domain_state *domain, u64 vtime)
{
    if (settings.cpus == 1) {
        if (vtime < domain->floor) domain->floor = vtime;
        return;
    }
    bpf_spin_lock(&domain->lock);
    if (vtime < domain->floor) domain->floor = vtime;
    if (vtime < domain->since) domain->since = vtime;
    bpf_spin_unlock(&domain->lock);
}

/* look(index, slot, domain): virtual time of the first thread in a slot, or NEVER. Corrects head, unless a
 * thread is on its way into the queue: it counts as user before. Clears the bit of a slot without users. */
static u64
look(s32 index, struct slot_state *slot, struct domain_state *domain)
{
    u64 head = slot->head;
    u32 arrivals = slot->arrivals, users = slot->users & ~LOCKED;
    bool all_there = settings.cpus == 1 || users <= (u32)scx_bpf_dsq_nr_queued(QUEUE(index));
    struct task_struct *first = scx_bpf_dsq_peek(QUEUE(index));
    u64 vtime = first ? first->scx.dsq_vtime : NEVER;

    if (settings.cpus == 1) {
        slot->head = vtime;
    }
    else if (vtime < head) {
        lower_to(&slot->head, vtime);
    }
    else if (all_there && vtime != head) {
        __sync_val_compare_and_swap(&slot->head, head, vtime);
        if (*(volatile u32 *)&slot->arrivals != arrivals) {
            lower_to(&slot->head, head);
            lower_floor(domain, head);
        }
    }
    if (!first && !(slot->users & ~LOCKED)) {
        mark(domain, index, false);
        if (slot->users & ~LOCKED) {
            mark(domain, index, true);
            lower_floor(domain, slot->head);
        }
    }
    return vtime;
}

struct found {
    s32 index;     /* slot, or NO_SLOT */
    u32 domain;
    u64 vtime;
    u64 passed;    /* least head of the slots that were left out */
    s32 without;   /* a slot to leave out */
    u32 pad;
};

#define NOTHING(limit) { .index = NO_SLOT, .vtime = (limit), .passed = NEVER, .without = NO_SLOT }

/* least_in(number, found, foreign): the slot of a domain with the least head, where it is less than what was
 * found already. Of a foreign domain, only slots that any CPU may serve. */
OWN_PROGRAM int
least_in(u32 number, struct found *found, bool foreign)
{
    struct domain_state *domain = domain_at(number);
    if (!domain || !found) return 0;
    for (u32 word = 0; word < SLOT_WORDS; word++) {
        may_leave(end);
        if (word >= in_use) break;
        u64 bits = domain->bits[word];
        while (bits) {
            may_leave(end);
            u32 index = word * 64 + __builtin_ctzll(bits);
            bits &= bits - 1;
            struct slot_state *slot = slot_at(index);
            if (!slot) break;
            if (settings.homes && domain_of(slot) != number) { /* it has moved since */
                mark(domain, index, false);
                if (domain_of(slot) == number) mark(domain, index, true);
            }
            u64 vtime = slot->head;
            /* Empty; or the next one was on its way when the slot was looked at. */
            if (vtime == NEVER && (!(slot->users & ~LOCKED) || (vtime = look(index, slot, domain)) == NEVER))
                continue;
            if ((foreign && slot->pin >= 0) || (s32)index == found->without) {
                if (vtime < found->passed) found->passed = vtime;
                continue;
            }
            if (vtime < found->vtime) {
                found->index = index;
                found->domain = number;
                found->vtime = vtime;
            }
        }
    }
end:
    return 0;
}

/* least(number, found, foreign): the same, with heads that were looked at; floor becomes what was found. A
 * few rounds suffice: on one CPU a head is wrong only where a thread was taken from the middle of a queue, or
 * has ended. Where a thread is on its way into the queue, its virtual time counts, or the slot is left out.
 * */
OWN_PROGRAM int
least(u32 number, struct found *found, bool foreign)
{
    struct domain_state *domain = domain_at(number);
    if (!domain || !found) return 0;
    struct found before = *found;
    bool alone = settings.cpus == 1;

    if (!alone) {
        bpf_spin_lock(&domain->lock);
        if (!domain->scanners++) domain->since = NEVER;
        bpf_spin_unlock(&domain->lock);
    }
    for (int round = 0; round < 64; round++) {
        may_leave(end);
        found->index = before.index;
        found->domain = before.domain;
        found->vtime = before.vtime;
        found->passed = before.passed;
        least_in(number, found, foreign);
        if (found->index == before.index && found->domain == before.domain) break;
        struct slot_state *slot = slot_at(found->index);
        if (!slot) break;
        u64 vtime = look(found->index, slot, domain);
        if (vtime <= found->vtime) break;
        if (!alone && slot->head <= found->vtime) {
            if (vtime != NEVER) break;
            found->without = found->index;
        }
    }
end:;
    u64 bound = found->passed < found->vtime ? found->passed : found->vtime;
    if (alone) {
        domain->floor = bound;
        return 0;
    }
    bpf_spin_lock(&domain->lock);
    domain->scanners--;
    if (domain->since < bound) bound = domain->since;
    /* Less than floor, if a thread came while its bit was cleared or its head raised for a moment. With a
     * limit from elsewhere, bound is no head. */
    if (domain->floor < bound || before.vtime == NEVER) domain->floor = bound;
    bpf_spin_unlock(&domain->lock);
    return 0;
}

/* Decisions */

/* verify(chosen, mm, mine): compares a decision with the rule, from the queues alone: none of
 * head, floor, bits and hints is used. For tests, on one CPU. mine: virtual time of the thread that could go
 * on, or NEVER; its address space is the last one. */
OWN_PROGRAM int
verify(s32 chosen, u64 mm, u64 mine)
{
    u64 x = mine, y = mine, got = NEVER, got_mm = 0;
    struct decisions *c = count();
    s32 end = in_use * 64;

    if (!c) return 0;
    s32 index;
    bpf_for(index, 0, end) {
        struct task_struct *first = scx_bpf_dsq_peek(QUEUE(index));
        if (!first) continue;
        u64 vtime = first->scx.dsq_vtime, space = 0;
        bpf_probe_read_kernel(&space, sizeof(space), &first->mm);
        if (vtime < x) x = vtime;
        if (mm && space == mm && vtime < y) y = vtime;
        if (index == chosen) {
            got = vtime;
            got_mm = space;
        }
    }
    if (chosen == NO_SLOT) {
        got = mine;
        got_mm = mm;
    }
    if (x == NEVER) return 0;
    c->verified++;
    if (y != NEVER && y <= x + settings.bonus) {
        if (got != y || got_mm != mm) c->wrong++;
    }
    else if (got != x) {
        c->wrong++;
    }
    if (got != NEVER && got > x && got - x > c->lead) c->lead = got - x;
    return 0;
}

/* last_slot(c, mm): the slot in which threads of the address space that ran last wait, or NO_SLOT. */
static s32
last_slot(struct cpu_state *c, u64 mm)
{
    struct slot_state *slot = c->slot == NO_SLOT ? NULL : slot_at(c->slot);
    if (slot && slot->mm == mm && slot->pin < 0) return c->slot;
    return c->slot = slot_with(mm, -1);
}

/* take(index, from, cpu): the slot that CPU `from` serves is this CPU's from now on; unless its address space
 * runs there: then one thread is all that this CPU takes. False, if it is another's meanwhile. The new bit is
 * set last, so that there is one whoever else moves it. */
static bool
take(s32 index, s32 from, s32 cpu)
{
    struct slot_state *slot = slot_at(index);
    struct cpu_state *other = cpu_at(from);
    struct domain_state *theirs = domain_at(1 + from), *ours = domain_at(1 + cpu);
    struct decisions *n = count();

    if (!slot || !other || !theirs || !ours || !n) return false;
    u32 users = __sync_fetch_and_add(&slot->users, 1); /* no other address space gets it meanwhile */
    bool taken = !(users & LOCKED) && slot->pin < 0;
    if (taken && slot->mm != other->running) {
        taken = __sync_val_compare_and_swap(&slot->home, from, cpu) == from;
        if (taken) {
            n->taken++;
            mark(theirs, index, false);
            if (*(volatile s32 *)&slot->home == from) mark(theirs, index, true); /* it has come back */
            mark(ours, index, true);
            lower_floor(ours, *(volatile u64 *)&slot->head);
        }
    }
    __sync_fetch_and_add(&slot->users, -1);
    return taken;
}

/* pull(cpu, x): the slot of another CPU's whose head is the least and, where this CPU has threads itself,
 * behind its own head x by more than a bonus and a slice; or NO_SLOT. */
OWN_PROGRAM int
pull(u32 cpu, u64 x)
{
    u64 lag = settings.bonus + settings.slice;
    struct found found = NOTHING(x == NEVER ? NEVER : x > lag ? x - lag : 0);

    for (u32 other = 0; other < CPUS; other++) {
        may_leave(end);
        if (other >= settings.cpus) break;
        struct domain_state *domain = domain_at(1 + other);
        if (other == cpu || !domain || domain->floor >= found.vtime) continue;
        found.passed = NEVER;
        least(1 + other, &found, true);
    }
end:
    if (found.index == NO_SLOT || !take(found.index, found.domain - 1, cpu)) return NO_SLOT;
    return found.index;
}

/* compare_homes(): takes down the least head of all domains, too low by the bonus at most; enqueue lowers it.
 * Where threads wait that one CPU alone may run, its head may be one of theirs, and does not count: they have
 * a time of their own (now_at). What another CPU enqueues now may be missed until the next time. */
OWN_PROGRAM int
compare_homes(void)
{
    u64 head = NEVER;

    for (u32 other = 0; other < CPUS; other++) {
        may_leave(end);
        if (other >= settings.cpus) break;
        struct domain_state *domain = domain_at(1 + other);
        if (domain && !domain->waiting && domain->floor < head) head = domain->floor;
    }
end:
    least_head = head;
    return 0;
}

/* any(number): sends the first thread that this CPU may run from any slot of a domain. */
OWN_PROGRAM int
any(u32 number)
{
    struct domain_state *domain = domain_at(number);
    if (!domain) return 0;
    for (u32 word = 0; word < SLOT_WORDS; word++) {
        may_leave(end);
        if (word >= in_use) break;
        u64 bits = domain->bits[word];
        while (bits) {
            may_leave(end);
            u32 index = word * 64 + __builtin_ctzll(bits);
            bits &= bits - 1;
            if (scx_bpf_dsq_move_to_local(QUEUE(index))) return 1;
        }
    }
end:
    return 0;
}

/* relieve(cpu): sends a thread that may run here and on some other CPUs, and waits for one of these. */
OWN_PROGRAM int
relieve(u32 cpu)
{
    for (u32 other = 0; other < CPUS; other++) {
        may_leave(end);
        if (other >= settings.cpus) break;
        if (other == cpu) continue;
        if (!waiting_for(other)) continue;
        if (settings.rule) {
            if (any(1 + other)) return 1;
        }
        else if (scx_bpf_dsq_move_to_local(QUEUE(SLOT_PINNED + other))) {
            return 1;
        }
    }
end:
    return 0;
}

/* hasten(cpu, now): sends each thread that has waited for half of the watchdog's time, whatever its virtual
 * time is: a thread of little weight would wait so long that the kernel ended this scheduler. Looks at all
 * that wait, eight times in that time. */
OWN_PROGRAM int
hasten(s32 cpu, u64 now)
{
    s32 end = settings.rule ? in_use * 64 : SLOT_FIRST;
    struct decisions *n = count();
    int sent = 0;
    s32 index;

    if (!n) return 0;
    bpf_for(index, 0, end) {
        struct task_struct *p;
        if (!scx_bpf_dsq_nr_queued(QUEUE(index))) continue;
        bpf_for_each(scx_dsq, p, QUEUE(index), 0) {
            struct thread_state *t = thread_of(p);
            if (!t || now < t->waits_since + settings.patience) continue;
            bool here = bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
            u64 queue = here ? SCX_DSQ_LOCAL : SCX_DSQ_LOCAL_ON | scx_bpf_task_cpu(p);
            if (!scx_bpf_dsq_move(&___it, p, queue, 0)) continue;
            n->hastened++;
            if (here) sent++;
        }
    }
    return sent;
}

/* hurry(cpu): calls hasten, where it is time to. */
static bool
hurry(s32 cpu)
{
    u64 now = scx_bpf_now(), before = hastened_at;
    if (now < before + settings.patience / 8) return false;
    if (__sync_val_compare_and_swap(&hastened_at, before, now) != before) return false;
    return hasten(cpu, now) > 0;
}

/* advance(vtime, cpu): a thread begins to run there. By the rule it may be ahead of the head; then the time
 * that is now is the head's: else threads that wake would pay for its lead, and those that never sleep would
 * get more. With homes it is the least head of all: by each CPU's own head, those that compute got 1.2 to 10
 * times their share beside those that wake (sched/simulate, --clock own). */
static void
advance(u64 vtime, s32 cpu)
{
    struct domain_state *all = settings.rule ? domain_at(SHARED) : NULL;
    struct domain_state *own = settings.rule && settings.cpus > 1 ? domain_at(1 + cpu) : NULL;
    if (all && all->floor < vtime) vtime = all->floor;
    if (settings.homes) {
        u64 head = *(volatile u64 *)&least_head;
        if (head < vtime) vtime = head;
    }
    else if (own && own->floor < vtime) {
        vtime = own->floor;
    }
    if (settings.cpus > 1) raise_to(&vnow, vtime);
    else if (vnow < vtime) vnow = vtime;
}

/* go_on(p, t, cpu): the running thread gets another slice. */
static void
go_on(struct task_struct *p, struct thread_state *t, s32 cpu)
{
    struct decisions *c = count();
    scx_bpf_task_set_slice(p, settings.slice);
    t->yielded = 0;
    if (group_count) sample(t->group);
    advance(t->vtime, cpu);
    if (c) c->kept++;
}

/* dispatch_in_order(cpu, prev, t): without the rule, the least virtual time of all. */
static void
dispatch_in_order(s32 cpu, struct task_struct *prev, struct thread_state *t)
{
    s32 index = SLOT_CROWD;
    struct decisions *c;

    if (t || settings.cpus > 1) {
        struct task_struct *first = scx_bpf_dsq_peek(QUEUE(SLOT_CROWD));
        u64 x = first ? first->scx.dsq_vtime : NEVER;
        struct domain_state *own = settings.cpus > 1 ? domain_at(1 + cpu) : NULL;
        if (own && (first = scx_bpf_dsq_peek(QUEUE(SLOT_PINNED + cpu)))) {
            own->floor = first->scx.dsq_vtime;
            if (own->floor < x) {
                index = SLOT_PINNED + cpu;
                x = own->floor;
            }
        }
        if (t && !t->yielded && t->vtime <= x) {
            go_on(prev, t, cpu);
            return;
        }
    }
    if (!scx_bpf_dsq_move_to_local(QUEUE(index)) &&
            (settings.cpus == 1 || !scx_bpf_dsq_move_to_local(QUEUE(SLOT_CROWD)))) {
        if (t) go_on(prev, t, cpu);
        if (t || settings.cpus == 1 || !relieve(cpu)) return;
    }
    if ((c = count())) c->dispatches++;
}

/* head_here(cpu, x): the least of what this CPU serves. */
static void
head_here(s32 cpu, struct found *x)
{
    least(SHARED, x, false);
    if (settings.cpus == 1) return;
    struct found own = NOTHING(NEVER);
    least(1 + cpu, &own, false);
    if (own.vtime < x->vtime) *x = own;
}

void OPERATION(aggregate_dispatch, s32 cpu, struct task_struct *prev)
{
    struct thread_state *t = NULL;
    struct cpu_state *c = cpu_at(cpu);
    struct decisions *n = count();
    struct domain_state *all = domain_at(SHARED), *own = domain_at(1 + cpu);
    struct slot_state *slot;
    u64 mm, mine = NEVER, y = NEVER, floor;
    s32 ys = NO_SLOT;

    if (settings.stall || !c || !n || !all || !own) return;
    if (prev && (prev->scx.flags & SCX_TASK_QUEUED) && (t = thread_of(prev))) {
        charge(prev, t);
        keep_up(t, settings.carry);
    }
    if (hurry(cpu)) return;
    if (!settings.rule) {
        dispatch_in_order(cpu, prev, t);
        return;
    }

    /* A program that has called execve has got another address space while it ran. */
    if (prev && (mm = space_of(&c->space, prev)) && mm != c->mm) {
        c->mm = mm;
        c->slot = NO_SLOT;
    }
    mm = c->mm;
    floor = all->floor;
    if (settings.cpus > 1 && own->floor < floor) floor = own->floor;

    /* Y */
    if (mm) {
        ys = last_slot(c, mm);
        if (ys != NO_SLOT && (slot = slot_at(ys)) && (slot->home < 0 || slot->home == cpu))
            y = look(ys, slot, slot->home < 0 ? all : own);
        if (settings.cpus > 1 && own->waiting) {
            s32 pinned = slot_with(mm, cpu);
            if (pinned != NO_SLOT && (slot = slot_at(pinned))) {
                u64 vtime = look(pinned, slot, own);
                if (vtime < y) {
                    y = vtime;
                    ys = pinned;
                }
            }
        }
    }
    if (t && !t->yielded) {
        mine = t->vtime;
        if (space_of(&t->space, prev) != mm) {
            if (mine < floor) floor = mine; /* a kernel thread: it may be X, not Y */
        }
        else if (mine <= y) {
            y = mine;
            ys = NO_SLOT;
        }
    }

    /* `near` is the bonus, and not much more than the credit: what floor is too low by, sleepers get as well.
     * */
    if (y == NEVER || floor == NEVER || y > floor + settings.near) {
        struct found x = NOTHING(NEVER);
        head_here(cpu, &x);
        if (settings.homes) {
            compare_homes();
            s32 index = pull(cpu, x.vtime < mine ? x.vtime : mine);
            if (index != NO_SLOT && scx_bpf_dsq_move_to_local(QUEUE(index))) {
                /* It is another one's still: a single thread is what has come. */
                if ((slot = slot_at(index)) && slot->home != cpu) n->spilled++;
                n->dispatches++;
                return;
            }
        }
        if (t && mine <= x.vtime && (y == NEVER || y > mine + settings.bonus || y == mine)) {
            y = mine;
            ys = NO_SLOT;
        }
        else if (y == NEVER || y > x.vtime + settings.bonus) {
            if (y != NEVER) n->by_bound++;
            y = x.vtime;
            ys = x.index;
        }
        else if (y > x.vtime) {
            n->by_rule++;
        }
    }
    else if (y > floor) {
        n->by_rule++;
    }

    if (settings.verify && settings.cpus == 1 && (!t || space_of(&t->space, prev) == mm))
        verify(ys, mm, mine);
    if (ys == NO_SLOT || (!scx_bpf_dsq_move_to_local(QUEUE(ys)) && !any(SHARED) &&
                          (settings.cpus == 1 || !any(1 + cpu)))) {
        if (t) go_on(prev, t, cpu);
        if (t || settings.cpus == 1 || !relieve(cpu)) return;
    }
    n->dispatches++;
}

/* pin_of(p): the only CPU that p is to wait for, or -1. One with several CPUs, but not all that are online,
 * is given to an idle one of them; else to that on which it ran last, or to another one for which fewer
 * wait. */
static s32
pin_of(struct task_struct *p)
{
    if (settings.cpus == 1 || p->nr_cpus_allowed >= (int)settings.possible) return -1;
    s32 cpu = scx_bpf_task_cpu(p), pin = cpu;
    if (p->nr_cpus_allowed == 1) return cpu;
    const struct cpumask *online = scx_bpf_get_online_cpumask();
    if (bpf_cpumask_subset(online, p->cpus_ptr)) {
        pin = -1;
    }
    else {
        s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
        s32 other = scx_bpf_pick_any_cpu(p->cpus_ptr, 0);
        bool there = bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && bpf_cpumask_test_cpu(cpu, online);
        if (idle >= 0) pin = idle;
        else if (other >= 0 && bpf_cpumask_test_cpu(other, online) &&
                 (!there || waiting_for(other) < waiting_for(cpu))) pin = other;
    }
    scx_bpf_put_cpumask(online);
    return pin;
}

/* join(t, pin): t is to wait for that CPU alone, or (-1) for any. What is now is another time there: it keeps
 * what it is ahead or behind by. */
static void
join(struct thread_state *t, s32 pin)
{
    u64 from = now_at(t->pin), to = now_at(pin);

    if (t->pin == pin || from == to) return;
    if (t->vtime >= from) t->vtime = to + (t->vtime - from);
    else t->vtime = to > from - t->vtime ? to - (from - t->vtime) : 0;
}

void OPERATION(aggregate_enqueue, struct task_struct *p, u64 flags)
{
    struct thread_state *t = thread_of(p);
    struct scx_bpf_dsq_insert_vtime_args args = { .slice = settings.slice, .enq_flags = flags };

    /* A kernel thread of one CPU does that CPU's work, and goes first when it wakes; not when it goes on. */
    if (!t || ((p->flags & PF_KTHREAD_BIT) && p->nr_cpus_allowed == 1 && (flags & SCX_ENQ_WAKEUP))) {
        scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, settings.slice, flags);
        return;
    }
    s32 cpu = scx_bpf_task_cpu(p), pin = pin_of(p);
    leave_slot(t);
    join(t, pin);
    t->pin = pin;
    t->yielded = 0;
    t->waits_since = scx_bpf_now();
    keep_up(t, settings.carry);
    args.vtime = t->vtime;

    struct domain_state *counted = settings.cpus > 1 ? domain_at(pin >= 0 ? 1 + pin : SHARED) : NULL;
    bool first = counted && !__sync_fetch_and_add(&counted->waiting, 1);

    if (!settings.rule) {
        s32 index = pin >= 0 ? SLOT_PINNED + pin : SLOT_CROWD;
        struct slot_state *slot = slot_at(index);
        if (counted && slot) {
            t->waits_in = index;
            __sync_fetch_and_add(&slot->users, 1);
            if (first || t->vtime < counted->floor) counted->floor = t->vtime; /* see now_at */
        }
        args.dsq_id = QUEUE(index);
        __scx_bpf_dsq_insert_vtime(p, &args);
    }
    else {
        s32 index = enter_slot(t, space_of(&t->space, p), pin, cpu);
        struct slot_state *slot = slot_at(index);
        if (!slot) { /* cannot be */
            scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, settings.slice, flags);
            return;
        }
        t->waits_in = index;
        args.dsq_id = QUEUE(index);
        if (settings.cpus > 1) {
            __sync_fetch_and_add(&slot->arrivals, 1);
            lower_to(&slot->head, t->vtime);
        }
        else if (t->vtime < slot->head) {
            slot->head = t->vtime;
        }
        /* Another CPU may become its home meanwhile. */
        u32 number = domain_of(slot);
        for (int tries = 0; tries < 4; tries++) {
            struct domain_state *domain = domain_at(number);
            if (!domain) break;
            mark(domain, index, true);
            lower_floor(domain, t->vtime);
            if (settings.homes && pin < 0) lower_to(&least_head, t->vtime);
            u32 present = domain_of(slot);
            if (present == number) break;
            number = present;
        }
        __scx_bpf_dsq_insert_vtime(p, &args);
    }
    if (settings.cpus > 1) {
        if (pin < 0) pin = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
        if (pin >= 0) scx_bpf_kick_cpu(pin, SCX_KICK_IDLE);
    }
}

s32 OPERATION(aggregate_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
    bool idle = false;
    s32 cpu;

    if (settings.homes) {
        struct thread_state *t = thread_of(p);
        struct slot_state *slot = t && t->hint != NO_SLOT ? slot_at(t->hint) : NULL;
        s32 home = slot ? slot->home : -1;
        if (slot && slot->mm == space_of(&t->space, p) && home >= 0 &&
                bpf_cpumask_test_cpu(home, p->cpus_ptr) && scx_bpf_test_and_clear_cpu_idle(home)) {
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, settings.slice, 0);
            return home;
        }
    }
    cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
    if (idle && !settings.stall) scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, settings.slice, 0);
    return cpu;
}

/* Who calls sched_yield goes on only where no other thread waits. */
bool OPERATION(aggregate_yield, struct task_struct *from, struct task_struct *to)
{
    struct thread_state *t = thread_of(from);
    if (to || !t) return false;
    t->yielded = 1;
    scx_bpf_task_set_slice(from, 0);
    return true;
}

/* No CPU idles beside a queue. One that went idle while a thread was on its way to a queue is waked here, or
 * at the next tick of one that is busy. */
static bool
waits_for(s32 cpu)
{
    struct domain_state *all = domain_at(SHARED);
    return (all && all->waiting) || (cpu >= 0 && waiting_for(cpu));
}

void OPERATION(aggregate_update_idle, s32 cpu, bool idle)
{
    if (settings.cpus == 1 || settings.stall || !idle) return;
    if (waits_for(cpu)) scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

void OPERATION(aggregate_tick, struct task_struct *p)
{
    if (settings.cpus == 1 || !waits_for(-1)) return;
    s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
    if (cpu >= 0) scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/* Accounts */

void OPERATION(aggregate_running, struct task_struct *p)
{
    struct thread_state *t = thread_of(p);
    s32 cpu = scx_bpf_task_cpu(p);
    struct cpu_state *c = cpu_at(cpu);
    struct decisions *n = count();
    u64 mm, now = vnow;

    if (!t || !c || !n) return;
    t->since = p->se.sum_exec_runtime;
    if (group_count) sample(t->group);
    if (t->pin < 0 && now > t->vtime && now - t->vtime > n->lag) n->lag = now - t->vtime;
    advance(t->vtime, cpu);
    leave_slot(t);
    if (!settings.rule) return;
    mm = space_of(&t->space, p);
    c->running = mm;
    if (mm && mm != c->mm) {
        c->mm = mm;
        c->slot = t->mm == mm ? t->hint : NO_SLOT;
    }
}

/* settle(p, t): p ends, and who has made it goes on where p has come to; else the time of short processes and
 * threads, one after the other, would be had for nothing. Threads are taken to be made by the first one of
 * their process. */
static void
settle(struct task_struct *p, struct thread_state *t)
{
    bpf_rcu_read_lock();
    struct task_struct *maker = p->pid == p->tgid ? p->real_parent : p->group_leader;
    struct thread_state *its = maker ? bpf_task_storage_get(&threads, maker, 0, 0) : NULL;
    if (its) {
        /* No further ahead than by running itself: one of little weight is ahead by seconds after a ms. */
        u64 most = vnow + 2 * settings.carry * WEIGHT_0 / weight_of(maker);
        raise_to(&its->vtime, t->vtime < most ? t->vtime : most);
    }
    bpf_rcu_read_unlock();
}

void OPERATION(aggregate_stopping, struct task_struct *p, bool runnable)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    charge(p, t);
    if (!runnable && (p->flags & PF_EXITING_BIT)) settle(p, t);
    if (settings.homes) {
        struct cpu_state *c = cpu_at(scx_bpf_task_cpu(p));
        if (c) c->running = 0;
    }
}

/* Before the thread is sent to a CPU or a queue, whichever. */
void OPERATION(aggregate_runnable, struct task_struct *p, u64 flags)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    end_counting(t);
    begin_counting(t, weight_of(p));
    if (flags & SCX_ENQ_WAKEUP) wake(t, settings.credit);
    else keep_up(t, settings.carry);
}

void OPERATION(aggregate_quiescent, struct task_struct *p, u64 flags)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    leave_slot(t);
    end_counting(t);
}

void OPERATION(aggregate_enable, struct task_struct *p)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    if (t->vtime < vnow) t->vtime = vnow;
    t->since = p->se.sum_exec_runtime;
}

void OPERATION(aggregate_disable, struct task_struct *p)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    leave_slot(t);
    end_counting(t);
}

static s32
group_index(struct cgroup *cgroup)
{
    s32 *index = cgroup ? bpf_cgrp_storage_get(&group_of, cgroup, 0, 0) : NULL;
    return index ? *index : 0;
}

/* parent_index(cgroup): where the cgroup above it is counted; the root's is 0. */
static s32
parent_index(struct cgroup *cgroup)
{
    struct cgroup *above = cgroup->level > 0 ? bpf_cgroup_ancestor(cgroup, cgroup->level - 1) : NULL;
    if (!above) return 0;
    s32 index = group_index(above);
    bpf_cgroup_release(above);
    return index;
}

/* A new thread begins where its parent is, so that nobody gains by new ones. */
s32 OPERATION(aggregate_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
    struct thread_state *t = bpf_task_storage_get(&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
    if (!t) return -12; /* ENOMEM */
    t->vtime = vnow;
    t->hint = NO_SLOT;
    t->waits_in = NO_SLOT;
    t->counts_in = -1;
    t->pin = -1;
    t->group = group_index(args->cgroup);
    if (args->fork) {
        struct task_struct *parent = bpf_get_current_task_btf();
        struct thread_state *its = thread_of(parent);
        /* A parent of the real-time or deadline class has no virtual time. */
        if (its && parent->prio >= MAX_RT_PRIO) {
            u64 used = parent->se.sum_exec_runtime - its->since;
            used = used < 1000000000 ? used * WEIGHT_0 / weight_of(parent) : 0;
            if (t->vtime < its->vtime + used) t->vtime = its->vtime + used;
        }
        if (group_count && t->group > 0) t->vtime = keep_up_with_groups(t->group, t->vtime, 0);
    }
    return 0;
}

void OPERATION(aggregate_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    leave_slot(t);
    end_counting(t);
}

/* is_idle(cgroup): its cpu.idle, which the kernel hands to nobody when a scheduler is attached. */
static bool
is_idle(struct cgroup *cgroup)
{
    struct cgroup_subsys_state *state = NULL;
    bool idle = false;
    int number = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);

    bpf_probe_read_kernel(&state, sizeof state, (char *)&cgroup->subsys + number * sizeof state);
    if (state) bpf_core_read(&idle, sizeof idle, &((struct task_group *)state)->scx.idle);
    return idle;
}

s32 SLEEPABLE_OPERATION(aggregate_cgroup_init, struct cgroup *cgroup, struct scx_cgroup_init_args *args)
{
    s32 *index = bpf_cgrp_storage_get(&group_of, cgroup, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
    s32 parent = parent_index(cgroup);
    struct group_state *above = group_at(parent);

    if (!index) return -12; /* ENOMEM */
    *index = parent; /* unless a place is free */
    if (cgroup->level == 0 || cgroup->level >= DEPTH || !above) return 0;
    for (s32 candidate = 1; candidate < GROUPS; candidate++) {
        may_leave(end);
        struct group_state *group = group_at(candidate);
        if (!group || __sync_val_compare_and_swap(&group->used, 0, 1) != 0) continue;
        group->life++;
        group->parent = parent;
        group->given = weight_of_group(args->weight);
        group->idle = is_idle(cgroup);
        group->weight = group->counted = group->idle ? WEIGHT_IDLE : group->given;
        group->sum = group->sample = 0;
        group->in = 0;
        group->clock = CLOCK_0;
        group->time = above->clock;
        __sync_fetch_and_add(&group_count, 1);
        *index = candidate;
        break;
    }
end:
    return 0;
}

/* own_group(cgroup): its state; NULL, if it is counted as its parent. */
static struct group_state *
own_group(struct cgroup *cgroup)
{
    s32 index = group_index(cgroup);
    return index > 0 && index != parent_index(cgroup) ? group_at(index) : NULL;
}

void OPERATION(aggregate_cgroup_exit, struct cgroup *cgroup)
{
    struct group_state *group = own_group(cgroup);
    if (!group) return;
    group_weighs(group, 0);
    group->life++; /* who still counts in it leaves no sum */
    __sync_fetch_and_add(&group_count, -1);
    group->used = 0;
}

void OPERATION(aggregate_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
    struct thread_state *t = thread_of(p);
    if (t) t->group = group_index(to);
}

void OPERATION(aggregate_cgroup_set_weight, struct cgroup *cgroup, u32 weight)
{
    struct group_state *group = own_group(cgroup);
    if (!group) return;
    group->given = weight_of_group(weight);
    if (!group->idle) group_weighs(group, group->given);
}

void OPERATION(aggregate_cgroup_set_idle, struct cgroup *cgroup, bool idle)
{
    struct group_state *group = own_group(cgroup);
    if (!group) return;
    group->idle = idle;
    group_weighs(group, idle ? WEIGHT_IDLE : group->given);
}

s32 SLEEPABLE_OPERATION(aggregate_init)
{
    struct group_state *root = group_at(0);

    if (settings.cpus > CPUS) return -7; /* E2BIG */
    if (root) {
        root->parent = -1;
        root->weight = WEIGHT_0;
        root->clock = CLOCK_0;
        root->used = 1;
    }
    /* The maps may have served before. */
    in_use = SLOT_FIRST / 64 + 1;
    next_slot = SLOT_FIRST;
    vnow = runnable_weight = runnable_sample = hastened_at = 0;
    least_head = NEVER;
    group_count = 0;
    ending.kind = 0;
    for (s32 index = 0; index < SLOTS; index++) {
        may_leave(end);
        struct slot_state *slot = slot_at(index);
        if (!slot) break;
        if (slot->mm) {
            struct space_key old = { slot->mm, slot->pin };
            bpf_map_delete_elem(&spaces, &old);
            slot->mm = 0;
        }
        slot->pin = index >= SLOT_PINNED && index < SLOT_FIRST ? index - SLOT_PINNED : -1;
        slot->home = slot->pin;
        slot->head = NEVER;
        slot->users = 0;
        struct group_state *group = index < GROUPS ? group_at(index) : NULL;
        if (group) {
            group->sum = group->sample = 0;
            group->in = group->used = index == 0;
        }
        if (!settings.rule && index >= SLOT_FIRST) break;
        s32 error = scx_bpf_create_dsq(QUEUE(index), -1);
        if (error) return error;
    }
    for (u32 number = 0; number <= CPUS; number++) {
        may_leave(end);
        struct domain_state *domain = domain_at(number);
        if (!domain) break;
        domain->floor = NEVER;
        domain->waiting = 0;
        domain->scanners = 0;
        for (int word = 0; word < SLOT_WORDS; word++) domain->bits[word] = 0;
        struct cpu_state *c = number < CPUS ? cpu_at(number) : NULL;
        if (c) {
            c->mm = c->running = 0;
            c->slot = NO_SLOT;
        }
    }
end:
    return 0;
}

void OPERATION(aggregate_exit, struct scx_exit_info *info)
{
    bpf_probe_read_kernel_str(ending.reason, sizeof(ending.reason), info->reason);
    bpf_probe_read_kernel_str(ending.message, sizeof(ending.message), info->msg);
    ending.code = info->exit_code;
    __sync_fetch_and_add(&ending.kind, info->kind);
}

SEC(".struct_ops.link")
struct sched_ext_ops aggregate = {
    .select_cpu = (void *)aggregate_select_cpu,
    .enqueue = (void *)aggregate_enqueue,
    .dispatch = (void *)aggregate_dispatch,
    .tick = (void *)aggregate_tick,
    .yield = (void *)aggregate_yield,
    .runnable = (void *)aggregate_runnable,
    .running = (void *)aggregate_running,
    .stopping = (void *)aggregate_stopping,
    .quiescent = (void *)aggregate_quiescent,
    .update_idle = (void *)aggregate_update_idle,
    .init_task = (void *)aggregate_init_task,
    .exit_task = (void *)aggregate_exit_task,
    .enable = (void *)aggregate_enable,
    .disable = (void *)aggregate_disable,
    .cgroup_init = (void *)aggregate_cgroup_init,
    .cgroup_exit = (void *)aggregate_cgroup_exit,
    .cgroup_move = (void *)aggregate_cgroup_move,
    .cgroup_set_weight = (void *)aggregate_cgroup_set_weight,
    .cgroup_set_idle = (void *)aggregate_cgroup_set_idle,
    .init = (void *)aggregate_init,
    .exit = (void *)aggregate_exit,
    .flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_EXITING,
    .timeout_ms = 10000,
    .name = "cow_aggregate",
};

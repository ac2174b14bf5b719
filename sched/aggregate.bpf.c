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
 *     a thread waits in slot s  =>  users(s) > 0  and  the bit of s is set in one domain
 *     head(s) <= virtual time of each thread in s
 *     floor(d) <= head(s) for each s whose bit is set in domain d
 * Virtual times do not wrap: 2^64 ns are 584 years at nice 0 and six at nice 19.
 * On one CPU they hold whenever a program here starts. On several, two CPUs that enqueue and look at the same
 * moment can leave floor too high until the heads are compared next: then a thread may lead by up to twice
 * the bonus.
 *
 * Domain 0 holds the slots that every CPU serves, domain 1 + c those of CPU c. With processor aggregation,
 * each slot has a home, in whose domain it is. A CPU with nothing to run, or whose own head is ahead of
 * another CPU's by more than a bonus and a slice, takes an address space from there, by changing its home;
 * or, where that address space is what the other CPU runs at the moment, a single thread.
 *
 * Virtual time is CPU time divided by weight. A thread's weight is its own (nice), and its share of its
 * cgroups' weights: at each level, a group's weight against that of all that is runnable beside it.
 *
 * Entry points: the operations of `struct sched_ext_ops` at the end of the file. They are called by the
 * kernel with the run queue's lock held, those that end in _init, _exit, init_task and exit_task without.
 * An mm_struct's address may be used anew after its address space has ended; threads of two are then taken
 * for one, which costs fairness no more than the bonus.
 */
#include <vmlinux.h>
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
#define LOCKED (1U << 31)              /* in slot.users: the slot changes hands */
#define SHIFT 20                       /* bits behind the point of weights */

/* A variable alone in a section: the loader finds it at offset 0. */
const volatile struct settings settings SEC(".rodata.settings");

struct ending ending SEC(".data.ending");

struct slot_state {
    u64 mm;
    u64 head;
    s32 pin;    /* the only CPU it may run on, or -1 */
    s32 home;   /* the CPU that serves it, or -1 for all */
    u32 users;  /* threads that wait in it, or have been sent to a CPU and do not run yet */
    u32 pad;
};

struct domain_state {
    u64 bits[SLOT_WORDS];  /* slots in which threads wait */
    u64 floor;
    u64 waiting;           /* threads that wait and only this CPU may run; in domain 0, those that all may */
};

struct cpu_state {
    u64 mm;        /* the address space that ran last; kernel threads leave it */
    u64 running;   /* the one that runs, or 0 */
    s32 slot;      /* where its threads wait, or NO_SLOT */
    u32 pad;
};

struct thread_state {
    u64 vtime;
    u64 since;     /* its CPU time when it was last charged */
    u64 space;     /* see space_of */
    u64 mm;        /* as of the hint */
    s32 hint;      /* slot of mm, if it still is */
    s32 waits_in;  /* slot, or NO_SLOT */
    s32 group;
    s32 counts_in; /* the group in whose sum it is, or -1 */
    u32 counts;    /* with this weight */
    u32 pinned;    /* waits_in may be served by one CPU only */
};

struct group_state {
    u64 sum;       /* weights of what is runnable directly below it: threads, and groups with a sum */
    u32 weight;
    u32 counted;   /* its weight as it stands in its parent's sum */
    s32 parent;
    u32 used;
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
static u64 in_use = 1;     /* words of a domain's bits that can have any set */
static u32 next_slot = SLOT_FIRST;
static u32 group_count;    /* groups besides the root */
static u64 runnable_weight; /* of all threads that run or wait: the sum of their own weights */

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

/* space_of(t, p): the address of p's mm_struct, or 0. To the verifier, what was stored is a number. */
static u64
space_of(struct thread_state *t, struct task_struct *p)
{
    *(volatile u64 *)&t->space = (u64)p->mm;
    return *(volatile u64 *)&t->space;
}

/* domain_of(slot): the number of the domain in which its bit is to be. */
static u32
domain_of(struct slot_state *slot)
{
    return slot->home < 0 ? SHARED : 1 + slot->home;
}

/* Weights */

/* runnable_weight_changes(t, on): t's weight comes into the sums of its groups, or leaves them. */
static void
runnable_weight_changes(struct thread_state *t, u32 weight, bool on)
{
    s32 index = on ? t->group : t->counts_in;
    u64 amount = on ? weight : t->counts;

    __sync_fetch_and_add(&runnable_weight, on ? amount : -amount);
    if (on) {
        t->counts_in = index;
        t->counts = weight;
    }
    else {
        t->counts_in = -1;
    }
    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index);
        if (!group) return;
        if (on) {
            if (__sync_fetch_and_add(&group->sum, amount) != 0 || group->parent < 0) return;
            group->counted = group->weight;
        }
        else {
            if (__sync_fetch_and_add(&group->sum, -amount) != amount || group->parent < 0) return;
        }
        amount = group->counted;
        index = group->parent;
    }
}

/* weight_among_all(index, own): the weight of a thread of group index with that of its groups, SHIFT bits
 * behind the point. Those of all runnable threads make the sum of their own, so that virtual time keeps its
 * pace and the bonus its worth, wherever the threads are. */
OWN_PROGRAM u64
weight_among_all(s32 index, u32 own)
{
    u64 weight = (u64)own << SHIFT;

    if (!group_count || index < 0) return weight;
    for (int level = 0; level < DEPTH; level++) {
        struct group_state *group = group_at(index);
        if (!group) break;
        u64 sum = group->sum;
        if (!sum) break;
        if (group->parent < 0) {
            weight = weight * (runnable_weight > own ? runnable_weight : own) / sum;
            break;
        }
        weight = weight * group->counted / sum; /* a part of its group's weight */
        index = group->parent;
    }
    return weight ? weight : 1;
}

/* charged(p, t): virtual time of p, with what it has run since it was charged last. */
static u64
charged(struct task_struct *p, struct thread_state *t)
{
    u64 used = p->se.sum_exec_runtime - t->since;
    u32 own = p->scx.weight ? p->scx.weight : 1;

    if (used > 1000000000) used = 1000000000; /* a tick that came late; keeps the product below 2^64 */
    if (own == 100 && !group_count) return t->vtime + used;
    return t->vtime + used * (100ULL << SHIFT) / weight_among_all(t->group, own);
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
        struct domain_state *domain = domain_at(t->pinned ? 1 + slot->home : SHARED);
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
        slot->mm = mm;
        slot->pin = pin;
        slot->home = home;
        slot->head = NEVER;
        if (bpf_map_update_elem(&spaces, &key, &number, BPF_NOEXIST)) {
            slot->mm = 0; /* another CPU was first; it will be found there next time */
            __sync_fetch_and_add(&slot->users, -LOCKED);
            return NO_SLOT;
        }
        if (in_use < index / 64 + 1) in_use = index / 64 + 1;
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

/* Sets or clears the bit of a slot in a domain. */
static void
mark(struct domain_state *domain, s32 index, bool on)
{
    u32 word = (u32)index / 64;
    u64 bit = 1ULL << (index & 63);
    if (word >= SLOT_WORDS) return;
    if (on) {
        if (!(domain->bits[word] & bit)) __sync_fetch_and_or(&domain->bits[word], bit);
    }
    else {
        __sync_fetch_and_and(&domain->bits[word], ~bit);
    }
}

/* look(index, slot, domain): virtual time of the first thread in a slot, or NEVER. Corrects head; clears the
 * bit of a slot without users. A thread that is about to be queued counts as user already. */
static u64
look(s32 index, struct slot_state *slot, struct domain_state *domain)
{
    struct task_struct *first = scx_bpf_dsq_peek(QUEUE(index));
    if (first) return slot->head = first->scx.dsq_vtime;
    slot->head = NEVER;
    if (!(slot->users & ~LOCKED)) {
        mark(domain, index, false);
        if (slot->users & ~LOCKED) mark(domain, index, true);
    }
    return NEVER;
}


struct found {
    s32 index;     /* slot, or NO_SLOT */
    u32 domain;
    u64 vtime;
};

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
            if (foreign && slot->pin >= 0) continue;
            u64 vtime = slot->head;
            /* Empty; or the next one was on its way when the slot was looked at. */
            if (vtime == NEVER && (!(slot->users & ~LOCKED) || (vtime = look(index, slot, domain)) == NEVER))
                continue;
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

/* least(number, found, foreign): the same, with heads that were looked at. A few rounds suffice: on one CPU
 * a head is wrong only where a thread was taken from the middle of a queue, or has ended. */
OWN_PROGRAM int
least(u32 number, struct found *found, bool foreign)
{
    struct domain_state *domain = domain_at(number);
    if (!domain || !found) return 0;
    struct found before = *found;
    for (int round = 0; round < 64; round++) {
        may_leave(end);
        *found = before;
        least_in(number, found, foreign);
        if (found->index == before.index && found->domain == before.domain) break;
        struct slot_state *slot = slot_at(found->index);
        if (!slot) break;
        u64 vtime = look(found->index, slot, domain);
        if (vtime == found->vtime) break;
    }
end:
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

/* pull(cpu, x): the slot of another CPU's whose head is the least and, where this CPU has threads itself,
 * behind its own head x by more than a bonus and a slice; or NO_SLOT. The address space moves here, unless
 * it runs on the other CPU: then one thread is all that this CPU takes. */
OWN_PROGRAM int
pull(u32 cpu, u64 x)
{
    u64 lag = settings.bonus + settings.slice;
    struct found found = { NO_SLOT, 0, x == NEVER ? NEVER : x > lag ? x - lag : 0 };

    for (u32 other = 0; other < CPUS; other++) {
        may_leave(end);
        if (other >= settings.cpus) break;
        struct domain_state *domain = domain_at(1 + other);
        if (other == cpu || !domain || domain->floor >= found.vtime) continue;
        least(1 + other, &found, true);
    }
end:
    if (found.index == NO_SLOT) return NO_SLOT;
    struct slot_state *slot = slot_at(found.index);
    struct cpu_state *from = cpu_at(found.domain - 1);
    struct domain_state *theirs = domain_at(found.domain), *ours = domain_at(1 + cpu);
    struct decisions *c = count();
    if (!slot || !from || !theirs || !ours || !c) return NO_SLOT;
    if (slot->mm == from->running) {
        c->spilled++;
    }
    else {
        c->taken++;
        slot->home = cpu;
        mark(ours, found.index, true);
        mark(theirs, found.index, false);
        if (found.vtime < ours->floor) ours->floor = found.vtime;
    }
    return found.index;
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

/* advance(vtime): a thread begins to run. By the rule it may be ahead of the head; then the time that is now
 * is the head's: else threads that wake would pay for its lead, and those that never sleep would get more.
 * With homes the slots of CPUs are not looked at here. */
static void
advance(u64 vtime)
{
    struct domain_state *all = settings.rule ? domain_at(SHARED) : NULL;
    if (all && all->floor < vtime) vtime = all->floor;
    if (vnow < vtime) vnow = vtime;
}

/* go_on(p, t): the running thread gets another slice. */
static void
go_on(struct task_struct *p, struct thread_state *t)
{
    struct decisions *c = count();
    scx_bpf_task_set_slice(p, settings.slice);
    advance(t->vtime);
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
        if (settings.cpus > 1 && (first = scx_bpf_dsq_peek(QUEUE(SLOT_PINNED + cpu))) &&
                first->scx.dsq_vtime < x) {
            index = SLOT_PINNED + cpu;
            x = first->scx.dsq_vtime;
        }
        if (t && t->vtime <= x) {
            go_on(prev, t);
            return;
        }
    }
    if (!scx_bpf_dsq_move_to_local(QUEUE(index)) &&
            (settings.cpus == 1 || !scx_bpf_dsq_move_to_local(QUEUE(SLOT_CROWD)))) {
        if (t) go_on(prev, t);
        return;
    }
    if ((c = count())) c->dispatches++;
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
        t->vtime = charged(prev, t);
        t->since = prev->se.sum_exec_runtime;
    }
    if (!settings.rule) {
        dispatch_in_order(cpu, prev, t);
        return;
    }

    mm = c->mm;
    floor = settings.homes ? NEVER : all->floor;
    if (settings.cpus > 1 && own->floor < floor) floor = own->floor;
    if (settings.homes && all->floor < floor) floor = all->floor;

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
    if (t) {
        mine = t->vtime;
        if (space_of(t, prev) != mm) {
            if (mine < floor) floor = mine; /* a kernel thread: it may be X, not Y */
        }
        else if (mine <= y) {
            y = mine;
            ys = NO_SLOT;
        }
    }

    if (y == NEVER || y > floor + settings.bonus || floor == NEVER) {
        struct found x = { NO_SLOT, 0, NEVER };
        least(SHARED, &x, false);
        if (settings.cpus > 1) least(1 + cpu, &x, false);
        all->floor = x.vtime;
        own->floor = x.vtime;
        if (settings.homes && (x.index == NO_SLOT || y == NEVER || y > x.vtime + settings.bonus)) {
            u64 nearest = x.vtime < mine ? x.vtime : mine;
            s32 index = pull(cpu, nearest);
            if (index != NO_SLOT && scx_bpf_dsq_move_to_local(QUEUE(index))) {
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

    if (settings.verify && settings.cpus == 1 && (!t || space_of(t, prev) == mm)) verify(ys, mm, mine);
    if (ys == NO_SLOT) {
        if (t) go_on(prev, t);
        return;
    }
    if (!scx_bpf_dsq_move_to_local(QUEUE(ys)) && !any(SHARED) && (settings.cpus == 1 || !any(1 + cpu))) {
        if (t) go_on(prev, t);
        return;
    }
    n->dispatches++;
}

/* pin_of(p): the only CPU that p is to wait for, or -1. One with several CPUs, but not all, is given to an
 * idle one of them, or to that on which it ran last. */
static s32
pin_of(struct task_struct *p)
{
    if (settings.cpus == 1 || p->nr_cpus_allowed >= (int)settings.cpus) return -1;
    s32 cpu = scx_bpf_task_cpu(p);
    if (p->nr_cpus_allowed == 1) return cpu;
    s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
    if (idle >= 0) return idle;
    return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) ? cpu : (s32)bpf_cpumask_first(p->cpus_ptr);
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
    u64 least_vtime = vnow > settings.credit ? vnow - settings.credit : 0;
    if (t->vtime < least_vtime) t->vtime = least_vtime;
    args.vtime = t->vtime;

    if (!settings.rule) {
        args.dsq_id = QUEUE(pin >= 0 ? SLOT_PINNED + pin : SLOT_CROWD);
        __scx_bpf_dsq_insert_vtime(p, &args);
    }
    else {
        leave_slot(t);
        s32 index = enter_slot(t, space_of(t, p), pin, cpu);
        struct slot_state *slot = slot_at(index);
        u32 number = slot ? domain_of(slot) : SHARED;
        struct domain_state *domain = domain_at(number);
        if (!slot || !domain) { /* cannot be */
            scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, settings.slice, flags);
            return;
        }
        t->waits_in = index;
        t->pinned = pin >= 0;
        args.dsq_id = QUEUE(index);
        if (settings.cpus > 1) {
            struct domain_state *counted = pin >= 0 ? domain : domain_at(SHARED);
            if (counted) __sync_fetch_and_add(&counted->waiting, 1);
        }
        if (t->vtime < slot->head) slot->head = t->vtime;
        mark(domain, index, true);
        if (t->vtime < domain->floor) domain->floor = t->vtime;
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
        if (slot && slot->mm == space_of(t, p) && slot->home >= 0 &&
                bpf_cpumask_test_cpu(slot->home, p->cpus_ptr) &&
                scx_bpf_test_and_clear_cpu_idle(slot->home)) {
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, settings.slice, 0);
            return slot->home;
        }
    }
    cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
    if (idle && !settings.stall) scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, settings.slice, 0);
    return cpu;
}

/* No CPU idles beside a queue. One that went idle while a thread was on its way to a queue is waked here, or
 * at the next tick of one that is busy. */
void OPERATION(aggregate_update_idle, s32 cpu, bool idle)
{
    struct domain_state *all = domain_at(SHARED), *own = domain_at(1 + cpu);
    if (settings.cpus == 1 || !settings.rule || settings.stall || !idle || !all || !own) return;
    if (all->waiting || own->waiting) scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

void OPERATION(aggregate_tick, struct task_struct *p)
{
    struct domain_state *all = domain_at(SHARED);
    if (settings.cpus == 1 || !settings.rule || !all || !all->waiting) return;
    s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
    if (cpu >= 0) scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/* Accounts */

void OPERATION(aggregate_running, struct task_struct *p)
{
    struct thread_state *t = thread_of(p);
    struct cpu_state *c = cpu_at(scx_bpf_task_cpu(p));
    u64 mm;

    if (!t || !c) return;
    t->since = p->se.sum_exec_runtime;
    advance(t->vtime);
    if (!settings.rule) return;
    leave_slot(t);
    mm = space_of(t, p);
    c->running = mm;
    if (mm && mm != c->mm) {
        c->mm = mm;
        c->slot = t->mm == mm ? t->hint : NO_SLOT;
    }
}

void OPERATION(aggregate_stopping, struct task_struct *p, bool runnable)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    t->vtime = charged(p, t);
    t->since = p->se.sum_exec_runtime;
    if (settings.homes) {
        struct cpu_state *c = cpu_at(scx_bpf_task_cpu(p));
        if (c) c->running = 0;
    }
}

void OPERATION(aggregate_runnable, struct task_struct *p, u64 flags)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    if (t->counts_in >= 0) runnable_weight_changes(t, 0, false);
    runnable_weight_changes(t, p->scx.weight, true);
}

void OPERATION(aggregate_quiescent, struct task_struct *p, u64 flags)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    leave_slot(t);
    if (t->counts_in >= 0) runnable_weight_changes(t, 0, false);
}

void OPERATION(aggregate_enable, struct task_struct *p)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    t->vtime = vnow;
    t->since = p->se.sum_exec_runtime;
}

void OPERATION(aggregate_disable, struct task_struct *p)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    leave_slot(t);
    if (t->counts_in >= 0) runnable_weight_changes(t, 0, false);
}

static s32
group_index(struct cgroup *cgroup)
{
    s32 *index = cgroup ? bpf_cgrp_storage_get(&group_of, cgroup, 0, 0) : NULL;
    return index ? *index : 0;
}

s32 OPERATION(aggregate_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
    struct thread_state *t = bpf_task_storage_get(&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
    if (!t) return -12; /* ENOMEM */
    t->vtime = vnow;
    t->hint = NO_SLOT;
    t->waits_in = NO_SLOT;
    t->counts_in = -1;
    t->group = group_index(args->cgroup);
    return 0;
}

void OPERATION(aggregate_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
    struct thread_state *t = thread_of(p);
    if (!t) return;
    leave_slot(t);
    if (t->counts_in >= 0) runnable_weight_changes(t, 0, false);
}

s32 SLEEPABLE_OPERATION(aggregate_cgroup_init, struct cgroup *cgroup, struct scx_cgroup_init_args *args)
{
    s32 *index = bpf_cgrp_storage_get(&group_of, cgroup, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
    s32 parent = 0;

    if (!index) return -12; /* ENOMEM */
    if (cgroup->level == 0) {
        *index = 0;
        return 0;
    }
    struct cgroup *above = bpf_cgroup_ancestor(cgroup, cgroup->level - 1);
    if (above) {
        parent = group_index(above);
        bpf_cgroup_release(above);
    }
    *index = parent; /* unless a group is free */
    for (s32 candidate = 1; candidate < GROUPS; candidate++) {
        may_leave(end);
        struct group_state *group = group_at(candidate);
        if (!group || __sync_val_compare_and_swap(&group->used, 0, 1) != 0) continue;
        group->parent = parent;
        group->weight = args->weight;
        group->counted = args->weight;
        __sync_fetch_and_add(&group_count, 1);
        *index = candidate;
        break;
    }
end:
    return 0;
}

void OPERATION(aggregate_cgroup_exit, struct cgroup *cgroup)
{
    s32 index = group_index(cgroup);
    struct group_state *group = index > 0 ? group_at(index) : NULL;
    struct cgroup *above = cgroup->level > 0 ? bpf_cgroup_ancestor(cgroup, cgroup->level - 1) : NULL;
    bool own = true;

    if (above) {
        own = group_index(above) != index;
        bpf_cgroup_release(above);
    }
    if (!group || !own) return;
    __sync_fetch_and_add(&group_count, -1);
    group->sum = 0;
    group->used = 0;
}

void OPERATION(aggregate_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
    struct thread_state *t = thread_of(p);
    if (t) t->group = group_index(to);
}

void OPERATION(aggregate_cgroup_set_weight, struct cgroup *cgroup, u32 weight)
{
    s32 index = group_index(cgroup);
    struct group_state *group = index > 0 ? group_at(index) : NULL;
    struct group_state *parent = group && group->parent >= 0 ? group_at(group->parent) : NULL;

    if (!group) return;
    group->weight = weight;
    if (parent && group->sum) {
        __sync_fetch_and_add(&parent->sum, (u64)weight - group->counted);
        group->counted = weight;
    }
}

s32 SLEEPABLE_OPERATION(aggregate_init)
{
    struct group_state *root = group_at(0);

    if (root) {
        root->parent = -1;
        root->weight = 100;
        root->used = 1;
    }
    /* The maps may have served before. */
    in_use = SLOT_FIRST / 64 + 1;
    next_slot = SLOT_FIRST;
    vnow = runnable_weight = 0;
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
    .init = (void *)aggregate_init,
    .exit = (void *)aggregate_exit,
    .flags = SCX_OPS_KEEP_BUILTIN_IDLE,
    .timeout_ms = 10000,
    .name = "cow_aggregate",
};

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_GROWTH_POLICY_H
#define COW_GROWTH_POLICY_H

/*
 * growth_policy: how much a process may allocate until the next collection.
 *
 * Job: upstream keeps 20 to 65 % of the slots of each heap free and lets malloc take 16 to 32 MB between two
 * collections, whatever a collection costs. This file measures what it costs, and says how much memory it is
 * worth to collect less often.
 *
 * Algorithm: a program allocates +rate+ bytes in a ns of its own time, and a collection takes +cost+ ns. If
 * it may allocate E bytes until the next one, collections take rate * cost / E of its time. The bytes that
 * die in between, E * +waste+, are memory that it does not need: waste * E / memory of the +memory+ that it
 * keeps. The sum of both overheads, weighed against each other by a +share+ of time, is least at
 *
 *     E = sqrt(rate * cost / share * PAR * memory / waste)
 *
 * This is MemBalancer's rule (arXiv 2204.10455) with a target share of time in place of its constant, and
 * with memory counted in parts of what the program keeps. Where E is PAR of that and all of E dies,
 * collections take just that share of time. Where they cost less, E is smaller than that, and they take less
 * time than the share; where they cost more, E is greater, and they take more time. The rule says two things:
 *
 *     room       until the next collection. Its cost is that of a minor one, and what survives is no waste: a
 *                program that builds up its data is not collected for nothing.
 *     full_room  by so much may the survivors grow until the next full collection. Its cost is that of a full
 *                one, and the waste is the part of such growth that the full collections before found dead.
 *
 * What a collection costs follows the model of the second seed, T = Wm * L + Ws * H: so much an object that
 * is marked and so much a slot that is swept. A minor marking visits few objects, but all roots; its time is
 * taken as measured.
 *
 * Entry points: cow_growth_begin (a collection begins), cow_growth_marked (it has marked),
 * cow_growth_heap_room, cow_growth_malloc_room, cow_growth_full_malloc_room, cow_growth_may_grow,
 * cow_growth_old_factor, cow_growth_minor_cost, cow_growth_full_cost, cow_growth_rate, cow_growth_waste,
 * cow_growth_target, cow_growth_pause, cow_growth_size, cow_growth_consistent.
 *
 * Who writes this memory after a fork: a process writes the struct, in its objspace, in each collection.
 *
 * Times are in ns, memory is in bytes. All functions are pure but for the struct that they get.
 */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "assertion.h"

/* The share of time in collections for which COW_GROWTH_PAR of the memory that the program keeps may be
 * garbage, in per cent (RUBY_GC_TARGET_TIME). */
#ifndef COW_GROWTH_TARGET_TIME
# define COW_GROWTH_TARGET_TIME 5.0
#endif

/* With 1 CRuby's benchmark/gc/rdoc and hash1 took 1.3 and 1.5 times the memory, with 1/4 0.9 and 1.1 times
 * (by hand). */
#ifndef COW_GROWTH_PAR
# define COW_GROWTH_PAR 0.25
#endif

/* The shares that may be asked for, in per cent, besides 0. */
#define COW_GROWTH_LEAST_TARGET_TIME 0.01
#define COW_GROWTH_MOST_TARGET_TIME 50.0

/* At least this part of what is allocated, and of the growth of survivors, is taken for waste: what is built
 * up may be dropped. With 1/16, and rooms of twice the memory, programs that build up much and then replace
 * it took 1.4 to 1.6 times CRuby's memory (by hand). */
#ifndef COW_GROWTH_LEAST_WASTE
# define COW_GROWTH_LEAST_WASTE (1.0 / 4)
#endif

/* A room is at most this many times the memory that is kept, and at least so many bytes. */
#ifndef COW_GROWTH_MOST
# define COW_GROWTH_MOST (2.0 / 3)
#endif
#ifndef COW_GROWTH_LEAST_ROOM
# define COW_GROWTH_LEAST_ROOM (512.0 * 1024)
#endif

/* Part of a room of which a heap has at least so much free after a collection; else it grows or asks for a
 * full collection. */
#ifndef COW_GROWTH_LEAST_FREE
# define COW_GROWTH_LEAST_FREE 0.5
#endif

/* malloc's blocks are at most this many times the objects, in the estimate of what the program keeps. */
#ifndef COW_GROWTH_MOST_MALLOC
# define COW_GROWTH_MOST_MALLOC 4.0
#endif

/* What a process keeps besides its objects and their memory. */
#ifndef COW_GROWTH_BASE
# define COW_GROWTH_BASE (1024.0 * 1024)
#endif

/* Prices before one has been measured: to mark an object, to sweep a slot. */
#define COW_GROWTH_OBJECT_NS 20.0
#define COW_GROWTH_SLOT_NS 1.0

/* The waste of full collections before one has been made. */
#define COW_GROWTH_FIRST_WASTE (1.0 / 8)

/* The numbers of heaps that the struct has room for. */
enum { COW_GROWTH_HEAPS = 5 };

/* What the collector reads when a collection begins. All but .malloced are sums since the process started. */
struct cow_growth_sample {
    double cpu_ns; /* of all threads of the process, collections included; 0: the clock cannot be read */
    double marking_ns, sweeping_ns;
    double allocated[COW_GROWTH_HEAPS]; /* in each heap */
    double malloced; /* by malloc, less what was freed, since the last collection */
};

/*
 * All 0 at first. Invariants (cow_growth_consistent): no number that it names is negative or not finite, and
 *     room, full_room <= COW_GROWTH_MOST * memory, or COW_GROWTH_LEAST_ROOM
 */
struct cow_growth {
    struct cow_growth_sample last; /* when the last collection began */
    bool measuring; /* .last is set */
    bool full;      /* the last collection is a full one */

    /* Sums of the last collections: cow_growth_keep says how much of the older ones they hold. */
    double program_ns;
    double allocated[COW_GROWTH_HEAPS];
    double malloced;
    double survived;
    double last_allocated; /* in all heaps, between the last two collections */
    double keep;           /* the last answer of cow_growth_keep */
    /* Sums that each full collection halves. */
    double full_program_ns;
    double full_survived;

    /* Prices; 0: none has been measured. */
    double minor_marking_ns; /* of a minor marking */
    double object_ns;        /* to mark an object in a full one */
    double slot_ns;          /* to sweep a slot */

    /* What the last marking left. */
    double objects, slots;
    double live;      /* bytes of objects */
    double blocks;    /* bytes of malloc that survived, if as much of them does as of the objects */
    double memory;    /* bytes that the program keeps, estimated */
    double grown;     /* by so much .live has grown since the last full marking */
    double old_waste; /* which part of such growth full markings found dead */

    double room, full_room;
};

/* May +percent+ be asked for? */
static inline bool
cow_growth_target(double percent)
{
    if (percent == 0) return true;
    return COW_GROWTH_LEAST_TARGET_TIME <= percent && percent <= COW_GROWTH_MOST_TARGET_TIME;
}

/* Gives by how much a sum has grown; 0 if it has fallen, as after a fork or where a clock jumps. */
static inline double
cow_growth_since(double now, double before)
{
    return now > before ? now - before : 0;
}

/* Gives the mean of a price, if there is one, and of what was measured last, which counts for twice the price
 * at most: one collection in a bad moment shall not let the heap grow. */
static inline double
cow_growth_mean(double price, double measured)
{
    if (price <= 0) return measured;
    return (price + (measured < price * 2 ? measured : price * 2)) / 2;
}

/* Gives the bytes that the program has allocated lately in all heaps. */
static inline double
cow_growth_in_heaps(const struct cow_growth *growth)
{
    double sum = 0;

    for (int i = 0; i < COW_GROWTH_HEAPS; i++) sum += growth->allocated[i];
    return sum;
}

/* Gives the bytes that the program allocates in a ns of its own time; 0: not known. */
static inline double
cow_growth_rate(const struct cow_growth *growth)
{
    if (growth->program_ns < 1) return 0;
    return (cow_growth_in_heaps(growth) + growth->malloced) / growth->program_ns;
}

/* Gives which part of the sums is kept when +bytes+ are added: half, and not more than is added, so that a
 * program is soon known by what it does now, however much it has allocated before. All where they are few:
 * two collections shortly after each other say nothing. */
static inline double
cow_growth_keep(const struct cow_growth *growth, double bytes)
{
    double sum = cow_growth_in_heaps(growth) + growth->malloced;

    if (bytes < COW_GROWTH_LEAST_ROOM / 2) return 1;
    return sum / 2 > bytes ? bytes / sum : 0.5;
}

/* Gives which part of +allocated+ dies if +survived+ does not; 1: not known. */
static inline double
cow_growth_part(double allocated, double survived)
{
    if (allocated <= 0 || survived <= 0) return 1;
    return survived < allocated ? 1 - survived / allocated : 0;
}

/* Gives which part of what is allocated in the heaps dies until the next collection. */
static inline double
cow_growth_waste(const struct cow_growth *growth)
{
    return cow_growth_part(cow_growth_in_heaps(growth), growth->survived);
}

/* Gives what sweeping all slots takes. */
static inline double
cow_growth_sweep_cost(const struct cow_growth *growth)
{
    return (growth->slot_ns > 0 ? growth->slot_ns : COW_GROWTH_SLOT_NS) * growth->slots;
}

/* Gives what a minor collection takes; at first, that it marks all objects. */
static inline double
cow_growth_minor_cost(const struct cow_growth *growth)
{
    double marking = growth->minor_marking_ns > 0 ? growth->minor_marking_ns
                                                  : COW_GROWTH_OBJECT_NS * growth->objects;

    return marking + cow_growth_sweep_cost(growth);
}

/* Gives what a full collection takes. */
static inline double
cow_growth_full_cost(const struct cow_growth *growth)
{
    double price = growth->object_ns > 0 ? growth->object_ns : COW_GROWTH_OBJECT_NS;

    return price * growth->objects + cow_growth_sweep_cost(growth);
}

/* Gives the room of the rule above. +share+ is greater than 0. */
static inline double
cow_growth_room(double rate, double cost, double waste, double memory, double share)
{
    COW_ASSERT(share > 0 && memory >= 0 && waste <= 1);
    if (waste < COW_GROWTH_LEAST_WASTE) waste = COW_GROWTH_LEAST_WASTE;
    double room = sqrt(rate * cost / share * COW_GROWTH_PAR * memory / waste);
    double most = memory * COW_GROWTH_MOST;

    if (!(room < most)) room = most;
    return room > COW_GROWTH_LEAST_ROOM ? room : COW_GROWTH_LEAST_ROOM;
}

/* Called when a collection begins, a full one or a minor one: takes into account what was measured since
 * the last one began. */
static inline void
cow_growth_begin(struct cow_growth *growth, const struct cow_growth_sample *now, bool full)
{
    const struct cow_growth_sample *last = &growth->last;

    if (growth->measuring) {
        double marking = cow_growth_since(now->marking_ns, last->marking_ns);
        double sweeping = cow_growth_since(now->sweeping_ns, last->sweeping_ns);
        double program = cow_growth_since(cow_growth_since(now->cpu_ns, last->cpu_ns), marking + sweeping);

        double allocated[COW_GROWTH_HEAPS];
        growth->last_allocated = 0;
        for (int i = 0; i < COW_GROWTH_HEAPS; i++) {
            allocated[i] = cow_growth_since(now->allocated[i], last->allocated[i]);
            growth->last_allocated += allocated[i];
        }
        growth->keep = cow_growth_keep(growth, growth->last_allocated + now->malloced);
        growth->program_ns = growth->program_ns * growth->keep + program;
        growth->full_program_ns += program;
        for (int i = 0; i < COW_GROWTH_HEAPS; i++) {
            growth->allocated[i] = growth->allocated[i] * growth->keep + allocated[i];
        }
        growth->malloced = growth->malloced * growth->keep + now->malloced;

        if (growth->slots > 0) {
            growth->slot_ns = cow_growth_mean(growth->slot_ns, sweeping / growth->slots);
        }
        if (!growth->full) {
            growth->minor_marking_ns = cow_growth_mean(growth->minor_marking_ns, marking);
        }
        else if (growth->objects > 0) {
            growth->object_ns = cow_growth_mean(growth->object_ns, marking / growth->objects);
        }
    }
    growth->last = *now;
    growth->measuring = true;
    growth->full = full;
}

/* Called when the collection has marked: it leaves +objects+ objects of +live+ bytes in +slots+ slots.
 * Decides how much may be allocated, for a target +share+ greater than 0. */
static inline void
cow_growth_marked(struct cow_growth *growth, size_t objects, size_t slots, double live, double share)
{
    double survived = cow_growth_since(live, growth->live);

    if (growth->memory <= 0) growth->old_waste = COW_GROWTH_FIRST_WASTE;
    growth->survived = growth->survived * growth->keep + survived;
    growth->blocks += growth->last.malloced * (1 - cow_growth_part(growth->last_allocated, survived));
    if (growth->full) {
        double dead = cow_growth_since(growth->live, live);
        if (growth->grown > 0) {
            /* It rises at once, and falls by half of the difference. */
            double part = dead < growth->grown ? dead / growth->grown : 1;
            growth->old_waste = part > growth->old_waste ? part : (growth->old_waste + part) / 2;
        }
        if (dead > 0) growth->blocks *= live / growth->live;
        growth->grown = 0;
        growth->full_program_ns /= 2;
        growth->full_survived /= 2;
    }
    else {
        growth->grown += survived;
    }
    growth->full_survived += survived;
    growth->objects = (double)objects;
    growth->slots = (double)slots;
    growth->live = live;
    if (growth->blocks > live * COW_GROWTH_MOST_MALLOC) growth->blocks = live * COW_GROWTH_MOST_MALLOC;
    growth->memory = live + growth->blocks + COW_GROWTH_BASE;

    /* Where more has died than lately, the program has built up what it wanted. */
    double waste = cow_growth_waste(growth), last_waste = cow_growth_part(growth->last_allocated, survived);
    if (waste < last_waste) waste = last_waste;
    growth->room = cow_growth_room(cow_growth_rate(growth), cow_growth_minor_cost(growth), waste,
                                   growth->memory, share);
    double full_rate = growth->full_program_ns >= 1 ? growth->full_survived / growth->full_program_ns : 0;
    growth->full_room = cow_growth_room(full_rate, cow_growth_full_cost(growth), growth->old_waste,
                                        growth->memory, share);
}

/* Gives what of the room is heap +i+'s: its part of what has been allocated lately. */
static inline double
cow_growth_heap_room(const struct cow_growth *growth, int i)
{
    double flow = cow_growth_in_heaps(growth) + growth->malloced;

    COW_ASSERT(0 <= i && i < COW_GROWTH_HEAPS);
    return flow > 0 ? growth->room * (growth->allocated[i] / flow) : growth->room / COW_GROWTH_HEAPS;
}

/* Gives what of the room is malloc's. */
static inline double
cow_growth_malloc_room(const struct cow_growth *growth)
{
    double flow = cow_growth_in_heaps(growth) + growth->malloced;

    return flow > 0 ? growth->room * (growth->malloced / flow) : 0;
}

/* Gives by how much malloc's memory that survives may grow until a full collection. */
static inline double
cow_growth_full_malloc_room(const struct cow_growth *growth)
{
    return growth->live > 0 ? growth->full_room * (growth->blocks / growth->live) : 0;
}

/* Gives a number of 0 or more as a size; a greater one than a size may be is cut. */
static inline size_t
cow_growth_size(double number)
{
    const double most = (double)(SIZE_MAX / 2);

    if (!(number < most)) return SIZE_MAX / 2;
    return (size_t)number;
}

/* May the survivors grow further without a full collection? */
static inline bool
cow_growth_may_grow(const struct cow_growth *growth)
{
    return growth->grown < growth->full_room;
}

/* Gives how many times as many old objects as the last full marking left there may be until the next full
 * collection. */
static inline double
cow_growth_old_factor(const struct cow_growth *growth)
{
    return growth->memory > 0 ? 1 + growth->full_room / growth->memory : 1;
}

/* Called in the child of a fork, whose clocks start anew, and where nothing is measured for a time. What was
 * measured before holds on. */
static inline void
cow_growth_pause(struct cow_growth *growth)
{
    growth->measuring = false;
}

/* Checks the invariants; writes the first difference to +out+ and gives false. */
static inline bool
cow_growth_consistent(const struct cow_growth *growth, FILE *out)
{
    const struct { const char *name; double value; } fields[] = {
        { "program_ns", growth->program_ns }, { "malloced", growth->malloced },
        { "survived", growth->survived }, { "full_program_ns", growth->full_program_ns },
        { "full_survived", growth->full_survived }, { "minor_marking_ns", growth->minor_marking_ns },
        { "object_ns", growth->object_ns }, { "slot_ns", growth->slot_ns }, { "live", growth->live },
        { "blocks", growth->blocks }, { "last_allocated", growth->last_allocated },
        { "keep", growth->keep },
        { "memory", growth->memory }, { "grown", growth->grown }, { "old_waste", growth->old_waste },
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (isfinite(fields[i].value) && fields[i].value >= 0) continue;
        fprintf(out, "cow_growth.%s: expected a number of 0 or more, found %g\n", fields[i].name,
                fields[i].value);
        return false;
    }
    double most = growth->memory * COW_GROWTH_MOST;
    if (most < COW_GROWTH_LEAST_ROOM) most = COW_GROWTH_LEAST_ROOM;
    if (!(growth->room >= 0 && growth->room <= most)) {
        fprintf(out, "cow_growth.room: expected 0 to %g, found %g\n", most, growth->room);
        return false;
    }
    if (!(growth->full_room >= 0 && growth->full_room <= most)) {
        fprintf(out, "cow_growth.full_room: expected 0 to %g, found %g\n", most, growth->full_room);
        return false;
    }
    return true;
}

#endif /* COW_GROWTH_POLICY_H */

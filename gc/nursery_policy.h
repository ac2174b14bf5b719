/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_NURSERY_POLICY_H
#define COW_NURSERY_POLICY_H

/*
 * nursery_policy: how many free slots a forked child keeps for objects of its own.
 *
 * Job: CRuby keeps the free slots of a heap between ratios of ALL its slots
 * (RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO, _GOAL_RATIO, _MAX_RATIO). So a child of a big parent takes up tens of
 * MB between two collections, although it keeps little. This file says to how many slots a child applies the
 * ratios instead: its basis.
 *
 * Algorithm: inherited objects do not count, so the basis is what they leave to the child, but not less than
 * a floor:
 *
 *     own   = total - objects              slots that the child can use
 *     floor = max(least, slots / 64) / min_ratio
 *     floor of a heap = max(its share of floor, floor / 8)
 *     basis = min(total, max(own, floor))
 *
 * A heap keeps its ratio of the basis free, but no more slots than its demand: twice the objects that it made
 * between its last two sweeps. The heap for which a collection is made has a demand of all that the ratios
 * say. So that
 *
 *     never forked:         objects = 0,     basis = total    upstream's rule
 *     small parent:         slots <= floor:  as if never forked
 *     fresh child:          own small,       basis = floor
 *     child that has grown: own -> total,    basis -> total   upstream's rule
 *
 * There is a floor because a collection costs the same however little it frees: it marks the roots, and reads
 * the metadata of every page, inherited pages included (0.3 us a page; hence slots / 64). A child with a
 * nursery as small as what it keeps would collect all the time.
 *
 * Entry points: cow_nursery_floor and cow_nursery_inherit (at the fork, in the child), cow_nursery_basis and
 * cow_nursery_min_free (wherever a ratio is applied), cow_nursery_within_floor, cow_nursery_grown,
 * cow_nursery_may_grow, cow_nursery_extension and cow_nursery_charge (when a heap must grow),
 * cow_nursery_marked_fully (at the end of a full marking), cow_nursery_survived and cow_nursery_swept (at the
 * end of a sweep), cow_nursery_ran_out (before a collection for want of slots), cow_nursery_pools (for a page
 * that is swept), cow_nursery_vacancies (when pages are given back), cow_nursery_consistent.
 *
 * Who writes this memory after a fork: the child writes a few words of each heap in its objspace, at the fork
 * and in collections. Nothing lies in pages of objects.
 *
 * Settings (environment):
 *     RUBY_GC_FORK_NURSERY        1 (default): children size their nursery as described here. 0: upstream's
 *                                 rule holds in them.
 *     RUBY_GC_FORK_NURSERY_SLOTS  least, in slots: the free slots that a child has after a collection, even
 *                                 if it keeps nothing.
 *
 * Upstream's settings win: where RUBY_GC_HEAP_FREE_SLOTS or one of its ratios is given, its rule holds.
 *
 * All functions are pure but for the struct that they get.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "assertion.h"
#include "setting_values.h"

/* Free slots of all heaps together that a child has after a collection. 49,152 in place of 32,768 saved a
 * Rails worker a third of its collections for 1.5 % more memory (0b848c3, before there was a demand). 12,288
 * was chosen and not measured. */
#ifndef COW_NURSERY_LEAST_SLOTS
# define COW_NURSERY_LEAST_SLOTS 12288
#endif

/* They are at least the inherited slots divided by this, as a collection takes 0.3 us for each inherited
 * page. 64 was chosen and not measured. */
#ifndef COW_NURSERY_INHERITED_SLOTS_PER_SLOT
# define COW_NURSERY_INHERITED_SLOTS_PER_SLOT 64
#endif

/* The heaps grow by what they inherited divided by this before a full collection. With 4 a Rails worker made
 * one in its first 2,000 requests, in place of five, and collected for 730 ms in place of 1,100 (248908f). */
#ifndef COW_NURSERY_INHERITED_PER_GROWTH
# define COW_NURSERY_INHERITED_PER_GROWTH 4
#endif

/* The demand: free slots for each object that was made between the last two sweeps. Chosen, not measured. */
#ifndef COW_NURSERY_DEMAND
# define COW_NURSERY_DEMAND 2
#endif

/* The demand falls by its own size divided by this with each sweep at most. Chosen, not measured. */
#ifndef COW_NURSERY_DEMAND_FORGOTTEN
# define COW_NURSERY_DEMAND_FORGOTTEN 8
#endif

/* A heap's floor is at least the floor of all heaps divided by this. Chosen, not measured. */
#ifndef COW_NURSERY_HEAP_SHARES
# define COW_NURSERY_HEAP_SHARES 8
#endif

/*
 * What one heap of a child had at the fork. In a process that was not forked, or whose parent was no bigger
 * than the floor, all but .at_last_full are 0.
 *
 * Invariants (cow_nursery_consistent):
 *     objects <= slots
 *     objects > 0  =>  floor > 0
 */
struct cow_nursery_inheritance {
    size_t objects;      /* inherited, and not known to be dead */
    size_t slots;        /* slots of inherited pages */
    size_t floor;        /* the floor of this heap, in slots */
    size_t at_last_full; /* slots of the heap at the fork, or when a full collection was made last */
    size_t allocated;    /* objects that the heap had ever made, when it was swept last */
    size_t demand;       /* free slots that the heap will use until it is swept next; 0: not known yet */
};

/* Gives the floor of all heaps, in slots: to so many the ratios apply at least. +least+ is the setting. */
static inline size_t
cow_nursery_floor(size_t least, size_t inherited_slots, double min_ratio)
{
    COW_ASSERT(0 < min_ratio && min_ratio <= 1);
    size_t for_inherited = inherited_slots / COW_NURSERY_INHERITED_SLOTS_PER_SLOT;
    double floor = (least > for_inherited ? least : for_inherited) / min_ratio;

    return floor < (double)(SIZE_MAX / 2) ? (size_t)floor : SIZE_MAX / 2;
}

/* Gives what a heap with +objects+ objects in +slots+ slots has at the fork; +all_slots+ and +floor+ are
 * those of all heaps. The heap's share of the floor is its share of the slots, because a child makes about
 * the same kinds of objects as its parent; but not less than an eighth, because it may make others. */
static inline struct cow_nursery_inheritance
cow_nursery_inherit(size_t objects, size_t slots, size_t all_slots, size_t floor)
{
    struct cow_nursery_inheritance inherited = { 0 };

    if (all_slots <= floor || slots == 0) return inherited;

    size_t share = (size_t)(floor * ((double)slots / (double)all_slots));
    size_t least = floor / COW_NURSERY_HEAP_SHARES;

    inherited.objects = objects < slots ? objects : slots;
    inherited.slots = slots;
    inherited.floor = share > least ? share : least;
    inherited.at_last_full = slots;
    return inherited;
}

/* Gives how many of the heap's +total+ slots inherited objects do not take. The heap may have lost inherited
 * pages since the fork. */
static inline size_t
cow_nursery_own(const struct cow_nursery_inheritance *inherited, size_t total)
{
    return total > inherited->objects ? total - inherited->objects : 0;
}

/* Gives the basis: to how many of the heap's +total+ slots the ratios apply. */
static inline size_t
cow_nursery_basis(const struct cow_nursery_inheritance *inherited, size_t total)
{
    size_t own = cow_nursery_own(inherited, total);
    size_t basis = own > inherited->floor ? own : inherited->floor;

    return basis < total ? basis : total;
}

/* Gives how many free slots the heap has at least by the ratios. */
static inline size_t
cow_nursery_by_ratios(const struct cow_nursery_inheritance *inherited, size_t total, double min_ratio)
{
    COW_ASSERT(0 < min_ratio && min_ratio <= 1);
    return (size_t)(cow_nursery_basis(inherited, total) * min_ratio);
}

/* Gives +slots+ free slots, capped by the demand. */
static inline size_t
cow_nursery_worth(const struct cow_nursery_inheritance *inherited, size_t slots)
{
    return inherited->demand > 0 && slots > inherited->demand ? inherited->demand : slots;
}

/* Gives how many free slots the heap has at least after a collection. Never 0: a heap that is full and
 * neither grows nor asks for a full collection could not go on. (Upstream wants a fifth of 10,000 slots even
 * of a heap with a few. A child collects before such a heap grows so far, and would ask for a full collection
 * again and again.) */
static inline size_t
cow_nursery_min_free(const struct cow_nursery_inheritance *inherited, size_t total, double min_ratio)
{
    size_t slots = cow_nursery_worth(inherited, cow_nursery_by_ratios(inherited, total, min_ratio));

    return slots > 0 ? slots : 1;
}

/* Called when a collection is made because this heap has no free slot: its demand is at least all that the
 * ratios say, twice, because the demand falls until the heap is swept. */
static inline void
cow_nursery_ran_out(struct cow_nursery_inheritance *inherited, size_t total, double min_ratio)
{
    size_t slots = cow_nursery_by_ratios(inherited, total, min_ratio) * COW_NURSERY_DEMAND;

    if (inherited->floor > 0 && inherited->demand < slots) inherited->demand = slots;
}

/* Called when a heap is swept that has ever made +allocated+ objects. Until its next sweep it will hardly
 * make more than twice as many as since its last one. If that was just now (GC.start, or a minor collection
 * that a full one follows), the demand falls only a little. (By the ratios a heap of large slots would have
 * as many of them as other heaps, but a child may make few such objects.) */
static inline void
cow_nursery_swept(struct cow_nursery_inheritance *inherited, size_t allocated)
{
    size_t made = allocated - inherited->allocated;

    if (inherited->floor == 0) return;
    inherited->allocated = allocated;
    made = made < SIZE_MAX / COW_NURSERY_DEMAND ? made * COW_NURSERY_DEMAND + 1 : SIZE_MAX;
    size_t lowered = inherited->demand - inherited->demand / COW_NURSERY_DEMAND_FORGOTTEN;
    inherited->demand = made > lowered ? made : lowered;
}

/* Is the heap within its floor? Then it may grow without a full collection, which would mark all that was
 * inherited and free little of the child's own. */
static inline bool
cow_nursery_within_floor(const struct cow_nursery_inheritance *inherited, size_t total)
{
    return cow_nursery_own(inherited, total) < inherited->floor;
}

/* Gives by how many slots the heap has grown to +total+ since the last full collection. */
static inline size_t
cow_nursery_grown(const struct cow_nursery_inheritance *inherited, size_t total)
{
    return total > inherited->at_last_full ? total - inherited->at_last_full : 0;
}

/* May heaps that have grown by +grown+ bytes since the last full collection grow without another one, if they
 * inherited +inherited_bytes+? Upstream makes one whenever a heap must grow that was collected several times
 * since. In a child it marks all that was inherited, so it waits until it pays. */
static inline bool
cow_nursery_may_grow(size_t grown, size_t inherited_bytes)
{
    return grown < inherited_bytes / COW_NURSERY_INHERITED_PER_GROWTH;
}

/* Called when a full collection has marked a heap of +total+ slots. */
static inline void
cow_nursery_marked_fully(struct cow_nursery_inheritance *inherited, size_t total)
{
    inherited->at_last_full = total;
}

/* Gives by how many slots a heap within its floor grows, 1 at least: until it has the free slots that it
 * shall have at least or, where the child keeps more than that, +goal_ratio+ of the slots that it has of its
 * own, so that it grows in ever longer steps. (Upstream's rule takes the rest of the basis for live objects,
 * but the floor of a fresh child is nearly empty.) A +goal_ratio+ of 0 means no goal, as upstream's. */
static inline size_t
cow_nursery_extension(const struct cow_nursery_inheritance *inherited, size_t total, size_t free_slots,
                      double min_ratio, double goal_ratio)
{
    COW_ASSERT(0 <= goal_ratio && goal_ratio < 1);
    size_t own = cow_nursery_own(inherited, total);
    size_t kept = own > free_slots ? own - free_slots : 0;
    size_t goal = cow_nursery_worth(inherited, (size_t)(kept * goal_ratio / (1 - goal_ratio)));
    size_t least = cow_nursery_min_free(inherited, total, min_ratio);
    size_t slots = goal > least ? goal : least;

    return slots > free_slots ? slots - free_slots : 1;
}

/* Gives what a new page of +slots+ slots takes from the slots by which all heaps may grow. In a child it is
 * as much as for a page of +most+, the smallest, slots: the allowance rations memory, and a slot may have 40
 * bytes or 640. */
static inline size_t
cow_nursery_charge(const struct cow_nursery_inheritance *inherited, size_t slots, size_t most)
{
    return inherited->floor > 0 ? most : slots;
}

/* Called when a sweep left +survivors+ objects in the heap: inherited ones cannot be more. Afterwards the
 * free slots of the heap are at most cow_nursery_own. */
static inline void
cow_nursery_survived(struct cow_nursery_inheritance *inherited, size_t survivors)
{
    if (inherited->objects > survivors) inherited->objects = survivors;
}

/* Is a swept page with +free_slots+ free slots put aside for the next incremental marking, if pages with
 * +pooled+ are already? Upstream puts pages of each heap aside until they have +most+ slots. A child puts
 * aside no more than the demand: +most+ slots of 640 bytes are as much memory as all its other slots. */
static inline bool
cow_nursery_pools(const struct cow_nursery_inheritance *inherited, size_t pooled, size_t free_slots,
                  size_t most)
{
    if (inherited->floor == 0 || inherited->demand == 0 || inherited->demand >= most) return pooled < most;
    return pooled + free_slots <= inherited->demand;
}

/* Gives the number of vacancies. They are free or not as the parent left them. If the child gave back pages
 * of its own because of them, its objects would go to shared pages. */
static inline size_t
cow_nursery_vacancies(const struct cow_nursery_inheritance *inherited)
{
    COW_ASSERT(inherited->objects <= inherited->slots);
    return inherited->slots - inherited->objects;
}

/* Checks the invariants; writes the first difference to +out+ and gives false. */
static inline bool
cow_nursery_consistent(const struct cow_nursery_inheritance *inherited, FILE *out)
{
    if (inherited->objects > inherited->slots) {
        fprintf(out, "cow_nursery_inheritance.objects: expected at most .slots (%zu), found %zu\n",
                inherited->slots, inherited->objects);
        return false;
    }
    if ((inherited->slots == 0) != (inherited->floor == 0) && inherited->objects > 0) {
        fprintf(out, "cow_nursery_inheritance.floor: expected %s with .slots %zu, found %zu\n",
                inherited->slots == 0 ? "0" : "more than 0", inherited->slots, inherited->floor);
        return false;
    }
    return true;
}

#endif /* COW_NURSERY_POLICY_H */

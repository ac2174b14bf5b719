#ifndef COW_NURSERY_H
#define COW_NURSERY_H

/*
 * nursery: how many free slots a forked child keeps for objects of its own.
 *
 * Job: CRuby keeps the free slots of a heap between ratios of ALL its slots
 * (RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO, _GOAL_RATIO, _MAX_RATIO). A child of a
 * big parent so takes up tens of MB between two collections, although what it
 * keeps is tiny. This file says to how many slots a child applies the ratios
 * instead: its basis.
 *
 * Algorithm: inherited objects do not count, so the basis is what they leave
 * to the child, but not less than a floor:
 *
 *     own   = total - objects              slots the child can use
 *     floor = max(least, slots / 64) / min_ratio
 *     floor of a heap = max(its share of floor, floor / 8)
 *     basis = min(total, max(own, floor))
 *
 * of which a heap keeps its ratio free, but, unless it was this heap that had to collect,
 * not more slots than twice the objects it made between the last two collections. So that
 *
 *     never forked:         objects = 0,     basis = total    upstream's rule
 *     small parent:         slots <= floor:  as if never forked
 *     fresh child:          own small,       basis = floor
 *     child that has grown: own -> total,    basis -> total   upstream's rule
 *
 * The floor is there because a collection costs the same however little it
 * frees: its roots, and the metadata of every page, the inherited ones too
 * (0.3 us a page; hence slots / 64). A nursery sized by what the child keeps
 * would be collected all the time.
 *
 * Entry points: cow_nursery_floor and cow_nursery_inherit (at the fork, in the child),
 * cow_nursery_basis and cow_nursery_min_free (wherever a ratio is applied),
 * cow_nursery_within_floor, cow_nursery_grown, cow_nursery_may_grow, cow_nursery_extension and
 * cow_nursery_charge (when a heap has to grow), cow_nursery_marked_fully (at the end of a full
 * marking), cow_nursery_survived and cow_nursery_swept (at the end of a sweep), cow_nursery_ran_out
 * (before a collection for want of slots), cow_nursery_pools (for a page that is swept),
 * cow_nursery_vacancies (when pages are given back), cow_nursery_consistent.
 *
 * Who writes this memory after a fork: the child, a few words a heap in its
 * objspace, at the fork and when inherited objects die. Nothing lies in pages
 * of objects.
 *
 * Knobs (environment):
 *     RUBY_GC_FORK_NURSERY        1 (default): children size their nursery as
 *                                 said here. 0: upstream's rule everywhere.
 *     RUBY_GC_FORK_NURSERY_SLOTS  least, in slots: the free slots a child has
 *                                 after a collection, even if it keeps nothing.
 * The settings of upstream win: where RUBY_GC_HEAP_FREE_SLOTS, one of its
 * ratios or RUBY_GC_HEAP_n_INIT_SLOTS is given, upstream's rule holds.
 *
 * All functions are pure but for the struct they are given.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "setting.h"

/* Free slots of all heaps together that a child has after a collection. */
#ifndef COW_NURSERY_LEAST_SLOTS
# define COW_NURSERY_LEAST_SLOTS 12288
#endif

/* They are at least the inherited slots divided by this. */
#ifndef COW_NURSERY_INHERITED_SLOTS_PER_SLOT
# define COW_NURSERY_INHERITED_SLOTS_PER_SLOT 64
#endif

/* The heaps grow by what they inherited divided by this, and then there is a full
 * collection. */
#ifndef COW_NURSERY_INHERITED_PER_GROWTH
# define COW_NURSERY_INHERITED_PER_GROWTH 4
#endif

/* Free slots for each object that was made between the last two collections, at most. */
#ifndef COW_NURSERY_DEMAND
# define COW_NURSERY_DEMAND 2
#endif

/* One in so many of them is forgotten with each collection. */
#ifndef COW_NURSERY_DEMAND_FORGOTTEN
# define COW_NURSERY_DEMAND_FORGOTTEN 8
#endif

/* A heap's floor is at least the whole floor divided by this. */
#ifndef COW_NURSERY_HEAP_SHARES
# define COW_NURSERY_HEAP_SHARES 8
#endif

/*
 * What one heap of a child had at the fork; all but .then are 0 in a process that was
 * not forked, or whose parent was no bigger than the floor.
 *
 *     objects <= slots
 */
struct cow_nursery_inheritance {
    size_t objects; /* inherited and not known to be dead */
    size_t slots;   /* slots of inherited pages */
    size_t floor;   /* of this heap */
    size_t then;    /* slots at the fork, or when a full collection was last made */
    size_t allocated; /* objects that the heap had ever made, when it was swept last */
    size_t demand;  /* free slots it is worth at most to have; 0: not known yet */
};

/* Slots of all heaps to which the ratios apply at least.
 * pre: 0 < min_ratio <= 1 */
static inline size_t
cow_nursery_floor(size_t least, size_t inherited_slots, double min_ratio)
{
    size_t for_inherited = inherited_slots / COW_NURSERY_INHERITED_SLOTS_PER_SLOT;
    double floor = (least > for_inherited ? least : for_inherited) / min_ratio;

    return floor < (double)(SIZE_MAX / 2) ? (size_t)floor : SIZE_MAX / 2;
}

/* What a heap with +objects+ in +slots+ has at the fork; +all_slots+ and
 * +floor+ are those of all heaps. Its share of the floor is its share of the slots, for a
 * child makes about the kinds of objects that its parent made; but not less
 * than an eighth, for it may also make others. */
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
    inherited.then = slots;
    return inherited;
}

/* Slots of the heap that inherited objects do not take.
 * The heap may have lost inherited pages since. */
static inline size_t
cow_nursery_own(const struct cow_nursery_inheritance *inherited, size_t total)
{
    return total > inherited->objects ? total - inherited->objects : 0;
}

/* Slots to which the ratios apply. */
static inline size_t
cow_nursery_basis(const struct cow_nursery_inheritance *inherited, size_t total)
{
    size_t own = cow_nursery_own(inherited, total);
    size_t basis = own > inherited->floor ? own : inherited->floor;

    return basis < total ? basis : total;
}

/* Free slots that a heap has at least by the ratios. */
static inline size_t
cow_nursery_by_ratios(const struct cow_nursery_inheritance *inherited, size_t total, double min_ratio)
{
    return (size_t)(cow_nursery_basis(inherited, total) * min_ratio);
}

/* Of +slots+ free slots, so many as the heap is known to be worth. */
static inline size_t
cow_nursery_worth(const struct cow_nursery_inheritance *inherited, size_t slots)
{
    return inherited->demand > 0 && slots > inherited->demand ? inherited->demand : slots;
}

/* Free slots a heap has at least after a collection. Never none: a heap that
 * is full and neither grows nor asks for a full GC could not go on.
 * Upstream wants a fifth of 10,000 slots here even of a heap that has but a
 * few; a child collects before such a heap grows so far, so it would ask for a
 * full GC again and again. */
static inline size_t
cow_nursery_min_free(const struct cow_nursery_inheritance *inherited, size_t total, double min_ratio)
{
    size_t slots = cow_nursery_worth(inherited, cow_nursery_by_ratios(inherited, total, min_ratio));

    return slots > 0 ? slots : 1;
}

/* A collection is made because this heap has no free slot: what it makes is worth all that
 * the ratios say, and twice, as some of that is forgotten until it is swept. */
static inline void
cow_nursery_ran_out(struct cow_nursery_inheritance *inherited, size_t total, double min_ratio)
{
    size_t slots = cow_nursery_by_ratios(inherited, total, min_ratio) * COW_NURSERY_DEMAND;

    if (inherited->floor > 0 && inherited->demand < slots) inherited->demand = slots;
}

/* A heap is swept that has made +allocated+ objects so far: until it is swept next it will
 * hardly make twice as many as since it was last. Where that was just now (GC.start, or a
 * minor collection that a full one follows), a little less than was said then. A heap of
 * big slots has as many of them by the ratios as others, but a child may make few such
 * objects. */
static inline void
cow_nursery_swept(struct cow_nursery_inheritance *inherited, size_t allocated)
{
    size_t made = allocated - inherited->allocated;

    if (inherited->floor == 0) return;
    inherited->allocated = allocated;
    made = made < SIZE_MAX / COW_NURSERY_DEMAND ? made * COW_NURSERY_DEMAND + 1 : SIZE_MAX;
    size_t before = inherited->demand - inherited->demand / COW_NURSERY_DEMAND_FORGOTTEN;
    inherited->demand = made > before ? made : before;
}

/* Is the heap within its floor? Then it may grow without a full GC first: that
 * would mark all that was inherited, and find little that is the child's. */
static inline bool
cow_nursery_within_floor(const struct cow_nursery_inheritance *inherited, size_t total)
{
    return cow_nursery_own(inherited, total) < inherited->floor;
}

/* Slots that a heap of +total+ slots has more than when a full collection was last made. */
static inline size_t
cow_nursery_grown(const struct cow_nursery_inheritance *inherited, size_t total)
{
    return total > inherited->then ? total - inherited->then : 0;
}

/* May heaps that have +grown+ bytes since the last full collection grow without another,
 * where +inherited_bytes+ were inherited? Upstream makes one whenever a heap has to grow
 * that was collected some times since. Here it marks all that was inherited: it must wait
 * until that is worth its price. */
static inline bool
cow_nursery_may_grow(size_t grown, size_t inherited_bytes)
{
    return grown < inherited_bytes / COW_NURSERY_INHERITED_PER_GROWTH;
}

/* A full collection has marked what lives in a heap of +total+ slots. */
static inline void
cow_nursery_marked_fully(struct cow_nursery_inheritance *inherited, size_t total)
{
    inherited->then = total;
}

/* Slots by which a heap within its floor is extended: until it has what it shall have
 * at least, or, where the child keeps more than that, +goal_ratio+ of what it then has of
 * its own, so that it grows in ever longer steps. Upstream's rule takes the rest of the
 * basis for objects that live, but the floor of a fresh child is nearly empty.
 * pre: 0 <= goal_ratio < 1; 0 is upstream's for "no goal" */
static inline size_t
cow_nursery_extension(const struct cow_nursery_inheritance *inherited, size_t total, size_t free_slots,
                      double min_ratio, double goal_ratio)
{
    size_t own = cow_nursery_own(inherited, total);
    size_t kept = own > free_slots ? own - free_slots : 0;
    size_t goal = cow_nursery_worth(inherited, (size_t)(kept * goal_ratio / (1 - goal_ratio)));
    size_t least = cow_nursery_min_free(inherited, total, min_ratio);
    size_t slots = goal > least ? goal : least;

    return slots > free_slots ? slots - free_slots : 1;
}

/* What a new page of +slots+ slots takes from the slots that all heaps may be extended
 * by: in a child as much as one with the +most+ slots, for it is memory that is
 * rationed here, and a slot may be of 40 bytes or of 640. */
static inline size_t
cow_nursery_charge(const struct cow_nursery_inheritance *inherited, size_t slots, size_t most)
{
    return inherited->floor > 0 ? most : slots;
}

/* A sweep left +survivors+ objects: no more can be inherited ones. Afterwards
 * the free slots of the heap are at most cow_nursery_own. */
static inline void
cow_nursery_survived(struct cow_nursery_inheritance *inherited, size_t survivors)
{
    if (inherited->objects > survivors) inherited->objects = survivors;
}

/* Is a swept page with +free+ free slots put aside for a coming incremental marking? So is
 * each page of a heap until +most+ slots are. A child puts aside no more than its heap
 * will make use of: +most+ slots of 640 bytes are as much memory as all its others. */
static inline bool
cow_nursery_pools(const struct cow_nursery_inheritance *inherited, size_t pooled, size_t free_slots,
                  size_t most)
{
    if (inherited->floor == 0 || inherited->demand == 0 || inherited->demand >= most) return pooled < most;
    return pooled + free_slots <= inherited->demand;
}

/* Slots of inherited pages that no inherited object takes. They are free or
 * not as the parent left them: giving back pages of the child's own because
 * of them would send its objects into pages that are shared. */
static inline size_t
cow_nursery_vacancies(const struct cow_nursery_inheritance *inherited)
{
    return inherited->slots - inherited->objects;
}

/* Recomputes what is kept; writes the first difference to +out+ and gives false. */
static inline bool
cow_nursery_consistent(const struct cow_nursery_inheritance *inherited, FILE *out)
{
    if (inherited->objects > inherited->slots) {
        fprintf(out, "nursery_inheritance.objects: expected at most .slots (%zu), found %zu\n",
                inherited->slots, inherited->objects);
        return false;
    }
    if ((inherited->slots == 0) != (inherited->floor == 0) && inherited->objects > 0) {
        fprintf(out, "nursery_inheritance.floor: expected %s with %zu slots, found %zu\n",
                inherited->slots == 0 ? "0" : "more than 0", inherited->slots, inherited->floor);
        return false;
    }
    return true;
}

#endif /* COW_NURSERY_H */

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_GC_STAT_H
#define COW_GC_STAT_H

/*
 * gc_stat: CowRuby's keys of GC.stat and GC.stat_heap.
 *
 * Job: computes their values. A closed slot is none of the available ones, so that upstream's sums hold
 * (available = live + free + final). doc/settings.md says what each key means.
 *
 * Entry points: COW_STAT_KEYS, COW_STAT_HEAP_KEYS, cow_stat_available_slots, cow_stat_heap_closed_slots.
 *
 * Who writes this memory after a fork: nobody.
 */

/* Gives the closed slots of a heap as GC.stat counts them: the slot of an object in a sealed page that waits
 * for its finalizer is a final one and no closed one. */
static size_t
cow_stat_heap_closed_slots(const rb_heap_t *heap)
{
    size_t closed = cow_heap_closed_slots(heap);
    struct heap_page *page;

    if (closed == 0 || heap->final_slots_count == 0) return closed;
    ccan_list_for_each(&heap->pages, page, page_node) {
        if (!page->seal.sealed) break;
        closed -= MIN(closed, page->final_slots);
    }
    return closed;
}

/* Gives the closed slots of all heaps. */
static size_t
cow_stat_closed_slots(rb_objspace_t *objspace)
{
    size_t sum = 0;

    for (int i = 0; i < HEAP_COUNT; i++) {
        sum += cow_stat_heap_closed_slots(&heaps[i]);
    }
    return sum;
}

/* Gives the available slots of all heaps: those that are not closed. */
static size_t
cow_stat_available_slots(rb_objspace_t *objspace)
{
    return objspace_available_slots(objspace) - cow_stat_closed_slots(objspace);
}

/* X(key, value) for each key of GC.stat. */
#define COW_STAT_KEYS(X) \
    X(seal_count, objspace->seal.count) \
    X(sealed_pages, cow_seal_total(objspace, pages)) \
    X(sealed_slots, cow_seal_total(objspace, slots)) \
    X(closed_slots, cow_stat_closed_slots(objspace)) \
    X(arenas, cow_locate_space.arenas.count) \
    X(alignoff_pages, COW_LOCATE_UNALIGNED ? cow_locate_space.malloc_pages.count : 0) \
    X(reserved_bytes, cow_locate_reserved_bytes()) \
    X(committed_bytes, cow_locate_committed_bytes()) \
    X(metadata_bytes, cow_locate_metadata_bytes()) \
    X(denied_reservations, cow_locate_space.arenas.denied) \
    X(allocation_rate, cow_growth_size(cow_growth_rate(&objspace->growth) * 1e6)) \
    X(minor_gc_cost, cow_growth_size(cow_growth_minor_cost(&objspace->growth) / 1e3)) \
    X(major_gc_cost, cow_growth_size(cow_growth_full_cost(&objspace->growth) / 1e3)) \
    X(pressure_level, objspace->pressure.policy.level) \
    X(pressure_readings, objspace->pressure.readings) \
    X(pressure_moderate_count, objspace->pressure.levels[COW_PRESSURE_MODERATE]) \
    X(pressure_critical_count, objspace->pressure.levels[COW_PRESSURE_CRITICAL]) \
    X(pressure_gc_count, objspace->pressure.collections) \
    X(released_for_stalls, objspace->pressure.causes[COW_PRESSURE_STALLS]) \
    X(released_for_cgroup, objspace->pressure.causes[COW_PRESSURE_CGROUP]) \
    X(released_for_limit, objspace->pressure.causes[COW_PRESSURE_LIMIT]) \
    X(released_for_faults, objspace->pressure.causes[COW_PRESSURE_FAULTS]) \
    X(released_for_tree, objspace->pressure.causes[COW_PRESSURE_TREE]) \
    X(release_count, objspace->pressure.releases) \
    X(released_bytes, objspace->pressure.released_bytes) \
    X(grown_by_model, objspace->growth_limits.grown[COW_GROWN_BY_MODEL]) \
    X(grown_by_nursery, objspace->growth_limits.grown[COW_GROWN_BY_NURSERY]) \
    X(grown_by_ratios, objspace->growth_limits.grown[COW_GROWN_BY_RATIOS]) \
    X(growth_room, cow_growth_size(objspace->growth.room)) \
    X(major_growth_room, cow_growth_size(objspace->growth.full_room))

/* X(key, value) for each key of GC.stat_heap. */
#define COW_STAT_HEAP_KEYS(X) \
    X(sealed_pages, heap->seal.pages) \
    X(sealed_slots, heap->seal.slots) \
    X(closed_slots, cow_stat_heap_closed_slots(heap))

/* What X may be: declares the key's symbol (of GC.stat, of GC.stat_heap), makes it, sets its value. */
#define COW_STAT_SYM(key, value) gc_stat_sym_##key,
#define COW_STAT_HEAP_SYM(key, value) gc_stat_heap_sym_##key,
#define COW_STAT_NAME(key, value) S(key);
#define COW_STAT_SET(key, value) SET(key, value);

#endif /* COW_GC_STAT_H */

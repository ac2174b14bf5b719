/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * heap_growth: by how much the heaps may grow.
 *
 * Job: measures what growth_policy.h wants to know, and applies its rule; in a process with inherited slots
 * those of nursery_policy.h; and in both those of seal_policy.h. Where a setting of upstream's is given, its
 * own rule holds for what the setting is about (cow_given).
 *
 * Entry points: cow_growth_collect (a collection begins), cow_growth_collecting (upstream's rule for malloc
 * has been applied), cow_growth_decide (the collection has marked), cow_growth_limit (the model may end),
 * cow_growth_old_objects_factor, cow_heap_min_free_slots, cow_heaps_min_free_slots, cow_heaps_max_free_slots,
 * cow_heap_extension, cow_heap_allowance, cow_heap_page_charge, cow_heaps_may_grow, cow_heap_allowance_reset,
 * cow_nursery_floor_slots, cow_target_time_set.
 *
 * Who writes this memory after a fork: the process writes .allocatable_slots and .growth of its objspace, no
 * page.
 */

static size_t cow_seal_room_to_grow(rb_objspace_t *objspace);
static size_t objspace_available_slots(rb_objspace_t *objspace);
static bool current_process_time(struct timespec *ts);
static void cow_growth_limit(rb_objspace_t *objspace);

STATIC_ASSERT(cow_growth_heaps, COW_GROWTH_HEAPS == HEAP_COUNT);

/* Gives ns of the CPU time of all threads of the process; 0: not known. */
static double
cow_process_cpu(void)
{
    struct timespec cpu;

    return current_process_time(&cpu) ? (double)cpu.tv_sec * 1e9 + (double)cpu.tv_nsec : 0;
}

#include "pressure.c"

/* Does the model hold in this process, for what +settings+ of upstream's would decide? Not without a
 * measurement (GC.measure_total_time = false), and not where slots are inherited. */
static bool
cow_growth_governs(rb_objspace_t *objspace, unsigned int settings)
{
    if (gc_params.cow.target_time <= 0 || !objspace->flags.measure_gc) return false;
    if (objspace->growth_limits.inherited || (gc_params.cow.given & settings)) return false;
    for (int i = 0; i < HEAP_COUNT; i++) {
        if (heaps[i].inherited.slots > 0) return false;
    }
    return true;
}

/* Has the model rooms for malloc, for what +settings+ of upstream's would decide? */
static bool
cow_growth_rooms_hold(rb_objspace_t *objspace, unsigned int settings)
{
    return objspace->growth.memory > 0 && cow_growth_governs(objspace, settings);
}

/* Sets the limits of malloc: where the model holds to its rooms, but upstream's least at least; else to what
 * upstream's rule has set. What is not a room is less under pressure. What is given stays as it is. */
static void
cow_growth_limit_malloc(rb_objspace_t *objspace)
{
    const struct cow_growth_limits *limits = &objspace->growth_limits;
    const struct cow_pressure *pressure = &objspace->pressure.policy;

    if (limits->malloc == 0) return; /* no collection has begun */
    malloc_limit = limits->malloc;
    if (cow_growth_rooms_hold(objspace, COW_GIVEN_MALLOC)) {
        malloc_limit = MAX(cow_growth_size(cow_growth_malloc_room(&objspace->growth)),
                           cow_pressure_part(pressure, gc_params.malloc_limit_min));
    }
    else if (!(gc_params.cow.given & COW_GIVEN_MALLOC)) {
        malloc_limit = cow_pressure_part(pressure, limits->malloc);
    }
#if RGENGC_ESTIMATE_OLDMALLOC
    /* Until the sweep what has died since the last collection counts as well, up to the limit of all. It is
     * not to ask for a full collection. */
    size_t *const limit = &objspace->rgengc.oldmalloc_increase_limit;
    *limit = limits->oldmalloc;
    if (cow_growth_rooms_hold(objspace, COW_GIVEN_OLDMALLOC)) {
        *limit = MAX(cow_growth_size(cow_growth_full_malloc_room(&objspace->growth)),
                     cow_pressure_part(pressure, gc_params.oldmalloc_limit_min)) + malloc_limit;
    }
    else if (!(gc_params.cow.given & COW_GIVEN_OLDMALLOC)) {
        *limit = MIN(*limit, cow_pressure_part(pressure, *limit) + malloc_limit);
    }
#endif
}

/* Called when the model may no longer hold, as after a fork: its limits are not passed on. */
static void
cow_growth_limit(rb_objspace_t *objspace)
{
    double most = objspace->rgengc.old_objects * gc_params.oldobject_limit_factor;

    cow_growth_limit_malloc(objspace);
    if (objspace->growth.memory <= 0) return;
    if (!cow_growth_governs(objspace, COW_GIVEN_OLD_OBJECTS) && objspace->rgengc.old_objects_limit > most) {
        objspace->rgengc.old_objects_limit = (size_t)most;
    }
}

/* Called when a collection begins, before upstream's rule looks at what malloc has taken since the last one.
 * The rule is to ask for a full collection if that is more than the limit that holds; and to change its own
 * limit, which is kept apart, by what it would have allowed. */
static void
cow_growth_collect(rb_objspace_t *objspace, bool full)
{
    struct cow_growth_limits *limits = &objspace->growth_limits;
    struct cow_growth_sample sample = { 0 };
    size_t claimed[HEAP_COUNT] = { 0 };

    if (limits->malloc == 0 || (gc_params.cow.given & COW_GIVEN_MALLOC)) limits->malloc = malloc_limit;
    malloc_limit = limits->malloc;
#if RGENGC_ESTIMATE_OLDMALLOC
    size_t *limit = &objspace->rgengc.oldmalloc_increase_limit;
    const size_t increase = objspace->rgengc.oldmalloc_increase;
    if (limits->oldmalloc == 0 || (gc_params.cow.given & COW_GIVEN_OLDMALLOC)) limits->oldmalloc = *limit;
    limits->oldmalloc_rules = full || increase > MAX(*limit, limits->oldmalloc) ||
                              (*limit >= limits->oldmalloc && increase <= limits->oldmalloc);
    if (limits->oldmalloc_rules) *limit = limits->oldmalloc;
#endif
    if (gc_params.cow.target_time <= 0 || !objspace->flags.measure_gc) {
        cow_growth_pause(&objspace->growth);
        return;
    }
    cow_count_claimed(claimed);
    sample.cpu_ns = cow_process_cpu();
    sample.marking_ns = (double)objspace->profile.marking_time_ns;
    sample.sweeping_ns = (double)objspace->profile.sweeping_time_ns;
    for (int i = 0; i < HEAP_COUNT; i++) {
        sample.allocated[i] = (double)(heaps[i].total_allocated_objects - claimed[i]) * heaps[i].slot_size;
    }
    sample.malloced = (double)malloc_increase;
    cow_growth_begin(&objspace->growth, &sample, full);
}

/* Called when upstream's rule has set the limits of malloc. */
static void
cow_growth_collecting(rb_objspace_t *objspace)
{
    objspace->growth_limits.malloc = malloc_limit;
#if RGENGC_ESTIMATE_OLDMALLOC
    if (objspace->growth_limits.oldmalloc_rules) {
        objspace->growth_limits.oldmalloc = objspace->rgengc.oldmalloc_increase_limit;
    }
#endif
}

/* Called when a collection has marked: decides how much may be allocated until the next one. */
static void
cow_growth_decide(rb_objspace_t *objspace)
{
    double bytes = 0;
    size_t slots = 0;

    /* The target may have been set to 0 while an incremental marking went on. */
    if (objspace->growth.measuring && gc_params.cow.target_time > 0) {
        for (int i = 0; i < HEAP_COUNT; i++) {
            bytes += (double)heaps[i].total_slots * heaps[i].slot_size;
            slots += heaps[i].total_slots;
        }
        /* How many objects each heap keeps is known after the sweep only. */
        double live = slots > 0 ? bytes / slots * objspace->marked_slots : 0;
        cow_growth_marked(&objspace->growth, objspace->marked_slots, slots, live,
                          cow_pressure_share(&objspace->pressure.policy, gc_params.cow.target_time / 100));
    }
    cow_growth_limit_malloc(objspace);
}

/* Gives how many times as many old objects as the last full marking left there may be without another one. */
static double
cow_growth_old_objects_factor(rb_objspace_t *objspace)
{
    double factor = gc_params.oldobject_limit_factor;

    if (!cow_growth_governs(objspace, COW_GIVEN_OLD_OBJECTS)) return factor;
    return MAX(factor, cow_growth_old_factor(&objspace->growth));
}

/* Gives how many slots the model leaves a heap until the next collection, those of a page at least. */
static size_t
cow_heap_room(rb_objspace_t *objspace, rb_heap_t *heap)
{
    double bytes = cow_growth_heap_room(&objspace->growth, (int)(heap - heaps));

    return cow_growth_size(MAX(bytes, HEAP_PAGE_SIZE) / heap->slot_size);
}

/* Gives how many free slots the heap shall have at least after a collection: by the nursery's rule if it has
 * inherited slots, else by the model or by upstream's rule. */
static size_t
cow_heap_min_free_slots(rb_objspace_t *objspace, rb_heap_t *heap)
{
    size_t init_slots = minimum_slots_for_heap(objspace, heap);

    if (heap->inherited.slots > 0) {
        return cow_nursery_min_free(&heap->inherited, heap->total_slots, gc_params.heap_free_slots_min_ratio);
    }
    if (cow_growth_governs(objspace, COW_GIVEN_SLOTS)) {
        return (size_t)(cow_heap_room(objspace, heap) * COW_GROWTH_LEAST_FREE);
    }
    return (size_t)(MAX(heap->total_slots, init_slots) * gc_params.heap_free_slots_min_ratio);
}

/* Gives the allowance that lets a heap grow by +slots+ slots of its own. */
static size_t
cow_heap_allowance(rb_objspace_t *objspace, const rb_heap_t *heap, size_t slots)
{
    const size_t in_page = HEAP_PAGE_SIZE / heap->slot_size;

    return CEILDIV(slots, in_page) * cow_heap_page_charge(objspace, heap, in_page);
}

/* Gives how many free slots all heaps shall have at least after a marking. +basis+: nursery_policy.h. */
static size_t
cow_heaps_min_free_slots(rb_objspace_t *objspace, size_t basis)
{
    size_t slots = 0;

    if (!cow_growth_governs(objspace, COW_GIVEN_SLOTS)) {
        return (size_t)(basis * gc_params.heap_free_slots_min_ratio);
    }
    for (int i = 0; i < HEAP_COUNT; i++) slots += cow_heap_min_free_slots(objspace, &heaps[i]);
    return slots;
}

/* Gives how many free slots they keep at most: empty pages beyond them are given back. Never fewer than they
 * would ask for again, unless all shall go (Process.warmup). */
static size_t
cow_heaps_max_free_slots(rb_objspace_t *objspace, size_t basis)
{
    size_t slots = (size_t)(basis * gc_params.heap_free_slots_max_ratio), room = 0;

    if (slots == 0) return 0;
    const size_t least = cow_heaps_min_free_slots(objspace, basis);
    if (!cow_growth_governs(objspace, COW_GIVEN_SLOTS)) return cow_pressure_max_free(objspace, least, slots);
    for (int i = 0; i < HEAP_COUNT; i++) room += cow_heap_room(objspace, &heaps[i]);
    return cow_pressure_max_free(objspace, MAX(least, room), MAX(slots, room));
}

/* Sets the target, from the next collection on: a number of per cent for which cow_growth_target holds. */
static void
cow_target_time_set(rb_objspace_t *objspace, double percent)
{
    gc_params.cow.target_time = percent;
    cow_growth_limit(objspace);
}

/* Gives by how many slots a heap with +free_slots+ free ones may grow, where CowRuby's rules hold; 0: where
 * upstream's does. The slots are of the smallest size: the allowance is one of memory. Counts what it has
 * decided. */
static size_t
cow_heap_extension(rb_objspace_t *objspace, rb_heap_t *heap, size_t total_slots, size_t free_slots)
{
    enum cow_growth_rule rule = COW_GROWN_BY_RATIOS;
    size_t extension = 0;

    if (cow_nursery_within_floor(&heap->inherited, total_slots)) {
        rule = COW_GROWN_BY_NURSERY;
        extension = cow_nursery_extension(&heap->inherited, total_slots, free_slots,
                                          gc_params.heap_free_slots_min_ratio,
                                          gc_params.heap_free_slots_goal_ratio);
    }
    else if (cow_growth_governs(objspace, COW_GIVEN_SLOTS)) {
        const size_t room = cow_heap_room(objspace, heap), slots = room > free_slots ? room - free_slots : 1;

        rule = COW_GROWN_BY_MODEL;
        extension = CEILDIV(slots * heap->slot_size, BASE_SLOT_SIZE);
    }
    objspace->growth_limits.grown[rule]++;
    return extension;
}

/* Gives what a new page of +slots+ slots takes from the slots by which all heaps may grow. */
static size_t
cow_heap_page_charge(rb_objspace_t *objspace, const rb_heap_t *heap, size_t slots)
{
    if (cow_growth_governs(objspace, COW_GIVEN_SLOTS)) return HEAP_PAGE_OBJ_LIMIT;
    return cow_nursery_charge(&heap->inherited, slots, HEAP_PAGE_OBJ_LIMIT);
}

/* May the heaps grow without a full collection first? Only as far as the model says or by a share of what
 * they inherited (nursery_policy.h), and not where the seal allows no growth (cow_seal_room_to_grow), as in a
 * roomy parent. */
static bool
cow_heaps_may_grow(rb_objspace_t *objspace)
{
    size_t grown = 0, inherited_bytes = 0;

    if (cow_seal_room_to_grow(objspace) == 0) return false;
    if (cow_growth_governs(objspace, COW_GIVEN_SLOTS)) return cow_growth_may_grow(&objspace->growth);

    for (int i = 0; i < HEAP_COUNT; i++) {
        grown += cow_nursery_grown(&heaps[i].inherited, heaps[i].total_slots) * heaps[i].slot_size;
        inherited_bytes += heaps[i].inherited.slots * heaps[i].slot_size;
    }
    return cow_nursery_may_grow(grown, inherited_bytes);
}

/* Allows the heaps to grow by as much as upstream allows them after a full collection. */
static void
cow_heap_allowance_reset(rb_objspace_t *objspace)
{
    objspace->heap_pages.allocatable_slots = 0;

    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        size_t free_slots = heap->total_slots - cow_heap_live_slots(objspace, heap) - heap->final_slots_count;
        free_slots -= MIN(free_slots, cow_heap_closed_slots(heap));

        if (heap->total_slots == 0 && objspace->seal.count > 1) continue; /* as in gc_sweep_finish_heap */
        if (free_slots < cow_heap_min_free_slots(objspace, heap)) {
            heap_allocatable_slots_expand(objspace, heap, free_slots, heap->total_slots);
        }
    }
}

/* Gives the floor of all heaps of a process that inherits as many slots as this one has. */
static size_t
cow_nursery_floor_slots(rb_objspace_t *objspace)
{
    return cow_nursery_floor(gc_params.cow.nursery_least_slots, objspace_available_slots(objspace),
                             gc_params.heap_free_slots_min_ratio);
}

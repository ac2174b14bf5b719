/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * heap_growth: by how much the heaps may grow.
 *
 * Job: applies the rules of nursery_policy.h and seal_policy.h to the heaps of this process.
 *
 * Entry points: cow_heap_min_free_slots, cow_heaps_may_grow, cow_heap_allowance_reset,
 * cow_nursery_floor_slots.
 *
 * Who writes this memory after a fork: the process writes .allocatable_slots of its objspace, no page.
 */

static size_t cow_seal_room_to_grow(rb_objspace_t *objspace);
static size_t objspace_available_slots(rb_objspace_t *objspace);

/* Gives how many free slots the heap shall have at least after a collection: by the nursery's rule if it has
 * inherited slots, else by upstream's. */
static size_t
cow_heap_min_free_slots(rb_objspace_t *objspace, rb_heap_t *heap)
{
    size_t init_slots = minimum_slots_for_heap(objspace, heap);

    if (heap->inherited.slots > 0) {
        return cow_nursery_min_free(&heap->inherited, heap->total_slots, gc_params.heap_free_slots_min_ratio);
    }
    return (size_t)(MAX(heap->total_slots, init_slots) * gc_params.heap_free_slots_min_ratio);
}

/* May the heaps grow without a full collection first? Only by a share of what they inherited
 * (nursery_policy.h), and not where the seal allows no growth (cow_seal_room_to_grow), as in a roomy
 * parent. */
static bool
cow_heaps_may_grow(rb_objspace_t *objspace)
{
    size_t grown = 0, inherited_bytes = 0;

    if (cow_seal_room_to_grow(objspace) == 0) return false;

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

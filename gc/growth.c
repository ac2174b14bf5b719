/*
 * growth: by how much the heaps may grow.
 *
 * Job: applies nursery.h and seal.h to the heaps of this process. One page of 64 KB was upstream's smallest
 * step; here a heap that may add a page is granted as many as make 64 KB.
 *
 * Entry points: heap_page_granted, heap_granted_slots, heap_min_free_slots, heaps_may_grow, heap_allowance_reset,
 * nursery_floor_slots.
 *
 * Who writes this memory after a fork: nobody's pages; a few words of the objspace.
 */

static size_t seal_room_to_grow(rb_objspace_t *objspace);
static size_t objspace_available_slots(rb_objspace_t *objspace);

/* Heaps grow by as much as with pages of 64 KB: who may add a page may add those that make it
 * so many bytes. A smaller step would end in smaller heaps, and more collections. */
enum { HEAP_GRANT_PAGES = 64 * 1024 / HEAP_PAGE_SIZE };

static bool
heap_page_granted(const rb_heap_t *heap)
{
    return heap->granted_pages > 0 && heap->inherited.slots == 0;
}

/* Slots of pages that may be added: as good as free ones where it is asked whether there are enough. */
static size_t
heap_granted_slots(const rb_heap_t *heap)
{
    return heap_page_granted(heap) ? heap->granted_pages * (HEAP_PAGE_SIZE / heap->slot_size) : 0;
}

static size_t
heap_min_free_slots(rb_objspace_t *objspace, rb_heap_t *heap)
{
    size_t init_slots = minimum_slots_for_heap(objspace, heap);

    if (heap->inherited.slots > 0) {
        return nursery_min_free(&heap->inherited, heap->total_slots, gc_params.heap_free_slots_min_ratio);
    }
    return (size_t)(MAX(heap->total_slots, init_slots) * gc_params.heap_free_slots_min_ratio);
}

/* May a child's heaps grow without a full collection first? */
static bool
heaps_may_grow(rb_objspace_t *objspace)
{
    size_t grown = 0, inherited_bytes = 0;

    if (seal_room_to_grow(objspace) == 0) return false; /* a parent's, either */

    for (int i = 0; i < HEAP_COUNT; i++) {
        grown += nursery_grown(&heaps[i].inherited, heaps[i].total_slots) * heaps[i].slot_size;
        inherited_bytes += heaps[i].inherited.slots * heaps[i].slot_size;
    }
    return nursery_may_grow(grown, inherited_bytes);
}

/* Allows the heaps to grow by what a full GC would have allowed them. */
static void
heap_allowance_reset(rb_objspace_t *objspace)
{
    objspace->heap_pages.allocatable_slots = 0;

    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        size_t free_slots = heap->total_slots - heap_live_slots(objspace, heap) - heap->final_slots_count;
        free_slots -= MIN(free_slots, heap_closed_slots(heap));

        if (heap->total_slots == 0 && objspace->seal.count > 1) continue; /* as in gc_sweep_finish_heap */
        if (free_slots < heap_min_free_slots(objspace, heap)) {
            heap_allocatable_slots_expand(objspace, heap, free_slots, heap->total_slots);
        }
    }
}

/* Floor of all heaps of a process with what this one has. */
static size_t
nursery_floor_slots(rb_objspace_t *objspace)
{
    return nursery_floor(gc_params.cow.nursery_least_slots, objspace_available_slots(objspace), gc_params.heap_free_slots_min_ratio);
}

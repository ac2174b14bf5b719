/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PAGE_GRANTS_H
#define COW_PAGE_GRANTS_H

/*
 * page_grants: pages that a heap may add in one step.
 *
 * Job: upstream's smallest step is one page of 64 KB. A heap that may add a page of 16 KB is granted three
 * more, which make 64 KB together: with a smaller step heaps would end smaller and be collected more often.
 *
 * Entry points: cow_heap_page_granted, cow_heap_granted_slots.
 *
 * Who writes this memory after a fork: a process whose heaps grow writes .granted_pages of a heap. A child
 * with inherited pages is granted none.
 */

/* Pages of one step: 4 of 16 KB. */
enum { COW_HEAP_GRANT_PAGES = 64 * 1024 / HEAP_PAGE_SIZE };

/* May the heap add a page without asking whether it may grow? One without any always may: a collection that
 * has taken its last page allows it none (gc_sweep_finish_heap). */
static bool
cow_heap_page_granted(const rb_heap_t *heap)
{
    return heap->total_slots == 0 || (heap->granted_pages > 0 && heap->inherited.slots == 0);
}

/* Gives the number of slots in pages that the heap may add so. They count as free where the collector asks
 * whether there are enough. */
static size_t
cow_heap_granted_slots(const rb_heap_t *heap)
{
    return cow_heap_page_granted(heap) ? heap->granted_pages * (HEAP_PAGE_SIZE / heap->slot_size) : 0;
}

#endif /* COW_PAGE_GRANTS_H */

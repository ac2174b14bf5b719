#ifndef COW_GRANT_H
#define COW_GRANT_H

/*
 * grant: pages that a heap may add in one step.
 *
 * Job: upstream's smallest step was one page of 64 KB. A heap that may add a page of 16 KB is granted as many
 * as make 64 KB: a smaller step would end in smaller heaps, and in more collections.
 *
 * Entry points: cow_heap_page_granted, cow_heap_granted_slots.
 *
 * Who writes this memory after a fork: a few words of the objspace, by a process that grows.
 */

enum { COW_HEAP_GRANT_PAGES = 64 * 1024 / HEAP_PAGE_SIZE };

static bool
cow_heap_page_granted(const rb_heap_t *heap)
{
    return heap->granted_pages > 0 && heap->inherited.slots == 0;
}

/* Slots of pages that may be added. They count as free where it is asked whether there are enough. */
static size_t
cow_heap_granted_slots(const rb_heap_t *heap)
{
    return cow_heap_page_granted(heap) ? heap->granted_pages * (HEAP_PAGE_SIZE / heap->slot_size) : 0;
}

#endif /* COW_GRANT_H */

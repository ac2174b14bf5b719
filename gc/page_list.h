/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PAGE_LIST_H
#define COW_PAGE_LIST_H

/*
 * page_list: the pages of one slot size, their order, and the counts of their slots.
 *
 * Job: sealed pages stand first in the list of pages, then open ones. A collection that concerns open pages
 * only begins at cow_heap_first_open_page. A minor marking also looks at sealed pages with remembered
 * objects; the heap lists those, so that the marking does not read the others.
 *
 * Invariants (cow_verify_seal): all pages up to .seal.last are sealed, none behind it is; .seal.pages, .slots
 * and .live are their sums; each sealed page that remembers is in .seal.remembering.
 *
 * Entry points: cow_heap_each_open_page, cow_page_note_remembering, cow_heap_next_remembering,
 * cow_heap_closed_slots, cow_closed_slots, cow_seal_page_live, cow_seal_total, cow_heap_allocated_objects,
 * total_allocated_objects (upstream's name), cow_heap_live_slots.
 *
 * Who writes this memory after a fork: write barriers and minor markings write the list of remembering pages.
 */

/* pressure.c */
static bool cow_pressure_collects_first(rb_objspace_t *objspace);
static inline void cow_pressure_taken(struct heap_page *page);
static int cow_pressure_unlinks(rb_objspace_t *objspace, int usual);

/* heap_growth.c */
static size_t cow_heap_extension(rb_objspace_t *objspace, rb_heap_t *heap, size_t total_slots,
                                 size_t free_slots);
static size_t cow_heap_page_charge(rb_objspace_t *objspace, const rb_heap_t *heap, size_t slots);

/* Gives the first page that is open to allocation; NULL: none. */
static inline struct heap_page *
cow_heap_first_open_page(rb_heap_t *heap)
{
    if (heap->seal.last == NULL) return ccan_list_top(&heap->pages, struct heap_page, page_node);
    return ccan_list_next(&heap->pages, heap->seal.last, page_node);
}

/* Sum of one size_t of struct cow_seal_heap over all heaps. */
#define cow_seal_total(objspace, member) cow_seal_total_at((objspace), offsetof(rb_heap_t, seal.member))

/* As cow_seal_total; +offset+ of the member in rb_heap_t. */
static inline size_t
cow_seal_total_at(rb_objspace_t *objspace, size_t offset)
{
    size_t sum = 0;

    for (int i = 0; i < HEAP_COUNT; i++) {
        sum += *(const size_t *)((const char *)&heaps[i] + offset);
    }
    return sum;
}

/* Gives the number of closed slots of a heap. */
static inline size_t
cow_heap_closed_slots(const rb_heap_t *heap)
{
    return heap->seal.slots - heap->seal.live;
}

/* Gives the number of closed slots of all heaps. */
static inline size_t
cow_closed_slots(rb_objspace_t *objspace)
{
    return cow_seal_total(objspace, slots) - cow_seal_total(objspace, live);
}

/* Gives the number of live objects of a page whose objects are all uncollectible, when marking is done. */
static size_t
cow_seal_page_live(struct heap_page *page)
{
    const bits_t *mark_bits = cow_page_marks(page);
    size_t live = 0;

    for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
        live += rb_popcount_intptr(page->uncollectible_bits[i] & mark_bits[i]);
    }
    return live;
}

/* For each page of the heap that is open to allocation. */
#define cow_heap_each_open_page(heap, page) \
    for ((page) = cow_heap_first_open_page(heap); (page); \
         (page) = ccan_list_next(&(heap)->pages, (page), page_node))

/* Must a minor marking look at objects of this page? */
static inline bool
cow_page_remembers(const struct heap_page *page)
{
    return page->flags.has_remembered_objects | page->flags.has_uncollectible_wb_unprotected_objects;
}

/* Adds a page to its heap's list if it is sealed and not listed; called when an object on it becomes
 * remembered, with the VM lock. */
static inline void
cow_page_note_remembering(struct heap_page *page)
{
    if (page->seal.sealed && !page->seal.remembering) {
        page->seal.remembering = TRUE;
        page->heap->seal.remembering[page->heap->seal.remembering_count++] = page;
    }
}

/* Gives the page after +page+ (NULL: the first) at which a minor marking looks: first the sealed pages of the
 * list, then all open ones; NULL behind the last. Removes pages that remember nothing from the list. +i+ is
 * the index in the list; the caller begins with 0. */
static struct heap_page *
cow_heap_next_remembering(rb_heap_t *heap, struct heap_page *page, size_t *i)
{
    if (page && !page->seal.sealed) return ccan_list_next(&heap->pages, page, page_node);

    if (page && !cow_page_remembers(page)) {
        page->seal.remembering = FALSE;
        heap->seal.remembering[*i] = heap->seal.remembering[--heap->seal.remembering_count];
    }
    else if (page) {
        (*i)++;
    }
    return *i < heap->seal.remembering_count ? heap->seal.remembering[*i] : cow_heap_first_open_page(heap);
}

/* Adds to +counts+, one of each heap, the claimed slots of one Ractor. */
static void
cow_count_claimed_of(void *cache, void *counts)
{
    const rb_ractor_newobj_cache_t *newobj_cache = cache;

    for (int i = 0; newobj_cache && i < HEAP_COUNT; i++) {
        ((size_t *)counts)[i] += rb_popcount_intptr(newobj_cache->heap_caches[i].claimed);
    }
}

/* Adds to +counts+, one of each heap, the claimed slots of all Ractors. Takes the VM lock. */
static void
cow_count_claimed(size_t *counts)
{
    unsigned int lev = rb_gc_vm_lock_no_barrier();

    rb_gc_ractor_newobj_cache_foreach(cow_count_claimed_of, counts);
    rb_gc_vm_unlock_no_barrier(lev);
}

/* Gives how many objects the heap has ever allocated. .total_allocated_objects counts slots when they are
 * claimed, so the claimed ones are subtracted. */
static size_t
cow_heap_allocated_objects(rb_objspace_t *objspace, const rb_heap_t *heap)
{
    size_t claimed[HEAP_COUNT] = { 0 };

    cow_count_claimed(claimed);
    return heap->total_allocated_objects - claimed[heap - heaps];
}

/* The same of all heaps; upstream's name. */
static size_t
total_allocated_objects(rb_objspace_t *objspace)
{
    size_t claimed[HEAP_COUNT] = { 0 }, count = 0;

    cow_count_claimed(claimed);
    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        count += heap->total_allocated_objects - claimed[i];
    }
    return count;
}

/* Gives how many slots of the heap hold an object that was not freed, without those that wait for a
 * finalizer. */
static size_t
cow_heap_live_slots(rb_objspace_t *objspace, rb_heap_t *heap)
{
    return cow_heap_allocated_objects(objspace, heap) - heap->total_freed_objects - heap->final_slots_count;
}

#endif /* COW_PAGE_LIST_H */

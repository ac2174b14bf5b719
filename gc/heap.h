#ifndef COW_HEAP_H
#define COW_HEAP_H

/*
 * heap: the pages of one size of slots, in order, and its counts of slots.
 *
 * Job: sealed pages stand first in the list, then the open ones. A collection that looks at open pages only
 * begins at cow_heap_first_open_page; a minor marking looks also at those sealed pages that remember objects,
 * of which the heap has a list of its own, so that it does not read the others.
 *
 * Invariants (cow_verify_seal): all pages up to .seal.last are sealed, none behind it is; .seal.pages, .slots
 * and .live are their sums; each sealed page that remembers is in .seal.remembering.
 *
 * Entry points: cow_heap_each_open_page, cow_page_note_remembering, cow_heap_next_remembering,
 * cow_heap_closed_slots, cow_seal_total, cow_heap_allocated_objects, total_allocated_objects,
 * cow_heap_live_slots.
 *
 * Who writes this memory after a fork: write barriers and minor markings the list of remembering pages.
 */

/* The first page that is open to allocation, if there is one. */
static inline struct heap_page *
cow_heap_first_open_page(rb_heap_t *heap)
{
    if (heap->seal.last == NULL) return ccan_list_top(&heap->pages, struct heap_page, page_node);
    return ccan_list_next(&heap->pages, heap->seal.last, page_node);
}

/* Sum of a size over all heaps. */
#define cow_seal_total(objspace, member) cow_seal_total_at((objspace), offsetof(rb_heap_t, seal.member))

static inline size_t
cow_seal_total_at(rb_objspace_t *objspace, size_t offset)
{
    size_t sum = 0;

    for (int i = 0; i < HEAP_COUNT; i++) {
        sum += *(const size_t *)((const char *)&heaps[i] + offset);
    }
    return sum;
}

/* Slots of sealed pages that no object lives in: held back. */
static inline size_t
cow_heap_closed_slots(const rb_heap_t *heap)
{
    return heap->seal.slots - heap->seal.live;
}

static inline size_t
cow_closed_slots(rb_objspace_t *objspace)
{
    return cow_seal_total(objspace, slots) - cow_seal_total(objspace, live);
}

#define cow_heap_each_open_page(heap, page) \
    for ((page) = cow_heap_first_open_page(heap); (page); \
         (page) = ccan_list_next(&(heap)->pages, (page), page_node))

/* Must a minor marking look at objects of this page? */
static inline bool
cow_page_remembers(const struct heap_page *page)
{
    return page->flags.has_remembered_objects | page->flags.has_uncollectible_wb_unprotected_objects;
}

/* To be called when a page begins to remember. */
static inline void
cow_page_note_remembering(struct heap_page *page)
{
    if (page->seal.sealed && !page->seal.remembering) {
        page->seal.remembering = TRUE;
        page->heap->seal.remembering[page->heap->seal.remembering_count++] = page;
    }
}

/* The page after +page+ (NULL: the first) at which a minor marking looks: the sealed
 * ones of its list, then all others. +i+ counts the former, from 0. */
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

/* Adds to +counts+, of all heaps, the slots that a Ractor has taken and not used yet. */
static void
cow_count_claimed_of(void *cache, void *counts)
{
    const rb_ractor_newobj_cache_t *newobj_cache = cache;

    for (int i = 0; newobj_cache && i < HEAP_COUNT; i++) {
        ((size_t *)counts)[i] += rb_popcount_intptr(newobj_cache->heap_caches[i].claimed);
    }
}

static void
cow_count_claimed(size_t *counts)
{
    unsigned int lev = rb_gc_vm_lock_no_barrier();

    rb_gc_ractor_newobj_cache_foreach(cow_count_claimed_of, counts);
    rb_gc_vm_unlock_no_barrier(lev);
}

/* Objects that have ever been allocated. They are counted where slots are taken, and not
 * as each is made. */
static size_t
cow_heap_allocated_objects(rb_objspace_t *objspace, const rb_heap_t *heap)
{
    size_t claimed[HEAP_COUNT] = { 0 };

    cow_count_claimed(claimed);
    return heap->total_allocated_objects - claimed[heap - heaps];
}

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

static size_t
cow_heap_live_slots(rb_objspace_t *objspace, rb_heap_t *heap)
{
    return cow_heap_allocated_objects(objspace, heap) - heap->total_freed_objects - heap->final_slots_count;
}

#endif /* COW_HEAP_H */

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_CLAIM_SLOTS_H
#define COW_CLAIM_SLOTS_H

/*
 * claim_slots: how a Ractor claims slots to allocate from.
 *
 * Job: a Ractor claims all free slots of one word of a page's bitmap at once. The claim empties their headers
 * and then sets their bits in the bitmap of allocated slots. The Ractor makes objects in them without a lock;
 * .claimed of its cache has a bit for each that is left.
 *
 * As in CRuby, a page is filled from its last slot to its first. So whoever visits objects in the order of
 * their addresses sees the newest of a page first, as ObjectSpace.each_object does. Of two objects of
 * extensions that stand in one page and die together, the sweep frees the newer one first if both may be
 * freed at once. What has to wait for the finalizers is freed in the order in which it was made. CRuby does
 * not promise this order, but extensions whose data hold addresses of each other's data rely on it. (It
 * sweeps the oldest page first, as we do, but its pages have 64 KB: doc/limits.md, "Order".)
 *
 * Entry points: cow_cache_allocate_from_page, cow_cache_leave_page.
 *
 * Who writes this memory after a fork: a process that allocates writes open pages and their bitmaps.
 */

NORETURN(static void cow_report_marked(const struct heap_page *page, uintptr_t p));

/* Ends the process: a free slot is marked, so the object that was freed there has become old since. Something
 * refers to it, as a C extension that does not mark what it keeps. The next object here would be taken for
 * old. (CRuby ends in gc_mark, which here reads no object.) */
static void
cow_report_marked(const struct heap_page *page, uintptr_t p)
{
    rb_bug("heap page %p, .mark_bits of the free slot %p: expected 0, found 1: something refers to the "
           "object that was freed there", (void *)page->start, (void *)p);
}

/* Claims the next free slots of the page that the cache uses. Gives false if there is no page, or no free
 * slot in it. */
static bool
cow_cache_claim_slots(rb_ractor_newobj_heap_cache_t *heap_cache)
{
    struct heap_page *page = heap_cache->using_page;
    const bool shared = rb_gc_multi_ractor_p();

    if (page == NULL) return false;
    const bits_t free = cow_page_find_free(page, &heap_cache->word);
    if (!free) return false;

    heap_cache->last = page->start + ((heap_cache->word + 1) * BITS_BITLENGTH - 1) * BASE_SLOT_SIZE;
    const bits_t marked = COW_LOCATE_MARKS_OBJECTS ? 0 : page->mark_bits[heap_cache->word] & free;
    if (RB_UNLIKELY(marked)) cow_report_marked(page, cow_page_lowest_slot(page, heap_cache->word, marked));

    size_t count = 0;
    for (bits_t rest = free; rest; rest &= rest - 1, count++)
        cow_page_clear_header(page, cow_page_lowest_slot(page, heap_cache->word, rest));
    cow_slot_map_set(&page->allocated_bits[heap_cache->word], free, shared);
    heap_cache->claimed = cow_slot_map_reverse(free);
    if (shared) RUBY_ATOMIC_SIZE_ADD(page->heap->total_allocated_objects, count);
    else page->heap->total_allocated_objects += count;
    GC_ASSERT(shared || page->heap->total_slots + page->heap->total_freed_objects +
              page->heap->final_slots_count >= page->heap->total_allocated_objects);
    return true;
}

/* Allocates a slot of the page that the cache uses, for an object of heap +heap_idx+. Gives Qfalse if the
 * page is full, or if an incremental marking must make a step first. */
static VALUE
cow_cache_allocate_from_page(rb_objspace_t *objspace, rb_ractor_newobj_cache_t *cache, size_t heap_idx)
{
    rb_ractor_newobj_heap_cache_t *heap_cache = &cache->heap_caches[heap_idx];

    if (!heap_cache->claimed && !cow_cache_claim_slots(heap_cache)) return Qfalse;
    return ractor_cache_allocate_slot(objspace, cache, heap_idx);
}

/* Records of a page that the cache no longer uses how many free slots it has. The Ractor has claimed those
 * that it saw; finalizers may have freed others since. */
static inline void
cow_cache_leave_page(rb_ractor_newobj_heap_cache_t *heap_cache)
{
    struct heap_page *page = heap_cache->using_page;

    if (page) page->free_slots = cow_page_count_free(page);
}

#endif /* COW_CLAIM_SLOTS_H */

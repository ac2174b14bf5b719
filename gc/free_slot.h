/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_FREE_SLOT_H
#define COW_FREE_SLOT_H

/*
 * free_slot: where a slot is freed.
 *
 * Job: to free a slot is to clear its bit in the bitmap of allocated slots. The slot itself is written only
 * if somebody reads headers of free slots: a walk of the heap, or the sweep mode visit-all.
 *
 * Entry points: cow_free_slot_in_sweep in a sweep; cow_free_slot at any other time;
 * cow_page_clear_free_headers.
 *
 * Who writes this memory after a fork: a process that sweeps writes the bitmaps of pages in which objects
 * died.
 */

/* Does a walk or the sweep read headers of free slots, so that the header of a dead object must be
 * emptied? */
static inline bool
cow_headers_are_read(const rb_objspace_t *objspace)
{
    return objspace->walks != NULL || gc_params.cow.sweep_mode == COW_SWEEP_VISIT_ALL;
}

/* Frees the slot of a dead object during a sweep, while no other Ractor allocates in the page. Empties the
 * header only while the heap is being walked, because a walk judges slots by their headers, and in the mode
 * visit-all. */
static inline void
cow_free_slot_in_sweep(rb_objspace_t *objspace, struct heap_page *page, VALUE obj)
{
    COW_ASSERT(cow_page_has(page, obj));

    if (RB_UNLIKELY(cow_headers_are_read(objspace))) cow_page_clear_header(page, obj);
    asan_poison_memory_region((void *)obj, page->slot_size);
    cow_slot_map_free(page->allocated_bits, cow_page_slot(page, obj), false);
    gc_report(3, objspace, "cow_free_slot_in_sweep: %p is free\n", (void *)obj);
}

/* Clears what is known of the object in a slot, but for its age, and that it is allocated. */
static inline void
cow_forget_object(VALUE obj)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    if (cow_object_marked((uintptr_t)obj)) cow_object_unmark((uintptr_t)obj);
    cow_bit_assign(&bits, COW_BITMAP_UNCOLLECTIBLE, false);
    cow_bit_assign(&bits, COW_BITMAP_MARKING, false);
    cow_bit_assign(&bits, COW_BITMAP_REMEMBERED, false);
    cow_bit_assign(&bits, COW_BITMAP_WB_UNPROTECTED, false);
    cow_bit_assign(&bits, COW_BITMAP_LEAF, false);
}

/* Frees a slot that holds no object any more, at any time, and clears its cleanup bit. A sweep has cleared
 * its other bits, but where a child ends: there the object was alive a moment ago. */
static inline void
cow_free_slot(struct heap_page *page, VALUE obj)
{
    COW_ASSERT(cow_page_has(page, obj));

    cow_forget_object(obj);
    cow_page_clear_header(page, obj);
    cow_slot_map_free(page->cleanup_bits, cow_page_slot(page, obj), rb_gc_multi_ractor_p());
    cow_slot_map_free(page->allocated_bits, cow_page_slot(page, obj), rb_gc_multi_ractor_p());
    page->free_slots++;
}

/* Empties the headers of free slots, as CRuby's sweep does, while no other Ractor runs. Writes only headers
 * that are not empty. */
static void
cow_page_clear_free_headers(const struct heap_page *page)
{
    for (uintptr_t p = page->start; p < cow_page_end(page); p += page->slot_size) {
        if (cow_page_has(page, p) || p == cow_page_hole(page)) continue;

        asan_unpoison_memory_region((void *)p, sizeof(VALUE), false);
        (void)VALGRIND_MAKE_MEM_DEFINED((void *)p, sizeof(VALUE));
        if (*(const VALUE *)p != cow_locate_slot_flag(page->body, p)) cow_page_clear_header(page, p);
        asan_poison_memory_region((void *)p, sizeof(VALUE));
    }
}

#endif /* COW_FREE_SLOT_H */

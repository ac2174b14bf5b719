/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PAGE_MEMORY_H
#define COW_PAGE_MEMORY_H

/*
 * page_memory: the memory of a heap page, and where its bitmaps stand.
 *
 * Job: heap_page_body_allocate and heap_page_body_free, which replace upstream's, get the memory from the
 * locator (locate_bits.h). A page is laid out when a heap takes it.
 *
 * Entry points: heap_page_body_allocate and heap_page_body_free (upstream's names), cow_page_find_bitmaps,
 * cow_page_lay_out.
 *
 * Who writes this memory after a fork: a process that takes a page writes its descriptor and, with alignoff,
 * its hole.
 */

/* Allocates the memory of a heap page; NULL if there is none. Upstream's name. */
static struct heap_page_body *
heap_page_body_allocate(void)
{
    void *body;

    return cow_locate_alloc_page(&body) ? body : NULL;
}

/* Frees the memory of a heap page. Upstream's name. */
static void
heap_page_body_free(struct heap_page_body *body)
{
    cow_locate_free_page(cow_locate_find_page((uintptr_t)body), body);
}

/* Records in the descriptor where the bitmaps of the page stand. */
static void
cow_page_find_bitmaps(struct heap_page *page)
{
    page->mark_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_MARK);
    page->uncollectible_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_UNCOLLECTIBLE);
    page->marking_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_MARKING);
    page->remembered_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_REMEMBERED);
    page->wb_unprotected_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_WB_UNPROTECTED);
    page->pinned_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_PINNED);
    page->allocated_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_ALLOCATED);
    page->cleanup_bits = cow_locate_page_bitmap(page, page->body, COW_BITMAP_CLEANUP);
}

/* Lays a page out for at most +slots+ slots of its heap. Gives the number of slots that can be used: one less
 * if there is a hole. */
static int
cow_page_lay_out(struct heap_page *page, int slots)
{
    page->hole = cow_locate_lay_out(page, page->slot_size);
    if (page->hole < -1)
        rb_bug("heap_page.body: expected a multiple of two words, found %p for slots of %d bytes",
               (void *)page->body, page->slot_size);
    if (page->hole >= 0) slots--;
    page->total_slots = slots;
    for (uintptr_t p = page->start; p < cow_page_end(page); p += page->slot_size) {
        if (p != cow_page_hole(page)) asan_poison_memory_region((void *)p, page->slot_size);
    }
    return slots;
}

#endif /* COW_PAGE_MEMORY_H */

#ifndef COW_PAGE_BODY_H
#define COW_PAGE_BODY_H

/*
 * page_body: the memory of a heap page, and where its bitmaps stand.
 *
 * Job: heap_page_body_allocate and heap_page_body_free, which replace upstream's, go to the locator
 * (locate.h); a page is laid out when a heap takes it.
 *
 * Who writes this memory after a fork: a process that takes a page.
 */

static struct heap_page_body *
heap_page_body_allocate(void)
{
    void *body;

    return cow_locate_alloc_page(&body) ? body : NULL;
}

static void
heap_page_body_free(struct heap_page_body *body)
{
    cow_locate_free_page(cow_locate_find_page((uintptr_t)body), body);
}

/* Notes where the rows of the page stand. */
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

/* Lays a page out for at most +slots+ slots of its heap. Gives how many there are: one less if one is the
 * hole. */
static int
cow_page_lay_out(struct heap_page *page, int slots)
{
    page->hole = cow_locate_lay_out(page, page->slot_size);
    if (page->hole < -1)
        rb_bug("heap page %p: malloc's address does not fit slots of %d bytes", (void *)page->body,
               page->slot_size);
    if (page->hole >= 0) slots--;
    page->total_slots = slots;
    for (uintptr_t p = page->start; p < cow_page_end(page); p += page->slot_size) {
        if (p != cow_page_hole(page)) asan_poison_memory_region((void *)p, page->slot_size);
    }
    return slots;
}

#endif /* COW_PAGE_BODY_H */

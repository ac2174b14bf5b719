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

    return locate_take(&body) ? body : NULL;
}

static void
heap_page_body_free(struct heap_page_body *body)
{
    locate_give(locate_known((uintptr_t)body), body);
}

/* Notes where the rows of the page stand. */
static void
heap_page_find_rows(struct heap_page *page)
{
    page->mark_bits = locate_page_row(page, page->body, ROW_MARK);
    page->uncollectible_bits = locate_page_row(page, page->body, ROW_UNCOLLECTIBLE);
    page->marking_bits = locate_page_row(page, page->body, ROW_MARKING);
    page->remembered_bits = locate_page_row(page, page->body, ROW_REMEMBERED);
    page->wb_unprotected_bits = locate_page_row(page, page->body, ROW_WB_UNPROTECTED);
    page->pinned_bits = locate_page_row(page, page->body, ROW_PINNED);
    page->allocated_bits = locate_page_row(page, page->body, ROW_ALLOCATED);
    page->cleanup_bits = locate_page_row(page, page->body, ROW_CLEANUP);
}

/* Lays out a page for the slots of its heap: +slots+ of them, or one less. Gives how many. */
static int
heap_page_lay_out(struct heap_page *page, int slots)
{
    page->hole = locate_lay_out(page, page->slot_size);
    if (page->hole >= 0) slots--;
    page->total_slots = slots;
    for (uintptr_t p = page->start; p < heap_page_end(page); p += page->slot_size) {
        if (p != heap_page_hole(page)) asan_poison_memory_region((void *)p, page->slot_size);
    }
    return slots;
}

#endif /* COW_PAGE_BODY_H */

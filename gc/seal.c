/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * seal: the mechanism of sealing: closes heap pages to allocation before a fork, and opens them again.
 * seal_policy.h is the policy: it says when, and which pages.
 *
 * Job: cow_seal_pages seals pages. After a full marking cow_seal_sweep cleans up the objects that have died
 * in them, and opens pages in which few live.
 *
 * Entry points: cow_seal_pages, cow_seal_open_page, cow_seal_forget_opened, cow_seal_sweep,
 * cow_seal_marks_clear, cow_seal_marks_finish, cow_seal_crowded_opening, cow_seal_finish,
 * cow_seal_room_to_grow.
 *
 * Who writes this memory after a fork: a full collection writes the mark bits of sealed pages, and the other
 * bitmaps of those in which objects died.
 */

#include "vm_words.c"

static void gc_ractor_newobj_cache_clear(void *c, void *data);

/* Clears, at the start of a full marking, the marking and remembered bits of a sealed page, whose mark
 * bits are clear. Writes only what differs. The uncollectible bits stay: they say later which objects have
 * died. */
static void
cow_seal_marks_clear(struct heap_page *page)
{
    cow_page_marks_written(page);
    for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
        if (page->marking_bits[i]) page->marking_bits[i] = 0;
        if (page->remembered_bits[i]) page->remembered_bits[i] = 0;
    }
    if (page->flags.has_remembered_objects) page->flags.has_remembered_objects = FALSE;
}

/* At the end of a full marking: counts the live objects of sealed pages. In a preparation, which makes all
 * survivors old, also remembers those without a write barrier. */
static void
cow_seal_marks_finish(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        struct heap_page *page;

        heap->seal.live = 0;
        ccan_list_for_each(&heap->pages, page, page_node) {
            if (!page->seal.sealed && !objspace->flags.promote_all) break;

            const bits_t *mark_bits = cow_page_marks(page);
            for (int j = 0; j < HEAP_PAGE_BITMAP_LIMIT; j++) {
                bits_t unprotected = mark_bits[j] & page->wb_unprotected_bits[j];

                if (!page->seal.sealed) unprotected &= ~page->uncollectible_bits[j];
                if (!unprotected) continue;

                objspace->rgengc.uncollectible_wb_unprotected_objects += rb_popcount_intptr(unprotected);
                if (!page->seal.sealed) {
                    page->uncollectible_bits[j] |= unprotected;
                    page->flags.has_uncollectible_wb_unprotected_objects = TRUE;
                }
            }
            if (page->seal.sealed) heap->seal.live += cow_seal_page_live(page);
        }
    }
}

/* Takes the pages that were opened out of the list of those that remember, before a write barrier or a
 * marking reads it. All in one pass: to take out each page as it is opened would search it each time. */
static void
cow_seal_forget_opened(rb_heap_t *heap)
{
    struct heap_page **const pages = heap->seal.remembering;
    size_t kept = 0;

    for (size_t i = 0; i < heap->seal.remembering_count; i++) {
        if (!pages[i]->seal.remembering) continue;
        if (kept < i) pages[kept] = pages[i];
        kept++;
    }
    heap->seal.remembering_count = kept;
}

/* Opens a sealed page to allocation. A sweep of the page and cow_seal_forget_opened must follow. */
static void
cow_seal_open_page(rb_objspace_t *objspace, rb_heap_t *heap, struct heap_page *page)
{
    COW_ASSERT(page->seal.sealed);

    heap->seal.pages--;
    heap->seal.slots -= page->total_slots;
    heap->seal.live -= cow_seal_page_live(page);
    if (page->seal.remembering) page->seal.remembering = FALSE;
    heap->inherited.objects -= MIN(heap->inherited.objects, page->total_slots);
    heap->inherited.slots -= MIN(heap->inherited.slots, page->total_slots);

    if (page == heap->seal.last_inherited) {
        heap->seal.last_inherited = ccan_list_prev(&heap->pages, page, page_node);
    }
    if (page == heap->seal.last) {
        heap->seal.last = ccan_list_prev(&heap->pages, page, page_node);
    }
    ccan_list_del(&page->page_node);
    ccan_list_add_tail(&heap->pages, &page->page_node);
    page->seal.sealed = FALSE;
    cow_locate_unseal(page->body);

    for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
        page->uncollectible_bits[i] &= page->mark_bits[i];
        /* The marking did not pin the objects of this page, some of which are referred to by address. */
        page->pinned_bits[i] = page->uncollectible_bits[i];
    }
    page->pinned_slots = cow_seal_page_live(page);
    page->free_slots = cow_page_count_free(page);
}

/* Gives the first page that this process has sealed itself; NULL: none. */
static struct heap_page *
cow_seal_first_own(const rb_objspace_t *objspace, const rb_heap_t *heap)
{
    struct heap_page *inherited = objspace->flags.forked_child ? heap->seal.last_inherited : NULL;

    if (heap->seal.last == NULL || heap->seal.last == inherited) return NULL;
    if (inherited == NULL) return ccan_list_top(&heap->pages, struct heap_page, page_node);
    return ccan_list_next(&heap->pages, inherited, page_node);
}

/* After a full marking: says which pages that this process has sealed itself it shall open, so that its heaps
 * need not grow. */
static struct cow_seal_opening
cow_seal_crowded_opening(rb_objspace_t *objspace)
{
    struct cow_seal_fills fills = { 0 };
    size_t slots = objspace_available_slots(objspace);
    size_t excess = 0;

    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];

        for (struct heap_page *page = cow_seal_first_own(objspace, heap); page; ) {
            cow_seal_fill_add(&fills, cow_seal_page_live(page), page->total_slots);
            page = page == heap->seal.last ? NULL : ccan_list_next(&heap->pages, page, page_node);
        }
    }
    if (cow_seal_crowded(slots, objspace->seal.live, objspace->seal.slots))
        excess = cow_seal_excess(slots, fills.sum);
    objspace->seal.closed = fills.sum - excess;
    return cow_seal_opening(&fills, excess);
}

/* Gives by how many slots the heaps may grow before a full collection; SIZE_MAX: the seal sets no limit. */
static size_t
cow_seal_room_to_grow(rb_objspace_t *objspace)
{
    const size_t slots = objspace_available_slots(objspace);
    const bool over = cow_seal_is_over(slots, cow_seal_total(objspace, slots));

    if (over && !objspace->flags.forked_child && objspace->seal.count > 0)
        return cow_seal_growth_after(slots, objspace->seal.live);

    for (int i = 0; i < HEAP_COUNT && !over; i++) {
        if (cow_seal_first_own(objspace, &heaps[i])) return cow_seal_growth(slots, objspace->seal.live);
    }
    return SIZE_MAX;
}

/* Called after pages were opened: if hardly any is left, the heaps of a parent are sized by upstream's rule
 * again. */
static void
cow_seal_finish(rb_objspace_t *objspace)
{
    if (objspace->flags.forked_child || objspace->seal.count == 0) return;
    if (!cow_seal_is_over(objspace_available_slots(objspace), cow_seal_total(objspace, slots))) return;

    for (int i = 0; i < HEAP_COUNT; i++) {
        heaps[i].inherited = (struct cow_nursery_inheritance){ 0 };
    }
}

/* After a full marking: cleans up the objects that have died in sealed pages of the heap, and reads or writes
 * nothing else there. Opens pages in which few objects live, or that +opening+ says. */
static void
cow_seal_sweep(rb_objspace_t *objspace, rb_heap_t *heap, struct cow_seal_opening *opening)
{
    struct heap_page *page =
        heap->seal.last ? ccan_list_top(&heap->pages, struct heap_page, page_node) : NULL;
    struct heap_page *last = heap->seal.last, *own = cow_seal_first_own(objspace, heap);
    bool inherited = true;

    while (page) {
        struct heap_page *next = page == last ? NULL : ccan_list_next(&heap->pages, page, page_node);
        size_t live = cow_seal_page_live(page);

        if (page == own) inherited = false;
        if (live < page->seal.keep || (!inherited && cow_seal_opens(opening, live, page->total_slots))) {
            cow_seal_open_page(objspace, heap, page);
        }
        else {
            struct gc_sweep_context ctx = { .page = page };

            for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
                bits_t dead = page->uncollectible_bits[i] & ~page->mark_bits[i];

                if (dead) {
                    page->uncollectible_bits[i] &= ~dead;
                    cow_sweep_dead(objspace, heap, i, dead, &ctx);
                }
            }
            heap->total_freed_objects += ctx.freed_slots;
        }
        page = next;
    }
    cow_seal_forget_opened(heap);

    if (heap_pages_deferred_final && !finalizing) {
        gc_finalize_deferred_register(objspace);
    }
}

/* For each object of a page that is being sealed, does now what the program would write into it later.
 * Records whether an object has a duty, or may get one. */
static void
cow_seal_process_objects(struct heap_page *page)
{
    page->seal.has_duties = FALSE;
    for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
        for (bits_t rest = page->uncollectible_bits[i]; rest; rest &= rest - 1) {
            VALUE obj = cow_page_lowest_slot(page, i, rest);

            if (cow_has_duty(obj) || cow_may_get_duty(obj)) page->seal.has_duties = TRUE;
            rb_gc_prepare_heap_process_object(obj);
        }
    }
}

/* Says which pages a seal shall leave open, because with those that are closed already too many slots would
 * be. At the first fork none: sharing is worth more than the slots then. */
static struct cow_seal_opening
cow_seal_roomy_opening(rb_objspace_t *objspace, size_t slots)
{
    struct cow_seal_fills fills = { 0 };
    struct heap_page *page;

    if (objspace->seal.count == 0 || !cow_seal_roomy(slots, objspace->seal.live))
        return cow_seal_opening(&fills, 0);

    for (int i = 0; i < HEAP_COUNT; i++) {
        cow_heap_each_open_page(&heaps[i], page) {
            size_t live = cow_seal_page_live(page);
            if (live > 0) cow_seal_fill_add(&fills, live, page->total_slots);
        }
    }
    return cow_seal_opening(&fills, cow_seal_excess(slots, objspace->seal.closed + fills.sum));
}

/* Seals all pages but those in which few objects live. All objects must be old, or remembered, and swept. A
 * heap for whose list of remembering pages there is no memory is not sealed. */
static void
cow_seal_pages(rb_objspace_t *objspace)
{
    size_t total_slots = objspace_available_slots(objspace);
    size_t spare = cow_seal_spare(total_slots, cow_closed_slots(objspace));
    struct cow_seal_opening opening = cow_seal_roomy_opening(objspace, total_slots);

    rb_gc_ractor_newobj_cache_foreach(gc_ractor_newobj_cache_clear, NULL);

    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        struct heap_page *page, *next;
        struct heap_page **remembering =
            realloc(heap->seal.remembering, MAX(heap->total_pages, 1) * sizeof(*remembering));

        if (remembering == NULL) continue;
        heap->seal.remembering = remembering;
        heap->free_pages = NULL;
        heap->pooled_pages = NULL;
        for (page = cow_heap_first_open_page(heap); page; page = next) {
            next = ccan_list_next(&heap->pages, page, page_node);
            size_t live = cow_seal_page_live(page);

            const bool left_open = live > 0 && cow_seal_opens(&opening, live, page->total_slots);
            page->seal.keep = left_open ? 0 : cow_seal_keep(live, page->total_slots, &spare);
            /* Pins of an earlier compaction. */
            cow_arena_clear_words(page->pinned_bits, HEAP_PAGE_BITMAP_LIMIT);
            if (page->seal.keep > 0) {
                page->seal.sealed = TRUE;
                page->seal.fork_depth = MIN(rb_gc_fork_depth, COW_SEAL_FORK_DEPTH_MAX);
                cow_locate_seal(page->body);
                ccan_list_del(&page->page_node);
                ccan_list_add_after(&heap->pages,
                                    heap->seal.last ? &heap->seal.last->page_node : &heap->pages.n,
                                    &page->page_node);
                heap->seal.last = page;
                heap->seal.pages++;
                heap->seal.slots += page->total_slots;
                heap->seal.live += live;
                objspace->seal.closed += page->total_slots - live;
                if (cow_page_remembers(page)) cow_page_note_remembering(page);
                cow_seal_process_objects(page);
            }
            else if (page->free_slots == page->total_slots && !cow_page_is_walked(objspace, page)) {
                /* If a child inherited this empty page, its first objects would copy it. */
                cow_heap_empty_page(objspace, heap, page);
            }
            else if (page->free_slots > 0) {
                heap_add_freepage(heap, page);
            }
        }
    }
    objspace->heap_pages.allocatable_slots = 0;
    heap_pages_free_unused_pages(objspace);
    cow_vm_words_seal(&cow_vm_words);
    cow_vm_words_seal(&cow_yjit_words);
    objspace->seal.count++;
    objspace->seal.slots = objspace_available_slots(objspace);
    objspace->seal.survivors_at_seal = objspace->seal.survivors;
}

/* Does the object lie in a page that a parent of this process has sealed? */
bool
rb_gc_impl_obj_inherited_p(void *objspace_ptr, VALUE obj)
{
    const struct heap_page *page = GET_HEAP_PAGE(obj);

    return page->seal.sealed && page->seal.fork_depth < rb_gc_fork_depth;
}

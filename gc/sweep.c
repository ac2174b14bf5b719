/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * sweep: frees the dead objects of a page, a word of its bitmaps at a time.
 *
 * Job: dead = allocated and not marked. Dead objects that need no cleanup are freed by arithmetic on the
 * bitmaps; upstream's gc_sweep_plane visits the others. sweep_modes.h has the modes.
 *
 * Entry points: cow_sweep_page for an open page, cow_sweep_dead for a word of a sealed one,
 * cow_sweep_before_moves, cow_heap_empty_page.
 *
 * Who writes this memory after a fork: a sweep writes the bitmaps of pages in which objects died.
 */

static inline void gc_sweep_page(rb_objspace_t *objspace, rb_heap_t *heap, struct gc_sweep_context *ctx);

/* Gives those of the +dead+ slots of a word that were allocated without flags and hold no object yet. Their
 * bit that says that no barrier protects them must stay set. */
static inline bits_t
cow_sweep_unused(const struct heap_page *page, int word, bits_t dead)
{
    bits_t unused = 0;

    for (bits_t rest = dead & page->wb_unprotected_bits[word]; rest; rest &= rest - 1) {
        const VALUE obj = cow_page_lowest_slot(page, word, rest);

        asan_unpoisoning_object(obj) {
            if (BUILTIN_TYPE(obj) == T_NONE) unused |= rest & (~rest + 1);
        }
    }
    return unused;
}

/* Clears, before the dead slots of a word are swept, what other bitmaps say of all its slots but those in
 * +kept+. Writes only what differs. */
static inline void
cow_sweep_word(struct heap_page *page, int word, bits_t kept)
{
    bits_t *bitmaps[] = { page->wb_unprotected_bits,
                          cow_locate_page_bitmap(page, page->body, COW_BITMAP_AGE_LOW),
                          cow_locate_page_bitmap(page, page->body, COW_BITMAP_AGE_HIGH) };

    /* Leaves are old: where no old object dies, the bitmap of leaves is not read. */
    if (bitmaps[2][word] & ~kept) {
        bits_t *leaves = cow_locate_page_bitmap(page, page->body, COW_BITMAP_LEAF);
        if (leaves[word] & ~kept) leaves[word] &= kept;
    }
    for (int i = 0; i < numberof(bitmaps); i++) {
        if (bitmaps[i][word] & ~kept) bitmaps[i][word] &= kept;
    }
}

/* Must the sweep visit every dead object, and not only those that need a cleanup? */
static inline bool
cow_sweep_sees_all(rb_objspace_t *objspace)
{
#if RGENGC_CHECK_MODE || defined(RUBY_ASAN_ENABLED)
    return true;
#else
    return cow_headers_are_read(objspace) || rb_gc_event_hook_required_p(RUBY_INTERNAL_EVENT_FREEOBJ);
#endif
}

/* Frees the +dead+ objects of a word of a page's bitmaps. Does not read those that need no cleanup. */
static inline void
cow_sweep_dead(rb_objspace_t *objspace, rb_heap_t *heap, int word, bits_t dead, struct gc_sweep_context *ctx)
{
    struct heap_page *page = ctx->page;
    const bits_t seen = cow_sweep_sees_all(objspace) ? dead : dead & page->cleanup_bits[word];

    cow_sweep_word(page, word, ~dead | cow_sweep_unused(page, word, dead));
    page->allocated_bits[word] &= ~(dead & ~seen);
    ctx->freed_slots += cow_slot_map_count_word(dead & ~seen);
    if (seen) {
        gc_sweep_plane(objspace, heap, page->start + word * BITS_BITLENGTH * BASE_SLOT_SIZE, seen, ctx);
        /* Another Ractor may be setting the bits of other slots. */
        const bits_t freed = seen & page->cleanup_bits[word] & ~page->allocated_bits[word];
        if (freed) cow_slot_map_clear(&page->cleanup_bits[word], freed, rb_gc_multi_ractor_p());
    }
}

/* Moves a page without objects from its heap to the list of empty pages. */
static void
cow_heap_empty_page(rb_objspace_t *objspace, rb_heap_t *heap, struct heap_page *page)
{
    heap_unlink_page(objspace, heap, page);

    page->start = 0;
    page->total_slots = 0;
    page->slot_size = 0;
    page->heap = NULL;
    page->free_slots = 0;

    asan_poison_memory_region(page->body, HEAP_PAGE_SIZE);

    objspace->empty_pages_count++;
    page->free_next = objspace->empty_pages;
    objspace->empty_pages = page;
}

/* Sweeps all pages before a compaction moves anything. To free an object may mean to read others, in an
 * extension's function as well, and none of these may have moved. From then on until all references are
 * updated only the mover reads an object that has moved: so no page must be protected against reads. */
static void
cow_sweep_before_moves(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        struct heap_page *page = heap->sweeping_page;

        for (; page; page = ccan_list_next(&heap->pages, page, page_node)) {
            struct gc_sweep_context ctx = { .page = page };

            gc_sweep_page(objspace, heap, &ctx);
            heap->freed_before_moves += ctx.freed_slots;
            page->flags.before_sweep = TRUE; /* it is swept again for the objects that move away */
        }
    }
}

/* Sweeps a page, a word of its bitmaps at a time. Counts in +ctx+. */
static inline void
cow_sweep_page(rb_objspace_t *objspace, rb_heap_t *heap, struct gc_sweep_context *ctx)
{
    struct heap_page *page = ctx->page;

    if (RB_UNLIKELY(gc_params.cow.sweep_mode == COW_SWEEP_VISIT_ALL)) cow_page_clear_free_headers(page);

    const bits_t *mark_bits = cow_page_marks(page);
    GC_ASSERT(page->free_slots == cow_page_count_free(page));
    ctx->empty_slots = page->free_slots;
    page->free_slots = 0;

    for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
        bits_t dead = page->allocated_bits[i] & ~mark_bits[i];

        if (dead) cow_sweep_dead(objspace, heap, i, dead, ctx);
    }
}

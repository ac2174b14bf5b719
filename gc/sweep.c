/*
 * sweep: frees the dead objects of a page, a word of its bitmaps at a time.
 *
 * Job: dead = allocated and not marked. Of those, objects that own nothing are freed by arithmetic; the
 * others are visited by upstream's gc_sweep_plane.
 *
 * Entry points: cow_sweep_page for an open page, cow_sweep_dead for a word of a sealed one,
 * cow_sweep_before_moves, cow_heap_empty_page.
 *
 * Who writes this memory after a fork: a sweep, the bitmaps of pages in which something died.
 */

static inline void gc_sweep_page(rb_objspace_t *objspace, rb_heap_t *heap, struct gc_sweep_context *ctx);

/* Which of the +dead+ slots of a word were allocated without flags and are no objects yet. That
 * no barrier protects them must stay noted. */
static inline bits_t
cow_sweep_unused(const struct heap_page *page, int word, bits_t dead)
{
    bits_t unused = 0;

    for (bits_t rest = dead & page->wb_unprotected_bits[word]; rest; rest &= rest - 1) {
        const VALUE obj = page->start + (word * BITS_BITLENGTH + ntz_intptr(rest)) * BASE_SLOT_SIZE;

        asan_unpoisoning_object(obj) {
            if (BUILTIN_TYPE(obj) == T_NONE) unused |= rest & (~rest + 1);
        }
    }
    return unused;
}

/* Forgets what is known of the slots of a word but those in +kept+; before they are
 * swept. What need not be written is not. */
static inline void
cow_sweep_word(struct heap_page *page, int word, bits_t kept)
{
    bits_t *rows[] = { page->wb_unprotected_bits,
                       cow_locate_page_bitmap(page, page->body, COW_BITMAP_AGE_LOW),
                       cow_locate_page_bitmap(page, page->body, COW_BITMAP_AGE_HIGH) };

    /* Leaves are old: where no old object dies their row is not read. */
    if (rows[2][word] & ~kept) {
        bits_t *leaves = cow_locate_page_bitmap(page, page->body, COW_BITMAP_LEAF);
        if (leaves[word] & ~kept) leaves[word] &= kept;
    }
    for (int i = 0; i < numberof(rows); i++) {
        if (rows[i][word] & ~kept) rows[i][word] &= kept;
    }
}

/* Must the sweep look at all that has died, and not only at what owns something? */
static inline bool
cow_sweep_sees_all(rb_objspace_t *objspace)
{
#if RGENGC_CHECK_MODE || defined(RUBY_ASAN_ENABLED)
    return true;
#else
    return cow_headers_are_read(objspace) || rb_gc_event_hook_required_p(RUBY_INTERNAL_EVENT_FREEOBJ);
#endif
}

/* Frees the +dead+ objects of a word of rows. Those that own nothing are not looked at. */
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
        /* Of others, another Ractor may be setting it. */
        const bits_t freed = seen & page->cleanup_bits[word] & ~page->allocated_bits[word];
        if (freed) cow_slot_map_clear(&page->cleanup_bits[word], freed, rb_gc_multi_ractor_p());
    }
}

/* Moves a page with no living objects to the global empty pages. */
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

/* Before anything is moved. To free an object means to read others, in an extension's function,
 * too, and none of these may have gone elsewhere. Afterwards nobody reads an object but the one who
 * moves it, until all references are updated: so no page need be protected from being read. */
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
            page->flags.before_sweep = TRUE; /* again, for what will have moved away */
        }
    }
}

/* Sweeps the slots of a page, a word of its rows at a time. */
static inline void
cow_sweep_page(rb_objspace_t *objspace, rb_heap_t *heap, struct gc_sweep_context *ctx)
{
    struct heap_page *page = ctx->page;

    if (RB_UNLIKELY(gc_params.cow.sweep_mode == COW_SWEEP_NORMAL)) cow_page_clear_free_headers(page);

    const bits_t *mark_bits = cow_page_marks(page);
    GC_ASSERT(page->free_slots == cow_page_count_free(page));
    ctx->empty_slots = page->free_slots;
    page->free_slots = 0;

    for (int i = 0; i < HEAP_PAGE_BITMAP_LIMIT; i++) {
        bits_t dead = page->allocated_bits[i] & ~mark_bits[i];

        if (dead) cow_sweep_dead(objspace, heap, i, dead, ctx);
    }
}

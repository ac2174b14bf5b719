/*
 * verify: recomputes what is kept, and stops at the first difference (check level 2, and GC.verify_internal_consistency).
 *
 * Entry points: gc_verify_slot_map, gc_verify_leaf, gc_verify_seal, gc_verify_nursery.
 *
 * Who writes this memory after a fork: nobody.
 */

static void
count_child_i(const VALUE child, void *ptr)
{
    if (child != rb_cString && child != rb_cFloat && child != rb_cInteger) ++*(int *)ptr;
}

/* Whether what is known of leaves is so (gc_note_leaf). */
static void
gc_verify_leaf(rb_objspace_t *objspace, VALUE obj, struct verify_internal_consistency_struct *data)
{
    const struct locate_cell cell = locate_cell((uintptr_t)obj);
    int children = 0;

    if (!locate_bit(&cell, ROW_LEAF)) return;
    rb_objspace_reachable_objects_from(obj, count_child_i, &children);
    if (!cell_is_old(&cell) || children > 0) {
        fprintf(stderr, "verify_internal_consistency_i: known as a leaf: %s, %s, %d references\n",
                rb_obj_info(obj), cell_is_old(&cell) ? "old" : "young", children);
        data->err_count++;
    }
}

/* Whether only slots are allocated, and nothing is known of those that are not. */
static void
gc_verify_slot_map(struct heap_page *page)
{
    static const enum row_kind rows[] = {
        ROW_MARK, ROW_UNCOLLECTIBLE, ROW_MARKING, ROW_REMEMBERED, ROW_WB_UNPROTECTED, ROW_AGE_LOW, ROW_AGE_HIGH, ROW_LEAF, ROW_CLEANUP
    };
    heap_page_marks(page);
    if (!slot_map_consistent(page->allocated_bits, heap_page_step(page), heap_page_slots_end(page), heap_page_hole_slot(page))) {
        rb_bug("page %p: allocated is what is no slot", (void *)page);
    }
    for (int i = 0; i < numberof(rows); i++) {
        const bits_t *row = locate_page_row(page, page->body, rows[i]);

        for (int j = 0; j < HEAP_PAGE_BITMAP_LIMIT; j++) {
            if (row[j] & ~page->allocated_bits[j]) rb_bug("page %p: a free slot has a bit of kind %d in word %d", (void *)page, rows[i], j);
        }
    }
}

/* Whether all is so as seal_pages, seal_sweep and gc_marks_finish leave it. */
static void
gc_verify_seal(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        struct heap_page *page;
        size_t pages = 0, slots = 0, live = 0, noted = 0;
        bool in_front = heap->seal.last != NULL;

        ccan_list_for_each(&heap->pages, page, page_node) {
            if (page->seal.sealed != in_front) rb_bug("page %p is %ssealed out of order", (void *)page, in_front ? "not " : "");
            if (page == heap->seal.last) in_front = false;
            if (!page->seal.sealed) continue;

            if (heap_page_remembers(page) && !page->seal.noted) rb_bug("sealed page %p remembers but is not noted", (void *)page);
            pages++;
            slots += page->total_slots;
            noted += page->seal.noted;
            if (is_marking(objspace)) continue;

            live += seal_page_live(page);
            for (VALUE obj = (VALUE)page->start; obj < heap_page_end(page); obj += page->slot_size) {
                bool lives;
                if (!heap_page_has(page, obj)) continue;
                asan_unpoisoning_object(obj) {
                    lives = BUILTIN_TYPE(obj) != T_NONE && BUILTIN_TYPE(obj) != T_ZOMBIE;
                }
                if (lives && !(RVALUE_PAGE_UNCOLLECTIBLE(page, obj) && RVALUE_MARKED(objspace, obj))) {
                    rb_bug("object of sealed page %p is not kept: %s", (void *)page, rb_obj_info(obj));
                }
            }
        }
        if (pages != heap->seal.pages || slots != heap->seal.slots || noted != heap->seal.noted_pages || (!is_marking(objspace) && live != heap->seal.live)) {
            rb_bug("heap %d: %"PRIuSIZE" sealed pages, %"PRIuSIZE" noted, %"PRIuSIZE" of %"PRIuSIZE" slots live, but it counts %"PRIuSIZE", %"PRIuSIZE", %"PRIuSIZE" of %"PRIuSIZE,
                   i, pages, noted, live, slots, heap->seal.pages, heap->seal.noted_pages, heap->seal.live, heap->seal.slots);
        }
    }
}

/* Whether each heap's inheritance is as nursery.h says. */
static void
gc_verify_nursery(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        if (!nursery_consistent(&heaps[i].inherited, stderr)) rb_bug("heap %d: nursery_inheritance is not consistent", i);
    }
}

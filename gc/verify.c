/*
 * verify: recomputes what is kept, and stops at the first difference (check level 2, and
 * GC.verify_internal_consistency).
 *
 * Entry points: cow_verify_slot_map, cow_verify_leaf, cow_verify_seal, cow_verify_nursery.
 *
 * Who writes this memory after a fork: nobody.
 */

static void
cow_count_child_i(const VALUE child, void *ptr)
{
    if (child != rb_cString && child != rb_cFloat && child != rb_cInteger) ++*(int *)ptr;
}

/* Whether what is known of leaves is so (cow_note_leaf). */
static void
cow_verify_leaf(rb_objspace_t *objspace, VALUE obj, struct verify_internal_consistency_struct *data)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);
    int children = 0;

    if (!cow_bit_test(&bits, COW_BITMAP_LEAF)) return;
    rb_objspace_reachable_objects_from(obj, cow_count_child_i, &children);
    if (!cow_bits_are_old(&bits) || children > 0) {
        fprintf(stderr, "verify_internal_consistency_i: known as a leaf: %s, %s, %d references\n",
                rb_obj_info(obj), cow_bits_are_old(&bits) ? "old" : "young", children);
        data->err_count++;
    }
}

/* Whether only slots are allocated, and nothing is known of those that are not. */
static void
cow_verify_slot_map(struct heap_page *page)
{
    static const enum cow_bitmap_kind kinds[] = {
        COW_BITMAP_MARK, COW_BITMAP_UNCOLLECTIBLE, COW_BITMAP_MARKING, COW_BITMAP_REMEMBERED,
        COW_BITMAP_WB_UNPROTECTED, COW_BITMAP_AGE_LOW, COW_BITMAP_AGE_HIGH, COW_BITMAP_LEAF, COW_BITMAP_CLEANUP
    };
    cow_page_marks(page);
    if (!cow_slot_map_consistent(page->allocated_bits, cow_page_step(page), cow_page_slots_end(page),
                                 cow_page_hole_slot(page))) {
        rb_bug("page %p: allocated is what is no slot", (void *)page);
    }
    for (int i = 0; i < numberof(kinds); i++) {
        const bits_t *bitmap = cow_locate_page_bitmap(page, page->body, kinds[i]);

        for (int j = 0; j < HEAP_PAGE_BITMAP_LIMIT; j++) {
            if (bitmap[j] & ~page->allocated_bits[j])
                rb_bug("page %p: a free slot has a bit of kind %d in word %d", (void *)page, kinds[i], j);
        }
    }
}

/* Whether all is so as cow_seal_pages, cow_seal_sweep and gc_marks_finish leave it. */
static void
cow_verify_seal(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        struct heap_page *page;
        size_t pages = 0, slots = 0, live = 0, remembering = 0;
        bool in_front = heap->seal.last != NULL;

        ccan_list_for_each(&heap->pages, page, page_node) {
            if (page->seal.sealed != in_front)
                rb_bug("page %p is %ssealed out of order", (void *)page, in_front ? "not " : "");
            if (page == heap->seal.last) in_front = false;
            if (!page->seal.sealed) continue;

            if (cow_page_remembers(page) && !page->seal.remembering)
                rb_bug("sealed page %p remembers, but is not in the list", (void *)page);
            pages++;
            slots += page->total_slots;
            remembering += page->seal.remembering;
            if (is_marking(objspace)) continue;

            live += cow_seal_page_live(page);
            for (VALUE obj = (VALUE)page->start; obj < cow_page_end(page); obj += page->slot_size) {
                bool lives;
                if (!cow_page_has(page, obj)) continue;
                asan_unpoisoning_object(obj) {
                    lives = BUILTIN_TYPE(obj) != T_NONE && BUILTIN_TYPE(obj) != T_ZOMBIE;
                }
                if (lives && !(RVALUE_PAGE_UNCOLLECTIBLE(page, obj) && RVALUE_MARKED(objspace, obj))) {
                    rb_bug("object of sealed page %p is not kept: %s", (void *)page, rb_obj_info(obj));
                }
            }
        }
        if (pages != heap->seal.pages || slots != heap->seal.slots ||
            remembering != heap->seal.remembering_count ||
            (!is_marking(objspace) && live != heap->seal.live)) {
            rb_bug("heap %d: %" PRIuSIZE " sealed pages, %" PRIuSIZE " remembering, %" PRIuSIZE
                   " of %" PRIuSIZE " slots live, but it counts %" PRIuSIZE ", %" PRIuSIZE ", %" PRIuSIZE
                   " of %" PRIuSIZE,
                   i, pages, remembering, live, slots, heap->seal.pages, heap->seal.remembering_count,
                   heap->seal.live, heap->seal.slots);
        }
    }
}

/* Whether each heap's inheritance is as nursery.h says. */
static void
cow_verify_nursery(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        if (!cow_nursery_consistent(&heaps[i].inherited, stderr))
            rb_bug("heap %d: nursery_inheritance is not consistent", i);
    }
}

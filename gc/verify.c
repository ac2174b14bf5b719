/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * verify: recomputes what the collector records of slots, leaves, sealed pages and the nursery, and stops the
 * process at the first difference (check level 2, and GC.verify_internal_consistency). A message names the
 * structure, the field, what was expected and what was found.
 *
 * Entry points: cow_verify_slot_map, cow_verify_leaf, cow_verify_unread, cow_verify_seal, cow_verify_nursery,
 * cow_verify_growth, cow_verify_pressure, cow_verify_substring, cow_verify_substrings.
 *
 * Who writes this memory after a fork: a process that verifies its heap writes a flag of each page.
 */

/* Counts a reference, unless it is to a class that is never freed. */
static void
cow_count_child_i(const VALUE child, void *ptr)
{
    if (child != rb_cString && child != rb_cFloat && child != rb_cInteger) ++*(int *)ptr;
}

/* Checks that an object with a leaf bit is a leaf (cow_note_leaf). Writes a difference to stderr and counts
 * it in +data+. */
static void
cow_verify_leaf(rb_objspace_t *objspace, VALUE obj, struct verify_internal_consistency_struct *data)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);
    int children = 0;

    if (!cow_bit_test(&bits, COW_BITMAP_LEAF)) return;
    rb_objspace_reachable_objects_from(obj, cow_count_child_i, &children);
    if (!cow_bits_are_old(&bits) || children > 0) {
        fprintf(stderr, "leaf bit of %s: expected an old object with 0 references, found %s and %d\n",
                rb_obj_info(obj), cow_bits_are_old(&bits) ? "old" : "young", children);
        data->err_count++;
    }
}

/* Whether marking does not read +obj+: what it refers to, a class that is never freed, may be marked later in
 * an incremental marking. */
static bool
cow_verify_unread(VALUE obj)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    return cow_bit_test(&bits, COW_BITMAP_LEAF) || BUILTIN_TYPE(obj) == T_FLOAT ||
           BUILTIN_TYPE(obj) == T_BIGNUM;
}

/* Checks a string that shares its middle (substrings.c). */
static void
cow_verify_substring(VALUE obj, struct verify_internal_consistency_struct *data)
{
    if (!rb_substring_consistent(obj, stderr)) data->err_count++;
}

/* Checks the list of them. */
static void
cow_verify_substrings(void)
{
    if (!rb_unterminated_consistent(stderr))
        rb_bug("cow_substrings: expected the invariants of substrings.c, found the above");
}

/* Checks that each object of a page that owns something has a cleanup bit: without one its slot would be used
 * again, and what it owns lost. Instance variables outside an object are left out: who copies an object sets
 * their flag before the bit, and may collect in between. */
static void
cow_verify_cleanup(struct heap_page *page)
{
    for (VALUE obj = (VALUE)page->start; obj < cow_page_end(page); obj += page->slot_size) {
        if (!cow_page_has(page, obj) || MARKED_IN_BITMAP(page->cleanup_bits, obj)) continue;
        asan_unpoisoning_object(obj) {
            const enum ruby_value_type type = BUILTIN_TYPE(obj);

            if (type != T_NONE && type != T_ZOMBIE && type != T_MOVED && !FL_TEST_RAW(obj, FL_EXIVAR) &&
                (!rb_gc_obj_plain_p(obj) || FL_TEST_RAW(obj, FL_SEEN_OBJ_ID)))
                rb_bug("heap_page %p, .cleanup_bits: expected a bit of an object that owns something, found "
                       "none of %s", (void *)page, rb_obj_info(obj));
        }
    }
}

/* Checks that only slots are allocated, that no other bitmap has a bit of a free slot, and that a page knows
 * if it remembers an object: a minor marking does not look at one that does not. */
static void
cow_verify_slot_map(struct heap_page *page)
{
    static const enum cow_bitmap_kind kinds[] = {
        COW_BITMAP_MARK, COW_BITMAP_UNCOLLECTIBLE, COW_BITMAP_MARKING, COW_BITMAP_REMEMBERED,
        COW_BITMAP_WB_UNPROTECTED, COW_BITMAP_AGE_LOW, COW_BITMAP_AGE_HIGH, COW_BITMAP_LEAF,
        COW_BITMAP_CLEANUP
    };
    cow_page_marks(page);
    if (!cow_slot_map_consistent(page->allocated_bits, cow_page_step(page), cow_page_slots_end(page),
                                 cow_page_hole_slot(page))) {
        rb_bug("heap_page %p, .allocated_bits: expected bits of slots only, found others", (void *)page);
    }
    for (int i = 0; i < numberof(kinds); i++) {
        const bits_t *bitmap = cow_locate_page_bitmap(page, page->body, kinds[i]);

        for (int j = 0; j < HEAP_PAGE_BITMAP_LIMIT; j++) {
            if (bitmap[j] & ~page->allocated_bits[j])
                rb_bug("heap_page %p, bitmap of kind %d, word %d: expected bits of allocated slots only, "
                       "found others", (void *)page, kinds[i], j);
        }
    }
    for (int j = 0; j < HEAP_PAGE_BITMAP_LIMIT && !page->flags.has_remembered_objects; j++) {
        if (page->remembered_bits[j])
            rb_bug("heap_page %p, .flags.has_remembered_objects: expected 1, as bits of word %d of "
                   ".remembered_bits are set, found 0", (void *)page, j);
    }
    cow_verify_cleanup(page);
}

/* Checks that the list of sealed pages that remember something has each of them once. Together with their
 * number that is all of them. */
static void
cow_verify_remembering(rb_heap_t *heap)
{
    const size_t count = heap->seal.remembering_count;

    for (size_t i = 0; i < count; i++) {
        struct heap_page *page = heap->seal.remembering[i];

        if (page->heap != heap || !page->seal.sealed || !page->seal.remembering)
            rb_bug("heap %p, .seal.remembering[%" PRIuSIZE "]: expected a sealed page of the heap that "
                   "remembers, once, found heap_page %p", (void *)heap, i, (void *)page);
        page->seal.remembering = FALSE; /* so that it is found if it comes again */
    }
    for (size_t i = 0; i < count; i++) heap->seal.remembering[i]->seal.remembering = TRUE;
}

/* Checks that arenas and malloc have the heap's pages and no others, each of them once in the list of all
 * pages, and that each group of an arena counts its sealed pages: new pages shall not be among these. Outside
 * of cow_pressure_release_pages .flags.give_back of a page is clear. */
static void
cow_verify_arenas(rb_objspace_t *objspace)
{
    const size_t pages = rb_darray_size(objspace->heap_pages.sorted);
    size_t used = cow_locate_space.malloc_pages.count;

    for (const struct cow_arena *arena = cow_locate_space.arenas.arenas; arena; arena = arena->next) {
        used += arena->used;
        for (size_t group = 0; group < COW_ARENA_GROUPS; group++) {
            uint64_t bits = cow_arena_group_bits(group, COW_ARENA_FIRST, arena->pages) & ~arena->free[group];
            int sealed = 0;

            for (; bits; bits &= bits - 1) {
                const size_t page = group * COW_ARENA_GROUP_PAGES + cow_lowest_bit(bits);

                sealed += arena->descriptors[page].seal.sealed;
            }
            if (sealed != arena->sealed[group])
                rb_bug("cow_arena %p, .sealed of group %" PRIuSIZE ": expected %d, found %d", (void *)arena,
                       group, sealed, arena->sealed[group]);
        }
    }
    if (used != pages)
        rb_bug("objspace.heap_pages.sorted: expected the %" PRIuSIZE " pages of arenas and malloc, found %"
               PRIuSIZE, used, pages);
    for (size_t i = 0; i < pages; i++) {
        struct heap_page *page = rb_darray_get(objspace->heap_pages.sorted, i);

        if (cow_locate_find_page((uintptr_t)page->body) != page || page->flags.give_back)
            rb_bug("objspace.heap_pages.sorted[%" PRIuSIZE "]: expected an allocated page, once, found "
                   "heap_page %p", i, (void *)page);
        page->flags.give_back = TRUE; /* so that it is found if it comes again */
    }
    for (size_t i = 0; i < pages; i++)
        ((struct heap_page *)rb_darray_get(objspace->heap_pages.sorted, i))->flags.give_back = FALSE;
}

/* Checks the invariants of sealed pages (page_list.h), as cow_seal_pages, cow_seal_sweep and gc_marks_finish
 * leave them. */
static void
cow_verify_seal(rb_objspace_t *objspace)
{
#ifdef COW_VM_WORDS_H
    if (!cow_vm_words_verify(&cow_vm_words, stderr) || !cow_vm_words_verify(&cow_yjit_words, stderr))
        rb_bug("cow_vm_words: expected the invariants of vm_words.h, found the above");
#endif
    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        struct heap_page *page;
        size_t pages = 0, slots = 0, live = 0, remembering = 0;
        bool in_front = heap->seal.last != NULL;

        ccan_list_for_each(&heap->pages, page, page_node) {
            if (page->seal.sealed != in_front)
                rb_bug("heap_page %p, .seal.sealed: expected %s .seal.last of its heap, found the opposite",
                       (void *)page, in_front ? "1 up to" : "0 behind");
            if (page == heap->seal.last) in_front = false;
            if (!page->seal.sealed) continue;

            if (cow_page_remembers(page) && !page->seal.remembering)
                rb_bug("heap_page %p, .seal.remembering: expected 1, as it remembers objects, found 0",
                       (void *)page);
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
                    rb_bug("heap_page %p, sealed: expected marked and uncollectible objects, found %s",
                           (void *)page, rb_obj_info(obj));
                }
                if (lives && !page->seal.has_duties && cow_has_duty(obj)) {
                    rb_bug("heap_page %p, .seal.has_duties: expected 1 for %s, found 0", (void *)page,
                           rb_obj_info(obj));
                }
            }
        }
        cow_verify_remembering(heap);
        if (pages != heap->seal.pages || slots != heap->seal.slots ||
            remembering != heap->seal.remembering_count ||
            (!is_marking(objspace) && live != heap->seal.live)) {
            rb_bug("heap %d, .seal: expected .pages %" PRIuSIZE ", .remembering_count %" PRIuSIZE
                   ", .live %" PRIuSIZE ", .slots %" PRIuSIZE ", found %" PRIuSIZE ", %" PRIuSIZE
                   ", %" PRIuSIZE ", %" PRIuSIZE,
                   i, pages, remembering, live, slots, heap->seal.pages, heap->seal.remembering_count,
                   heap->seal.live, heap->seal.slots);
        }
    }
    cow_verify_arenas(objspace);
}

/* Checks what each heap has inherited (nursery_policy.h). */
static void
cow_verify_nursery(rb_objspace_t *objspace)
{
    for (int i = 0; i < HEAP_COUNT; i++) {
        if (!cow_nursery_consistent(&heaps[i].inherited, stderr))
            rb_bug("heap %d, .inherited: expected the invariants of nursery_policy.h, found the above", i);
    }
}

/* Checks what the model of the heap's size knows. */
static void
cow_verify_growth(rb_objspace_t *objspace)
{
    if (!cow_growth_consistent(&objspace->growth, stderr))
        rb_bug("objspace.growth: expected the invariants of growth_policy.h, found the above");
}

/* Checks what the process knows of pressure, and that only empty pages count as given back. */
static void
cow_verify_pressure(rb_objspace_t *objspace)
{
    if (!cow_pressure_consistent(&objspace->pressure.policy, stderr))
        rb_bug("objspace.pressure: expected the invariants of pressure_policy.h, found the above");
    for (size_t i = 0; i < rb_darray_size(objspace->heap_pages.sorted); i++) {
        const struct heap_page *page = rb_darray_get(objspace->heap_pages.sorted, i);

        if (page->flags.give_back)
            rb_bug("heap_page %p, .flags.give_back: expected 0 between releases, found 1", (void *)page);
        if (page->flags.given_back && page->heap)
            rb_bug("heap_page %p, .flags.given_back: expected 0 for a page of a heap, found 1", (void *)page);
    }
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Heap pages of malloc's memory: cc -I../../gc test_alignoff.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "alignoff.h"

/* For each address that malloc may give, and each slot size: every slot but the hole leads to the one page
 * header, which lies in none of them. */
static void
test_every_address(void **state)
{
    const uintptr_t base = (uintptr_t)1 << 30;
    const size_t alignment = 2 * COW_WORD_SIZE; /* malloc's */

    for (uintptr_t page = base; page < base + COW_PAGE_SIZE; page += alignment) {
        for (size_t size = COW_SLOT_SIZE; size <= COW_SLOT_SIZE * COW_LARGEST_STEP; size *= 2) {
            struct cow_alignoff_layout layout;

            assert_true(cow_alignoff_lay_out(page, size, &layout));
            assert_int_equal(layout.boundary % COW_PAGE_SIZE, 0);
            assert_true(layout.boundary >= page && layout.boundary + COW_WORD_SIZE <= page + COW_PAGE_SIZE);
            assert_int_equal(layout.slots, COW_PAGE_SIZE / size);
            assert_true(layout.start + layout.slots * size <= page + COW_PAGE_SIZE);
            for (size_t slot = 0; slot < layout.slots; slot++) {
                uintptr_t address = layout.start + slot * size;
                bool touches = address < layout.boundary + COW_WORD_SIZE && layout.boundary < address + size;

                if (touches != (slot == layout.hole)) {
                    fail_msg("page +%zu, size %zu, slot %zu: expected hole %zu", (size_t)(page - base), size,
                             slot, layout.hole);
                }
                if (slot == layout.hole) continue;
                if (cow_alignoff_header(address, cow_alignoff_before(page, address)) != layout.boundary) {
                    fail_msg("page +%zu, size %zu, slot %zu: found another header", (size_t)(page - base),
                             size, slot);
                }
            }
        }
    }
}

static void
test_corners(void **state)
{
    const uintptr_t base = (uintptr_t)5 << HEAP_PAGE_ALIGN_LOG;
    struct cow_alignoff_layout layout;

    /* A page at its boundary: the first slot is the hole, and no object carries the flag. */
    assert_true(cow_alignoff_lay_out(base, COW_SLOT_SIZE, &layout));
    assert_int_equal(layout.hole, 0);
    assert_false(cow_alignoff_before(base, base + COW_SLOT_SIZE));
    assert_false(cow_alignoff_before(base, base + COW_PAGE_SIZE - 1));
    /* A page just behind a multiple: all objects carry it. */
    assert_true(cow_alignoff_lay_out(base + 16, COW_SLOT_SIZE, &layout));
    assert_int_equal(layout.boundary, base + COW_PAGE_SIZE);
    assert_true(cow_alignoff_before(base + 16, base + COW_PAGE_SIZE - 1));
    assert_int_equal(cow_alignoff_header(base + 16, true), base + COW_PAGE_SIZE);
    /* An address that malloc does not give: the page header would lie in two slots. */
    assert_false(cow_alignoff_lay_out(base - COW_SLOT_SIZE + COW_WORD_SIZE / 2, COW_SLOT_SIZE, &layout));
}

#ifndef WORDS_OF_ANOTHER_SIZE
/* The page header in memory of malloc's, at as many addresses. */
enum { ADDRESSES = 50 };

static void
test_header(void **state)
{
    static _Alignas(COW_ALIGNOFF_HEADER_ALIGN) char descriptor[COW_ALIGNOFF_HEADER_ALIGN];

    for (int i = 0; i < ADDRESSES; i++) {
        char *memory = malloc(COW_PAGE_SIZE);

        assert_non_null(memory);
        for (size_t size = COW_SLOT_SIZE; size <= COW_SLOT_SIZE * COW_LARGEST_STEP; size *= 2) {
            struct cow_alignoff_layout layout;
            uintptr_t first;
            void *found;

            memset(memory, 0xff, COW_PAGE_SIZE);
            assert_true(cow_alignoff_lay_out((uintptr_t)memory, size, &layout));
            cow_alignoff_write_header(&layout, size, descriptor);
            memcpy(&found, (void *)layout.boundary, sizeof(found));
            assert_ptr_equal(found, descriptor);
            if (layout.hole >= layout.slots) continue;
            memcpy(&first, (void *)(layout.start + layout.hole * size), sizeof(first));
            bool before = layout.start + layout.hole * size < layout.boundary;
            assert_int_equal(first & (COW_ALIGNOFF_HEADER_ALIGN - 1), before ? COW_ALIGNOFF_FLAG : 0);
        }
        free(memory);
    }
}
#endif

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_address),
        cmocka_unit_test(test_corners),
#ifndef WORDS_OF_ANOTHER_SIZE
        cmocka_unit_test(test_header),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * allocator.h with glibc's malloc, which AddressSanitizer would replace:
 * cc -I../../gc test_allocator_glibc.c -lcmocka
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>

#include "allocator.c"
#include "os.c"

/* Sets up an allocator in which nothing is inherited yet. */
static int
setup(void **state)
{
    memset(&cow_allocator, 0, sizeof(cow_allocator));
    return 0;
}

static void
test_leaves_small_blocks(void **state)
{
    enum { BLOCKS = 100 };
    char *blocks[BLOCKS], *large = malloc(COW_ALLOCATOR_MOST_LEFT + 1000), *kept = malloc(40);

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(56);
    cow_allocator_find(true, 56 * 10);
    assert_string_equal(cow_allocator_name(), "glibc");
    cow_allocator_prefork(1, 0, 1);
    cow_allocator_inherit();

    for (int i = 0; i < BLOCKS; i++) cow_allocator_free(blocks[i]);
    assert_int_equal(cow_allocator.left_blocks, 10);
    assert_int_equal(cow_allocator.left_bytes, 560);
    for (int i = 0; i < 10; i++) {
        for (int k = 0; k < BLOCKS; k++) assert_ptr_not_equal(malloc(56), blocks[i]);
    }
    cow_allocator_free(large);
    assert_int_equal(cow_allocator.left_blocks, 10);

    strcpy(kept, "kept");
    assert_ptr_equal(cow_allocator_realloc(kept, 10), kept);
    char *moved = cow_allocator_realloc(kept, 5000);
    assert_ptr_not_equal(moved, kept);
    assert_string_equal(moved, "kept");
    free(moved);
}

/* After the holes are filled no block comes from between those that are inherited. */
static void
test_fills_holes(void **state)
{
    enum { BLOCKS = 20000 };
    static char *blocks[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc((size_t)(i * 37 % 3000));
    for (int i = 0; i < BLOCKS - 1; i++) {
        if (i % 6 == 0) free(blocks[i]);
    }
    cow_allocator_find(true, 0);
    cow_allocator_trim();
    cow_allocator_prefork(1, 0, 1);
    assert_true(cow_allocator.filler_count > 0);
    size_t filled = cow_allocator.filler_bytes;
    for (int i = 0; i < 20000; i++) {
        char *block = malloc((size_t)(24 + i % 3000));
        assert_true(block > blocks[BLOCKS - 1]);
    }

    cow_allocator_prefork(1, 0, 1); /* not sealed since */
    assert_int_equal(cow_allocator.filler_bytes, filled);
    cow_allocator_empty_holes();
    assert_int_equal(cow_allocator.filler_bytes, 0);
}

/* A parent that goes on working fills its holes once, or when it has grown much; a quiet one at each seal. */
static void
test_when_holes_are_filled(void **state)
{
    enum { BLOCKS = 20000 };
    static char *blocks[BLOCKS];

    cow_allocator_find(true, 0);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc((size_t)(24 + i * 37 % 3000));
    for (size_t seal = 1; seal <= 12; seal++) {
        for (int i = 0; i < BLOCKS; i++) {
            if (i % 4 == (int)seal % 4) continue;
            free(blocks[i]);
            blocks[i] = malloc((size_t)(24 + (i * 37 + (int)seal * 911) % 3000));
        }
        cow_allocator_prefork(seal, seal * 1000, 900);
        assert_int_equal(cow_allocator.filler_count > 0, seal == 1);
    }
    cow_allocator_prefork(13, 12 * 1000, 900 * 1000);
    assert_true(cow_allocator.filler_count > 0);
    assert_true(cow_allocator.filler_bytes <= cow_allocator_allocated() / COW_ALLOCATOR_FILLER_SHARE);

    static char *more[3 * BLOCKS];
    for (int i = 0; i < 3 * BLOCKS; i++) more[i] = malloc(2500);
    for (int i = 0; i < 3 * BLOCKS; i += 8) free(more[i]);
    cow_allocator_prefork(14, 30 * 1000, 900);
    assert_true(cow_allocator.filler_count > 0);
    cow_allocator_empty_holes();
    assert_int_equal(cow_allocator.filler_bytes, 0);
    for (int i = 0; i < 3 * BLOCKS; i++) {
        if (i % 8) free(more[i]);
    }
}

/* A child fills no holes before it has much more than it inherited. */
static void
test_a_child_fills_nothing(void **state)
{
    enum { BLOCKS = 200000 };
    static char *blocks[BLOCKS];
    char *hole = malloc(3000), *behind = malloc(100);

    free(hole);
    cow_allocator_find(true, 0);
    cow_allocator_prefork(1, 0, 1);
    cow_allocator_inherit();
    assert_null(cow_allocator.fillers);
    cow_allocator_prefork(2, 0, 1);
    assert_null(cow_allocator.fillers);

    cow_allocator.inherited_bytes = 1 << 20;
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(200);
    for (int i = 0; i < BLOCKS; i++) {
        if (i % 3 == 0) free(blocks[i]);
    }
    cow_allocator_prefork(3, 0, 1);
    assert_non_null(cow_allocator.fillers);
    cow_allocator_empty_holes();
    free(behind);
}

/* A thread that has another arena fills nothing, and does not prevent it later. */
static void *
fork_in_thread(void *unused)
{
    cow_allocator_prefork(1, 0, 1);
    return NULL;
}

static void
test_in_another_thread(void **state)
{
    enum { BLOCKS = 100 };
    char *blocks[BLOCKS];
    pthread_t thread;

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(2000);
    for (int i = 0; i < BLOCKS - 1; i += 2) free(blocks[i]);
    cow_allocator_find(true, 0);
    assert_int_equal(pthread_create(&thread, NULL, fork_in_thread, NULL), 0);
    pthread_join(thread, NULL);
    assert_int_equal(cow_allocator.filler_count, 0);
    cow_allocator_prefork(1, 0, 1);
    assert_true(cow_allocator.filler_count > 0);
    cow_allocator_empty_holes();
}

/* The user's mmap threshold may be so low that blocks which should fill holes are mapped. */
static void
test_maps_small_blocks(void **state)
{
    char *hole = malloc(20000), *behind = malloc(100);

    mallopt(M_MMAP_THRESHOLD, 1024);
    free(hole);
    cow_allocator_find(true, 0);
    cow_allocator_prefork(1, 0, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    assert_true(cow_allocator.filler_bytes <= cow_allocator_allocated() / COW_ALLOCATOR_FILLER_SHARE);
    cow_allocator_empty_holes();
    free(behind);
}

int
main(void)
{
    (void)cow_os_reserve;
    (void)cow_allocator_thread;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_leaves_small_blocks, setup),
        cmocka_unit_test_setup(test_fills_holes, setup),
        cmocka_unit_test_setup(test_when_holes_are_filled, setup),
        cmocka_unit_test_setup(test_a_child_fills_nothing, setup),
        cmocka_unit_test_setup(test_in_another_thread, setup),
        cmocka_unit_test_setup(test_maps_small_blocks, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

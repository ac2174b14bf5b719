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

/* What a process does that seals its heap, which empties the holes, and then forks. */
static void
seal_and_prefork(size_t seals, size_t objects, size_t live)
{
    cow_allocator_trim();
    cow_allocator_prefork(seals, objects, live);
}

static int trims;

static int
count_trims(size_t pad)
{
    trims++;
    return 1;
}

/* Where others need memory a process that shares its own trims only if it must. */
static void
test_release(void **state)
{
    cow_allocator_find(true, 1000);
    cow_allocator.calls.trim = count_trims;
    cow_allocator_release(false, false);
    assert_int_equal(trims, 1);
    cow_allocator_release(true, false);
    assert_int_equal(trims, 1);
    cow_allocator_release(true, true);
    assert_int_equal(trims, 2);
    cow_allocator.on = false;
    cow_allocator_release(true, true);
    assert_int_equal(trims, 2);

    static struct cow_allocator_filler filler;
    cow_allocator.on = true;
    cow_allocator.fillers = &filler;
    cow_allocator_release(false, false);
    assert_int_equal(trims, 2);
    cow_allocator_release(false, true);
    assert_int_equal(trims, 3);
    assert_ptr_equal(cow_allocator.fillers, &filler);
}

static void
test_leaves_small_blocks(void **state)
{
    enum { BLOCKS = 100 };
    char *blocks[BLOCKS], *large = malloc(COW_ALLOCATOR_MOST_LEFT + 1000), *kept = malloc(40);

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(56);
    cow_allocator_find(true, 56 * 10);
    assert_string_equal(cow_allocator_name(), "glibc");
    seal_and_prefork(1, 0, 1);
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

/* After the holes are filled, of which there is more than of blocks, no block comes from between those. */
static void
test_fills_holes(void **state)
{
    enum { BLOCKS = 20000 };
    static char *blocks[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc((size_t)(i * 37 % 3000));
    for (int i = 0; i < BLOCKS - 1; i++) {
        if (i % 6) free(blocks[i]);
    }
    cow_allocator_find(true, 0);
    seal_and_prefork(1, 0, 1);
    assert_true(cow_allocator.filler_count > 0);
    size_t filled = cow_allocator.filler_bytes;
    assert_true(mallinfo2().fordblks - mallinfo2().keepcost < filled / 20); /* hardly anything is free */
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
        seal_and_prefork(seal, seal * 1000, 900);
        assert_int_equal(cow_allocator.filler_count > 0, seal == 1);
    }
    seal_and_prefork(13, 12 * 1000, 9000 * 1000);
    assert_true(cow_allocator.filler_count > 0);
    assert_true(cow_allocator.filler_bytes <= mallinfo2().arena);

    static char *more[3 * BLOCKS];
    for (int i = 0; i < 3 * BLOCKS; i++) more[i] = malloc(2500);
    for (int i = 0; i < 3 * BLOCKS; i += 8) free(more[i]);
    seal_and_prefork(14, 30 * 1000, 900);
    assert_true(cow_allocator.filler_count > 0);
    cow_allocator_empty_holes();
    assert_int_equal(cow_allocator.filler_bytes, 0);
    for (int i = 0; i < 3 * BLOCKS; i++) {
        if (i % 8) free(more[i]);
    }
}

/* A parent that seals or warms up gets its holes back; one that is quiet again fills them again. */
static void
test_when_holes_are_emptied(void **state)
{
    enum { BLOCKS = 100 };
    char *blocks[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(2000);
    for (int i = 0; i < BLOCKS - 1; i += 2) free(blocks[i]);
    cow_allocator_find(true, 0);
    seal_and_prefork(1, 1000, 900);
    assert_true(cow_allocator.filler_count > 0);
    cow_allocator_prefork(1, 9000, 900); /* no seal */
    assert_true(cow_allocator.filler_count > 0);
    cow_allocator_warmup();
    assert_int_equal(cow_allocator.filler_count, 0);

    seal_and_prefork(2, 9000, 900);
    assert_int_equal(cow_allocator.filler_count, 0);
    seal_and_prefork(3, 9010, 900);
    assert_true(cow_allocator.filler_count > 0);
    cow_allocator_warmup();
}

/* Where holes are left a child frees by free: its own blocks are in them. */
static void
test_holes_that_are_left(void **state)
{
    char *hole = malloc(500), *behind = malloc(100);

    free(hole);
    cow_allocator_find(true, 1000);
    cow_allocator_inherit(); /* of a parent that has not sealed */
    cow_allocator_free(malloc(500));
    cow_allocator_free(behind);
    assert_int_equal(cow_allocator.left_blocks, 0);
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
    seal_and_prefork(1, 0, 1);
    cow_allocator_inherit();
    assert_null(cow_allocator.fillers);
    seal_and_prefork(2, 0, 1);
    assert_null(cow_allocator.fillers);

    cow_allocator.inherited_bytes = 1 << 20;
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(200);
    for (int i = 0; i < BLOCKS; i++) {
        if (i % 3 == 0) free(blocks[i]);
    }
    seal_and_prefork(3, 0, 1);
    assert_non_null(cow_allocator.fillers);
    cow_allocator_empty_holes();
    free(behind);
}

/* A thread that has another arena fills nothing, and does not prevent it later. */
static void *
fork_in_thread(void *unused)
{
    seal_and_prefork(1, 0, 1);
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
    seal_and_prefork(1, 0, 1);
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
    seal_and_prefork(1, 0, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    assert_true(cow_allocator.filler_bytes <= mallinfo2().arena);
    cow_allocator_empty_holes();
    free(behind);
}

/* The system refuses memory: from now on, or as before. */
static void
refuse_memory(bool refuses)
{
    static struct rlimit before;
    struct rlimit now;
    unsigned long pages;
    FILE *file;

    if (!refuses) {
        assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
        return;
    }
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    assert_non_null(file = fopen("/proc/self/statm", "r"));
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    now = before;
    now.rlim_cur = pages * (unsigned long)getpagesize();
    assert_int_equal(setrlimit(RLIMIT_AS, &now), 0);
}

/* Takes all that malloc has, also in small holes; gives a list of it. */
static void **
take_all(void)
{
    void **taken = NULL, **block;

    for (size_t size = 1 << 20; size >= 16; size -= (size + 15) / 16) {
        while ((block = malloc(size))) {
            *block = taken;
            taken = block;
        }
    }
    return taken;
}

static void
free_all(void **taken)
{
    while (taken) {
        void **block = taken;

        taken = *block;
        free(block);
    }
}

/* Without memory no block is lost, nothing is filled, and later all goes on. After a refusal glibc gives the
 * thread another arena. */
static void
test_no_memory(void **state)
{
    char *kept = malloc(40), *left = malloc(40);

    strcpy(kept, "kept");
    cow_allocator_find(true, 1000);
    seal_and_prefork(1, 0, 1);
    cow_allocator_inherit();
    assert_true(cow_allocator_inherited_p(kept) && cow_allocator_inherited_p(left));

    refuse_memory(true); /* a failed assertion would find no memory for its message */
    void **taken = take_all();
    void *moved = cow_allocator_realloc(kept, 4000);
    size_t left_blocks = cow_allocator.left_blocks;
    cow_allocator_free(left);
    seal_and_prefork(2, 0, 1);
    cow_allocator_inherit();
    free_all(taken);
    refuse_memory(false);
    assert_null(moved);
    assert_string_equal(kept, "kept");
    assert_int_equal(left_blocks, 0);
    assert_int_equal(cow_allocator.left_blocks, 1);

    kept = cow_allocator_realloc(kept, 4000);
    assert_string_equal(kept, "kept");
    cow_allocator_free(kept);
}

/* Memory ends while holes are filled. (The last test: see above.) */
static void
test_no_memory_to_fill(void **state)
{
    enum { BLOCKS = 200 };
    char *blocks[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(2000);
    for (int i = 0; i < BLOCKS - 1; i += 2) free(blocks[i]);
    cow_allocator_find(true, 1000);
    refuse_memory(true);
    seal_and_prefork(1, 0, 1);
    refuse_memory(false);
    assert_true(cow_allocator.filler_bytes <= mallinfo2().arena);
    seal_and_prefork(2, 0, 1);
    for (int i = 1; i < BLOCKS; i += 2) cow_allocator_free(blocks[i]);
    cow_allocator_empty_holes();
}

int
main(void)
{
    (void)cow_os_reserve;
    (void)cow_allocator_thread;
    (void)cow_allocator_allocated;
    (void)cow_allocator_collected;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_release, setup),
        cmocka_unit_test_setup(test_leaves_small_blocks, setup),
        cmocka_unit_test_setup(test_fills_holes, setup),
        cmocka_unit_test_setup(test_when_holes_are_filled, setup),
        cmocka_unit_test_setup(test_when_holes_are_emptied, setup),
        cmocka_unit_test_setup(test_holes_that_are_left, setup),
        cmocka_unit_test_setup(test_a_child_fills_nothing, setup),
        cmocka_unit_test_setup(test_in_another_thread, setup),
        cmocka_unit_test_setup(test_maps_small_blocks, setup),
        cmocka_unit_test_setup(test_no_memory, setup),
        cmocka_unit_test_setup(test_no_memory_to_fill, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The memory of the words that the VM writes: cc -I../../gc test_vm_words.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define COW_VM_WORDS_REGION ((size_t)1024 * 1024)
#define COW_VM_WORDS_REGIONS 3
#include "os.c"
#include "vm_words.h"

/* ---- a system that refuses what the test says */

static struct { int maps_left, commits_left, advised; size_t limit; } fake;

static void *
fake_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    if (size >= COW_VM_WORDS_REGION && fake.maps_left-- <= 0) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(address, size, protection, flags, file, offset);
}

static int
fake_protect(void *address, size_t size, int protection)
{
    if (fake.commits_left-- > 0) return mprotect(address, size, protection);
    errno = ENOMEM;
    return -1;
}

static int
fake_advise(void *address, size_t size, int advice)
{
    fake.advised++;
    return madvise(address, size, advice);
}

static int
fake_limit(struct rlimit *limit)
{
    limit->rlim_cur = fake.limit;
    return 0;
}

static const struct cow_os_calls fake_calls = {
    fake_map, munmap, fake_protect, fake_advise, fake_limit, NULL, cow_os_page_size, malloc,
    cow_os_allocate_zeroed, free, cow_os_faults, cow_os_clock, cow_os_read_file
};

static void *
fake_allocate_nothing(size_t size)
{
    return NULL;
}

static struct cow_vm_words words;

static int
set_up(void **state)
{
    cow_os = &fake_calls;
    fake.maps_left = fake.commits_left = 1000;
    fake.limit = (size_t)RLIM_INFINITY;
    words = (struct cow_vm_words){ .sign = COW_VM_WORDS_SIGN, .name = "Ruby:VM words" };
    return 0;
}

static int
tear_down(void **state)
{
    const bool good = cow_vm_words_verify(&words, stderr);

    for (size_t i = 0; i < words.count; i++) {
        cow_unpoison(words.regions[i].start, COW_VM_WORDS_REGION);
        munmap(words.regions[i].start, COW_VM_WORDS_REGION);
    }
    free(words.lost);
    return good ? 0 : -1;
}

static char *
allocate(enum cow_vm_words_stream stream, size_t size)
{
    char *block = cow_vm_words_alloc(&words, stream, size);

    if (block == NULL) return NULL;
    assert_int_equal((uintptr_t)block % COW_VM_WORDS_UNIT, 0);
    assert_true(cow_vm_words_has(&words, block));
    for (size_t i = 0; i < size; i++) assert_int_equal(block[i], 0);
    memset(block, 0xa5, size);
    return block;
}

/* ---- blocks */

static void
test_blocks_lie_side_by_side(void **state)
{
    char *first = allocate(COW_VM_WORDS_RUN, 48), *second = allocate(COW_VM_WORDS_RUN, 20);
    char *other = allocate(COW_VM_WORDS_ONCE, 16), *third = allocate(COW_VM_WORDS_RUN, 1024);

    assert_ptr_equal(second, first + 48);
    assert_ptr_equal(third, second + 24);
    assert_true(other < first || other >= first + COW_VM_WORDS_EXTENT - 64);
    assert_int_equal(words.live, 48 + 24 + 16 + 1024);
}

static void
test_a_freed_block_is_used_again(void **state)
{
    char *first = allocate(COW_VM_WORDS_RUN, 40), *other = allocate(COW_VM_WORDS_RUN, 48);

    cow_vm_words_free(&words, COW_VM_WORDS_RUN, first, 40);
    assert_int_equal(words.live, 48);
    assert_true(allocate(COW_VM_WORDS_ONCE, 48) != first);
    assert_true(allocate(COW_VM_WORDS_RUN, 64) != first);
    assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 33), first);
    cow_vm_words_free(&words, COW_VM_WORDS_RUN, other, 48);
    assert_int_equal(words.lost_count, 0);
}

static void
test_sizes(void **state)
{
    static const size_t sizes[] = { 1, 16, 17, 1008, 1009, 1024, 1025, 2048, 2049, 16384, 16385, 100000,
                                    262144 };

    for (int round = 0; round < 3; round++) {
        char *blocks[sizeof(sizes) / sizeof(sizes[0])];

        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            blocks[i] = allocate(COW_VM_WORDS_RUN, sizes[i]);
            assert_non_null(blocks[i]);
        }
        assert_true(cow_vm_words_verify(&words, stderr));
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            for (size_t j = 0; j < sizes[i]; j++) assert_int_equal((unsigned char)blocks[i][j], 0xa5);
            cow_vm_words_free(&words, COW_VM_WORDS_RUN, blocks[i], sizes[i]);
        }
        assert_int_equal(words.live, 0);
    }
    assert_null(cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 262145));
    assert_int_equal(words.count, 1);
}

/* What is left of an extent is not lost. */
static void
test_the_end_of_an_extent(void **state)
{
    size_t used = 0;

    while (words.count == 0 || words.regions[0].used == COW_VM_WORDS_EXTENT) {
        allocate(COW_VM_WORDS_RUN, 1024);
        used += 1024;
    }
    assert_in_range(used, COW_VM_WORDS_EXTENT - 1024, COW_VM_WORDS_EXTENT + 1024);
    /* An extent has 1024 bytes less than its sign and 16 blocks. */
    char *left = allocate(COW_VM_WORDS_RUN, 1008);
    assert_true(left < words.regions[0].start + COW_VM_WORDS_EXTENT);
}

static size_t
resident_pages(const char *block, size_t size)
{
    const size_t page = cow_os_page_size(), pages = size / page;
    const uintptr_t first = ((uintptr_t)block + page - 1) / page * page;
    unsigned char resident[64];
    size_t sum = 0;

    assert_true(pages < sizeof(resident));
    assert_int_equal(mincore((void *)first, pages * page - page, resident), 0);
    for (size_t i = 0; i < pages - 1; i++) sum += resident[i] & 1;
    return sum;
}

/* Once after each use; smaller blocks are left alone, and so are those in use. */
static void
test_large_free_blocks_are_decommitted(void **state)
{
    char *large = allocate(COW_VM_WORDS_RUN, 65536), *small = allocate(COW_VM_WORDS_RUN, 4096);
    char *used = allocate(COW_VM_WORDS_RUN, 65536);

    for (int round = 0; round < 2; round++) {
        cow_vm_words_decommit(&words, COW_VM_WORDS_RUN);
        assert_int_equal(resident_pages(large, 65536), 15);
        cow_vm_words_free(&words, COW_VM_WORDS_RUN, large, 65536);
        cow_vm_words_free(&words, COW_VM_WORDS_RUN, small, 4096);
        fake.advised = 0;
        cow_vm_words_decommit(&words, COW_VM_WORDS_RUN);
        cow_vm_words_decommit(&words, COW_VM_WORDS_RUN);
        cow_vm_words_decommit(&words, COW_VM_WORDS_ONCE);
        assert_int_equal(fake.advised, 1);
        assert_in_range(resident_pages(large, 65536), 0, 1);
        assert_int_equal(resident_pages(used, 65536), 15);
        assert_true(cow_vm_words_verify(&words, stderr));
        assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 65000), large);
        assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 4096), small);
    }
}

/* ---- around a fork */

static bool
same_page(const void *one, const void *other)
{
    return (uintptr_t)one / cow_os_page_size() == (uintptr_t)other / cow_os_page_size();
}

static void
test_inherited_blocks_are_left_alone(void **state)
{
    char *freed = allocate(COW_VM_WORDS_RUN, 32), *kept = allocate(COW_VM_WORDS_RUN, 32);

    cow_vm_words_free(&words, COW_VM_WORDS_RUN, freed, 32);
    cow_vm_words_inherit(&words);
    assert_int_equal(words.regions[0].inherited, words.regions[0].used);
    assert_true(cow_vm_words_verify(&words, stderr));

    char *own = allocate(COW_VM_WORDS_RUN, 32);
    assert_false(same_page(own, kept));
    assert_int_equal(words.regions[0].inherited, words.regions[0].used); /* it goes on in the extent */
    char before[32];
    memcpy(before, kept, 32);
    cow_vm_words_free(&words, COW_VM_WORDS_RUN, kept, 32);
    cow_unpoison(kept, 32);
    assert_memory_equal(before, kept, 32);
    cow_poison(kept, 32);
    assert_int_equal(words.live, 32);

    cow_vm_words_free(&words, COW_VM_WORDS_RUN, own, 32);
    assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 32), own);
    assert_true(cow_vm_words_verify(&words, stderr));

    /* A process that forks uses all of that again; its child does not. */
    cow_vm_words_prefork(&words);
    assert_true(cow_vm_words_verify(&words, stderr));
    assert_int_equal(words.lost_count, 0);
    assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 32), kept);
    assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 32), freed);
    cow_vm_words_inherit(&words);
    cow_vm_words_free(&words, COW_VM_WORDS_RUN, own, 32);
    char *third = allocate(COW_VM_WORDS_RUN, 32);
    assert_true(third != own && !same_page(third, freed));
}

/* Each generation replaces what it has inherited. None needs more than those before. */
static void
test_a_chain_of_forks(void **state)
{
    enum { BLOCKS = 2000 };
    static char *blocks[BLOCKS];
    size_t used = 0;

    for (int generation = 0; generation < 300; generation++) {
        for (int i = 0; i < BLOCKS; i++) {
            const size_t size = (size_t)(i % 40 + 1) * 16;
            const enum cow_vm_words_stream stream = i % COW_VM_WORDS_STREAMS;

            if (generation > 0) cow_vm_words_free(&words, stream, blocks[i], size);
            blocks[i] = allocate(stream, size);
            assert_non_null(blocks[i]);
        }
        if (generation % 10 == 5) cow_vm_words_seal(&words);
        cow_vm_words_prefork(&words);
        cow_vm_words_inherit(&words);
        if (generation % 50 == 0) assert_true(cow_vm_words_verify(&words, stderr));
        if (generation == 10) used = words.regions[words.count - 1].used + words.count * COW_VM_WORDS_REGION;
    }
    assert_int_equal(words.regions[words.count - 1].used + words.count * COW_VM_WORDS_REGION, used);
}

static void
test_a_sealed_parent_goes_on_in_another_page(void **state)
{
    char *before = allocate(COW_VM_WORDS_RUN, 64), *freed = allocate(COW_VM_WORDS_RUN, 64);

    cow_vm_words_free(&words, COW_VM_WORDS_RUN, freed, 64);
    cow_vm_words_seal(&words);
    assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 64), freed);
    char *next = allocate(COW_VM_WORDS_RUN, 64);
    assert_false(same_page(next, before));
    for (int i = 0; i < 10000; i++) cow_vm_words_seal(&words); /* nothing was allocated: no page is skipped */
    assert_ptr_equal(allocate(COW_VM_WORDS_ONCE, 16), words.regions[0].start + COW_VM_WORDS_EXTENT);
}

/* ---- memory denied */

static void
test_no_region(void **state)
{
    fake.maps_left = 0;
    assert_null(cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 16));
    assert_true(words.denied);
    fake.maps_left = 1000;
    assert_null(cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 16)); /* it does not ask again */
    assert_false(cow_vm_words_has(&words, &words));
    cow_vm_words_seal(&words);
    cow_vm_words_inherit(&words);
}

static void
test_a_limit_of_address_space(void **state)
{
    fake.limit = COW_VM_WORDS_REGION * COW_VM_WORDS_SPARE - 1;
    assert_null(cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 16));
    assert_int_equal(words.count, 0);
}

static void
test_no_memory_for_a_region(void **state)
{
    fake.commits_left = 0;
    assert_null(cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 16));
    assert_int_equal(words.count, 0);
}

/* Blocks that are there stay usable, and memory that comes back is used. */
static void
test_no_memory_later(void **state)
{
    char *block = allocate(COW_VM_WORDS_RUN, 16), *more;

    fake.commits_left = 0;
    while ((more = cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 1024))) memset(more, 1, 1024);
    cow_vm_words_free(&words, COW_VM_WORDS_RUN, block, 16);
    assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 16), block);
    fake.commits_left = 1000;
    assert_non_null(allocate(COW_VM_WORDS_RUN, 1024));
}

static void
test_all_regions_are_full(void **state)
{
    size_t bytes = 0;

    while (cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 4096)) bytes += 4096;
    assert_int_equal(words.count, COW_VM_WORDS_REGIONS);
    assert_true(bytes > COW_VM_WORDS_REGIONS * COW_VM_WORDS_REGION * 9 / 10);
    cow_vm_words_inherit(&words);
    assert_null(cow_vm_words_alloc(&words, COW_VM_WORDS_RUN, 4096));
}

/* What cannot be remembered is lost, and nothing else. */
static void
test_no_memory_to_remember(void **state)
{
    struct cow_os_calls calls = fake_calls;
    char *blocks[70];

    for (int i = 0; i < 70; i++) blocks[i] = allocate(COW_VM_WORDS_RUN, 16);
    cow_vm_words_seal(&words);
    cow_vm_words_inherit(&words);
    for (int i = 0; i < 64; i++) cow_vm_words_free(&words, COW_VM_WORDS_RUN, blocks[i], 16);
    calls.allocate = fake_allocate_nothing;
    cow_os = &calls;
    for (int i = 64; i < 70; i++) cow_vm_words_free(&words, COW_VM_WORDS_RUN, blocks[i], 16);
    assert_int_equal(words.lost_count, 64);
    cow_vm_words_prefork(&words);
    for (int i = 63; i >= 0; i--) assert_ptr_equal(allocate(COW_VM_WORDS_RUN, 16), blocks[i]);
}

/* ---- verification */

static void
test_a_fault_is_found(void **state)
{
    char *block = allocate(COW_VM_WORDS_RUN, 32), text[200] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    cow_vm_words_free(&words, COW_VM_WORDS_RUN, block, 32);
    words.free_lists[COW_VM_WORDS_RUN][2] = (void *)(block + 4);
    assert_false(cow_vm_words_verify(&words, out));
    fclose(out);
    assert_non_null(strstr(text, "cow_vm_words.free_lists[0], blocks of 24 bytes"));
    words.free_lists[COW_VM_WORDS_RUN][2] = NULL;
}

static void
test_a_block_that_is_freed_twice(void **state)
{
    char *block = allocate(COW_VM_WORDS_RUN, 32), text[300] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    allocate(COW_VM_WORDS_RUN, 32);
    cow_vm_words_free(&words, COW_VM_WORDS_RUN, block, 32);
    cow_vm_words_free(&words, COW_VM_WORDS_RUN, block, 32);
    assert_false(cow_vm_words_verify(&words, out));
    fclose(out);
    assert_non_null(strstr(text, "expected a list that ends within"));
    memset(words.free_lists, 0, sizeof(words.free_lists));
    words.free = 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks_lie_side_by_side, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_freed_block_is_used_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_end_of_an_extent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_large_free_blocks_are_decommitted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_inherited_blocks_are_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_chain_of_forks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_sealed_parent_goes_on_in_another_page, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_region, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_limit_of_address_space, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_memory_for_a_region, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_memory_later, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_all_regions_are_full, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_memory_to_remember, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_fault_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_block_that_is_freed_twice, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

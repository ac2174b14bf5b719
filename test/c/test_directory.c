/*
 * The directory of malloc's heap pages: cc -I../../gc test_directory.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "directory.h"

/* Bytes of addresses that one leaf tells of. */
#define LEAF_BYTES ((uintptr_t)DIRECTORY_LEAF << HEAP_PAGE_ALIGN_LOG)

static struct directory directory;

static int
end(void **state)
{
    directory_free(&directory);
    return 0;
}

/* What is known of a page is here a pointer to nowhere that tells it. */
static void *
known(uintptr_t body)
{
    return (void *)(body | 1);
}

static cow_bits_t *
row(uintptr_t body)
{
    return (cow_bits_t *)(body / 16 * DIRECTORY_ROW_ALIGN % ((uintptr_t)1 << 54));
}

static void
put(uintptr_t body)
{
    assert_true(directory_reserve(&directory, body));
    directory_put(&directory, body, known(body), row(body));
}

static void
knows(uintptr_t body)
{
    assert_true(directory_consistent_at(&directory, body, known(body), row(body)));
    assert_ptr_equal(directory_known(&directory, body + COW_PAGE_SIZE / 2), known(body));
}

static void
test_nothing(void **state)
{
    assert_null(directory_known(&directory, 0));
    assert_null(directory_known(&directory, UINTPTR_MAX));
    assert_int_equal(directory_bytes(&directory), 0);
}

/* A page at each place about the end of a leaf, at low and high addresses: just its
 * addresses are its. */
static void
test_about_the_end_of_a_leaf(void **state)
{
    static const uintptr_t leaves[] = { 1, 2, DIRECTORY_NODE, (uintptr_t)DIRECTORY_NODES * DIRECTORY_NODE - 1 };

    for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++) {
        for (uintptr_t offset = 0; offset <= 3 * COW_PAGE_SIZE; offset += 16) {
            uintptr_t body = leaves[i] * LEAF_BYTES - 2 * COW_PAGE_SIZE + offset;

            put(body);
            knows(body);
            assert_null(directory_known(&directory, body - 1));
            assert_null(directory_known(&directory, body + COW_PAGE_SIZE));
            assert_null(directory_known(&directory, body - COW_PAGE_SIZE));
            directory_remove(&directory, body);
            assert_null(directory_known(&directory, body));
            assert_null(directory_known(&directory, body + COW_PAGE_MASK));
        }
    }
}

/* Pages without a gap between them, as far from a boundary as each other. */
static void
test_neighbours(void **state)
{
    for (uintptr_t offset = 0; offset < COW_PAGE_SIZE; offset += COW_PAGE_SIZE / 8) {
        uintptr_t first = 5 * LEAF_BYTES - 8 * COW_PAGE_SIZE + offset;

        for (int i = 0; i < 16; i++) put(first + i * COW_PAGE_SIZE);
        for (int i = 0; i < 16; i++) knows(first + i * COW_PAGE_SIZE);
        for (int i = 0; i < 16; i += 2) directory_remove(&directory, first + i * COW_PAGE_SIZE);
        for (int i = 0; i < 16; i++) {
            uintptr_t body = first + i * COW_PAGE_SIZE;

            if (i % 2) knows(body);
            else assert_null(directory_known(&directory, body + COW_PAGE_SIZE / 2));
            if (i % 2) directory_remove(&directory, body);
        }
    }
}

/* Leaves all over the addresses, each in a node of its own, and what none may have. */
static void
test_many_leaves(void **state)
{
    const uintptr_t step = LEAF_BYTES * DIRECTORY_NODE, last = (uintptr_t)1 << DIRECTORY_ADDRESS_LOG;

    for (uintptr_t body = step + 16; body < last; body += step * 100) put(body);
    for (uintptr_t body = step + 16; body < last; body += step * 100) {
        knows(body);
        assert_null(directory_known(&directory, body + LEAF_BYTES));
        assert_null(directory_known(&directory, body + step));
    }
    assert_int_equal(directory_bytes(&directory),
                     (last / step + 98) / 100 * (sizeof(struct directory_leaf) + sizeof(struct directory_node)));
    assert_false(directory_reserve(&directory, last));
    assert_false(directory_reserve(&directory, last - 16));
    assert_true(directory_reserve(&directory, last - COW_PAGE_SIZE));
    assert_false(directory_reserve(&directory, UINTPTR_MAX - COW_PAGE_MASK));
    assert_null(directory_known(&directory, last));
}

/* Pages come and go at random; each address is known as the slow way knows it. */
static void
test_any_address(void **state)
{
    enum { PAGES = 200 };
    uintptr_t pages[PAGES];
    int count = 0;
    unsigned int seed = 1;

    for (int turn = 0; turn < 40000; turn++) {
        uintptr_t address = 3 * LEAF_BYTES - 64 * COW_PAGE_SIZE + (uintptr_t)rand_r(&seed) % (128 * COW_PAGE_SIZE) / 16 * 16;
        int over = -1;
        bool free = true;

        for (int i = 0; i < count; i++) {
            if (address - pages[i] < COW_PAGE_SIZE) over = i;
            if (address + COW_PAGE_MASK - pages[i] < 2 * COW_PAGE_SIZE - 1) free = false;
        }
        assert_ptr_equal(directory_known(&directory, address), over < 0 ? NULL : known(pages[over]));
        if (over >= 0) assert_int_equal(directory_at(&directory, address).offset, address - pages[over]);
        if (free && count < PAGES) {
            put(address);
            pages[count++] = address;
        }
        else if (over >= 0 && turn % 3 == 0) {
            directory_remove(&directory, pages[over]);
            pages[over] = pages[--count];
        }
    }
    assert_true(count > 20);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_nothing, end),
        cmocka_unit_test_teardown(test_about_the_end_of_a_leaf, end),
        cmocka_unit_test_teardown(test_neighbours, end),
        cmocka_unit_test_teardown(test_many_leaves, end),
        cmocka_unit_test_teardown(test_any_address, end),
    };

    return cmocka_run_group_tests_name("directory", tests, NULL, NULL);
}

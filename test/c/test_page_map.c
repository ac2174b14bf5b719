/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The page map of malloc's heap pages: cc -I../../gc test_page_map.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "os.c"
#include "page_map.c"

/* Bytes of addresses for which one table has entries. */
#define TABLE_BYTES ((uintptr_t)COW_PAGE_MAP_TABLE << HEAP_PAGE_ALIGN_LOG)

/* malloc gives multiples of this. */
enum { MALLOC_ALIGNMENT = 16 };

static struct cow_page_map map;

static int
end(void **state)
{
    cow_page_map_free(&map);
    return 0;
}

/* In place of a descriptor: a pointer that nobody follows, different for each page. */
static void *
descriptor(uintptr_t body)
{
    return (void *)(body | 1);
}

/* In place of a bitmap: an address that the map can hold, different for each page. */
static cow_bits_t *
bitmap_of(uintptr_t body)
{
    return (cow_bits_t *)(body / 16 * COW_BITMAP_ALIGN % ((uintptr_t)1 << 54));
}

/* Enters a page. */
static void
enter(uintptr_t body)
{
    assert_true(cow_page_map_reserve(&map, body));
    cow_page_map_put(&map, body, descriptor(body), bitmap_of(body));
}

/* Checks that both ends and the middle of a page lead to it. */
static void
check_finds(uintptr_t body)
{
    assert_true(cow_page_map_consistent_at(&map, body, descriptor(body), bitmap_of(body)));
    assert_ptr_equal(cow_page_map_find(&map, body + COW_PAGE_SIZE / 2), descriptor(body));
}

static void
test_nothing(void **state)
{
    assert_null(cow_page_map_find(&map, 0));
    assert_null(cow_page_map_find(&map, UINTPTR_MAX));
    assert_int_equal(cow_page_map_bytes(&map), 0);
}

/* A page at each address around the end of a table, for the first and the last tables: it is found at its own
 * addresses only. */
static void
test_around_the_end_of_a_table(void **state)
{
    static const uintptr_t tables[] = {
        1, 2, COW_PAGE_MAP_NODE, (uintptr_t)COW_PAGE_MAP_NODES * COW_PAGE_MAP_NODE - 1
    };

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        for (uintptr_t offset = 0; offset <= 3 * COW_PAGE_SIZE; offset += MALLOC_ALIGNMENT) {
            uintptr_t body = tables[i] * TABLE_BYTES - 2 * COW_PAGE_SIZE + offset;

            enter(body);
            check_finds(body);
            assert_null(cow_page_map_find(&map, body - 1));
            assert_null(cow_page_map_find(&map, body + COW_PAGE_SIZE));
            assert_null(cow_page_map_find(&map, body - COW_PAGE_SIZE));
            cow_page_map_remove(&map, body);
            assert_null(cow_page_map_find(&map, body));
            assert_null(cow_page_map_find(&map, body + COW_PAGE_MASK));
        }
    }
}

/* Pages without a gap between them: all have the same distance to their boundary. Half of them lie below the
 * end of a table. */
static void
test_neighbours(void **state)
{
    enum { NEIGHBOURS = 16 };

    for (uintptr_t offset = 0; offset < COW_PAGE_SIZE; offset += COW_PAGE_SIZE / 8) {
        uintptr_t first = 5 * TABLE_BYTES - NEIGHBOURS / 2 * COW_PAGE_SIZE + offset;

        for (int i = 0; i < NEIGHBOURS; i++) enter(first + i * COW_PAGE_SIZE);
        for (int i = 0; i < NEIGHBOURS; i++) check_finds(first + i * COW_PAGE_SIZE);
        for (int i = 0; i < NEIGHBOURS; i += 2) cow_page_map_remove(&map, first + i * COW_PAGE_SIZE);
        for (int i = 0; i < NEIGHBOURS; i++) {
            uintptr_t body = first + i * COW_PAGE_SIZE;

            if (i % 2) check_finds(body);
            else assert_null(cow_page_map_find(&map, body + COW_PAGE_SIZE / 2));
            if (i % 2) cow_page_map_remove(&map, body);
        }
    }
}

/* Tables all found the address space, each in a node of its own; and addresses that no page may have. */
static void
test_many_tables(void **state)
{
    enum { NODES_APART = 100 };
    const uintptr_t node = TABLE_BYTES * COW_PAGE_MAP_NODE, last = (uintptr_t)1 << COW_PAGE_MAP_ADDRESS_LOG;

    for (uintptr_t body = node + MALLOC_ALIGNMENT; body < last; body += node * NODES_APART) enter(body);
    for (uintptr_t body = node + MALLOC_ALIGNMENT; body < last; body += node * NODES_APART) {
        check_finds(body);
        assert_null(cow_page_map_find(&map, body + TABLE_BYTES));
        assert_null(cow_page_map_find(&map, body + node));
    }
    /* of last / node nodes every NODES_APARTth, but the first is left out */
    const uintptr_t nodes = (last / node - 1 + NODES_APART - 1) / NODES_APART;
    assert_int_equal(cow_page_map_bytes(&map),
                     nodes * (sizeof(struct cow_page_map_table) + sizeof(struct cow_page_map_node)));
    assert_false(cow_page_map_reserve(&map, last));
    assert_false(cow_page_map_reserve(&map, last - MALLOC_ALIGNMENT));
    assert_true(cow_page_map_reserve(&map, last - COW_PAGE_SIZE));
    assert_false(cow_page_map_reserve(&map, UINTPTR_MAX - COW_PAGE_MASK));
    assert_null(cow_page_map_find(&map, last));
}

/* Pages are entered and removed at random; each address leads to the page that a look at all pages finds. */
static void
test_any_address(void **state)
{
    enum { PAGES = 200, SPREAD = 128 /* pages around the end of a table */ };
    uintptr_t pages[PAGES];
    int count = 0;
    unsigned int seed = 1;

    for (int turn = 0; turn < 40000; turn++) {
        uintptr_t address = 3 * TABLE_BYTES - SPREAD / 2 * COW_PAGE_SIZE +
            (uintptr_t)rand_r(&seed) % (SPREAD * COW_PAGE_SIZE) / MALLOC_ALIGNMENT * MALLOC_ALIGNMENT;
        int found = -1;
        bool free = true;

        for (int i = 0; i < count; i++) {
            if (address - pages[i] < COW_PAGE_SIZE) found = i;
            if (address + COW_PAGE_MASK - pages[i] < 2 * COW_PAGE_SIZE - 1) free = false;
        }
        assert_ptr_equal(cow_page_map_find(&map, address), found < 0 ? NULL : descriptor(pages[found]));
        if (found >= 0) assert_int_equal(cow_page_map_lookup(&map, address).offset, address - pages[found]);
        if (free && count < PAGES) {
            enter(address);
            pages[count++] = address;
        }
        else if (found >= 0 && turn % 3 == 0) {
            cow_page_map_remove(&map, pages[found]);
            pages[found] = pages[--count];
        }
    }
    assert_true(count > SPREAD / 8); /* it was not empty all the time */
}

static void *
no_memory(size_t size)
{
    return NULL;
}

/* If there is no memory for a table, cow_page_map_reserve says so and the map stays as it is. */
static void
test_no_memory(void **state)
{
    struct cow_os_calls calls = cow_os_system;

    calls.allocate_zeroed = no_memory;
    cow_os = &calls;
    assert_false(cow_page_map_reserve(&map, 5 * TABLE_BYTES));
    cow_os = &cow_os_system;
    assert_null(cow_page_map_find(&map, 5 * TABLE_BYTES));
    enter(5 * TABLE_BYTES);
    check_finds(5 * TABLE_BYTES);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_nothing, end),
        cmocka_unit_test_teardown(test_around_the_end_of_a_table, end),
        cmocka_unit_test_teardown(test_neighbours, end),
        cmocka_unit_test_teardown(test_many_tables, end),
        cmocka_unit_test_teardown(test_any_address, end),
        cmocka_unit_test_teardown(test_no_memory, end),
    };

    (void)cow_os_reserve; /* os.c defines it; no test here needs it */
    return cmocka_run_group_tests_name("page_map", tests, NULL, NULL);
}

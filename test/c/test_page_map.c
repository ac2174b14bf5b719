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

/* Bytes of addresses that one table holds entries of. */
#define TABLE_BYTES ((uintptr_t)COW_PAGE_MAP_TABLE << HEAP_PAGE_ALIGN_LOG)

static struct cow_page_map map;

static int
end(void **state)
{
    cow_page_map_free(&map);
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
    return (cow_bits_t *)(body / 16 * COW_BITMAP_ALIGN % ((uintptr_t)1 << 54));
}

static void
put(uintptr_t body)
{
    assert_true(cow_page_map_reserve(&map, body));
    cow_page_map_put(&map, body, known(body), row(body));
}

static void
knows(uintptr_t body)
{
    assert_true(cow_page_map_consistent_at(&map, body, known(body), row(body)));
    assert_ptr_equal(cow_page_map_find(&map, body + COW_PAGE_SIZE / 2), known(body));
}

static void
test_nothing(void **state)
{
    assert_null(cow_page_map_find(&map, 0));
    assert_null(cow_page_map_find(&map, UINTPTR_MAX));
    assert_int_equal(cow_page_map_bytes(&map), 0);
}

/* A page at each place about the end of a table, at low and high addresses: just its
 * addresses are its. */
static void
test_about_the_end_of_a_table(void **state)
{
    static const uintptr_t leaves[] = { 1, 2, COW_PAGE_MAP_NODE, (uintptr_t)COW_PAGE_MAP_NODES * COW_PAGE_MAP_NODE - 1 };

    for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++) {
        for (uintptr_t offset = 0; offset <= 3 * COW_PAGE_SIZE; offset += 16) {
            uintptr_t body = leaves[i] * TABLE_BYTES - 2 * COW_PAGE_SIZE + offset;

            put(body);
            knows(body);
            assert_null(cow_page_map_find(&map, body - 1));
            assert_null(cow_page_map_find(&map, body + COW_PAGE_SIZE));
            assert_null(cow_page_map_find(&map, body - COW_PAGE_SIZE));
            cow_page_map_remove(&map, body);
            assert_null(cow_page_map_find(&map, body));
            assert_null(cow_page_map_find(&map, body + COW_PAGE_MASK));
        }
    }
}

/* Pages without a gap between them, as far from a boundary as each other. */
static void
test_neighbours(void **state)
{
    for (uintptr_t offset = 0; offset < COW_PAGE_SIZE; offset += COW_PAGE_SIZE / 8) {
        uintptr_t first = 5 * TABLE_BYTES - 8 * COW_PAGE_SIZE + offset;

        for (int i = 0; i < 16; i++) put(first + i * COW_PAGE_SIZE);
        for (int i = 0; i < 16; i++) knows(first + i * COW_PAGE_SIZE);
        for (int i = 0; i < 16; i += 2) cow_page_map_remove(&map, first + i * COW_PAGE_SIZE);
        for (int i = 0; i < 16; i++) {
            uintptr_t body = first + i * COW_PAGE_SIZE;

            if (i % 2) knows(body);
            else assert_null(cow_page_map_find(&map, body + COW_PAGE_SIZE / 2));
            if (i % 2) cow_page_map_remove(&map, body);
        }
    }
}

/* Leaves all over the addresses, each in a node of its own, and what none may have. */
static void
test_many_tables(void **state)
{
    const uintptr_t step = TABLE_BYTES * COW_PAGE_MAP_NODE, last = (uintptr_t)1 << COW_PAGE_MAP_ADDRESS_LOG;

    for (uintptr_t body = step + 16; body < last; body += step * 100) put(body);
    for (uintptr_t body = step + 16; body < last; body += step * 100) {
        knows(body);
        assert_null(cow_page_map_find(&map, body + TABLE_BYTES));
        assert_null(cow_page_map_find(&map, body + step));
    }
    assert_int_equal(cow_page_map_bytes(&map),
                     (last / step + 98) / 100 * (sizeof(struct cow_page_map_table) + sizeof(struct cow_page_map_node)));
    assert_false(cow_page_map_reserve(&map, last));
    assert_false(cow_page_map_reserve(&map, last - 16));
    assert_true(cow_page_map_reserve(&map, last - COW_PAGE_SIZE));
    assert_false(cow_page_map_reserve(&map, UINTPTR_MAX - COW_PAGE_MASK));
    assert_null(cow_page_map_find(&map, last));
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
        uintptr_t address = 3 * TABLE_BYTES - 64 * COW_PAGE_SIZE + (uintptr_t)rand_r(&seed) % (128 * COW_PAGE_SIZE) / 16 * 16;
        int over = -1;
        bool free = true;

        for (int i = 0; i < count; i++) {
            if (address - pages[i] < COW_PAGE_SIZE) over = i;
            if (address + COW_PAGE_MASK - pages[i] < 2 * COW_PAGE_SIZE - 1) free = false;
        }
        assert_ptr_equal(cow_page_map_find(&map, address), over < 0 ? NULL : known(pages[over]));
        if (over >= 0) assert_int_equal(cow_page_map_lookup(&map, address).offset, address - pages[over]);
        if (free && count < PAGES) {
            put(address);
            pages[count++] = address;
        }
        else if (over >= 0 && turn % 3 == 0) {
            cow_page_map_remove(&map, pages[over]);
            pages[over] = pages[--count];
        }
    }
    assert_true(count > 20);
}

static void *
no_memory(size_t size)
{
    return NULL;
}

/* Without memory for a table nothing is entered, and nothing is lost. */
static void
test_no_memory(void **state)
{
    struct cow_os_calls calls = cow_os_system;

    calls.allocate = no_memory;
    cow_os = &calls;
    assert_false(cow_page_map_reserve(&map, 5 * TABLE_BYTES));
    cow_os = &cow_os_system;
    assert_null(cow_page_map_find(&map, 5 * TABLE_BYTES));
    put(5 * TABLE_BYTES);
    knows(5 * TABLE_BYTES);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_nothing, end),
        cmocka_unit_test_teardown(test_about_the_end_of_a_table, end),
        cmocka_unit_test_teardown(test_neighbours, end),
        cmocka_unit_test_teardown(test_many_tables, end),
        cmocka_unit_test_teardown(test_any_address, end),
        cmocka_unit_test_teardown(test_no_memory, end),
    };

    (void)cow_os_reserve; /* of os.c; not needed here */
    return cmocka_run_group_tests_name("page_map", tests, NULL, NULL);
}

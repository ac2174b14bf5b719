/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The tests of all five locators. The file that includes this one has defined COW_LOCATE_BY.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <pthread.h>
#include <cmocka.h>

/* In place of the collector's struct. */
struct heap_page { uintptr_t body; size_t slot_size; int hole; char more[100]; };

#include "locate_bits.c"

enum {
    PAGES = 300,        /* the most pages at a time: several chunks of malloc's pages (COW_CHUNK_PAGES) */
    FEWEST_PAGES = 10,  /* random frees leave so many */
    OBJECT = 5,         /* what the header of an object may hold */
    PAGES_OF_A_SIZE = 20 /* malloc gives them different distances from a boundary */
};

static struct { bool refuses; } fake; /* the system refuses mmap */
static struct heap_page *pages[PAGES];
static int count;

static void *
fake_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    if (!fake.refuses) return mmap(address, size, protection, flags, file, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

static struct cow_os_calls fake_calls;

static int
begin(void **state)
{
    fake_calls = cow_os_system;
    fake_calls.map = fake_map;
    fake.refuses = false;
    cow_os = &fake_calls;
    count = 0;
    return 0;
}

static void
free_page(int i)
{
    cow_locate_free_page(pages[i], (void *)pages[i]->body);
    pages[i] = pages[--count];
}

static void
check(void)
{
    assert_true(cow_locate_consistent(stderr));
}

static int
end(void **state)
{
    while (count > 0) free_page(count - 1);
    cow_locate_give_back();
    check();
    cow_arena_release_all(&cow_locate_space.arenas);
    assert_int_equal(cow_locate_space.arenas.count, 0);
#if COW_LOCATE_SEARCHES
    for (struct cow_search_table *table = cow_locate_space.search.table, *outgrown; table; table = outgrown) {
        outgrown = table->outgrown;
        free(table);
    }
#endif
    cow_page_map_free(&cow_locate_space.malloc_pages.map);
    memset(&cow_locate_space, 0, sizeof(cow_locate_space));
    return 0;
}

/* Allocates a page and leaves it as the collector does: all slots are free. */
static struct heap_page *
new_page(size_t slot_size)
{
    void *body;
    struct heap_page *page = cow_locate_alloc_page(&body);

    assert_non_null(page);
    page->body = (uintptr_t)body;
    page->slot_size = slot_size;
    page->hole = cow_locate_lay_out(page, slot_size);
    for (size_t i = 0; i < COW_PAGE_SIZE / slot_size; i++) {
        uintptr_t slot = page->body + i * slot_size;
        if ((int)i != page->hole) *(uintptr_t *)slot = cow_locate_slot_flag(body, slot);
    }
    return pages[count++] = page;
}

/* Finds the page of an address by looking at all pages. */
static struct heap_page *
page_at(uintptr_t address)
{
    for (int i = 0; i < count; i++) {
        if (address - pages[i]->body < COW_PAGE_SIZE) return pages[i];
    }
    return NULL;
}

/* cow_object_bits leads to the object's bit in each bitmap, and to no other. */
static void
test_bits(uintptr_t object)
{
    struct cow_object_bits bits = cow_object_bits(object);
    unsigned int slot = cow_locate_slot(object);

    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
        cow_bits_t *word = &cow_locate_bitmap(object, kind)[slot / COW_BITS], before = *word;

        assert_false(cow_bit_test(&bits, kind));
        cow_bit_set(&bits, kind);
        assert_int_equal(*word, before | (cow_bits_t)1 << slot % COW_BITS);
        assert_true(cow_bit_test(&bits, kind));
        cow_bit_clear(&bits, kind);
        assert_int_equal(*word, before);
    }
}

static void
test_slots_of_every_size(void **state)
{
    for (size_t size = COW_SLOT_SIZE; size <= COW_SLOT_SIZE * COW_LARGEST_STEP; size *= 2) {
        for (int i = 0; i < PAGES_OF_A_SIZE; i++) {
            struct heap_page *page = new_page(size);
            void *body = (void *)page->body;
            size_t slots = COW_PAGE_SIZE / size;

            check();
            for (size_t slot = 0; slot < slots; slot++) {
                uintptr_t object = page->body + slot * size;

                if ((int)slot == page->hole) continue;
                *(uintptr_t *)object = OBJECT | cow_locate_kept_flags(*(uintptr_t *)object);
                assert_ptr_equal(cow_locate_page(object), page);
                assert_int_equal(cow_locate_slot(object), slot * (size / COW_SLOT_SIZE));
                assert_true(cow_locate_slot(object) / COW_BITS < COW_BITMAP_WORDS);
                for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                    assert_ptr_equal(cow_locate_bitmap(object, kind),
                                     cow_locate_page_bitmap(page, body, kind));
                }
                test_bits(object);
            }
        }
    }
}

/* cow_object_bits does not read the object. */
static void
test_bits_of_poisoned_objects(void **state)
{
    for (int i = 0; i < PAGES_OF_A_SIZE; i++) {
        struct heap_page *page = new_page(COW_SLOT_SIZE);

        cow_poison((void *)page->body, COW_PAGE_SIZE);
        for (unsigned int slot = 0; slot < COW_PAGE_SLOTS; slot++) {
            struct cow_object_bits bits = cow_object_bits(page->body + slot * COW_SLOT_SIZE);

            assert_ptr_equal(bits.word,
                             &cow_locate_page_bitmap(page, (void *)page->body, 0)[slot / COW_BITS]);
            assert_int_equal(bits.mask, (cow_bits_t)1 << slot % COW_BITS);
        }
        cow_unpoison((void *)page->body, COW_PAGE_SIZE);
    }
}

/* Marks every third slot, another third in each turn; unmarks them one by one, and in the third turn all at
 * once. In the last turn none is marked. */
static void
test_marks(void **state)
{
    struct heap_page *page = new_page(COW_SLOT_SIZE * 2);
    size_t slots = COW_PAGE_SIZE / (COW_SLOT_SIZE * 2);

    for (size_t turn = 0; turn < 4; turn++) {
        for (size_t i = turn; i < slots; i += 3) {
            if ((int)i != page->hole && turn < 3) cow_object_mark(page->body + i * COW_SLOT_SIZE * 2);
        }
        for (size_t i = 0; i < slots; i++) {
            uintptr_t object = page->body + i * COW_SLOT_SIZE * 2;

            if ((int)i != page->hole) assert_int_equal(cow_object_marked(object), turn < 3 && i % 3 == turn);
        }
        for (size_t i = turn; i < slots; i += 3) {
            uintptr_t object = page->body + i * COW_SLOT_SIZE * 2;

            if ((int)i != page->hole && (turn < 2 || COW_LOCATE_MARKS_OBJECTS)) cow_object_unmark(object);
        }
        if (turn == 2) cow_clear_all_marks();
    }
}

/* Shall a random turn allocate a page, and not free one? Three of five do, within the bounds. */
static bool
shall_allocate(unsigned int *seed)
{
    return count < PAGES && (count < FEWEST_PAGES || rand_r(seed) % 5 < 3);
}

/* Pages are allocated and freed at random; any address leads to the page that a look at all pages finds. */
static void
test_any_address(void **state)
{
    unsigned int seed = 1;
    static const uintptr_t nowhere[] = {
        0, 1, 8, COW_PAGE_SIZE, UINTPTR_MAX, UINTPTR_MAX - COW_PAGE_MASK, UINTPTR_MAX / 2
    };

    for (int turn = 0; turn < 2000; turn++) {
        if (shall_allocate(&seed)) new_page(COW_SLOT_SIZE << rand_r(&seed) % 5);
        else free_page(rand_r(&seed) % count);

        struct heap_page *page = pages[rand_r(&seed) % count];
        uintptr_t near[] = {
            page->body - 1, page->body, page->body + 1,
            page->body + COW_PAGE_MASK, page->body + COW_PAGE_SIZE,
            page->body + rand_r(&seed) % (3 * COW_PAGE_SIZE) - COW_PAGE_SIZE
        };
        for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++) {
            assert_ptr_equal(cow_locate_find_page(near[i]), page_at(near[i]));
        }
        for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
            assert_null(cow_locate_find_page(nowhere[i]));
        }
        if (turn % 100 == 0) check();
    }
    for (int i = 0; i < count; i++) {
        assert_ptr_equal(cow_locate_find_page(pages[i]->body + COW_WORD_SIZE / 2), pages[i]);
    }
}

/* A thread that looks up the page of one object as long as the main thread allocates and frees others. */
struct lookups {
    struct heap_page *page;
    bool ends;
    size_t done, wrong;
};

static void *
look_up(void *argument)
{
    struct lookups *lookups = argument;
    uintptr_t object = lookups->page->body + (lookups->page->hole == 1 ? 2 : 1) * COW_SLOT_SIZE;

    while (!__atomic_load_n(&lookups->ends, __ATOMIC_ACQUIRE)) {
        lookups->wrong += cow_locate_page(object) != lookups->page;
        __atomic_store_n(&lookups->done, lookups->done + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void
test_while_pages_are_allocated_and_freed(void **state)
{
    unsigned int seed = 1;
    pthread_t thread;

    for (int i = 0; i < FEWEST_PAGES; i++) new_page(COW_SLOT_SIZE);
    struct lookups lookups = { .page = pages[0] };
    assert_int_equal(pthread_create(&thread, NULL, look_up, &lookups), 0);
    while (__atomic_load_n(&lookups.done, __ATOMIC_ACQUIRE) == 0) sched_yield();
    for (int turn = 0; turn < 20000; turn++) {
        if (shall_allocate(&seed)) new_page(COW_SLOT_SIZE);
        else free_page(1 + rand_r(&seed) % (count - 1));
    }
    __atomic_store_n(&lookups.ends, true, __ATOMIC_RELEASE);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(lookups.wrong, 0);
    check();
}

/* The system refuses all arenas: the locator arena works as alignoff, and header gives no page. */
static void
test_without_arenas(void **state)
{
    void *body;

    fake.refuses = true;
    if (COW_LOCATE_BY == COW_LOCATE_HEADER) {
        assert_null(cow_locate_alloc_page(&body));
        return;
    }
    test_slots_of_every_size(state);
    test_bits_of_poisoned_objects(state);
    test_any_address(state);
    assert_int_equal(cow_locate_space.arenas.count, 0);
    assert_int_equal(cow_locate_space.unaligned, COW_LOCATE_BY == COW_LOCATE_ARENA);
    assert_int_equal(cow_locate_space.malloc_pages.count, count);
    assert_true(cow_locate_metadata_bytes() > 0);
    assert_int_equal(cow_locate_reserved_bytes(), cow_locate_committed_bytes());
}

static void
test_seal(void **state)
{
    struct heap_page *page = new_page(COW_SLOT_SIZE);

    cow_locate_seal((void *)page->body);
    check();
    cow_locate_unseal((void *)page->body);
    check();
}

/* In an arena a decommitted page reads as 0; elsewhere it keeps its contents. It stays usable. */
static void
test_decommit(void **state)
{
    bool arenas = !COW_LOCATE_MALLOCED;
    struct heap_page *page = new_page(COW_SLOT_SIZE);
    char *last = (char *)page->body + COW_PAGE_SIZE - 1;

    cow_object_mark(page->body + COW_SLOT_SIZE);
    *last = 7;
    cow_locate_decommit_page((void *)page->body);
    assert_int_equal(*last, arenas ? 0 : 7);
    if (COW_LOCATE_BY != COW_LOCATE_HEADER) assert_true(cow_object_marked(page->body + COW_SLOT_SIZE));
    check();
    *last = 8;
    assert_int_equal(*last, 8);
    assert_true(!cow_locate_can_decommit() || arenas);
    if (!cow_locate_can_decommit()) return;
    assert_true(cow_locate_decommit((void *)page->body, COW_PAGE_SIZE));
    assert_int_equal(*last, 0);
    check();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_slots_of_every_size, begin, end),
        cmocka_unit_test_setup_teardown(test_bits_of_poisoned_objects, begin, end),
        cmocka_unit_test_setup_teardown(test_marks, begin, end),
        cmocka_unit_test_setup_teardown(test_any_address, begin, end),
        cmocka_unit_test_setup_teardown(test_while_pages_are_allocated_and_freed, begin, end),
        cmocka_unit_test_setup_teardown(test_without_arenas, begin, end),
        cmocka_unit_test_setup_teardown(test_seal, begin, end),
        cmocka_unit_test_setup_teardown(test_decommit, begin, end),
    };

    return cmocka_run_group_tests_name("locate: " COW_LOCATE_NAME, tests, NULL, NULL);
}

/*
 * What holds for each of the five locators; the test that includes this has defined
 * COW_LOCATE_BY.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <pthread.h>
#include <cmocka.h>

/* Stands for the collector's own. */
struct heap_page { uintptr_t body; size_t slot_size; int hole; char more[100]; };

#include "locate.c"

enum { PAGES = 300 };

static struct { bool denies; } fake;
static struct heap_page *pages[PAGES];
static int count;

static void *
fake_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    if (!fake.denies) return mmap(address, size, protection, flags, file, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

static struct cow_os_calls fake_calls;

static int
begin(void **state)
{
    fake_calls = cow_os_system;
    fake_calls.map = fake_map;
    fake.denies = false;
    cow_os = &fake_calls;
    count = 0;
    return 0;
}

static void
give(int i)
{
    cow_locate_free_page(pages[i], (void *)pages[i]->body);
    pages[i] = pages[--count];
}

static int
end(void **state)
{
    while (count > 0) give(count - 1);
    while (cow_locate_space.arenas.arenas) cow_arena_destroy(&cow_locate_space.arenas, cow_locate_space.arenas.arenas);
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

/* A page with slots as the collector would leave it: all are free. */
static struct heap_page *
taken(size_t slot_size)
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

static void
consistent(void)
{
    assert_true(cow_locate_consistent(stderr));
}

/* The page of an address, found by looking at all. */
static struct heap_page *
page_at(uintptr_t address)
{
    for (int i = 0; i < count; i++) {
        if (address - pages[i]->body < COW_PAGE_SIZE) return pages[i];
    }
    return NULL;
}

/* The bits of an object lead to its bit in each bitmap, and to no other. */
static void
test_bits(uintptr_t object)
{
    struct cow_object_bits bits = cow_object_bits(object);
    unsigned int slot = cow_locate_slot(object);

    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
        cow_bits_t *word = &cow_locate_bitmap(object, kind)[slot / COW_BITS], was = *word;

        assert_false(cow_bit_test(&bits, kind));
        cow_bit_set(&bits, kind);
        assert_int_equal(*word, was | (cow_bits_t)1 << slot % COW_BITS);
        assert_true(cow_bit_test(&bits, kind));
        cow_bit_clear(&bits, kind);
        assert_int_equal(*word, was);
    }
}

static void
test_slots_of_every_size(void **state)
{
    for (size_t size = COW_SLOT_SIZE; size <= COW_SLOT_SIZE * 16; size *= 2) {
        for (int i = 0; i < 20; i++) {
            struct heap_page *page = taken(size);
            void *body = (void *)page->body;
            size_t slots = COW_PAGE_SIZE / size;

            consistent();
            for (size_t slot = 0; slot < slots; slot++) {
                uintptr_t object = page->body + slot * size;

                if ((int)slot == page->hole) continue;
                *(uintptr_t *)object = 5 | cow_locate_kept_flags(*(uintptr_t *)object); /* an object is made */
                assert_ptr_equal(cow_locate_page(object), page);
                assert_int_equal(cow_locate_slot(object), slot * (size / COW_SLOT_SIZE));
                assert_true(cow_locate_slot(object) / COW_BITS < COW_BITMAP_WORDS);
                for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                    assert_ptr_equal(cow_locate_bitmap(object, kind), cow_locate_page_bitmap(page, body, kind));
                }
                test_bits(object);
            }
        }
    }
}

/* The bits of an object are found without a look at it. */
static void
test_bits_of_what_must_not_be_read(void **state)
{
    for (int i = 0; i < 20; i++) {
        struct heap_page *page = taken(COW_SLOT_SIZE);

        cow_poison((void *)page->body, COW_PAGE_SIZE);
        for (unsigned int slot = 0; slot < COW_PAGE_SLOTS; slot++) {
            struct cow_object_bits bits = cow_object_bits(page->body + slot * COW_SLOT_SIZE);

            assert_ptr_equal(bits.word, &cow_locate_page_bitmap(page, (void *)page->body, 0)[slot / COW_BITS]);
            assert_int_equal(bits.mask, (cow_bits_t)1 << slot % COW_BITS);
        }
        cow_unpoison((void *)page->body, COW_PAGE_SIZE);
    }
}

static void
test_marks(void **state)
{
    struct heap_page *page = taken(COW_SLOT_SIZE * 2);
    size_t slots = COW_PAGE_SIZE / (COW_SLOT_SIZE * 2);

    for (size_t turn = 0; turn < 4; turn++) {
        for (size_t i = turn; i < slots; i += 3) {
            if ((int)i != page->hole && turn < 3) cow_object_mark(page->body + i * COW_SLOT_SIZE * 2);
        }
        for (size_t i = 0; i < slots; i++) {
            if ((int)i != page->hole) assert_int_equal(cow_object_marked(page->body + i * COW_SLOT_SIZE * 2), turn < 3 && i % 3 == turn);
        }
        for (size_t i = turn; i < slots; i += 3) {
            if ((int)i != page->hole && (turn < 2 || COW_LOCATE_MARKS_OBJECTS)) cow_object_unmark(page->body + i * COW_SLOT_SIZE * 2);
        }
        if (turn == 2) cow_clear_all_marks();
    }
}

/* Many pages come and go; any address is known as the slow way knows it. */
static void
test_any_address(void **state)
{
    unsigned int seed = 1;
    static const uintptr_t nowhere[] = { 0, 1, 8, COW_PAGE_SIZE, UINTPTR_MAX, UINTPTR_MAX - COW_PAGE_MASK, UINTPTR_MAX / 2 };

    for (int turn = 0; turn < 2000; turn++) {
        if (count < PAGES && (count < 10 || rand_r(&seed) % 5 < 3)) taken(COW_SLOT_SIZE << rand_r(&seed) % 5);
        else give(rand_r(&seed) % count);

        struct heap_page *page = pages[rand_r(&seed) % count];
        uintptr_t near[] = { page->body - 1, page->body, page->body + 1, page->body + COW_PAGE_MASK, page->body + COW_PAGE_SIZE,
                             page->body + rand_r(&seed) % (3 * COW_PAGE_SIZE) - COW_PAGE_SIZE };
        for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++) assert_ptr_equal(cow_locate_find_page(near[i]), page_at(near[i]));
        for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) assert_null(cow_locate_find_page(nowhere[i]));
        if (turn % 100 == 0) consistent();
    }
    for (int i = 0; i < count; i++) assert_ptr_equal(cow_locate_find_page(pages[i]->body + 3), pages[i]);
}

/* Asks for the page of one object as long as another thread takes and gives pages. */
struct asking {
    struct heap_page *page;
    bool ends;
    size_t asked, wrong;
};

static void *
ask(void *argument)
{
    struct asking *asking = argument;
    uintptr_t object = asking->page->body + (asking->page->hole == 1 ? 2 : 1) * COW_SLOT_SIZE;

    while (!__atomic_load_n(&asking->ends, __ATOMIC_ACQUIRE)) {
        asking->wrong += cow_locate_page(object) != asking->page;
        __atomic_store_n(&asking->asked, asking->asked + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void
test_while_pages_come_and_go(void **state)
{
    unsigned int seed = 1;
    pthread_t thread;

    for (int i = 0; i < 10; i++) taken(COW_SLOT_SIZE);
    struct asking asking = { .page = pages[0] };
    assert_int_equal(pthread_create(&thread, NULL, ask, &asking), 0);
    while (__atomic_load_n(&asking.asked, __ATOMIC_ACQUIRE) == 0) sched_yield();
    for (int turn = 0; turn < 20000; turn++) {
        if (count < PAGES && (count < 10 || rand_r(&seed) % 5 < 3)) taken(COW_SLOT_SIZE);
        else give(1 + rand_r(&seed) % (count - 1));
    }
    __atomic_store_n(&asking.ends, true, __ATOMIC_RELEASE);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(asking.wrong, 0);
    consistent();
}

static void
test_no_arena_can_be_had(void **state)
{
    void *body;

    fake.denies = true;
    if (COW_LOCATE_BY == COW_LOCATE_HEADER) {
        assert_null(cow_locate_alloc_page(&body));
        return;
    }
    test_slots_of_every_size(state);
    test_bits_of_what_must_not_be_read(state);
    test_any_address(state);
    assert_int_equal(cow_locate_space.arenas.count, 0);
    assert_int_equal(cow_locate_space.unaligned, COW_LOCATE_BY == COW_LOCATE_ARENA);
    assert_int_equal(cow_locate_space.malloc_pages.count, count);
    assert_true(cow_locate_metadata_bytes() > 0 && cow_locate_reserved_bytes() == cow_locate_committed_bytes());
}

static void
test_seal(void **state)
{
    struct heap_page *page = taken(COW_SLOT_SIZE);

    cow_locate_seal((void *)page->body);
    consistent();
    cow_locate_unseal((void *)page->body);
    consistent();
}

/* What stood there is gone where arenas are, and there anywhere else; the page is as good. */
static void
test_discard(void **state)
{
    bool arenas = !COW_LOCATE_MALLOCED;
    struct heap_page *page = taken(COW_SLOT_SIZE);
    char *last = (char *)page->body + COW_PAGE_SIZE - 1;

    cow_object_mark(page->body + COW_SLOT_SIZE);
    *last = 7;
    cow_locate_decommit_page((void *)page->body);
    assert_int_equal(*last, arenas ? 0 : 7);
    if (COW_LOCATE_BY != COW_LOCATE_HEADER) assert_true(cow_object_marked(page->body + COW_SLOT_SIZE));
    consistent();
    *last = 8;
    assert_int_equal(*last, 8);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_slots_of_every_size, begin, end),
        cmocka_unit_test_setup_teardown(test_bits_of_what_must_not_be_read, begin, end),
        cmocka_unit_test_setup_teardown(test_marks, begin, end),
        cmocka_unit_test_setup_teardown(test_any_address, begin, end),
        cmocka_unit_test_setup_teardown(test_while_pages_come_and_go, begin, end),
        cmocka_unit_test_setup_teardown(test_no_arena_can_be_had, begin, end),
        cmocka_unit_test_setup_teardown(test_seal, begin, end),
        cmocka_unit_test_setup_teardown(test_discard, begin, end),
    };

    return cmocka_run_group_tests_name("locate: " COW_LOCATE_NAME, tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where heap pages come from: cc -I../../gc test_arena.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <cmocka.h>

/* In place of the collector's struct. */
struct heap_page { uintptr_t start; char more[120]; };

#include "os.c"
#include "arena.c"

/* ---- a system that refuses what the test says */

static struct {
    size_t reservable;       /* the system refuses to map more bytes at once */
    size_t room, mapped;     /* bytes that the process may map, and has mapped */
    size_t decommits;        /* calls of advise for that */
    size_t without_huge_pages; /* bytes of which it was told so */
    int commits_left;        /* the system refuses to commit after so many calls */
    size_t greatest_commit;  /* and more than so many bytes at a time */
    size_t page_size;        /* bytes of an OS page */
    int randoms;             /* calls of random */
    bool advise_fails, unmap_fails, random;
    uint64_t bits;           /* what random gives */
    struct rlimit limit;
} fake;

static void *
fake_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    void *memory = MAP_FAILED;

    if (size > fake.reservable || size > fake.room - fake.mapped) errno = ENOMEM;
    else memory = mmap(address, size, protection, flags, file, offset);
    if (memory != MAP_FAILED) fake.mapped += size;
    return memory;
}

static int
fake_unmap(void *address, size_t size)
{
    if (!fake.unmap_fails) {
        fake.mapped -= size;
        return munmap(address, size);
    }
    errno = ENOMEM;
    return -1;
}

static int
fake_protect(void *address, size_t size, int protection)
{
    if ((uintptr_t)address % fake.page_size != 0 || size % fake.page_size != 0) {
        errno = EINVAL;
        return -1;
    }
    if (fake.commits_left-- > 0 && size <= fake.greatest_commit) return mprotect(address, size, protection);
    errno = ENOMEM;
    return -1;
}

static size_t
fake_page_size(void)
{
    return fake.page_size;
}

static int
fake_advise(void *address, size_t size, int advice)
{
    if (advice == MADV_DONTNEED) fake.decommits++;
    if (advice == MADV_NOHUGEPAGE) fake.without_huge_pages += size;
    if (!fake.advise_fails) return madvise(address, size, advice);
    errno = EINVAL;
    return -1;
}

static int
fake_limit(struct rlimit *limit)
{
    *limit = fake.limit;
    return 0;
}

static bool
fake_random(uint64_t *bits)
{
    fake.randoms++;
    *bits = fake.bits;
    return fake.random;
}

static const struct cow_os_calls fake_calls = {
    fake_map, fake_unmap, fake_protect, fake_advise, fake_limit, fake_random,
    fake_page_size, malloc, cow_os_allocate_zeroed, free, cow_os_faults, cow_os_clock, cow_os_read_file
};

enum { OS_PAGE = 4096 };

/* A limit so low that each arena is the smallest. */
enum { LOWEST_LIMIT = 4096 };

static struct cow_arena_space space;

static int
begin(void **state)
{
    memset(&fake, 0, sizeof(fake));
    fake.reservable = fake.room = SIZE_MAX;
    fake.commits_left = INT_MAX;
    fake.greatest_commit = SIZE_MAX;
    fake.page_size = OS_PAGE;
    fake.limit.rlim_cur = RLIM_INFINITY;
    cow_os = &fake_calls;
    memset(&space, 0, sizeof(space));
    return 0;
}

static int
end(void **state)
{
    fake.unmap_fails = false;
    while (space.arenas) {
        memset(space.arenas->sealed, 0, sizeof(space.arenas->sealed));
        cow_arena_destroy(&space, space.arenas);
    }
    return space.count + space.reserved_bytes + space.committed_bytes + space.head_bytes > 0;
}

static void
check(void)
{
    assert_true(cow_arena_consistent(&space, stderr));
}

/* Expects a report that begins so. */
static void
check_finds(const char *report)
{
    char text[500] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    assert_false(cow_arena_consistent(&space, out));
    fclose(out);
    assert_non_null(strstr(text, report));
}

static char *
new_page(void)
{
    char *page = cow_arena_alloc_page(&space);

    assert_non_null(page);
    assert_int_equal((uintptr_t)page & COW_PAGE_MASK, 0);
    return page;
}

/* Sets all bits of all bitmaps of a page. */
static void
fill_bitmaps(char *page)
{
    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
        memset(cow_arena_bitmap_of((uintptr_t)page, kind), 0xff, COW_BITMAP_SIZE);
    }
}

/* ---- tests */

static void
test_sizes(void **state)
{
    assert_int_equal(COW_ARENA_PAGES * (size_t)COW_PAGE_SIZE, COW_ARENA_SIZE);
    assert_int_equal(COW_BITMAP_WORDS & (COW_BITMAP_WORDS - 1), 0);
    assert_true(COW_BITMAP_WORDS * COW_BITS > COW_PAGE_SLOTS);
    assert_int_equal(offsetof(struct cow_arena, bits) % OS_PAGE, 0);
    /* the bitmaps of one kind of a group share no OS page with another group's */
    assert_int_equal(COW_ARENA_GROUP_PAGES * COW_BITMAP_SIZE % OS_PAGE, 0);
    /* for each 16 KB, eleven bitmaps of 64 bytes and a descriptor of 128 bytes: 5.1 % */
    assert_true(sizeof(struct cow_arena) < COW_ARENA_SIZE / 16);
    assert_int_equal(cow_slot_index(0), 0);
    assert_int_equal(cow_slot_index(COW_SLOT_SIZE - 1), 0);
    assert_int_equal(cow_slot_index(COW_SLOT_SIZE), 1);
    assert_int_equal(cow_slot_index(COW_PAGE_MASK), (COW_PAGE_SIZE - 1) / COW_SLOT_SIZE);
    assert_int_equal(cow_slot_index(COW_PAGE_SIZE), 0);
}

static void
test_group_bits(void **state)
{
    static const struct { size_t group, from, to; uint64_t bits; } cases[] = {
        { 0, 0, 64, UINT64_MAX }, { 0, 0, 0, 0 }, { 0, 1, 64, UINT64_MAX - 1 },
        { 0, 63, 64, UINT64_C(1) << 63 }, { 0, 64, 128, 0 },
        { 1, 0, 64, 0 }, { 1, 0, 65, 1 }, { 1, 64, 128, UINT64_MAX }, { 1, 70, 72, 0xc0 },
        { 1, 0, 1000, UINT64_MAX }, { 1, 127, 127, 0 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(cow_arena_group_bits(cases[i].group, cases[i].from, cases[i].to) == cases[i].bits);
    }
}

static void
test_lowest_page_first(void **state)
{
    char *first = new_page(), *second = new_page(), *third = new_page();

    assert_int_equal(cow_arena_page_number((uintptr_t)first), COW_ARENA_FIRST);
    assert_memory_equal(cow_arena_of((uintptr_t)first)->sign, COW_ARENA_SIGN, 8);
    assert_ptr_equal((char *)cow_arena_of((uintptr_t)first) + cow_arena_of((uintptr_t)first)->head, first);
    assert_int_equal(cow_arena_of((uintptr_t)first)->head % COW_ARENA_HEAD_MULTIPLE, 0);
    assert_ptr_equal(second, first + COW_PAGE_SIZE);
    assert_ptr_equal(third, second + COW_PAGE_SIZE);
    check();
    cow_arena_free_page(&space, second);
    check();
    assert_int_equal(fake.decommits, 0);
    assert_ptr_equal(new_page(), second);
    assert_int_equal(fake.decommits, 1);
    check();
}

/* Neighbours that are freed one after the other go back in one call, others each in one. */
static void
test_freed_neighbours_go_back_in_one_call(void **state)
{
    enum { PAGES = 64, OTHERS = 8 };
    char *pages[PAGES], *kept = new_page();

    for (int i = 0; i < PAGES; i++) memset(pages[i] = new_page(), 1, COW_PAGE_SIZE);
    for (int i = 0; i < PAGES; i++) cow_arena_free_page(&space, pages[i]);
    check();
    assert_int_equal(fake.decommits, 0);
    cow_arena_give_back(&space);
    assert_int_equal(fake.decommits, 1);
    cow_arena_give_back(&space);
    assert_int_equal(fake.decommits, 1);
    check();
    for (int i = 0; i < PAGES; i++) {
        assert_ptr_equal(new_page(), pages[i]);
        for (int j = 0; j < COW_PAGE_SIZE; j += 512) assert_int_equal(pages[i][j], 0);
    }
    for (int i = 0; i < 2 * OTHERS; i += 2) cow_arena_free_page(&space, pages[i]);
    assert_int_equal(fake.decommits, 1 + OTHERS - 1);
    assert_ptr_equal(new_page(), pages[0]); /* what is in use again does not go back */
    assert_int_equal(fake.decommits, 1 + OTHERS);
    memset(pages[0], 1, COW_PAGE_SIZE);
    cow_arena_give_back(&space);
    assert_int_equal(pages[0][0], 1);
    check();

    /* an arena that is released takes them with it, unless the system refuses that */
    for (size_t i = 0; i < COW_ARENA_PAGES; i++) new_page();
    assert_int_equal(space.count, 2);
    struct cow_arena *second = space.arenas->next;
    const int before = (int)fake.decommits;
    const size_t last = second->committed;
    for (size_t i = COW_ARENA_FIRST; i < last && space.count == 2; i++) {
        void *page = cow_arena_page_address(second, i);

        if (cow_arena_contains(&space, (uintptr_t)page)) cow_arena_free_page(&space, page);
    }
    assert_int_equal(space.count, 1);
    assert_int_equal(fake.decommits, before);
    cow_arena_give_back(&space);
    assert_int_equal(fake.decommits, before);
    char *again = new_page();
    assert_int_equal(space.count, 2);
    fake.unmap_fails = true;
    cow_arena_free_page(&space, again);
    check();
    cow_arena_give_back(&space);
    assert_int_equal(fake.decommits, before + 1);
    assert_true(cow_arena_contains(&space, (uintptr_t)kept));

    /* where OS pages are larger than heap pages nothing goes back */
    fake.page_size = 4 * COW_PAGE_SIZE;
    cow_arena_free_page(&space, pages[4]);
    cow_arena_give_back(&space);
    assert_int_equal(fake.decommits, before + 1);
    check();
}

static void
test_contains(void **state)
{
    uintptr_t page = (uintptr_t)new_page(), arena = page & ~(uintptr_t)COW_ARENA_MASK;

    assert_false(cow_arena_contains(&space, page - 1));
    assert_true(cow_arena_contains(&space, page));
    assert_true(cow_arena_contains(&space, page + COW_PAGE_MASK));
    assert_false(cow_arena_contains(&space, page + COW_PAGE_SIZE));
    static const uintptr_t nowhere[] = {
        0, 1, 8, COW_ARENA_SIZE - 1, COW_ARENA_SIZE, UINTPTR_MAX, UINTPTR_MAX - 7, UINTPTR_MAX / 2,
        ~(uintptr_t)COW_ARENA_MASK
    };
    for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
        assert_false(cow_arena_contains(&space, nowhere[i]));
    }
    assert_false(cow_arena_contains(&space, arena));
    assert_false(cow_arena_contains(&space, arena - 1));
    assert_false(cow_arena_contains(&space, arena + COW_ARENA_MASK));
    cow_arena_free_page(&space, (void *)page);
    assert_false(cow_arena_contains(&space, page));
}

/* The bit of an object in each bitmap is where the arithmetic of arena.h says: for the first, a middle and
 * the last page, and for the outer and middle slots of each size. */
static void
test_bits(void **state)
{
    enum { PAGES = 3, MIDDLE = 1000 };
    char *pages[PAGES] = { new_page() };

    while ((pages[1] = new_page()) < (char *)pages[0] + MIDDLE * COW_PAGE_SIZE) { /* the pages before it */ }
    while (cow_arena_page_number((uintptr_t)(pages[2] = new_page())) < COW_ARENA_PAGES - 1) { /* likewise */ }
    for (int i = 0; i < PAGES; i++) {
        const size_t page = ((size_t)pages[i] & COW_ARENA_MASK) / COW_PAGE_SIZE;

        for (int step = 1; step <= COW_LARGEST_STEP; step *= 2) {
            size_t size = COW_SLOT_SIZE * (size_t)step, slots = COW_PAGE_SIZE / size;
            size_t numbers[] = { 0, 1, slots / 2, slots - 2, slots - 1 };

            for (size_t j = 0; j < sizeof(numbers) / sizeof(numbers[0]); j++) {
                uintptr_t object = (uintptr_t)pages[i] + numbers[j] * size;
                unsigned int slot = cow_slot_index(object);

                assert_int_equal(slot, numbers[j] * (size_t)step);
                for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                    cow_bits_t *bitmap = cow_arena_bitmap_of(object, kind);
                    size_t offset = (size_t)((char *)bitmap - (char *)cow_arena_of(object));

                    assert_int_equal(offset, offsetof(struct cow_arena, bits) +
                                     ((size_t)kind * COW_ARENA_PAGES + page) * COW_BITMAP_SIZE);
                    assert_true(slot / COW_BITS < COW_BITMAP_WORDS);
                    assert_true(bitmap[slot / COW_BITS] == 0);
                    bitmap[slot / COW_BITS] |= (cow_bits_t)1 << slot % COW_BITS;
                }
                for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                    cow_arena_bitmap_of(object, kind)[slot / COW_BITS] = 0;
                }
            }
        }
        assert_ptr_equal(cow_arena_descriptor((uintptr_t)pages[i] + 5),
                         &cow_arena_of((uintptr_t)pages[i])->descriptors[page]);
    }
    check();
}

static void
test_a_second_arena_and_its_end(void **state)
{
    size_t count = COW_ARENA_PAGES - COW_ARENA_FIRST;

    for (size_t i = 0; i < count; i++) new_page();
    assert_int_equal(space.count, 1);
    char *more = new_page(), *mine = new_page();
    assert_int_equal(space.count, 2);
    assert_true(cow_arena_of((uintptr_t)more) != space.arenas);
    assert_ptr_equal(cow_arena_of((uintptr_t)more), space.arenas->next);
    check();
    cow_arena_free_page(&space, more);
    assert_true(cow_arena_contains(&space, (uintptr_t)mine));
    cow_arena_free_page(&space, mine);
    assert_int_equal(space.count, 1);
    assert_false(cow_arena_contains(&space, (uintptr_t)mine));
    check();

    char *again = new_page();
    assert_int_equal(space.count, 2);
    fake.unmap_fails = true;
    cow_arena_free_page(&space, again);
    assert_int_equal(space.count, 2);
    check();
    assert_ptr_equal(new_page(), again);
}

static void
test_all_arenas_are_released(void **state)
{
    for (size_t i = 0; i < 2 * COW_ARENA_PAGES; i++) new_page();
    assert_int_equal(space.count, 3);
    fake.unmap_fails = true;
    cow_arena_release_all(&space);
    assert_int_equal(space.count, 3);
    check();
    fake.unmap_fails = false;
    cow_arena_release_all(&space);
    assert_int_equal(space.count, 0);
    assert_null(space.arenas);
    assert_int_equal(space.reserved_bytes + space.committed_bytes + space.head_bytes, 0);
    check();
    new_page();
    check();
}

static void
test_freed_pages_are_clear(void **state)
{
    char *page = new_page();

    new_page();
    fill_bitmaps(page);
    memset(page, 1, COW_PAGE_SIZE);
    cow_arena_free_page(&space, page);
    check();
    assert_ptr_equal(new_page(), page);
    for (int i = 0; i < COW_PAGE_SIZE; i++) assert_int_equal(page[i], 0);

    /* a page that the system does not decommit can be used all the same */
    fake.advise_fails = true;
    page[7] = 7;
    cow_arena_decommit_page(page);
    assert_int_equal(page[7], 7);
    cow_arena_free_page(&space, page);
    check();
    assert_ptr_equal(new_page(), page);
    assert_int_equal(page[7], 7);
}

static void
test_clearing_a_kind(void **state)
{
    enum { PAGES = 2 * COW_ARENA_GROUP_PAGES + 2 }; /* of three groups at least */
    char *pages[PAGES];

    for (int i = 0; i < PAGES; i++) {
        pages[i] = new_page();
        memset(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_MARK), 0xff, COW_BITMAP_SIZE);
        memset(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_PINNED), 0xff, COW_BITMAP_SIZE);
    }
    cow_arena_clear_kind(&space, COW_BITMAP_MARK);
    for (int i = 0; i < PAGES; i++) {
        for (int j = 0; j < COW_BITMAP_WORDS; j++) {
            assert_true(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_MARK)[j] == 0);
            assert_true(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_PINNED)[j] == UINTPTR_MAX);
        }
    }
    cow_arena_clear_kind(&space, COW_BITMAP_PINNED);
}

static void
test_new_pages_are_apart_from_sealed_ones(void **state)
{
    char *sealed = new_page(), *hole = new_page();

    cow_arena_free_page(&space, hole);
    cow_arena_seal(sealed);
    char *fresh = new_page();
    assert_int_equal(cow_arena_page_number((uintptr_t)fresh) % COW_ARENA_GROUP_PAGES, 0);
    assert_true(fresh > hole);
    check();
    cow_arena_unseal(&space, sealed);
    assert_ptr_equal(new_page(), hole);

    /* without other pages those of the sealed page's group are allocated */
    cow_arena_seal(sealed);
    fake.reservable = 0;
    while (cow_arena_of((uintptr_t)fresh)->used < COW_ARENA_PAGES - COW_ARENA_FIRST) new_page();
    assert_null(cow_arena_alloc_page(&space));
    check();
    cow_arena_unseal(&space, sealed);
}

/* Allocates a page, frees it, and gives it. */
static char *
next_page(void)
{
    char *page = new_page();

    cow_arena_free_page(&space, page);
    return page;
}

/* The hint .open passes no arena that has free pages, wherever they become free. */
static void
test_the_oldest_open_arena_gives_pages(void **state)
{
    /* Three pages from AT on belong to one group, and the others of the arena to two at most. */
    enum {
        ARENAS = 4, PAGES = 16,
        AT = COW_ARENA_FIRST % COW_ARENA_GROUP_PAGES + 3 > COW_ARENA_GROUP_PAGES ? 3 : 0
    };
    char *page[ARENAS][PAGES];

    fake.limit.rlim_cur = (rlim_t)PAGES * COW_ARENA_SHARE * COW_PAGE_SIZE;
    for (int i = 0; i < ARENAS * PAGES; i++) page[i / PAGES][i % PAGES] = new_page();
    assert_int_equal(space.count, ARENAS);
    assert_ptr_equal(cow_arena_of((uintptr_t)page[0][0]), cow_arena_of((uintptr_t)page[0][PAGES - 1]));
    for (int i = ARENAS - 1; i >= 0; i--) {
        cow_arena_free_page(&space, page[i][AT]);
        check();
        assert_ptr_equal(next_page(), page[i][AT]);
    }
    /* free pages among sealed ones, until these are open */
    cow_arena_seal(page[1][AT + 1]);
    assert_ptr_equal(new_page(), page[0][AT]);
    assert_ptr_equal(next_page(), page[2][AT]);
    cow_arena_free_page(&space, page[1][AT + 2]);
    assert_ptr_equal(next_page(), page[2][AT]);
    check();
    cow_arena_unseal(&space, page[1][AT + 1]);
    assert_ptr_equal(next_page(), page[1][AT]);
    /* an arena that is released when it is the oldest open one, before others */
    for (int i = 0; i < PAGES; i++) {
        if (i != AT && i != AT + 2) cow_arena_free_page(&space, page[1][i]);
    }
    assert_int_equal(space.count, ARENAS - 1);
    check();
    assert_ptr_equal(next_page(), page[2][AT]);
    check();
}

/* An arena is still open when memory was refused to it for a time. */
static void
test_memory_refused_for_a_time(void **state)
{
    struct cow_arena *const arena = cow_arena_of((uintptr_t)new_page());

    fake.reservable = 0;
    fake.commits_left = 0;
    while (cow_arena_alloc_page(&space)) continue;
    assert_true(arena->used < arena->pages - COW_ARENA_FIRST);
    check();
    fake.reservable = SIZE_MAX;
    fake.commits_left = INT_MAX;
    assert_ptr_equal(cow_arena_of((uintptr_t)new_page()), arena);
    check();
}

static void
test_smaller_arenas(void **state)
{
    fake.reservable = COW_ARENA_SIZE / 8;
    char *page = new_page();
    assert_int_equal(cow_arena_of((uintptr_t)page)->pages, COW_ARENA_FIRST + COW_ARENA_PAGES / 8);
    assert_true(space.denied > 0);
    size_t count = 1;
    for (; space.count == 1; count++) new_page();
    assert_int_equal(count, COW_ARENA_PAGES / 8 + 1);
    check();
}

/* Free pages are poisoned; addresses that go back to the system are not. */
static void
test_poison(void **state)
{
#if COW_ASAN
    char *page = new_page(), *mine = new_page();
    const struct cow_arena *arena = cow_arena_of((uintptr_t)page);
    size_t size = (size_t)arena->committed << HEAP_PAGE_ALIGN_LOG;

    assert_null(__asan_region_is_poisoned(page, 2 * COW_PAGE_SIZE));
    assert_ptr_equal(__asan_region_is_poisoned(page, 3 * COW_PAGE_SIZE), mine + COW_PAGE_SIZE);
    cow_arena_free_page(&space, page);
    assert_true(__asan_address_is_poisoned(page) && __asan_address_is_poisoned(page + COW_PAGE_MASK));
    assert_null(__asan_region_is_poisoned(mine, COW_PAGE_SIZE));
    assert_ptr_equal(new_page(), page);
    assert_null(__asan_region_is_poisoned(page, COW_PAGE_SIZE));

    /* as cow_locate_free_page does */
    cow_poison(cow_arena_descriptor((uintptr_t)page), sizeof(struct heap_page));
    fake.unmap_fails = true;
    cow_arena_destroy(&space, cow_arena_of((uintptr_t)page));
    assert_ptr_equal(__asan_region_is_poisoned((void *)arena, size), page);
    fake.unmap_fails = false;
    cow_arena_destroy(&space, cow_arena_of((uintptr_t)page));
    assert_null(__asan_region_is_poisoned((void *)arena, size));
#else
    skip();
#endif
}

/* Arenas of the smallest size, and a process that is forked with them. */
static void
test_thousands_of_arenas(void **state)
{
    enum { ARENAS = 1000 };
    char *page = NULL;
    int status;

    fake.limit.rlim_cur = LOWEST_LIMIT;
    while (space.count < ARENAS) page = new_page();
    check();

    pid_t child = fork();
    if (child == 0) {
        char *mine = cow_arena_alloc_page(&space);

        cow_arena_free_page(&space, page);
        const bool good = mine && cow_arena_contains(&space, (uintptr_t)mine);
        _exit(good && cow_arena_consistent(&space, stderr) ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(cow_arena_contains(&space, (uintptr_t)page));
    check();
}

static void
test_a_limit_of_addresses(void **state)
{
    fake.limit.rlim_cur = COW_ARENA_SIZE * 4;
    assert_int_equal(cow_arena_of((uintptr_t)new_page())->pages, COW_ARENA_FIRST + COW_ARENA_PAGES / 4);
    fake.limit.rlim_cur = LOWEST_LIMIT;
    struct cow_arena *least = cow_arena_create(&space);
    assert_int_equal(least->pages, COW_ARENA_FIRST + COW_ARENA_LEAST_PAGES);
    check();
}

/* The spans of arenas of any size hold the arena's fields and, for each heap page, its bitmaps, its
 * descriptor and itself, each once; hardly more; and they are in ascending order. */
static void
test_spans(void **state)
{
    const size_t sizes[] = {
        COW_ARENA_FIRST + 1, COW_ARENA_FIRST + COW_ARENA_LEAST_PAGES,
        COW_ARENA_FIRST + 63, COW_ARENA_FIRST + 64, COW_ARENA_FIRST + 65,
        COW_ARENA_PAGES / 2, COW_ARENA_FIRST + COW_ARENA_PAGES / 2, COW_ARENA_PAGES - 1, COW_ARENA_PAGES
    };
    const size_t bits = offsetof(struct cow_arena, bits);
    const size_t descriptors = offsetof(struct cow_arena, descriptors);
    const size_t bytes_of_a_page =
        COW_BITMAP_KINDS * COW_BITMAP_SIZE + sizeof(struct heap_page) + COW_PAGE_SIZE;
    enum { FIELDS = COW_BITMAP_KINDS, DESCRIPTORS, HEAP_PAGES, PARTS }; /* behind the bitmaps of each kind */

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t pages = sizes[i], count = pages - COW_ARENA_FIRST;
        struct cow_os_span spans[COW_ARENA_SPANS];
        size_t bytes = 0, needed = bits + count * bytes_of_a_page;
        const int number = cow_arena_spans(pages, spans);
        bool found[PARTS] = { false };

        assert_in_range(number, 1, COW_ARENA_SPANS);
        for (int j = 0; j < number; j++) {
            const size_t from = spans[j].from, to = spans[j].to;

            assert_true(from < to && from % OS_PAGE == 0 && to % OS_PAGE == 0 && to <= COW_ARENA_SIZE);
            if (j > 0) assert_true(from > spans[j - 1].to);
            bytes += to - from;
            for (size_t kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                const size_t bitmaps = bits + (kind * COW_ARENA_PAGES + COW_ARENA_FIRST) * COW_BITMAP_SIZE;

                found[kind] |= from <= bitmaps && bitmaps + count * COW_BITMAP_SIZE <= to;
            }
            found[FIELDS] |= from == 0 && to >= bits;
            found[DESCRIPTORS] |= from <= descriptors + COW_ARENA_FIRST * sizeof(struct heap_page) &&
                descriptors + pages * sizeof(struct heap_page) <= to;
            found[HEAP_PAGES] |= from <= COW_ARENA_FIRST * (size_t)COW_PAGE_SIZE &&
                pages * (size_t)COW_PAGE_SIZE <= to;
        }
        for (int j = 0; j < PARTS; j++) assert_true(found[j]);
        /* each end of a span is rounded by less than an OS page */
        if (pages == COW_ARENA_PAGES) assert_int_equal(number, 1);
        else assert_in_range(bytes, needed, needed + COW_ARENA_SPANS * 2 * OS_PAGE);
        assert_int_equal(cow_arena_head_bytes(pages), bytes - count * COW_PAGE_SIZE);
    }
}

/* A small arena reserves only what it needs. Others may map what lies between its spans: neither its use nor
 * its end touches that. */
static void
test_others_may_map_between_the_spans(void **state)
{
    struct cow_os_span spans[COW_ARENA_SPANS];
    enum { CONTENTS = 7 };
    char *others[COW_ARENA_SPANS];

    fake.limit.rlim_cur = LOWEST_LIMIT;
    char *page = new_page(), *arena = (char *)cow_arena_of((uintptr_t)page);
    const int count = cow_arena_spans(COW_ARENA_FIRST + COW_ARENA_LEAST_PAGES, spans);

    assert_int_equal(space.reserved_bytes, fake.mapped);
    assert_int_equal(fake.without_huge_pages, fake.mapped);
    /* the head takes no more than the heap pages */
    assert_true(fake.mapped <= 2 * COW_ARENA_LEAST_PAGES * COW_PAGE_SIZE);
    for (int i = 0; i < count - 1; i++) {
        others[i] = mmap(arena + spans[i].to, OS_PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        assert_ptr_equal(others[i], arena + spans[i].to);
        memset(others[i], CONTENTS, OS_PAGE);
    }
    fill_bitmaps(page);
    *cow_arena_descriptor((uintptr_t)page) = (struct heap_page){ .start = 1 };
    for (size_t i = 1; i < COW_ARENA_LEAST_PAGES; i++) new_page();
    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) cow_arena_clear_kind(&space, kind);
    check();
    cow_arena_destroy(&space, (struct cow_arena *)arena);
    assert_int_equal(fake.mapped, 0);
    for (int i = 0; i < count - 1; i++) {
        for (int j = 0; j < OS_PAGE; j++) assert_int_equal(others[i][j], CONTENTS);
        munmap(others[i], OS_PAGE);
    }
}

/* Where the process may map only 16 MB, at least 85 % of that becomes heap pages. The rest is metadata, and
 * what is too small for another arena. */
static void
test_little_room(void **state)
{
    fake.limit.rlim_cur = fake.room = (size_t)16 << 20;

    size_t count = 0;
    while (cow_arena_alloc_page(&space)) count++;
    assert_in_range(count * COW_PAGE_SIZE, fake.room / 100 * 85, fake.room);
    assert_int_equal(space.reserved_bytes, fake.mapped);
    assert_true(fake.mapped <= fake.room);
    check();
    fake.room += (size_t)1 << 20;
    new_page();
    check();
}

static void
test_random_addresses(void **state)
{
    enum { ARENAS = 20 };

    if (COW_ARENA_ADDRESS_BITS == 32) skip();

    /* without random bits the system chooses the address */
    char *first = (char *)cow_arena_of((uintptr_t)new_page());
    assert_int_equal(fake.randoms, 1);
    cow_arena_destroy(&space, space.arenas);

    fake.random = true;
    uintptr_t seen = 0;
    for (uint64_t i = 1; i <= ARENAS; i++) {
        fake.bits = i * UINT64_C(0x9e3779b97f4a7c15); /* as SplitMix64 (Steele, Lea, Flood 2014) does */
        fake.bits = (fake.bits ^ fake.bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        fake.bits = (fake.bits ^ fake.bits >> 27) * UINT64_C(0x94d049bb133111eb);
        uintptr_t arena = (uintptr_t)cow_arena_create(&space);

        assert_int_equal(arena & COW_ARENA_MASK, 0);
        assert_true(arena >= COW_OS_LOWEST_PLACE && arena < (uintptr_t)first + COW_ARENA_SIZE);
        seen |= arena;
    }
    assert_int_equal(space.count, ARENAS);
    /* 20 addresses have set each random bit but the highest three, of which some may stay clear */
    for (int bit = COW_ARENA_LOG; bit < 44; bit++) assert_true(seen >> bit & 1);
    check();

    /* random bits that lead to an arena: the new one, which is small, lies elsewhere */
    fake.limit.rlim_cur = LOWEST_LIMIT;
    for (int i = 0; i < ARENAS; i++) assert_non_null(cow_arena_create(&space));
    assert_int_equal(space.count, 2 * ARENAS);
    check();
}

static void
test_random_bits(void **state)
{
    uint64_t one = 0, other = 0;
    int status;

    if (!cow_os_random_bits(&one)) skip(); /* run by setarch -R, or not on Linux */
    assert_true(cow_os_random_bits(&other) && one != other);
#ifdef __linux__
    pid_t child = fork();
    if (child == 0) {
        personality(personality(0xffffffff) | ADDR_NO_RANDOMIZE);
        _exit(cow_os_random_bits(&one) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
#endif
}

static void
test_a_head_that_is_refused(void **state)
{
    /* The words of a whole arena are more than that, those of a smaller one are not. */
    fake.greatest_commit = cow_arena_head_bytes(COW_ARENA_PAGES) / 4;
    assert_non_null(cow_arena_alloc_page(&space));
    assert_int_equal(space.count, 1);
    assert_true(space.arenas->pages < COW_ARENA_PAGES && space.denied > 0);
    check();
}

static void
test_a_system_that_refuses(void **state)
{
    fake.reservable = 0;
    assert_null(cow_arena_alloc_page(&space));
    assert_int_equal(space.count, 0);
    check();

    fake.reservable = SIZE_MAX;
    fake.commits_left = 0; /* not even the head is committed */
    assert_null(cow_arena_alloc_page(&space));
    assert_int_equal(space.count, 0);
    check();

    fake.commits_left = 1;
    assert_null(cow_arena_alloc_page(&space));
    check();
    fake.commits_left = 1;
    char *page = new_page();
    const size_t committed = cow_arena_of((uintptr_t)page)->committed;
    for (size_t i = cow_arena_page_number((uintptr_t)page) + 1; i < committed; i++) new_page();
    assert_null(cow_arena_alloc_page(&space));
    check();
    fake.commits_left = INT_MAX;
    new_page(); /* the system has memory again */
    check();
}

/* Where OS pages are larger than heap pages and memory is short, whole OS pages are committed: each next
 * commit begins where an OS page does. */
static void
test_large_os_pages_and_little_memory(void **state)
{
    enum { LARGE_OS_PAGE = 64 * 1024 };

    fake.page_size = LARGE_OS_PAGE;
    new_page();
    fake.greatest_commit = LARGE_OS_PAGE;
    for (int i = 0; i < 300; i++) {
        uintptr_t page = (uintptr_t)new_page();
        assert_int_equal((cow_arena_of(page)->committed << HEAP_PAGE_ALIGN_LOG) % LARGE_OS_PAGE, 0);
    }
    assert_true(cow_arena_consistent(&space, stderr));
}

/* Allocates, frees and seals pages at random; an array says which pages are allocated. */
static void
test_random(void **state)
{
    enum { MOST = 3000, STEPS = 40000, PHASE = 8000 /* phases of growth and of shrinking alternate */ };
    static char *pages[MOST];
    static bool sealed[MOST];
    size_t count = 0;

    srand(20261122);
    for (int step = 0; step < STEPS; step++) {
        int choice = rand() % 100;

        if (choice < (step / PHASE % 2 ? 40 : 60) && count < MOST) {
            sealed[count] = false;
            pages[count++] = new_page();
        }
        else if (choice < 98 && count > 0) {
            size_t i = (size_t)rand() % count;

            if (sealed[i]) cow_arena_unseal(&space, pages[i]);
            cow_arena_free_page(&space, pages[i]);
            pages[i] = pages[--count];
            sealed[i] = sealed[count];
        }
        else if (count > 0) {
            size_t i = (size_t)rand() % count;

            sealed[i] ? cow_arena_unseal(&space, pages[i]) : cow_arena_seal(pages[i]);
            sealed[i] = !sealed[i];
        }
        if (step % 2000) continue;

        check();
        for (int i = 0; i < 300; i++) {
            uintptr_t address = (uintptr_t)rand() << 31 ^ (uintptr_t)rand();
            bool allocated = false;

            if (count > 0 && rand() % 2) { /* near a page */
                address = (uintptr_t)pages[(size_t)rand() % count] - COW_PAGE_SIZE;
                address += (uintptr_t)(rand() % (4 * COW_PAGE_SIZE));
            }
            for (size_t j = 0; j < count; j++) allocated |= address - (uintptr_t)pages[j] < COW_PAGE_SIZE;
            assert_int_equal(cow_arena_contains(&space, address), allocated);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (sealed[i]) cow_arena_unseal(&space, pages[i]);
    }
}

/* Else all other tests could pass whatever is there. */
static void
test_faults_are_found(void **state)
{
    const size_t page = ((uintptr_t)new_page() & COW_ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG;
    struct cow_arena *const arena = space.arenas;
    const size_t committed = arena->committed;

    arena->used++;
    check_finds(": expected .used");
    arena->used--;
    arena->bits[COW_BITMAP_MARK][page + 1][0] = 1;
    check_finds(".bits of free page");
    arena->bits[COW_BITMAP_MARK][page + 1][0] = 0;
    arena->free[0] |= 1;
    check_finds("expected bits of pages only");
    arena->free[0] &= ~(uint64_t)1;
    arena->committed = page;
    check_finds("expected all pages from .committed");
    arena->committed = arena->pages + 1;
    check_finds("<= .committed <= .pages");
    arena->committed = committed;
    space.count++;
    check_finds("cow_arena_space: expected .count");
    space.count--;
    space.open = NULL;
    check_finds("cow_arena_space, .open: expected the arena");
    space.open = arena;
    arena->made = space.made;
    check_finds(".made: expected less than");
    arena->made = 0;
    space.freed_bytes = COW_PAGE_SIZE;
    space.freed = cow_arena_page_address(arena, page);
    check_finds("cow_arena_space, .freed: expected free pages");
    space.freed = (char *)arena + 2 * COW_ARENA_SIZE;
    check_finds("cow_arena_space, .freed: expected free pages");
    space.freed = cow_arena_page_address(arena, page + 1);
    check();
    space.freed_bytes = 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_group_bits),
        cmocka_unit_test_setup_teardown(test_lowest_page_first, begin, end),
        cmocka_unit_test_setup_teardown(test_freed_neighbours_go_back_in_one_call, begin, end),
        cmocka_unit_test_setup_teardown(test_contains, begin, end),
        cmocka_unit_test_setup_teardown(test_bits, begin, end),
        cmocka_unit_test_setup_teardown(test_a_second_arena_and_its_end, begin, end),
        cmocka_unit_test_setup_teardown(test_all_arenas_are_released, begin, end),
        cmocka_unit_test_setup_teardown(test_freed_pages_are_clear, begin, end),
        cmocka_unit_test_setup_teardown(test_clearing_a_kind, begin, end),
        cmocka_unit_test_setup_teardown(test_new_pages_are_apart_from_sealed_ones, begin, end),
        cmocka_unit_test_setup_teardown(test_the_oldest_open_arena_gives_pages, begin, end),
        cmocka_unit_test_setup_teardown(test_memory_refused_for_a_time, begin, end),
        cmocka_unit_test_setup_teardown(test_poison, begin, end),
        cmocka_unit_test_setup_teardown(test_smaller_arenas, begin, end),
        cmocka_unit_test_setup_teardown(test_thousands_of_arenas, begin, end),
        cmocka_unit_test_setup_teardown(test_a_limit_of_addresses, begin, end),
        cmocka_unit_test(test_spans),
        cmocka_unit_test_setup_teardown(test_others_may_map_between_the_spans, begin, end),
        cmocka_unit_test_setup_teardown(test_little_room, begin, end),
        cmocka_unit_test_setup_teardown(test_random_addresses, begin, end),
        cmocka_unit_test(test_random_bits),
        cmocka_unit_test_setup_teardown(test_a_head_that_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_a_system_that_refuses, begin, end),
        cmocka_unit_test_setup_teardown(test_random, begin, end),
        cmocka_unit_test_setup_teardown(test_large_os_pages_and_little_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_faults_are_found, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

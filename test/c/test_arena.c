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

/* Stands for the collector's own. */
struct heap_page { uintptr_t start; char more[120]; };

#include "os.c"
#include "arena.c"

/* ---- a system that denies what the test says */

static struct {
    size_t reservable, maps, commits, gives;
    size_t mapped, room; /* bytes that are mapped, and may be */
    int commits_left, randoms;
    bool advise_fails, unmap_fails, random;
    uint64_t bits;
    struct rlimit limit;
} fake;

static void *
fake_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    fake.maps++;
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
    fake.commits++;
    if (fake.commits_left-- > 0) return mprotect(address, size, protection);
    errno = ENOMEM;
    return -1;
}

static int
fake_advise(void *address, size_t size, int advice)
{
    fake.gives++;
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

static const struct cow_os_calls fake_calls = { fake_map, fake_unmap, fake_protect, fake_advise, fake_limit, fake_random, cow_os_page_size, cow_os_allocate, free };

static struct cow_arena_space space;

static int
begin(void **state)
{
    memset(&fake, 0, sizeof(fake));
    fake.reservable = fake.room = SIZE_MAX;
    fake.commits_left = INT_MAX;
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
consistent(void)
{
    assert_true(cow_arena_consistent(&space, stderr));
}

static char *
taken(void)
{
    char *page = cow_arena_alloc_page(&space);

    assert_non_null(page);
    assert_int_equal((uintptr_t)page & COW_PAGE_MASK, 0);
    return page;
}

/* ---- */

static void
test_sizes(void **state)
{
    assert_int_equal(COW_ARENA_PAGES * (size_t)COW_PAGE_SIZE, COW_ARENA_SIZE);
    assert_int_equal(COW_BITMAP_WORDS & (COW_BITMAP_WORDS - 1), 0);
    assert_true(COW_BITMAP_WORDS * COW_BITS > COW_PAGE_SLOTS);
    assert_int_equal(offsetof(struct cow_arena, bits) % 4096, 0);
    /* a group's rows of one kind share no OS page with another group's */
    assert_int_equal(COW_ARENA_GROUP_PAGES * COW_BITMAP_SIZE % 4096, 0);
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
    static const struct { size_t group, from, to; uint64_t bits; } rows[] = {
        { 0, 0, 64, UINT64_MAX }, { 0, 0, 0, 0 }, { 0, 1, 64, UINT64_MAX - 1 }, { 0, 63, 64, UINT64_C(1) << 63 }, { 0, 64, 128, 0 },
        { 1, 0, 64, 0 }, { 1, 0, 65, 1 }, { 1, 64, 128, UINT64_MAX }, { 1, 70, 72, 0xc0 }, { 1, 0, 1000, UINT64_MAX }, { 1, 127, 127, 0 },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(cow_arena_group_bits(rows[i].group, rows[i].from, rows[i].to) == rows[i].bits);
    }
}

static void
test_pages_are_handed_out_from_the_lowest_on(void **state)
{
    char *first = taken(), *second = taken(), *third = taken();

    assert_int_equal(cow_arena_page_number((uintptr_t)first), COW_ARENA_FIRST);
    assert_memory_equal(cow_arena_of((uintptr_t)first)->sign, COW_ARENA_SIGN, 8);
    assert_ptr_equal((char *)cow_arena_of((uintptr_t)first) + cow_arena_of((uintptr_t)first)->head, first);
    assert_int_equal(cow_arena_of((uintptr_t)first)->head % COW_ARENA_HEAD_MULTIPLE, 0);
    assert_ptr_equal(second, first + COW_PAGE_SIZE);
    assert_ptr_equal(third, second + COW_PAGE_SIZE);
    consistent();
    cow_arena_free_page(&space, second);
    consistent();
    assert_int_equal(fake.gives, 1);
    assert_ptr_equal(taken(), second);
    consistent();
}

static void
test_what_is_known(void **state)
{
    uintptr_t page = (uintptr_t)taken(), arena = page & ~(uintptr_t)COW_ARENA_MASK;

    assert_false(cow_arena_contains(&space, page - 1));
    assert_true(cow_arena_contains(&space, page));
    assert_true(cow_arena_contains(&space, page + COW_PAGE_MASK));
    assert_false(cow_arena_contains(&space, page + COW_PAGE_SIZE));
    static const uintptr_t nowhere[] = { 0, 1, 8, COW_ARENA_SIZE - 1, COW_ARENA_SIZE, UINTPTR_MAX, UINTPTR_MAX - 7, UINTPTR_MAX / 2, ~(uintptr_t)COW_ARENA_MASK };
    for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) assert_false(cow_arena_contains(&space, nowhere[i]));
    assert_false(cow_arena_contains(&space, arena));
    assert_false(cow_arena_contains(&space, arena - 1));
    assert_false(cow_arena_contains(&space, arena + COW_ARENA_MASK));
    cow_arena_free_page(&space, (void *)page);
    assert_false(cow_arena_contains(&space, page));
}

/* Each bit of each kind, at the first and the last slot and page: it is where a slow
 * computation finds it, and nowhere else. */
static void
test_bits(void **state)
{
    char *pages[3] = { taken() };

    while ((pages[1] = taken()) < (char *)pages[0] + 1000 * COW_PAGE_SIZE) { /* on to the middle */ }
    while (cow_arena_page_number((uintptr_t)(pages[2] = taken())) < COW_ARENA_PAGES - 1) { /* and to the last */ }
    for (int i = 0; i < 3; i++) {
        for (int multiple = 1; multiple <= 16; multiple *= 2) {
            size_t size = COW_SLOT_SIZE * (size_t)multiple, slots = COW_PAGE_SIZE / size;
            size_t at[] = { 0, 1, slots / 2, slots - 2, slots - 1 };

            for (int j = 0; j < 5; j++) {
                uintptr_t object = (uintptr_t)pages[i] + at[j] * size;
                unsigned int slot = cow_slot_index(object);

                assert_int_equal(slot, at[j] * (size_t)multiple);
                for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                    cow_bits_t *row = cow_arena_bitmap_of(object, kind);
                    size_t offset = (size_t)((char *)row - (char *)cow_arena_of(object));

                    assert_int_equal(offset, offsetof(struct cow_arena, bits) + ((size_t)kind * COW_ARENA_PAGES + (((size_t)pages[i] & COW_ARENA_MASK) / COW_PAGE_SIZE)) * COW_BITMAP_SIZE);
                    assert_true(slot / COW_BITS < COW_BITMAP_WORDS);
                    assert_true(row[slot / COW_BITS] == 0);
                    row[slot / COW_BITS] |= (cow_bits_t)1 << slot % COW_BITS;
                }
                for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) cow_arena_bitmap_of(object, kind)[slot / COW_BITS] = 0;
            }
        }
        assert_int_equal((uintptr_t)cow_arena_descriptor((uintptr_t)pages[i] + 5), (uintptr_t)&cow_arena_of((uintptr_t)pages[i])->descriptors[cow_arena_page_number((uintptr_t)pages[i])]);
    }
    consistent();
}

static void
test_a_second_arena_and_its_end(void **state)
{
    size_t count = COW_ARENA_PAGES - COW_ARENA_FIRST;

    for (size_t i = 0; i < count; i++) taken();
    assert_int_equal(space.count, 1);
    char *more = taken(), *mine = taken();
    assert_int_equal(space.count, 2);
    assert_true(cow_arena_of((uintptr_t)more) != space.arenas);
    assert_ptr_equal(cow_arena_of((uintptr_t)more), space.arenas->next);
    consistent();
    cow_arena_free_page(&space, more);
    assert_true(cow_arena_contains(&space, (uintptr_t)mine));
    cow_arena_free_page(&space, mine);
    assert_int_equal(space.count, 1);
    assert_false(cow_arena_contains(&space, (uintptr_t)mine));
    consistent();

    char *again = taken();
    assert_int_equal(space.count, 2);
    fake.unmap_fails = true;
    cow_arena_free_page(&space, again);
    assert_int_equal(space.count, 2);
    consistent();
    assert_ptr_equal(taken(), again);
}

static void
test_given_pages_are_clear(void **state)
{
    char *page = taken();

    taken();
    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) memset(cow_arena_bitmap_of((uintptr_t)page, kind), 0xff, COW_BITMAP_SIZE);
    memset(page, 1, COW_PAGE_SIZE);
    cow_arena_free_page(&space, page);
    consistent();
    assert_ptr_equal(taken(), page);
    for (int i = 0; i < COW_PAGE_SIZE; i++) assert_int_equal(page[i], 0);

    /* where the system does not take it, it is a page all the same */
    fake.advise_fails = true;
    page[7] = 7;
    cow_arena_decommit_page(page);
    assert_int_equal(page[7], 7);
    cow_arena_free_page(&space, page);
    consistent();
    assert_ptr_equal(taken(), page);
}

static void
test_clearing_a_kind(void **state)
{
    char *pages[130];

    for (int i = 0; i < 130; i++) {
        pages[i] = taken();
        memset(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_MARK), 0xff, COW_BITMAP_SIZE);
        memset(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_PINNED), 0xff, COW_BITMAP_SIZE);
    }
    cow_arena_clear_kind(&space, COW_BITMAP_MARK);
    for (int i = 0; i < 130; i++) {
        for (int j = 0; j < COW_BITMAP_WORDS; j++) {
            assert_true(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_MARK)[j] == 0);
            assert_true(cow_arena_bitmap_of((uintptr_t)pages[i], COW_BITMAP_PINNED)[j] == UINTPTR_MAX);
        }
    }
    cow_arena_clear_kind(&space, COW_BITMAP_PINNED);
}

static void
test_new_pages_keep_away_from_sealed_ones(void **state)
{
    char *sealed = taken(), *hole = taken();

    cow_arena_free_page(&space, hole);
    cow_arena_seal(sealed);
    char *fresh = taken();
    assert_int_equal(cow_arena_page_number((uintptr_t)fresh) % COW_ARENA_GROUP_PAGES, 0);
    assert_true(fresh > hole);
    consistent();
    cow_arena_unseal(sealed);
    assert_ptr_equal(taken(), hole);

    /* where there are no others, theirs are taken */
    cow_arena_seal(sealed);
    fake.reservable = 0;
    while (cow_arena_of((uintptr_t)fresh)->used < COW_ARENA_PAGES - COW_ARENA_FIRST) taken();
    assert_null(cow_arena_alloc_page(&space));
    consistent();
    cow_arena_unseal(sealed);
}

static void
test_smaller_arenas(void **state)
{
    fake.reservable = COW_ARENA_SIZE / 8;
    char *page = taken();
    assert_int_equal(cow_arena_of((uintptr_t)page)->pages, COW_ARENA_FIRST + COW_ARENA_PAGES / 8);
    assert_true(space.denied > 0);
    size_t count = 1;
    while (space.count == 1) taken(), count++;
    assert_int_equal(count, COW_ARENA_PAGES / 8 + 1);
    consistent();
}

/* Pages that nobody has are AddressSanitizer's; addresses that go back to the system are not. */
static void
test_poison(void **state)
{
#if COW_ASAN
    char *page = taken(), *mine = taken();
    const struct cow_arena *arena = cow_arena_of((uintptr_t)page);
    size_t size = (size_t)arena->committed << HEAP_PAGE_ALIGN_LOG;

    assert_null(__asan_region_is_poisoned(page, 2 * COW_PAGE_SIZE));
    assert_ptr_equal(__asan_region_is_poisoned(page, 3 * COW_PAGE_SIZE), mine + COW_PAGE_SIZE);
    cow_arena_free_page(&space, page);
    assert_true(__asan_address_is_poisoned(page) && __asan_address_is_poisoned(page + COW_PAGE_MASK));
    assert_null(__asan_region_is_poisoned(mine, COW_PAGE_SIZE));
    assert_ptr_equal(taken(), page);
    assert_null(__asan_region_is_poisoned(page, COW_PAGE_SIZE));

    cow_poison(cow_arena_descriptor((uintptr_t)page), sizeof(struct heap_page)); /* cow_locate_free_page does */
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

/* Each as small as it may be, and a process that is forked from them. */
static void
test_thousands_of_arenas(void **state)
{
    enum { ARENAS = 1000 };
    char *page = NULL;
    int status;

    fake.limit.rlim_cur = 4096;
    while (space.count < ARENAS) page = taken();
    consistent();

    pid_t child = fork();
    if (child == 0) {
        char *mine = cow_arena_alloc_page(&space);

        cow_arena_free_page(&space, page);
        _exit(mine && cow_arena_contains(&space, (uintptr_t)mine) && cow_arena_consistent(&space, stderr) ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(cow_arena_contains(&space, (uintptr_t)page));
    consistent();
}

static void
test_a_limit_of_addresses(void **state)
{
    fake.limit.rlim_cur = COW_ARENA_SIZE * 4;
    assert_int_equal(cow_arena_of((uintptr_t)taken())->pages, COW_ARENA_FIRST + COW_ARENA_PAGES / 4);
    fake.limit.rlim_cur = 4096;
    struct cow_arena *least = cow_arena_create(&space);
    assert_int_equal(least->pages, COW_ARENA_FIRST + COW_ARENA_LEAST_PAGES);
    consistent();
}

/* What is reserved of arenas of any size: the notes, and for each heap page its rows, its
 * descriptor and itself, once; little more; and all in the order of addresses. */
static void
test_spans(void **state)
{
    const size_t sizes[] = { COW_ARENA_FIRST + 1, COW_ARENA_FIRST + COW_ARENA_LEAST_PAGES, COW_ARENA_FIRST + 63, COW_ARENA_FIRST + 64, COW_ARENA_FIRST + 65, COW_ARENA_PAGES / 2,
        COW_ARENA_FIRST + COW_ARENA_PAGES / 2, COW_ARENA_PAGES - 1, COW_ARENA_PAGES };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t pages = sizes[i], count = pages - COW_ARENA_FIRST;
        struct cow_os_span spans[COW_ARENA_SPANS];
        size_t bytes = 0, needed = offsetof(struct cow_arena, bits) + count * (COW_BITMAP_KINDS * COW_BITMAP_SIZE + sizeof(struct heap_page) + COW_PAGE_SIZE);
        const int number = cow_arena_spans(pages, spans);
        bool sees[COW_BITMAP_KINDS + 3] = { false };

        assert_in_range(number, 1, COW_ARENA_SPANS);
        for (int j = 0; j < number; j++) {
            const size_t from = spans[j].from, to = spans[j].to;

            assert_true(from < to && from % 4096 == 0 && to % 4096 == 0 && to <= COW_ARENA_SIZE);
            if (j > 0) assert_true(from > spans[j - 1].to);
            bytes += to - from;
            for (size_t kind = 0; kind < COW_BITMAP_KINDS; kind++) {
                const size_t row = offsetof(struct cow_arena, bits) + (kind * COW_ARENA_PAGES + COW_ARENA_FIRST) * COW_BITMAP_SIZE;
                sees[kind] |= from <= row && row + count * COW_BITMAP_SIZE <= to;
            }
            sees[COW_BITMAP_KINDS] |= from == 0 && to >= offsetof(struct cow_arena, bits);
            sees[COW_BITMAP_KINDS + 1] |= from <= offsetof(struct cow_arena, descriptors[COW_ARENA_FIRST]) && offsetof(struct cow_arena, descriptors[0]) + pages * sizeof(struct heap_page) <= to;
            sees[COW_BITMAP_KINDS + 2] |= from <= COW_ARENA_FIRST * (size_t)COW_PAGE_SIZE && pages * (size_t)COW_PAGE_SIZE <= to;
        }
        for (int j = 0; j < COW_BITMAP_KINDS + 3; j++) assert_true(sees[j]);
        if (pages == COW_ARENA_PAGES) assert_int_equal(number, 1);
        else assert_in_range(bytes, needed, needed + COW_ARENA_SPANS * 2 * 4096);
        assert_int_equal(cow_arena_head_bytes(pages), bytes - count * COW_PAGE_SIZE);
    }
}

/* A small arena takes addresses for what it has. Others may have what lies between: neither use
 * nor the end of the arena touches it. */
static void
test_between_the_spans_is_room_for_others(void **state)
{
    struct cow_os_span spans[COW_ARENA_SPANS];
    char *others[COW_ARENA_SPANS];

    fake.limit.rlim_cur = 4096;
    char *page = taken(), *arena = (char *)cow_arena_of((uintptr_t)page);
    const int count = cow_arena_spans(COW_ARENA_FIRST + COW_ARENA_LEAST_PAGES, spans);

    assert_int_equal(space.reserved_bytes, fake.mapped);
    assert_true(fake.mapped <= 2 * COW_ARENA_LEAST_PAGES * COW_PAGE_SIZE);
    for (int i = 0; i < count - 1; i++) {
        others[i] = mmap(arena + spans[i].to, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        assert_ptr_equal(others[i], arena + spans[i].to);
        memset(others[i], 7, 4096);
    }
    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) memset(cow_arena_bitmap_of((uintptr_t)page, kind), 0xff, COW_BITMAP_SIZE);
    *cow_arena_descriptor((uintptr_t)page) = (struct heap_page){ .start = 1 };
    for (size_t i = 1; i < COW_ARENA_LEAST_PAGES; i++) taken();
    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) cow_arena_clear_kind(&space, kind);
    consistent();
    cow_arena_destroy(&space, (struct cow_arena *)arena);
    assert_int_equal(fake.mapped, 0);
    for (int i = 0; i < count - 1; i++) {
        for (int j = 0; j < 4096; j++) assert_int_equal(others[i][j], 7);
        munmap(others[i], 4096);
    }
}

/* Of little room nearly all becomes heap pages. */
static void
test_little_room(void **state)
{
    fake.limit.rlim_cur = fake.room = (size_t)16 << 20;

    size_t count = 0;
    while (cow_arena_alloc_page(&space)) count++;
    assert_in_range(count * COW_PAGE_SIZE, fake.room * 85 / 100, fake.room);
    assert_int_equal(space.reserved_bytes, fake.mapped);
    assert_true(fake.mapped <= fake.room);
    consistent();
    fake.room += (size_t)1 << 20;
    taken();
    consistent();
}

static void
test_places_at_random(void **state)
{
    if (COW_ARENA_ADDRESS_BITS == 32) skip();

    /* nobody gives random bits, or may: the system's place */
    char *first = (char *)cow_arena_of((uintptr_t)taken());
    assert_int_equal(fake.randoms, 1);
    cow_arena_destroy(&space, space.arenas);

    fake.random = true;
    uintptr_t seen = 0;
    for (uint64_t i = 1; i <= 20; i++) {
        fake.bits = i * UINT64_C(0x9e3779b97f4a7c15);
        uintptr_t arena = (uintptr_t)cow_arena_create(&space);

        assert_int_equal(arena & COW_ARENA_MASK, 0);
        assert_true(arena >= COW_OS_LOWEST_PLACE && arena < (uintptr_t)first + COW_ARENA_SIZE);
        seen |= arena;
    }
    assert_int_equal(space.count, 20);
    for (int bit = COW_ARENA_LOG; bit < 44; bit++) assert_true(seen >> bit & 1);
    consistent();

    /* the same place again is another arena's: it is placed elsewhere, and small ones are, too */
    fake.limit.rlim_cur = 4096;
    for (int i = 0; i < 20; i++) assert_non_null(cow_arena_create(&space));
    assert_int_equal(space.count, 40);
    consistent();
}

static void
test_random_bits(void **state)
{
    uint64_t one = 0, other = 0;
    int status;

    if (!cow_os_random_bits(&one)) skip(); /* setarch -R, or no Linux */
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
test_a_system_that_denies(void **state)
{
    fake.reservable = 0;
    assert_null(cow_arena_alloc_page(&space));
    assert_int_equal(space.count, 0);
    consistent();

    fake.reservable = SIZE_MAX;
    fake.commits_left = 0; /* not even the head */
    assert_null(cow_arena_alloc_page(&space));
    assert_int_equal(space.count, 0);
    consistent();

    fake.commits_left = 1;
    assert_null(cow_arena_alloc_page(&space));
    consistent();
    fake.commits_left = 1;
    char *page = taken();
    for (size_t i = cow_arena_page_number((uintptr_t)page) + 1; i < cow_arena_of((uintptr_t)page)->committed; i++) taken();
    assert_null(cow_arena_alloc_page(&space));
    consistent();
    fake.commits_left = INT_MAX;
    taken(); /* memory is there again */
    consistent();
}

/* Takes, gives, seals at random; a slow reference knows which pages are handed out. */
static void
test_random(void **state)
{
    enum { MOST = 3000 };
    static char *pages[MOST];
    static bool sealed[MOST];
    size_t count = 0;

    srand(20261122);
    for (int step = 0; step < 40000; step++) {
        int choice = rand() % 100;

        if (choice < (step / 8000 % 2 ? 40 : 60) && count < MOST) {
            sealed[count] = false;
            pages[count++] = taken();
        }
        else if (choice < 98 && count > 0) {
            size_t i = (size_t)rand() % count;

            if (sealed[i]) cow_arena_unseal(pages[i]);
            cow_arena_free_page(&space, pages[i]);
            pages[i] = pages[--count];
            sealed[i] = sealed[count];
        }
        else if (count > 0) {
            size_t i = (size_t)rand() % count;

            sealed[i] ? cow_arena_unseal(pages[i]) : cow_arena_seal(pages[i]);
            sealed[i] = !sealed[i];
        }
        if (step % 2000) continue;

        consistent();
        for (int i = 0; i < 300; i++) {
            uintptr_t address = rand() % 2 && count ? (uintptr_t)pages[(size_t)rand() % count] + (uintptr_t)(rand() % (4 * COW_PAGE_SIZE)) - COW_PAGE_SIZE
                : (uintptr_t)rand() << 31 ^ (uintptr_t)rand();
            bool known = false;
            for (size_t j = 0; j < count; j++) known |= address - (uintptr_t)pages[j] < COW_PAGE_SIZE;
            assert_int_equal(cow_arena_contains(&space, address), known);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (sealed[i]) cow_arena_unseal(pages[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_group_bits),
        cmocka_unit_test_setup_teardown(test_pages_are_handed_out_from_the_lowest_on, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_known, begin, end),
        cmocka_unit_test_setup_teardown(test_bits, begin, end),
        cmocka_unit_test_setup_teardown(test_a_second_arena_and_its_end, begin, end),
        cmocka_unit_test_setup_teardown(test_given_pages_are_clear, begin, end),
        cmocka_unit_test_setup_teardown(test_clearing_a_kind, begin, end),
        cmocka_unit_test_setup_teardown(test_new_pages_keep_away_from_sealed_ones, begin, end),
        cmocka_unit_test_setup_teardown(test_poison, begin, end),
        cmocka_unit_test_setup_teardown(test_smaller_arenas, begin, end),
        cmocka_unit_test_setup_teardown(test_thousands_of_arenas, begin, end),
        cmocka_unit_test_setup_teardown(test_a_limit_of_addresses, begin, end),
        cmocka_unit_test(test_spans),
        cmocka_unit_test_setup_teardown(test_between_the_spans_is_room_for_others, begin, end),
        cmocka_unit_test_setup_teardown(test_little_room, begin, end),
        cmocka_unit_test_setup_teardown(test_places_at_random, begin, end),
        cmocka_unit_test(test_random_bits),
        cmocka_unit_test_setup_teardown(test_a_system_that_denies, begin, end),
        cmocka_unit_test_setup_teardown(test_random, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

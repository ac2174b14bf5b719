#ifndef COW_ARENA_H
#define COW_ARENA_H

/*
 * arena: where heap pages come from, and where all that the collector knows of their
 * objects stands.
 *
 * Job: heap pages hold objects and nothing else. Marks, ages and the like of all heap
 * pages of an arena stand together at its head, kind by kind: a full collection of a
 * forked process copies the marks' OS pages and no others, and clearing them is a few
 * long memsets.
 *
 * Algorithm: an arena lies at a multiple of ARENA_SIZE. Of any address in a heap page,
 *
 *     arena = address & ~ARENA_MASK
 *     page  = (address & ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG
 *     slot  = (address & COW_PAGE_MASK) / COW_SLOT_SIZE     (a multiplication)
 *     bit   = arena->bits[kind][page][slot / COW_BITS] >> slot % COW_BITS & 1
 *
 * and whether an address lies in an arena at all is a bit in a table of all there can be.
 *
 * An arena may be smaller where address space is limited. All stands where it would in a whole
 * one, so that the arithmetic is the same, but what would be known of heap pages that it has not
 * is not reserved (arena_spans): others may have these addresses, and nobody may read or write there.
 *
 * Heap pages are handed out from the lowest address on. Those of a group with sealed
 * pages are handed out when there are no others and no arena can be had: so the metadata
 * of what was made after a fork stands apart from what is shared.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking"
 * (section 3.1; seed 000) and Nakamura's arenas of 128 MB (seed 001).
 *
 * Entry points: arena_take, arena_give, arena_discard, arena_of and arena_knows; arena_seal and
 * arena_unseal; arena_consistent.
 *
 * Who writes this memory after a fork: a full collection the marks of all pages; any
 * collection the rows of unsealed pages; .free, .used and .committed are written where
 * pages are handed out and taken back.
 *
 * struct heap_page must be complete where this is included; struct arena holds one for
 * each heap page.
 */

#include <stdio.h>
#include <string.h>
#include "vocabulary.h"
#include "os.h"
#include "poison.h"

/* Heap pages that are committed at a time. */
#ifndef ARENA_COMMIT_PAGES
# define ARENA_COMMIT_PAGES 64
#endif

/* The smallest arena that is worth its head, in heap pages for objects: 128 KB. */
#ifndef ARENA_LEAST_PAGES
# define ARENA_LEAST_PAGES (128 * 1024 / COW_PAGE_SIZE)
#endif

/* An arena takes at most one in so many of the bytes a process may map. */
#ifndef ARENA_SHARE
# define ARENA_SHARE 16
#endif

#define ARENA_SIGN "CowArena"

/*
 * Invariants (arena_consistent):
 *     first <= committed <= pages <= ARENA_PAGES
 *     used + free bits = pages - first
 *     free bits are of [first, pages), and the rows of those pages are zero
 *     handed out, hence used, pages lie below committed
 *     committed pages that are not handed out are poisoned (poison.h)
 */
struct arena {
    char sign[8];       /* ARENA_SIGN: for who looks from outside (benchmark/pages) */
    size_t head;        /* bytes before the first heap page */
    struct arena *next; /* the others, in the order they were made */
    size_t pages;       /* where the heap pages end, counted from the arena's beginning */
    size_t committed;   /* those below may be written to */
    size_t used;        /* are handed out */
    size_t lowest;      /* no group below has a free page */
    uint64_t free[ARENA_GROUPS];
    uint8_t sealed[ARENA_GROUPS]; /* sealed pages of the group */

    _Alignas(4096) cow_row bits[ROW_KINDS][ARENA_PAGES];
    struct heap_page descriptors[ARENA_PAGES];
};

/* The head ends where an OS page of any system does. */
#define ARENA_HEAD_MULTIPLE ((size_t)64 * 1024)

enum { ARENA_FIRST = (sizeof(struct arena) + ARENA_HEAD_MULTIPLE - 1) / ARENA_HEAD_MULTIPLE * (ARENA_HEAD_MULTIPLE / COW_PAGE_SIZE) };

/* All arenas of a process. */
struct arena_space {
    struct arena *arenas, **last;
    size_t count;
    size_t reserved_bytes;
    size_t committed_bytes; /* of these may be written to */
    size_t head_bytes; /* of these are not heap pages */
    size_t denied; /* reservations that the system denied */
};

/* Addresses of programs: 48 bits, or 47 as on x86-64, or 32. */
#ifdef __x86_64__
# define ARENA_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 47 : 32)
#else
# define ARENA_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 48 : 32)
#endif
#define ARENA_NUMBERS ((size_t)1 << (ARENA_ADDRESS_BITS - ARENA_LOG))

/* A bit for each arena that there can be; 128 KB or 256, of which a few OS pages are used. */
static uint64_t arena_table[ARENA_NUMBERS / 64];

/* ---- from an address to what is known of it */

static inline struct arena *
arena_of(uintptr_t address)
{
    return (struct arena *)(address & ~(uintptr_t)ARENA_MASK);
}

static inline size_t
arena_page_number(uintptr_t address)
{
    return (address & ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG;
}

static inline cow_bits_t *
arena_row_of(uintptr_t address, enum row_kind kind)
{
    return arena_of(address)->bits[kind][arena_page_number(address)];
}

static inline struct heap_page *
arena_descriptor(uintptr_t address)
{
    return &arena_of(address)->descriptors[arena_page_number(address)];
}

static inline void *
arena_page_address(const struct arena *arena, size_t number)
{
    return (char *)arena + (number << HEAP_PAGE_ALIGN_LOG);
}

/* Is there a heap page at any +address+ whatever, that is handed out? */
static inline bool
arena_knows(uintptr_t address)
{
    size_t number = address >> ARENA_LOG;

    if (number >= ARENA_NUMBERS || !(arena_table[number / 64] >> number % 64 & 1)) return false;

    const struct arena *arena = arena_of(address);
    size_t page = arena_page_number(address);
    return page >= ARENA_FIRST && page < arena->committed && !(arena->free[page / 64] >> page % 64 & 1);
}

/* ---- reservation */

static inline int
arena_lowest_bit(uint64_t word)
{
    return __builtin_ctzll(word);
}

/* Bits of a group's pages in [from, to). */
static inline uint64_t
arena_group_bits(size_t group, size_t from, size_t to)
{
    size_t base = group * ARENA_GROUP_PAGES;
    size_t low = from > base ? from - base : 0, high = to > base ? to - base : 0;

    if (low >= 64 || high == 0 || low >= high) return 0;
    return (~UINT64_C(0) << low) & (high >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << high) - 1);
}

/* What an arena may have of the bytes that the process may map, at least the least. */
static inline int
arena_greatest_log(void)
{
    size_t limit = os_address_space();
    int log = ARENA_LOG;

    while (limit != SIZE_MAX && log > HEAP_PAGE_ALIGN_LOG && ((size_t)1 << log) > limit / ARENA_SHARE) log--;
    return log;
}

enum { ARENA_SPANS = ROW_KINDS + 3 };

/* Adds [from, to) to the spans, in whole OS pages; gives how many there are. */
static int
arena_add_span(struct os_span *spans, int count, size_t from, size_t to)
{
    const size_t unit = (size_t)sysconf(_SC_PAGESIZE);

    from = from / unit * unit;
    to = (to + unit - 1) / unit * unit;
    if (count > 0 && from <= spans[count - 1].to) {
        spans[count - 1].to = to;
        return count;
    }
    spans[count] = (struct os_span){ from, to };
    return count + 1;
}

/* What is reserved of an arena whose heap pages end with +pages+: the notes, the rows and
 * descriptors of its heap pages, and these. A whole arena is one span, as there may be many. */
static int
arena_spans(size_t pages, struct os_span *spans)
{
    int count = 0;

    if (pages == ARENA_PAGES) return arena_add_span(spans, count, 0, ARENA_SIZE);

    count = arena_add_span(spans, count, 0, offsetof(struct arena, bits));
    for (size_t kind = 0; kind < ROW_KINDS; kind++) {
        const size_t rows = offsetof(struct arena, bits) + kind * sizeof(cow_row[ARENA_PAGES]);

        count = arena_add_span(spans, count, rows + ARENA_FIRST * COW_ROW_SIZE, rows + pages * COW_ROW_SIZE);
    }
    const size_t descriptors = offsetof(struct arena, descriptors);
    count = arena_add_span(spans, count, descriptors + ARENA_FIRST * sizeof(struct heap_page), descriptors + pages * sizeof(struct heap_page));
    return arena_add_span(spans, count, (size_t)ARENA_FIRST << HEAP_PAGE_ALIGN_LOG, pages << HEAP_PAGE_ALIGN_LOG);
}

/* Of these the head: all spans that it has a part of, cut off where it ends. */
static int
arena_head_spans(size_t pages, struct os_span *spans)
{
    const size_t head = (size_t)ARENA_FIRST << HEAP_PAGE_ALIGN_LOG;
    int count = arena_spans(pages, spans);

    while (spans[count - 1].from >= head) count--;
    if (spans[count - 1].to > head) spans[count - 1].to = head;
    return count;
}

/* Bytes of the head of an arena whose heap pages end with +pages+. */
static size_t
arena_head_bytes(size_t pages)
{
    struct os_span spans[ARENA_SPANS];
    size_t bytes = 0;

    for (int i = arena_head_spans(pages, spans) - 1; i >= 0; i--) bytes += spans[i].to - spans[i].from;
    return bytes;
}

/* Ends its reservation; false: nothing of it could be ended, and it is as it was. The heap pages
 * go first. Of what is denied after them the addresses are lost, and nobody uses them. */
static bool
arena_unmap(struct arena *arena, size_t pages)
{
    struct os_span spans[ARENA_SPANS];
    const int count = arena_spans(pages, spans);

    for (int i = count - 1; i >= 0; i--) {
        if (!os_release((char *)arena + spans[i].from, spans[i].to - spans[i].from) && i == count - 1) return false;
    }
    return true;
}

static bool
arena_commit_head(struct arena *arena, size_t pages)
{
    struct os_span spans[ARENA_SPANS];

    for (int i = arena_head_spans(pages, spans) - 1; i >= 0; i--) {
        char *from = (char *)arena + spans[i].from;

        if (!os_commit(from, spans[i].to - spans[i].from)) return false;
        os_name(from, spans[i].to - spans[i].from, "Ruby:GC:metadata");
    }
    return true;
}

/* Makes an arena; of the size that can be had, halving it as long as it has ARENA_LEAST_PAGES.
 * Gives NULL where the system denies them all. */
static struct arena *
arena_make(struct arena_space *space)
{
    struct os_span spans[ARENA_SPANS];
    struct arena *arena = NULL;
    size_t pages = 0;

    for (int log = arena_greatest_log(); arena == NULL; log--) {
        const size_t some = (size_t)1 << log >> HEAP_PAGE_ALIGN_LOG;
        const bool last = some <= ARENA_LEAST_PAGES;

        pages = ARENA_FIRST + (last ? ARENA_LEAST_PAGES : some);
        if (pages > ARENA_PAGES) pages = ARENA_PAGES;
        arena = os_reserve(spans, arena_spans(pages, spans), ARENA_SIZE);
        if (arena == NULL) space->denied++;
        if (arena == NULL && last) return NULL;
    }

    size_t number = (uintptr_t)arena >> ARENA_LOG;
    if (number >= ARENA_NUMBERS || !arena_commit_head(arena, pages)) {
        arena_unmap(arena, pages);
        space->denied++;
        return NULL;
    }

    memcpy(arena->sign, ARENA_SIGN, sizeof(arena->sign));
    arena->head = (size_t)ARENA_FIRST << HEAP_PAGE_ALIGN_LOG;
    arena->pages = pages;
    arena->committed = ARENA_FIRST;
    for (size_t group = 0; group < ARENA_GROUPS; group++) {
        arena->free[group] = arena_group_bits(group, ARENA_FIRST, pages);
    }
    arena->lowest = ARENA_FIRST / ARENA_GROUP_PAGES;
    if (space->last == NULL) space->last = &space->arenas;
    *space->last = arena;
    space->last = &arena->next;
    arena_table[number / 64] |= UINT64_C(1) << number % 64;
    const size_t head = arena_head_bytes(pages);
    space->count++;
    space->reserved_bytes += head + ((pages - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    space->committed_bytes += head;
    space->head_bytes += head;
    return arena;
}

/* Takes an arena out of the space and releases it; no page of it may be used. */
static void
arena_release(struct arena_space *space, struct arena *arena)
{
    struct arena **link = &space->arenas;
    size_t number = (uintptr_t)arena >> ARENA_LOG;
    size_t pages = arena->pages, committed = arena->committed, head = arena_head_bytes(pages);

    while (*link != arena) link = &(*link)->next;
    struct arena *next = arena->next;
    arena_table[number / 64] &= ~(UINT64_C(1) << number % 64);
    unpoison(&arena->descriptors[ARENA_FIRST], (pages - ARENA_FIRST) * sizeof(struct heap_page));
    unpoison(arena_page_address(arena, ARENA_FIRST), (committed - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    if (!arena_unmap(arena, pages)) {
        arena_table[number / 64] |= UINT64_C(1) << number % 64;
        poison(arena_page_address(arena, ARENA_FIRST), (committed - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
        return; /* it stays as it is, empty */
    }
    *link = next;
    if (next == NULL) space->last = link;
    space->count--;
    space->reserved_bytes -= head + ((pages - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    space->committed_bytes -= head + ((committed - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    space->head_bytes -= head;
}

/* ---- heap pages */

/* Commits up to and with page +number+. */
static bool
arena_commit_to(struct arena_space *space, struct arena *arena, size_t number)
{
    if (number < arena->committed) return true;

    size_t to = (number / ARENA_COMMIT_PAGES + 1) * ARENA_COMMIT_PAGES;
    if (to > arena->pages) to = arena->pages;
    void *from = arena_page_address(arena, arena->committed);
    if (!os_commit(from, (to - arena->committed) << HEAP_PAGE_ALIGN_LOG)) {
        to = number + 1; /* where memory is short, no more than is needed */
        if (!os_commit(from, (to - arena->committed) << HEAP_PAGE_ALIGN_LOG)) return false;
    }

    size_t size = (to - arena->committed) << HEAP_PAGE_ALIGN_LOG;
    os_name(from, size, "Ruby:GC:heap pages");
    poison(from, size);
    space->committed_bytes += size;
    arena->committed = to;
    return true;
}

static void *
arena_take_from(struct arena_space *space, struct arena *arena, bool among_sealed)
{
    bool passed = false;

    for (size_t group = arena->lowest; group < ARENA_GROUPS && group * ARENA_GROUP_PAGES < arena->pages; group++) {
        if (arena->free[group] == 0) continue;
        if (!passed) arena->lowest = group;
        passed = true;
        if (arena->sealed[group] > 0 && !among_sealed) continue;

        size_t number = group * ARENA_GROUP_PAGES + arena_lowest_bit(arena->free[group]);
        if (!arena_commit_to(space, arena, number)) return NULL;
        arena->free[group] &= arena->free[group] - 1;
        arena->used++;
        unpoison(arena_page_address(arena, number), COW_PAGE_SIZE);
        return arena_page_address(arena, number);
    }
    return NULL;
}

/* Hands out a heap page. What stands in it is anything, its rows are zero. Gives NULL
 * where the system has no memory. */
static void *
arena_take(struct arena_space *space)
{
    void *page;

    for (struct arena *arena = space->arenas; arena; arena = arena->next) {
        if (arena->used < arena->pages - ARENA_FIRST && (page = arena_take_from(space, arena, false))) return page;
    }
    struct arena *made = arena_make(space);
    if (made && (page = arena_take_from(space, made, false))) return page;
    for (struct arena *arena = space->arenas; arena; arena = arena->next) {
        if ((page = arena_take_from(space, arena, true))) return page;
    }
    return NULL;
}

/* Sets words to zero, and writes only those that are not. */
static inline void
arena_clear_words(cow_bits_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (words[i]) words[i] = 0;
    }
}

/* Gives a heap page's memory back to the system, where OS pages are small enough. */
static void
arena_discard(void *page)
{
    if (sysconf(_SC_PAGESIZE) <= COW_PAGE_SIZE) os_give_back(page, COW_PAGE_SIZE);
}

/* Takes a heap page back, and its memory (arena_discard); an arena without used pages is
 * released, if there is another. */
static void
arena_give(struct arena_space *space, void *page)
{
    struct arena *arena = arena_of((uintptr_t)page);
    size_t number = arena_page_number((uintptr_t)page), group = number / ARENA_GROUP_PAGES;

    for (int kind = 0; kind < ROW_KINDS; kind++) arena_clear_words(arena->bits[kind][number], COW_ROW_WORDS);
    arena->free[group] |= UINT64_C(1) << number % 64;
    arena->used--;
    if (group < arena->lowest) arena->lowest = group;
    arena_discard(page);
    poison(page, COW_PAGE_SIZE);
    if (arena->used == 0 && space->count > 1) arena_release(space, arena);
}

/* Notes that a heap page that is handed out is sealed, or no longer. */
static inline void
arena_seal(void *page)
{
    arena_of((uintptr_t)page)->sealed[arena_page_number((uintptr_t)page) / ARENA_GROUP_PAGES]++;
}

static inline void
arena_unseal(void *page)
{
    arena_of((uintptr_t)page)->sealed[arena_page_number((uintptr_t)page) / ARENA_GROUP_PAGES]--;
}

/* Sets the rows of a kind to zero, in all pages. */
static void
arena_clear_kind(struct arena_space *space, enum row_kind kind)
{
    for (struct arena *arena = space->arenas; arena; arena = arena->next) {
        memset(arena->bits[kind][ARENA_FIRST], 0, (arena->committed - ARENA_FIRST) * COW_ROW_SIZE);
    }
}

static bool
arena_page_is_clear(const struct arena *arena, size_t page)
{
    cow_bits_t any = 0;

    for (int kind = 0; kind < ROW_KINDS; kind++) {
        for (int i = 0; i < COW_ROW_WORDS; i++) any |= arena->bits[kind][page][i];
    }
    return any == 0;
}

/* Recomputes what is kept; tells the first difference on +out+ and gives false. */
static bool
arena_consistent(const struct arena_space *space, FILE *out)
{
    size_t count = 0, reserved = 0, committed = 0, heads = 0;

    for (const struct arena *arena = space->arenas; arena; arena = arena->next) {
        size_t number = (uintptr_t)arena >> ARENA_LOG, free = 0;

        if ((uintptr_t)arena & ARENA_MASK || !(arena_table[number / 64] >> number % 64 & 1)) {
            fprintf(out, "arena %p is not in the table\n", (void *)arena);
            return false;
        }
        if (arena->committed < ARENA_FIRST || arena->pages < arena->committed || ARENA_PAGES < arena->pages) {
            fprintf(out, "arena %p: %zu pages, %zu committed\n", (void *)arena, arena->pages, arena->committed);
            return false;
        }
        for (size_t group = 0; group < ARENA_GROUPS; group++) {
            uint64_t bits = arena->free[group];

            if (bits & ~arena_group_bits(group, ARENA_FIRST, arena->pages) || (bits && group < arena->lowest)) {
                fprintf(out, "arena %p, group %zu: free %llx, lowest %zu\n", (void *)arena, group, (unsigned long long)bits, arena->lowest);
                return false;
            }
            for (free += (size_t)__builtin_popcountll(bits); bits; bits &= bits - 1) {
                size_t page = group * ARENA_GROUP_PAGES + arena_lowest_bit(bits);
                if (!arena_page_is_clear(arena, page)) {
                    fprintf(out, "arena %p, page %zu: it is free and has bits\n", (void *)arena, page);
                    return false;
                }
            }
            if (arena->free[group] == arena_group_bits(group, ARENA_FIRST, arena->pages) && arena->sealed[group] > 0) {
                fprintf(out, "arena %p, group %zu: none is used, %d are sealed\n", (void *)arena, group, arena->sealed[group]);
                return false;
            }
        }
        if (arena->used + free != arena->pages - ARENA_FIRST) {
            fprintf(out, "arena %p: %zu used and %zu free of %zu\n", (void *)arena, arena->used, free, arena->pages - ARENA_FIRST);
            return false;
        }
        count++;
        heads += arena_head_bytes(arena->pages);
        reserved += (arena->pages - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG;
        committed += (arena->committed - ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG;
    }
    reserved += heads;
    committed += heads;
    if (count != space->count || reserved != space->reserved_bytes || committed != space->committed_bytes || heads != space->head_bytes) {
        fprintf(out, "%zu arenas, %zu bytes, %zu committed, %zu of heads; kept %zu, %zu, %zu, %zu\n", count, reserved, committed, heads,
                space->count, space->reserved_bytes, space->committed_bytes, space->head_bytes);
        return false;
    }
    return true;
}

#endif /* COW_ARENA_H */

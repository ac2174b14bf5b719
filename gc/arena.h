#ifndef COW_ARENA_H
#define COW_ARENA_H

/*
 * arena: where heap pages come from, and where all that the collector knows of their objects stands.
 *
 * Job: heap pages hold objects and nothing else. Marks, ages and the like of all heap pages of an arena stand
 * together at its head, kind by kind: a full collection of a forked process copies the marks' OS pages and no
 * others, and clearing them is a few long memsets.
 *
 * Algorithm: an arena lies at a multiple of COW_ARENA_SIZE. Of any address in a heap page,
 *
 *     arena = address & ~COW_ARENA_MASK
 *     page  = (address & COW_ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG
 *     slot  = (address & COW_PAGE_MASK) / COW_SLOT_SIZE     (a multiplication)
 *     bit   = arena->bits[kind][page][slot / COW_BITS] >> slot % COW_BITS & 1
 *
 * and whether an address lies in an arena at all is a bit in a table of all there can be.
 *
 * An arena may be smaller where address space is limited. All stands where it would in a whole one, so that
 * the arithmetic is the same, but what would be known of heap pages that it has not is not reserved
 * (cow_arena_spans): others may have these addresses, and nobody may read or write there.
 *
 * Heap pages are handed out from the lowest address on. Those of a group with sealed pages are handed out
 * when there are no others and no arena can be had: so the metadata of what was made after a fork stands
 * apart from what is shared.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking" (section 3.1; seed
 * 000) and Nakamura's arenas of 128 MB (seed 001).
 *
 * Entry points: cow_arena_alloc_page, cow_arena_free_page, cow_arena_decommit_page, cow_arena_of and
 * cow_arena_contains; cow_arena_seal and cow_arena_unseal; cow_arena_consistent.
 *
 * Who writes this memory after a fork: a full collection the marks of all pages; any collection the rows of
 * unsealed pages; .free, .used and .committed are written where pages are handed out and taken back.
 *
 * struct heap_page must be complete where this is included; struct cow_arena holds one for each heap page.
 */

#include <stdio.h>
#include <string.h>
#include "vocabulary.h"
#include "os.h"
#include "poison.h"

/* Heap pages that are committed at a time. */
#ifndef COW_ARENA_COMMIT_PAGES
# define COW_ARENA_COMMIT_PAGES 64
#endif

/* The smallest arena that is worth its head, in heap pages for objects: 128 KB. */
#ifndef COW_ARENA_LEAST_PAGES
# define COW_ARENA_LEAST_PAGES (128 * 1024 / COW_PAGE_SIZE)
#endif

/* An arena takes at most one in so many of the bytes a process may map. */
#ifndef COW_ARENA_SHARE
# define COW_ARENA_SHARE 16
#endif

#define COW_ARENA_SIGN "CowArena"

/*
 * Invariants (cow_arena_consistent):
 *     first <= committed <= pages <= COW_ARENA_PAGES
 *     used + free bits = pages - first
 *     free bits are of [first, pages), and the rows of those pages are zero
 *     handed out, hence used, pages lie below committed
 *     committed pages that are not handed out are poisoned (poison.h)
 */
struct cow_arena {
    char sign[8];       /* COW_ARENA_SIGN: for who looks from outside (benchmark/pages) */
    size_t head;        /* bytes before the first heap page */
    struct cow_arena *next; /* the others, in the order they were made */
    size_t pages;       /* where the heap pages end, counted from the arena's beginning */
    size_t committed;   /* those below may be written to */
    size_t used;        /* are handed out */
    size_t lowest;      /* no group below has a free page */
    uint64_t free[COW_ARENA_GROUPS];
    uint8_t sealed[COW_ARENA_GROUPS]; /* sealed pages of the group */

    _Alignas(4096) cow_bitmap bits[COW_BITMAP_KINDS][COW_ARENA_PAGES];
    struct heap_page descriptors[COW_ARENA_PAGES];
};

/* The head ends where an OS page of any system does. */
#define COW_ARENA_HEAD_MULTIPLE ((size_t)64 * 1024)

enum {
    COW_ARENA_FIRST = (sizeof(struct cow_arena) + COW_ARENA_HEAD_MULTIPLE - 1) / COW_ARENA_HEAD_MULTIPLE *
                      (COW_ARENA_HEAD_MULTIPLE / COW_PAGE_SIZE)
};

/* Addresses of programs: 48 bits, or 47 as on x86-64, or 32. */
#ifdef __x86_64__
# define COW_ARENA_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 47 : 32)
#else
# define COW_ARENA_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 48 : 32)
#endif
#define COW_ARENA_NUMBERS ((size_t)1 << (COW_ARENA_ADDRESS_BITS - COW_ARENA_LOG))

/* All arenas of a process. */
struct cow_arena_space {
    struct cow_arena *arenas, **last;
    size_t count;
    size_t reserved_bytes;
    size_t committed_bytes; /* of these may be written to */
    size_t head_bytes; /* of these are not heap pages */
    size_t denied; /* reservations that the system denied */
    /* A bit for each arena that there can be. Few OS pages of it are used. */
    uint64_t table[COW_ARENA_NUMBERS / 64];
};

/* ---- from an address to what is known of it */

static inline struct cow_arena *
cow_arena_of(uintptr_t address)
{
    return (struct cow_arena *)(address & ~(uintptr_t)COW_ARENA_MASK);
}

static inline size_t
cow_arena_page_number(uintptr_t address)
{
    return (address & COW_ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG;
}

static inline cow_bits_t *
cow_arena_bitmap_of(uintptr_t address, enum cow_bitmap_kind kind)
{
    return cow_arena_of(address)->bits[kind][cow_arena_page_number(address)];
}

static inline struct heap_page *
cow_arena_descriptor(uintptr_t address)
{
    return &cow_arena_of(address)->descriptors[cow_arena_page_number(address)];
}

static inline void *
cow_arena_page_address(const struct cow_arena *arena, size_t number)
{
    return (char *)arena + (number << HEAP_PAGE_ALIGN_LOG);
}

/* Is there a heap page at any +address+ whatever, that is handed out? */
static inline bool
cow_arena_contains(const struct cow_arena_space *space, uintptr_t address)
{
    size_t number = address >> COW_ARENA_LOG;

    if (number >= COW_ARENA_NUMBERS || !(space->table[number / 64] >> number % 64 & 1)) return false;

    const struct cow_arena *arena = cow_arena_of(address);
    size_t page = cow_arena_page_number(address);
    return page >= COW_ARENA_FIRST && page < arena->committed && !(arena->free[page / 64] >> page % 64 & 1);
}

/* ---- reservation */

static inline int
cow_lowest_bit(uint64_t word)
{
    return __builtin_ctzll(word);
}

/* Bits of a group's pages in [from, to). */
static inline uint64_t
cow_arena_group_bits(size_t group, size_t from, size_t to)
{
    size_t base = group * COW_ARENA_GROUP_PAGES;
    size_t low = from > base ? from - base : 0, high = to > base ? to - base : 0;

    if (low >= 64 || high == 0 || low >= high) return 0;
    return (~UINT64_C(0) << low) & (high >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << high) - 1);
}

/* What an arena may have of the bytes that the process may map, at least the least. */
static inline int
cow_arena_greatest_log(void)
{
    size_t limit = cow_os_address_space();
    int log = COW_ARENA_LOG;

    while (limit != SIZE_MAX && log > HEAP_PAGE_ALIGN_LOG && ((size_t)1 << log) > limit / COW_ARENA_SHARE)
        log--;
    return log;
}

enum { COW_ARENA_SPANS = COW_BITMAP_KINDS + 3 };

/* ---- heap pages */

/* Sets words to zero, and writes only those that are not. */
static inline void
cow_arena_clear_words(cow_bits_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (words[i]) words[i] = 0;
    }
}

/* Notes that a heap page that is handed out is sealed, or no longer. */
static inline void
cow_arena_seal(void *page)
{
    cow_arena_of((uintptr_t)page)->sealed[cow_arena_page_number((uintptr_t)page) / COW_ARENA_GROUP_PAGES]++;
}

static inline void
cow_arena_unseal(void *page)
{
    cow_arena_of((uintptr_t)page)->sealed[cow_arena_page_number((uintptr_t)page) / COW_ARENA_GROUP_PAGES]--;
}

#endif /* COW_ARENA_H */

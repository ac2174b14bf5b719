/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_ARENA_H
#define COW_ARENA_H

/*
 * arena: address space for heap pages, and for all that the collector records of their objects.
 *
 * Job: a heap page holds objects and nothing else. Mark bits, ages and the other bitmaps of all heap pages of
 * an arena stand together in the arena's head, kind by kind. So a full collection of a forked process copies
 * the OS pages of the mark bits and no others, and clearing the marks takes a few long memsets.
 *
 * Algorithm: an arena lies at a multiple of COW_ARENA_SIZE. For any address in one of its heap pages,
 *
 *     arena = address & ~COW_ARENA_MASK
 *     page  = (address & COW_ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG
 *     slot  = (address & COW_PAGE_MASK) / COW_SLOT_SIZE     (a multiplication)
 *     bit   = arena->bits[kind][page][slot / COW_BITS] >> slot % COW_BITS & 1
 *
 * Whether an address lies in an arena is one bit of a table that has a bit for each possible arena.
 *
 * An arena is smaller where address space is limited. Its fields, bitmaps and pages then have the same
 * offsets as in a whole arena, so that the arithmetic is the same; the addresses between them, which would
 * belong to heap pages that it does not have, are not reserved (cow_arena_spans). Others may use those
 * addresses, and the collector must not read or write there.
 *
 * The lowest free heap page is allocated first. A page of a group with sealed pages is allocated only if
 * there is no other page and no new arena. So the metadata of objects that are made after a fork stands on
 * other OS pages than the metadata that parent and child share.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking" (section 3.1; seed
 * 000) and Nakamura's arenas of 128 MB (seed 001).
 *
 * Entry points: cow_arena_of, cow_arena_contains, cow_arena_bitmap_of and cow_arena_descriptor for an
 * address; cow_arena_seal and cow_arena_unseal. In arena.c: cow_arena_alloc_page, cow_arena_free_page,
 * cow_arena_give_back, cow_arena_decommit_page, cow_arena_clear_kind, cow_arena_release_all,
 * cow_arena_consistent.
 *
 * Who writes this memory after a fork: a full collection writes the mark bits of all pages; every collection
 * writes the bitmaps of open pages. A process that allocates or frees a page writes .free, .used, .lowest and
 * .committed, .open and .freed of the space, and the page's descriptor.
 *
 * struct heap_page must be complete before this file is included: struct cow_arena holds one for each page.
 */

#include <stdio.h>
#include <string.h>
#include "vocabulary.h"
#include "os.h"
#include "poison.h"

/* Number of heap pages that are committed at a time. */
#ifndef COW_ARENA_COMMIT_PAGES
# define COW_ARENA_COMMIT_PAGES 64
#endif

/* Number of heap pages of the smallest arena: 128 KB. A smaller one would not be worth its head. */
#ifndef COW_ARENA_LEAST_PAGES
# define COW_ARENA_LEAST_PAGES (128 * 1024 / COW_PAGE_SIZE)
#endif

/* An arena reserves at most 1 / COW_ARENA_SHARE of the bytes that the process may map. */
#ifndef COW_ARENA_SHARE
# define COW_ARENA_SHARE 16
#endif

#define COW_ARENA_SIGN "CowArena"

/*
 * Invariants (cow_arena_consistent):
 *     COW_ARENA_FIRST <= committed <= pages <= COW_ARENA_PAGES
 *     used + number of bits in free = pages - COW_ARENA_FIRST
 *     bits in free are of pages in [COW_ARENA_FIRST, pages), and the bitmaps of those pages are 0
 *     allocated pages lie below committed
 *     free pages below committed are poisoned (poison.h)
 *     pages whose memory has yet to go back (.freed of the space) are free
 */
struct cow_arena {
    /* cowruby-memory finds arenas in another process by the sign, and reads the words up to .committed
     * (lib/cowruby/memory/page_kinds.rb). */
    char sign[8];     /* COW_ARENA_SIGN */
    size_t head;      /* bytes before the first heap page */
    size_t descriptors_at, free_at, allocated_at; /* bytes from the arena's beginning on */
    size_t descriptor_size, bitmap_size, page_size; /* bytes, each for a heap page */
    size_t pages;     /* number behind the last heap page; the arena's first bytes have number 0 */
    size_t committed; /* number behind the last committed heap page */
    struct cow_arena *next; /* in the order in which arenas were made */
    size_t used;      /* allocated heap pages */
    size_t lowest;    /* no group below this one has a free page */
    size_t made;      /* .made of the space before; grows along .next */
    uint64_t free[COW_ARENA_GROUPS]; /* a bit for each free page of the group */
    uint8_t sealed[COW_ARENA_GROUPS]; /* number of sealed pages of the group */

    _Alignas(4096) cow_bitmap bits[COW_BITMAP_KINDS][COW_ARENA_PAGES];
    struct heap_page descriptors[COW_ARENA_PAGES];
};

/* The head is a multiple of this, so that it ends with an OS page on any system. */
#define COW_ARENA_HEAD_MULTIPLE ((size_t)64 * 1024)

/* Number of the first heap page of an arena. */
enum {
    COW_ARENA_FIRST = (sizeof(struct cow_arena) + COW_ARENA_HEAD_MULTIPLE - 1) / COW_ARENA_HEAD_MULTIPLE *
                      (COW_ARENA_HEAD_MULTIPLE / COW_PAGE_SIZE)
};

/* Bits of an address of a program: 48; 47 on x86-64; 32 where pointers are short. */
#ifdef __x86_64__
# define COW_ARENA_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 47 : 32)
#else
# define COW_ARENA_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 48 : 32)
#endif
#define COW_ARENA_NUMBERS ((size_t)1 << (COW_ARENA_ADDRESS_BITS - COW_ARENA_LOG))

/* All arenas of a process. */
struct cow_arena_space {
    struct cow_arena *arenas, **last; /* the first arena, and the link behind the last one */
    struct cow_arena *open; /* no arena before this one is open (cow_arena_is_open); NULL: none is */
    size_t made;            /* arenas, those that were released too */
    size_t count;
    size_t reserved_bytes;
    size_t committed_bytes; /* of .reserved_bytes */
    size_t head_bytes;      /* of .committed_bytes, those in heads */
    size_t denied;          /* reservations that the system refused */
    /* Memory of free pages, neighbours, that has yet to go back to the system: one call for all of them. */
    char *freed;
    size_t freed_bytes; /* 0: there is none */
    /* A bit for each possible arena. The program uses few OS pages of it. */
    uint64_t table[COW_ARENA_NUMBERS / 64];
};

/* ---- from an address to its metadata */

/* Gives the arena in which +address+ lies, if it lies in one. */
static inline struct cow_arena *
cow_arena_of(uintptr_t address)
{
    return (struct cow_arena *)(address & ~(uintptr_t)COW_ARENA_MASK);
}

/* Gives the number of the heap page at +address+, counted from the beginning of its arena. */
static inline size_t
cow_arena_page_number(uintptr_t address)
{
    return (address & COW_ARENA_MASK) >> HEAP_PAGE_ALIGN_LOG;
}

/* Gives the bitmap of one kind of the heap page in which +address+ lies. */
static inline cow_bits_t *
cow_arena_bitmap_of(uintptr_t address, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS && cow_arena_page_number(address) >= COW_ARENA_FIRST);
    return cow_arena_of(address)->bits[kind][cow_arena_page_number(address)];
}

/* Gives the descriptor of the heap page in which +address+ lies. */
static inline struct heap_page *
cow_arena_descriptor(uintptr_t address)
{
    COW_ASSERT(cow_arena_page_number(address) >= COW_ARENA_FIRST);
    return &cow_arena_of(address)->descriptors[cow_arena_page_number(address)];
}

/* Gives the address of heap page +number+, or the end of the arena if that is the number behind the last
 * page. */
static inline void *
cow_arena_page_address(const struct cow_arena *arena, size_t number)
{
    COW_ASSERT(number <= COW_ARENA_PAGES);
    return (char *)arena + (number << HEAP_PAGE_ALIGN_LOG);
}

/* Does +address+, which may be any number, lie in an allocated heap page? */
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

/* Gives the number of the lowest bit that is set. */
static inline int
cow_lowest_bit(uint64_t word)
{
    COW_ASSERT(word != 0);
    return __builtin_ctzll(word);
}

/* Gives a bit for each heap page of the group whose number lies in [from, to). */
static inline uint64_t
cow_arena_group_bits(size_t group, size_t from, size_t to)
{
    COW_ASSERT(group < COW_ARENA_GROUPS);
    size_t base = group * COW_ARENA_GROUP_PAGES;
    size_t low = from > base ? from - base : 0, high = to > base ? to - base : 0;

    if (low >= 64 || high == 0 || low >= high) return 0;
    return (~UINT64_C(0) << low) & (high >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << high) - 1);
}

/* Gives the logarithm of the bytes of heap pages that an arena may have (COW_ARENA_SHARE). */
static inline int
cow_arena_greatest_log(void)
{
    size_t limit = cow_os_address_space();
    int log = COW_ARENA_LOG;

    while (limit != SIZE_MAX && log > HEAP_PAGE_ALIGN_LOG && ((size_t)1 << log) > limit / COW_ARENA_SHARE)
        log--;
    return log;
}

/* The most spans of an arena (cow_arena_spans). */
enum { COW_ARENA_SPANS = COW_BITMAP_KINDS + 3 };

/* ---- heap pages */

/* Sets words to 0, but writes only those that are not: children share the OS pages of the others. */
static inline void
cow_arena_clear_words(cow_bits_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (words[i]) words[i] = 0;
    }
}

/* Gives how many pages of the group are sealed to which a heap page belongs. */
static inline int
cow_arena_sealed(const void *page)
{
    const size_t number = cow_arena_page_number((uintptr_t)page);

    COW_ASSERT((uintptr_t)page % COW_PAGE_SIZE == 0);
    return cow_arena_of((uintptr_t)page)->sealed[number / COW_ARENA_GROUP_PAGES];
}

/* Does the group have free pages that are apart from sealed ones? */
static inline bool
cow_arena_group_is_open(const struct cow_arena *arena, size_t group)
{
    return arena->free[group] != 0 && arena->sealed[group] == 0;
}

/* Records that a group of the arena may have become open. */
static inline void
cow_arena_open_group(struct cow_arena_space *space, struct cow_arena *arena, size_t group)
{
    if (cow_arena_group_is_open(arena, group) && (space->open == NULL || arena->made < space->open->made))
        space->open = arena;
}

/* Records that an allocated heap page is sealed. */
static inline void
cow_arena_seal(void *page)
{
    COW_ASSERT(cow_arena_sealed(page) < COW_ARENA_GROUP_PAGES);
    cow_arena_of((uintptr_t)page)->sealed[cow_arena_page_number((uintptr_t)page) / COW_ARENA_GROUP_PAGES]++;
}

/* Records that a sealed heap page is open. */
static inline void
cow_arena_unseal(struct cow_arena_space *space, void *page)
{
    COW_ASSERT(cow_arena_sealed(page) > 0);
    struct cow_arena *arena = cow_arena_of((uintptr_t)page);
    const size_t group = cow_arena_page_number((uintptr_t)page) / COW_ARENA_GROUP_PAGES;

    arena->sealed[group]--;
    cow_arena_open_group(space, arena, group);
}

#endif /* COW_ARENA_H */

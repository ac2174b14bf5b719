#ifndef COW_VOCABULARY_H
#define COW_VOCABULARY_H

/*
 * vocabulary: the words of the collector's memory, and their sizes. Each means one
 * thing everywhere: in code, in GC.stat's keys, in doc/.
 *
 *     OS page      what the kernel maps and copies: 4 KB on most machines. Never
 *                  called "page" alone.
 *     heap page    HEAP_PAGE_SIZE bytes at an address that is a multiple of it, cut
 *                  into slots of one size.
 *     slot         room for one object: BASE_SLOT_SIZE bytes, or 2, 4, 8, 16 times that.
 *     row          the bits of one heap page of one kind: a bit for each
 *                  BASE_SLOT_SIZE bytes; of a bigger slot only the first is used.
 *     arena        address space for heap pages, at a multiple of ARENA_SIZE. Its head
 *                  holds the rows of all its heap pages, kind by kind.
 *     group        64 heap pages of an arena, whose rows of one kind fill OS pages of
 *                  their own.
 *     metadata     what the collector knows of heap pages and objects: the arenas' heads.
 *     reserved     address space that nobody else gets; committed: may be written to.
 *     sealed       closed to allocation at a fork (seal.h).
 *     nursery      what a forked process allocates between two collections (nursery.h).
 */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 14, 15 or 16: heap pages of 16, 32 or 64 KB. */
#ifndef HEAP_PAGE_ALIGN_LOG
# define HEAP_PAGE_ALIGN_LOG 14
#endif
#if HEAP_PAGE_ALIGN_LOG < 14 || HEAP_PAGE_ALIGN_LOG > 16
# error "HEAP_PAGE_ALIGN_LOG is 14, 15 or 16"
#endif

/* Bytes of a pointer. */
#ifndef COW_WORD_SIZE
# define COW_WORD_SIZE sizeof(void *)
#endif

/* Bytes of the smallest slot. */
#ifndef COW_SLOT_SIZE
# define COW_SLOT_SIZE (COW_WORD_SIZE * 5)
#endif

/* Where addresses are short, arenas are, too: 128 MB, or 16. */
#ifndef ARENA_LOG
# define ARENA_LOG (UINTPTR_MAX > 0xffffffffu ? 27 : 24)
#endif

typedef uintptr_t cow_bits_t;

/* What a row tells of its slots. */
enum row_kind {
    ROW_MARK,
    ROW_UNCOLLECTIBLE,
    ROW_MARKING,
    ROW_REMEMBERED,
    ROW_WB_UNPROTECTED,
    ROW_PINNED,
    ROW_AGE_LOW, /* the age is a number of two bits */
    ROW_AGE_HIGH,
    ROW_LEAF, /* old, and refers to nothing but classes that are never freed */
    ROW_ALLOCATED, /* slot_map.h */
    ROW_CLEANUP, /* at its death there is something to do, or may be */
    ROW_KINDS
};

enum {
    COW_BITS = sizeof(cow_bits_t) * CHAR_BIT,
    COW_PAGE_SIZE = 1 << HEAP_PAGE_ALIGN_LOG,
    COW_PAGE_MASK = COW_PAGE_SIZE - 1,
    /* Slots of the smallest size: 409 in 16 KB. */
    COW_PAGE_SLOTS = COW_PAGE_SIZE / COW_SLOT_SIZE,
    /* A row has a word for each COW_BITS of them, rounded up to a power of two, so that
     * a row is found by a shift and lies in as few cache lines as it can. */
    COW_ROW_LEAST = (COW_PAGE_SLOTS + COW_BITS) / COW_BITS,
    COW_ROW_WORDS = COW_ROW_LEAST <= 8 ? 8 : COW_ROW_LEAST <= 16 ? 16 : COW_ROW_LEAST <= 32 ? 32 : 64,
    COW_ROW_SIZE = COW_ROW_WORDS * sizeof(cow_bits_t),

    ARENA_GROUP_PAGES = 64,
    ARENA_PAGES = 1 << (ARENA_LOG - HEAP_PAGE_ALIGN_LOG),
    ARENA_GROUPS = ARENA_PAGES / ARENA_GROUP_PAGES
};

typedef cow_bits_t cow_row[COW_ROW_WORDS];

#define ARENA_SIZE ((size_t)1 << ARENA_LOG)
#define ARENA_MASK (ARENA_SIZE - 1)

/* Number of the smallest slot that +address+ lies in, in its heap page. */
static inline unsigned int
cow_slot_index(uintptr_t address)
{
    return (unsigned int)(address & COW_PAGE_MASK) / (unsigned int)COW_SLOT_SIZE;
}

#endif /* COW_VOCABULARY_H */

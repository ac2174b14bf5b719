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
 *     arena        address space for heap pages, at a multiple of COW_ARENA_SIZE. Its head
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

/* For the preconditions ("pre:") of functions: checked in builds with CRuby's assertions, and in test/c. */
#ifndef COW_ASSERT
# ifdef RUBY_ASSERT
#  define COW_ASSERT(condition) RUBY_ASSERT(condition)
# else
#  include <assert.h>
#  define COW_ASSERT(condition) assert(condition)
# endif
#endif

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
#ifndef COW_ARENA_LOG
# define COW_ARENA_LOG (UINTPTR_MAX > 0xffffffffu ? 27 : 24)
#endif

typedef uintptr_t cow_bits_t;

/* What a row tells of its slots. */
enum cow_bitmap_kind {
    COW_BITMAP_MARK,
    COW_BITMAP_UNCOLLECTIBLE,
    COW_BITMAP_MARKING,
    COW_BITMAP_REMEMBERED,
    COW_BITMAP_WB_UNPROTECTED,
    COW_BITMAP_PINNED,
    COW_BITMAP_AGE_LOW, /* the age is a number of two bits */
    COW_BITMAP_AGE_HIGH,
    COW_BITMAP_LEAF, /* old, and refers to nothing but classes that are never freed */
    COW_BITMAP_ALLOCATED, /* slot_map.h */
    COW_BITMAP_CLEANUP, /* at its death there is something to do, or may be */
    COW_BITMAP_KINDS
};

enum {
    COW_BITS = sizeof(cow_bits_t) * CHAR_BIT,
    COW_PAGE_SIZE = 1 << HEAP_PAGE_ALIGN_LOG,
    COW_PAGE_MASK = COW_PAGE_SIZE - 1,
    /* Slots of the smallest size: 409 in 16 KB. */
    COW_PAGE_SLOTS = COW_PAGE_SIZE / COW_SLOT_SIZE,
    /* A row has a word for each COW_BITS of them, rounded up to a power of two, so that
     * a row is found by a shift and lies in as few cache lines as it can. */
    COW_BITMAP_LEAST_WORDS = (COW_PAGE_SLOTS + COW_BITS) / COW_BITS,
    COW_BITMAP_WORDS = COW_BITMAP_LEAST_WORDS <= 8 ? 8 : COW_BITMAP_LEAST_WORDS <= 16 ? 16 :
        COW_BITMAP_LEAST_WORDS <= 32 ? 32 : 64,
    COW_BITMAP_SIZE = COW_BITMAP_WORDS * sizeof(cow_bits_t),

    COW_ARENA_GROUP_PAGES = 64,
    COW_ARENA_PAGES = 1 << (COW_ARENA_LOG - HEAP_PAGE_ALIGN_LOG),
    COW_ARENA_GROUPS = COW_ARENA_PAGES / COW_ARENA_GROUP_PAGES
};

typedef cow_bits_t cow_bitmap[COW_BITMAP_WORDS];

#define COW_ARENA_SIZE ((size_t)1 << COW_ARENA_LOG)
#define COW_ARENA_MASK (COW_ARENA_SIZE - 1)

/* Number of the smallest slot that +address+ lies in, in its heap page. */
static inline unsigned int
cow_slot_index(uintptr_t address)
{
    return (unsigned int)(address & COW_PAGE_MASK) / (unsigned int)COW_SLOT_SIZE;
}

#endif /* COW_VOCABULARY_H */

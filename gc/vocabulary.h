/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_VOCABULARY_H
#define COW_VOCABULARY_H

/*
 * vocabulary: the words of the collector's memory, and their sizes. Each word means one thing everywhere: in
 * code, in GC.stat's keys, in doc/.
 *
 * Memory
 *     OS page      what the kernel maps and copies: 4 KB on most machines. Never called "page" alone.
 *     reserved     address space that the system gives to nobody else
 *     committed    reserved, and may be read and written. To decommit is to give the memory back to the
 *                  system and keep the addresses.
 *     heap page    HEAP_PAGE_SIZE bytes, cut into slots of one size; "page" alone means this. In an arena its
 *                  address is a multiple of its size; malloc gives it any address.
 *     heap         the heap pages with slots of one size (upstream's rb_heap_t)
 *     slot         room for one object: BASE_SLOT_SIZE bytes (the smallest slot), or 2, 4, 8, 16 times that
 *     step         the length of a slot, counted in smallest slots
 *     header       the first word of a slot. An empty header says that the slot holds no object (T_NONE).
 *
 * What the collector knows of them
 *     bitmap       the bits of one heap page of one kind: a bit for each smallest slot; of a larger slot only
 *                  the first is used
 *     word         COW_BITS bits of a bitmap
 *     stride       the number of words between the bitmaps of one page of two successive kinds
 *     descriptor   struct heap_page: all else that is recorded of one heap page
 *     metadata     bitmaps and descriptors
 *     arena        address space for heap pages, at a multiple of COW_ARENA_SIZE. Its head holds the metadata
 *                  of all its heap pages, the bitmaps kind by kind.
 *     group        64 heap pages of an arena. Their bitmaps of one kind fill OS pages of their own.
 *     chunk        the metadata of 64 heap pages (32 with short words) whose memory is malloc's
 *     boundary     the one multiple of HEAP_PAGE_SIZE in a heap page of malloc's (alignoff.h)
 *     page header  a pointer to the descriptor of a heap page of malloc's; it stands at the boundary
 *     hole         the slot that the page header falls into; it never holds an object
 *
 *     region       address space for words that the VM writes (vm_words.h); a stream of such words takes it
 *                  extent by extent, and each iseq has a block of a stream
 *
 * What a slot holds
 *     free         its bit in the bitmap of allocated slots is clear; what it contains is undefined
 *     allocated    that bit is set
 *     claimed      allocated by a Ractor that has not made an object there yet (claim_slots.h)
 *     live         allocated, and its object survived the last marking
 *     leaf         an old object that refers to nothing that could die; marking does not read it (mark.c)
 *     cleanup      what must be done when an object dies, because it owns something outside its slot
 *     duty         a cleanup that can be seen outside the process; a child does it even for what it inherited
 *                  (exit_duties.h)
 *
 * Around a fork
 *     sealed       of a heap page: closed to allocation before a fork (seal_policy.h); other pages are open
 *     closed       of a slot: in a sealed page, and without an object. Nobody can use it.
 *     remembering  of a sealed page: a minor marking must look at some of its objects (page_list.h)
 *     inherited    of an object, a slot or a page: it existed at the fork that made this process
 *     nursery      the free slots that a forked process keeps for objects of its own (nursery_policy.h)
 *     floor        the number of slots to which a child applies the free-slot ratios at least
 *     basis        the number of slots to which it applies them
 *     demand       the number of free slots that a heap of a child will use before it is swept next
 *     vacancy      an inherited slot without an inherited object
 *     granted      of a heap page: its heap may add it without asking whether it may grow (page_grants.h)
 *     hook         the place in a patch where upstream's code calls gc/
 */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "assertion.h"

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

/* An arena has 128 MB, or 16 MB where addresses have 32 bits. */
#ifndef COW_ARENA_LOG
# define COW_ARENA_LOG (UINTPTR_MAX > 0xffffffffu ? 27 : 24)
#endif

typedef uintptr_t cow_bits_t;

/* What the bits of a bitmap say of its slots. */
enum cow_bitmap_kind {
    COW_BITMAP_MARK,
    COW_BITMAP_UNCOLLECTIBLE,
    COW_BITMAP_MARKING,
    COW_BITMAP_REMEMBERED,
    COW_BITMAP_WB_UNPROTECTED,
    COW_BITMAP_PINNED,
    COW_BITMAP_AGE_LOW, /* an object's age is a number of two bits */
    COW_BITMAP_AGE_HIGH,
    COW_BITMAP_LEAF, /* old, and refers to nothing but classes that are never freed */
    COW_BITMAP_ALLOCATED, /* slot_map.h */
    COW_BITMAP_CLEANUP, /* the object needs a cleanup when it dies, or may need one */
    COW_BITMAP_KINDS
};

enum {
    COW_BITS = sizeof(cow_bits_t) * CHAR_BIT,
    COW_PAGE_SIZE = 1 << HEAP_PAGE_ALIGN_LOG,
    COW_PAGE_MASK = COW_PAGE_SIZE - 1,
    /* Smallest slots of a heap page: 409 in 16 KB. */
    COW_PAGE_SLOTS = COW_PAGE_SIZE / COW_SLOT_SIZE,
    /* The largest slot is as long as so many smallest ones. */
    COW_LARGEST_STEP = 16,
    /* A bitmap has a word for each COW_BITS smallest slots, rounded up to a power of two: a shift finds it,
     * and it lies in as few cache lines as possible. */
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

/* Is +step+ the length of a slot in smallest slots: 1, 2, 4, 8 or 16? */
static inline bool
cow_is_step(size_t step)
{
    return step > 0 && step <= COW_LARGEST_STEP && (step & (step - 1)) == 0;
}

/* Is +size+ the length of a slot in bytes? */
static inline bool
cow_is_slot_size(size_t size)
{
    return size % COW_SLOT_SIZE == 0 && cow_is_step(size / COW_SLOT_SIZE);
}

/* Number of the smallest slot that +address+ lies in, counted from the beginning of its heap page, which lies
 * at a multiple of its size. */
static inline unsigned int
cow_slot_index(uintptr_t address)
{
    return (unsigned int)(address & COW_PAGE_MASK) / (unsigned int)COW_SLOT_SIZE;
}

#endif /* COW_VOCABULARY_H */

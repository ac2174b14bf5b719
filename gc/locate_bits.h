/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_LOCATE_BITS_H
#define COW_LOCATE_BITS_H

/*
 * locate_bits: where a bit is found: from an object's address to its heap page, its slot and its bits.
 *
 * There is one interface to five locators; a build has one of them (--with-mark-locator). Two ship:
 *
 *     arena     by arithmetic; heap pages stand at multiples of their size in arenas (arena.h). The default.
 *               A process that cannot reserve its first arena works as with alignoff.
 *     alignoff  by arithmetic and one flag of the object; malloc gives the memory of heap pages
 *               (malloc_pages.h). Where only an object's bits are needed, as in marking, and for an address
 *               that need not be an object's, by a page map (page_map.h).
 *
 * Three are there for comparison with them:
 *
 *     binary    by a binary search over all heap pages, as in figure 4 of the paper (locate_by_search.h)
 *     linear    by looking at one heap page after the other, as in its figure 3 (locate_by_search.h)
 *     header    as arena, but the mark bit stands in the object, as before bitmap marking. It is gathered
 *               into the page's bitmap where that is read as a whole.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking", section 3 (seed
 * 000).
 *
 * Entry points: cow_locate_page, cow_locate_bitmap, cow_locate_slot and cow_object_bits for an object;
 * cow_locate_find_page for any address; cow_bit_test, cow_bit_set, cow_bit_clear and cow_bit_assign;
 * cow_object_marked, cow_object_mark, cow_object_unmark, cow_mark_if_unmarked. In locate_bits.c:
 * cow_locate_alloc_page, cow_locate_free_page and cow_locate_give_back, cow_locate_decommit_page,
 * cow_clear_all_marks, cow_locate_consistent.
 *
 * Who writes this memory after a fork: see arena.h; where malloc gives the pages, malloc_pages.h.
 *
 * struct heap_page must be complete before this file is included.
 */

#include <stdlib.h>
#include "vocabulary.h"
#include "alignoff.h"
#include "arena.h"
#include "malloc_pages.h"
#include "poison.h"
#include "slot_map.h"

#define COW_LOCATE_ARENA 1
#define COW_LOCATE_ALIGNOFF 2
#define COW_LOCATE_BINARY 3
#define COW_LOCATE_LINEAR 4
#define COW_LOCATE_HEADER 5

#ifndef COW_LOCATE_BY
# define COW_LOCATE_BY COW_LOCATE_ARENA
#endif

#if COW_LOCATE_BY == COW_LOCATE_ARENA
# define COW_LOCATE_NAME "arena"
#elif COW_LOCATE_BY == COW_LOCATE_ALIGNOFF
# define COW_LOCATE_NAME "alignoff"
#elif COW_LOCATE_BY == COW_LOCATE_BINARY
# define COW_LOCATE_NAME "binary"
#elif COW_LOCATE_BY == COW_LOCATE_LINEAR
# define COW_LOCATE_NAME "linear"
#elif COW_LOCATE_BY == COW_LOCATE_HEADER
# define COW_LOCATE_NAME "header"
#else
# error "COW_LOCATE_BY is one of the five locators"
#endif

#define COW_LOCATE_SEARCHES (COW_LOCATE_BY == COW_LOCATE_BINARY || COW_LOCATE_BY == COW_LOCATE_LINEAR)

/* Do mark bits stand in the objects? */
#define COW_LOCATE_MARKS_OBJECTS (COW_LOCATE_BY == COW_LOCATE_HEADER)

/* The bit of an object's header that the locator uses: alignoff's flag, or the mark bit. */
#define COW_LOCATE_FLAG COW_ALIGNOFF_FLAG

#if COW_LOCATE_SEARCHES
# include "locate_by_search.h"
#endif

/*
 * The heap pages of a process.
 *
 * Invariants (cow_locate_consistent):
 *     arenas.count == 0 or malloc_pages.count == 0
 *     unaligned  =>  arenas.count == 0
 */
static struct {
    struct cow_arena_space arenas;
    struct cow_malloc_pages malloc_pages;
#if COW_LOCATE_SEARCHES
    struct cow_search_space search;
#endif
    bool unaligned; /* the locator is arena, and the system refused the first one */
} cow_locate_space;

/* Are heap pages found by alignoff? */
#if COW_LOCATE_BY == COW_LOCATE_ARENA
# define COW_LOCATE_UNALIGNED (__builtin_expect(cow_locate_space.unaligned, false))
#else
# define COW_LOCATE_UNALIGNED (COW_LOCATE_BY == COW_LOCATE_ALIGNOFF)
#endif

/* Does malloc give the memory of heap pages? */
#define COW_LOCATE_MALLOCED (COW_LOCATE_SEARCHES || COW_LOCATE_UNALIGNED)

/* ---- from an object's address; the object lies in a heap page */

/* Gives the first word of a slot or of the hole. The slot may be free, and poisoned. */
COW_READS_POISON static inline uintptr_t
cow_locate_word(uintptr_t address)
{
    return *(const uintptr_t *)address;
}

/* Is the locator's bit set in the object's header? */
static inline bool
cow_locate_flagged(uintptr_t object)
{
    return (cow_locate_word(object) & COW_LOCATE_FLAG) != 0;
}

/* Gives the page of malloc's in which the object lies. */
static inline struct cow_malloc_page *
cow_locate_malloc_page(uintptr_t object)
{
#if COW_LOCATE_SEARCHES
    return cow_search(&cow_locate_space.search, object);
#else
    return (struct cow_malloc_page *)cow_locate_word(cow_alignoff_header(object, cow_locate_flagged(object)));
#endif
}

/* Gives the descriptor of the heap page in which the object lies. */
static inline struct heap_page *
cow_locate_page(uintptr_t object)
{
    if (COW_LOCATE_MALLOCED) return &cow_locate_malloc_page(object)->page;
    return cow_arena_descriptor(object);
}

/* Gives the bitmap of one kind of the heap page in which the object lies. */
static inline cow_bits_t *
cow_locate_bitmap(uintptr_t object, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    if (COW_LOCATE_MALLOCED) return cow_locate_malloc_page(object)->bitmap + kind * (size_t)COW_CHUNK_STRIDE;
    return cow_arena_bitmap_of(object, kind);
}

/* Gives the number of the smallest slot at which the object begins, counted from the beginning of its heap
 * page. */
static inline unsigned int
cow_locate_slot(uintptr_t object)
{
    if (COW_LOCATE_UNALIGNED) {
        return (unsigned int)(object - cow_locate_malloc_page(object)->body) / (unsigned int)COW_SLOT_SIZE;
    }
    return cow_slot_index(object);
}

/*
 * The bits of one object, one of each kind. The words of two successive kinds are .stride words apart:
 *
 *     bit of a kind = word[kind * stride] & mask
 */
struct cow_object_bits {
    cow_bits_t *word; /* that of the first kind */
    cow_bits_t mask;
    size_t stride;
};

/* Finds the bits of the object without reading it. */
static inline struct cow_object_bits
cow_object_bits(uintptr_t object)
{
    struct cow_object_bits bits;
    unsigned int slot;

    if (COW_LOCATE_MALLOCED) {
#if COW_LOCATE_SEARCHES
        const struct cow_malloc_page *page = cow_search(&cow_locate_space.search, object);
        const struct cow_page_map_answer found = { page->bitmap, (unsigned int)(object - page->body) };
#else
        /* Not by the object's flag: to read it is to wait for the object's memory. */
        const struct cow_page_map_answer found =
            cow_page_map_lookup(&cow_locate_space.malloc_pages.map, object);
#endif
        slot = found.offset / (unsigned int)COW_SLOT_SIZE;
        bits.word = found.bitmap;
        bits.stride = COW_CHUNK_STRIDE;
    }
    else {
        slot = cow_slot_index(object);
        bits.word = cow_arena_bitmap_of(object, 0);
        bits.stride = (size_t)COW_ARENA_PAGES * COW_BITMAP_WORDS;
    }
    COW_ASSERT(slot < COW_PAGE_SLOTS);
    bits.word += slot / COW_BITS;
    bits.mask = (cow_bits_t)1 << slot % COW_BITS;
    return bits;
}

/* Is the object's bit of this kind set? */
static inline bool
cow_bit_test(const struct cow_object_bits *bits, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    return (bits->word[kind * bits->stride] & bits->mask) != 0;
}

/* Sets the object's bit of this kind. */
static inline void
cow_bit_set(const struct cow_object_bits *bits, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    bits->word[kind * bits->stride] |= bits->mask;
}

/* Clears the object's bit of this kind. */
static inline void
cow_bit_clear(const struct cow_object_bits *bits, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    bits->word[kind * bits->stride] &= ~bits->mask;
}

/* Sets or clears the object's bit of this kind. Writes only if it differs: children share the bitmaps of
 * pages that do not change. */
static inline void
cow_bit_assign(const struct cow_object_bits *bits, enum cow_bitmap_kind kind, bool bit)
{
    if (cow_bit_test(bits, kind) != bit) bits->word[kind * bits->stride] ^= bits->mask;
}

/* ---- from any address */

/* Gives the descriptor of the heap page in which +address+ lies; NULL if it lies in none. */
static inline struct heap_page *
cow_locate_find_page(uintptr_t address)
{
#if COW_LOCATE_SEARCHES
    return (struct heap_page *)cow_search(&cow_locate_space.search, address);
#else
    if (COW_LOCATE_UNALIGNED) return cow_page_map_find(&cow_locate_space.malloc_pages.map, address);
    return cow_arena_contains(&cow_locate_space.arenas, address) ? cow_arena_descriptor(address) : NULL;
#endif
}

/* ---- of a heap page */

/* Records that a heap page is sealed. */
static inline void
cow_locate_seal(void *body)
{
    if (!COW_LOCATE_MALLOCED) cow_arena_seal(body);
}

/* Records that a sealed heap page is open. */
static inline void
cow_locate_unseal(void *body)
{
    if (!COW_LOCATE_MALLOCED) cow_arena_unseal(&cow_locate_space.arenas, body);
}

/* Gives the bitmap of one kind of a heap page, the one that cow_locate_bitmap gives for its objects. */
static inline cow_bits_t *
cow_locate_page_bitmap(struct heap_page *page, void *body, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    if (COW_LOCATE_MALLOCED) return cow_malloc_page_of(page)->bitmap + kind * (size_t)COW_CHUNK_STRIDE;
    return cow_arena_bitmap_of((uintptr_t)body, kind);
}

/* ---- of a slot */

/* Gives the locator's bit for the header of an object at +address+ in the heap page at +body+, or 0. */
static inline uintptr_t
cow_locate_slot_flag(void *body, uintptr_t address)
{
    COW_ASSERT(address - (uintptr_t)body < COW_PAGE_SIZE);
    return COW_LOCATE_UNALIGNED && cow_alignoff_before((uintptr_t)body, address) ? COW_LOCATE_FLAG : 0;
}

/* Gives the part of +flags+ that belongs to the slot and not to its object. With the locator arena no slot
 * has the flag, so this need not test whether an arena could be reserved. */
static inline uintptr_t
cow_locate_kept_flags(uintptr_t flags)
{
    const bool kept = COW_LOCATE_BY == COW_LOCATE_ARENA || COW_LOCATE_BY == COW_LOCATE_ALIGNOFF;

    return kept ? flags & COW_LOCATE_FLAG : 0;
}

/* ---- mark bits */

/* Is the object with these bits marked? */
static inline bool
cow_bits_are_marked(uintptr_t object, const struct cow_object_bits *bits)
{
    return COW_LOCATE_MARKS_OBJECTS ? cow_locate_flagged(object) : cow_bit_test(bits, COW_BITMAP_MARK);
}

/* Marks the object with these bits. Gives false if it was marked before. */
static inline bool
cow_mark_if_unmarked(uintptr_t object, const struct cow_object_bits *bits)
{
    if (cow_bits_are_marked(object, bits)) return false;
    if (COW_LOCATE_MARKS_OBJECTS) *(uintptr_t *)object |= COW_LOCATE_FLAG;
    else cow_bit_set(bits, COW_BITMAP_MARK);
    return true;
}

/* Is the object marked? */
static inline bool
cow_object_marked(uintptr_t object)
{
    struct cow_object_bits bits = cow_object_bits(object);

    return cow_bits_are_marked(object, &bits);
}

/* Marks the object. */
static inline void
cow_object_mark(uintptr_t object)
{
    if (COW_LOCATE_MARKS_OBJECTS) {
        *(uintptr_t *)object |= COW_LOCATE_FLAG;
        return;
    }

    struct cow_object_bits bits = cow_object_bits(object);
    cow_bit_set(&bits, COW_BITMAP_MARK);
}

/* Clears the object's mark. */
static inline void
cow_object_unmark(uintptr_t object)
{
    if (COW_LOCATE_MARKS_OBJECTS) {
        *(uintptr_t *)object &= ~COW_LOCATE_FLAG;
        return;
    }

    struct cow_object_bits bits = cow_object_bits(object);
    cow_bit_clear(&bits, COW_BITMAP_MARK);
}

#endif /* COW_LOCATE_BITS_H */

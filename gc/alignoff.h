/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_ALIGNOFF_H
#define COW_ALIGNOFF_H

/*
 * alignoff: finds the descriptor of a heap page whose memory malloc has given, at any address.
 *
 * Job: from an object's address to its heap page in constant time, without aligned memory.
 *
 * Algorithm: a page of 2^k bytes at any address holds exactly one address that is a multiple of 2^k, its
 * boundary. The page header, a pointer to the page's descriptor, stands there. The slot that it falls into,
 * the hole, never holds an object. The objects before the boundary carry a flag in their header:
 *
 *     page header = (address & ~COW_PAGE_MASK) + (flag ? COW_PAGE_SIZE : 0)
 *
 * The paper's page is one slot longer, because its slots stand at multiples of their size and one slot may be
 * lost at an end. Here the slots begin where the page begins, so that none is lost and the page keeps its
 * length. A page that begins at a multiple of 2^k has two boundaries in the paper, which gives up the second;
 * here such a page ends before the second.
 *
 * A walk must be able to read the first word of the hole as the header of a free slot. That word is 0, or the
 * flag alone; where the hole begins at the boundary it is the page header, whose low bits are 0.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking", section 3.3,
 * figures 5 to 8 (seed 000).
 *
 * Entry points: cow_alignoff_lay_out and cow_alignoff_write_header for a new page; cow_alignoff_header from
 * an object to the page header; cow_alignoff_boundary, cow_alignoff_before.
 *
 * Who writes this memory after a fork: nobody. A page header is written when its page is laid out; it lies in
 * the page itself.
 *
 * The addresses that malloc gives must be multiples of two words. cow_alignoff_lay_out checks it.
 */

#include <string.h>
#include "vocabulary.h"

/* A page header points to a multiple of this. So the bits that hold an object's type, and the flag, are 0 in
 * it, and it reads as the header of a free slot behind the boundary. */
#define COW_ALIGNOFF_HEADER_ALIGN 128

/* The flag that objects and free slots before the boundary carry in their header: bit 6, which CRuby 3.4 does
 * not use. */
#define COW_ALIGNOFF_FLAG ((uintptr_t)1 << 6)

struct cow_alignoff_layout {
    uintptr_t start;    /* address of the first slot: the page's */
    size_t slots;       /* number of slots, with the hole */
    size_t hole;        /* index of the hole; >= slots if the page header lies behind the last slot */
    uintptr_t boundary; /* address of the page header */
};

/* Gives the address of the page header of the page in which an object at +address+ lies. +before+ says
 * whether the object carries the flag. */
static inline uintptr_t
cow_alignoff_header(uintptr_t address, bool before)
{
    return (address & ~(uintptr_t)COW_PAGE_MASK) + ((uintptr_t)before << HEAP_PAGE_ALIGN_LOG);
}

/* Gives the boundary of a page at +page+: the first multiple of COW_PAGE_SIZE that is not below it. */
static inline uintptr_t
cow_alignoff_boundary(uintptr_t page)
{
    return (page + COW_PAGE_MASK) & ~(uintptr_t)COW_PAGE_MASK;
}

/* Does a slot at +address+ in the page at +page+ lie before the boundary, so that its object carries the
 * flag? */
static inline bool
cow_alignoff_before(uintptr_t page, uintptr_t address)
{
    COW_ASSERT(address - page < COW_PAGE_SIZE);
    return address < cow_alignoff_boundary(page);
}

/* Computes how the page at +page+ is cut into slots of +slot_size+ bytes. Gives false if the page header
 * would lie in two slots or outside the page: +page+ is then no multiple of two words. */
static inline bool
cow_alignoff_lay_out(uintptr_t page, size_t slot_size, struct cow_alignoff_layout *layout)
{
    COW_ASSERT(cow_is_slot_size(slot_size));
    uintptr_t boundary = cow_alignoff_boundary(page);
    size_t offset = boundary - page;

    layout->start = page;
    layout->boundary = boundary;
    layout->slots = COW_PAGE_SIZE / slot_size;
    layout->hole = offset / slot_size;
    /* Behind the last slot there is room for the page header without a hole. */
    if (layout->hole >= layout->slots) return offset + COW_WORD_SIZE <= COW_PAGE_SIZE;
    return offset % slot_size + COW_WORD_SIZE <= slot_size;
}

/* Writes the page header, a pointer to +descriptor+, into a page that is laid out so, and makes the hole read
 * as a free slot. */
static inline void
cow_alignoff_write_header(const struct cow_alignoff_layout *layout, size_t slot_size,
                          const void *descriptor)
{
    COW_ASSERT(cow_is_slot_size(slot_size) && layout->boundary % COW_PAGE_SIZE == 0);
    COW_ASSERT((uintptr_t)descriptor % COW_ALIGNOFF_HEADER_ALIGN == 0);
    if (layout->hole < layout->slots) {
        uintptr_t *hole = (uintptr_t *)(layout->start + layout->hole * slot_size);

        memset(hole, 0, slot_size);
        if ((uintptr_t)hole < layout->boundary) hole[0] = COW_ALIGNOFF_FLAG;
    }
    memcpy((void *)layout->boundary, &descriptor, sizeof(descriptor));
}

#endif /* COW_ALIGNOFF_H */

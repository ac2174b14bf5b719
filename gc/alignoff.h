#ifndef COW_ALIGNOFF_H
#define COW_ALIGNOFF_H

/*
 * alignoff: heap pages where memory cannot be had at a multiple of anything.
 *
 * Job: from an object's address to its heap page in constant time, with pages of plain
 * malloc.
 *
 * Algorithm: a page of 2^k bytes at any address holds just one address that is a
 * multiple of 2^k, its boundary. The header, a pointer to what is known of the page,
 * stands there, and the slot that it falls into is given up, the hole. Objects before
 * the boundary carry a flag:
 *
 *     header = (address & ~COW_PAGE_MASK) + (flag ? COW_PAGE_SIZE : 0)
 *
 * The paper made the page one slot longer, because its slots stood at multiples of
 * their size and one could be lost at an end; ours begin where the page begins, so none
 * is, and the page stays as long as it is. Where a page begins at its boundary there
 * are two boundaries in the paper's page, and it gives up the second; ours ends before it.
 *
 * The first word of the hole reads as a free slot's: it is 0 but for the flag, or, where
 * the hole begins at the boundary, the header, whose low bits are 0.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking",
 * section 3.3, figures 5 to 8 (seed 000).
 *
 * Entry points: cow_alignoff_lay_out, cow_alignoff_header, cow_alignoff_before.
 *
 * Who writes this memory after a fork: nobody; a header is written when its page is laid
 * out.
 *
 * pre: malloc gives multiples of two words (cow_alignoff_lay_out says whether it fits).
 */

#include <string.h>
#include "vocabulary.h"

/* What a pointer in a header is a multiple of, so that it reads as a free slot behind the
 * boundary: the bits of an object's type are 0, and so is the flag. */
#define COW_ALIGNOFF_HEADER_ALIGN 128

/* What objects before the boundary, and free slots there, carry in their first word:
 * bit 6 of the flags, which CRuby 3.4 uses for nothing. */
#define COW_ALIGNOFF_FLAG ((uintptr_t)1 << 6)

struct cow_alignoff_layout {
    uintptr_t start;    /* of the first slot: where the page begins */
    size_t slots;       /* that fit, the hole among them */
    size_t hole;        /* number of the slot that is given up */
    uintptr_t boundary; /* where the header stands */
};

/* Address of the header of the page that an object at +address+ lies in; +before+: it
 * carries the flag. */
static inline uintptr_t
cow_alignoff_header(uintptr_t address, bool before)
{
    return (address & ~(uintptr_t)COW_PAGE_MASK) + ((uintptr_t)before << HEAP_PAGE_ALIGN_LOG);
}

/* Boundary of a page that begins at +page+. */
static inline uintptr_t
cow_alignoff_boundary(uintptr_t page)
{
    return (page + COW_PAGE_MASK) & ~(uintptr_t)COW_PAGE_MASK;
}

/* Does a slot at +address+ of that page want the flag? */
static inline bool
cow_alignoff_before(uintptr_t page, uintptr_t address)
{
    return address < cow_alignoff_boundary(page);
}

/* Cuts the page at +page+ into slots of +slot_size+ bytes. Gives false where the header
 * would lie in two slots, or not in the page: malloc's addresses are too odd. */
static inline bool
cow_alignoff_lay_out(uintptr_t page, size_t slot_size, struct cow_alignoff_layout *layout)
{
    uintptr_t boundary = cow_alignoff_boundary(page);
    size_t offset = boundary - page;

    layout->start = page;
    layout->boundary = boundary;
    layout->slots = COW_PAGE_SIZE / slot_size;
    layout->hole = offset / slot_size;
    /* Behind the last slot nothing has to be given up. */
    if (layout->hole >= layout->slots) return offset + COW_WORD_SIZE <= COW_PAGE_SIZE;
    return offset % slot_size + COW_WORD_SIZE <= slot_size;
}

/* Writes the header, and makes the hole read as a free slot. */
static inline void
cow_alignoff_write_header(const struct cow_alignoff_layout *layout, size_t slot_size, const void *known)
{
    if (layout->hole < layout->slots) {
        uintptr_t *hole = (uintptr_t *)(layout->start + layout->hole * slot_size);

        memset(hole, 0, slot_size);
        if ((uintptr_t)hole < layout->boundary) hole[0] = COW_ALIGNOFF_FLAG;
    }
    memcpy((void *)layout->boundary, &known, sizeof(known));
}

#endif /* COW_ALIGNOFF_H */

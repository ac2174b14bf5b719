/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_HEAP_PAGE_H
#define COW_HEAP_PAGE_H

/*
 * heap_page: the slots of one heap page, and the bits of one object.
 *
 * Job: says where a page's slots begin and end and which of them are allocated, free or the hole; empties the
 * header of a slot; reads and writes the age of an object. All is arithmetic on the page's bitmaps.
 *
 * Entry points: cow_page_has, cow_page_find_free, cow_page_first_free, cow_page_count_free,
 * cow_page_lowest_slot, cow_page_clear_header, cow_page_marks and cow_page_marks_written; is_pointer_to_heap,
 * RVALUE_AGE_GET and RVALUE_AGE_SET, which replace upstream's.
 *
 * Who writes this memory after a fork: RVALUE_AGE_SET writes the bitmaps of ages; cow_page_clear_header
 * writes the header of a slot that is being claimed.
 */

/* These replace upstream's, which compute the page and its bitmaps from the object's address. */
#undef GET_HEAP_PAGE
#undef NUM_IN_PAGE
#undef GET_HEAP_MARK_BITS
#undef GET_HEAP_PINNED_BITS
#undef GET_HEAP_UNCOLLECTIBLE_BITS
#undef GET_HEAP_WB_UNPROTECTED_BITS
#undef GET_HEAP_MARKING_BITS
#define GET_HEAP_PAGE(x) cow_locate_page((uintptr_t)(x))
#define NUM_IN_PAGE(p) cow_locate_slot((uintptr_t)(p))
#define GET_HEAP_MARK_BITS(x) cow_locate_bitmap((uintptr_t)(x), COW_BITMAP_MARK)
#define GET_HEAP_PINNED_BITS(x) cow_locate_bitmap((uintptr_t)(x), COW_BITMAP_PINNED)
#define GET_HEAP_UNCOLLECTIBLE_BITS(x) cow_locate_bitmap((uintptr_t)(x), COW_BITMAP_UNCOLLECTIBLE)
#define GET_HEAP_WB_UNPROTECTED_BITS(x) cow_locate_bitmap((uintptr_t)(x), COW_BITMAP_WB_UNPROTECTED)
#define GET_HEAP_MARKING_BITS(x) cow_locate_bitmap((uintptr_t)(x), COW_BITMAP_MARKING)
#define GET_HEAP_REMEMBERED_BITS(x) cow_locate_bitmap((uintptr_t)(x), COW_BITMAP_REMEMBERED)

/* There is no free list to poison. */
#define asan_lock_freelist(page) ((void)0)
#define asan_unlock_freelist(page) ((void)0)

/* Gives the address behind the last slot. */
static inline uintptr_t
cow_page_end(const struct heap_page *page)
{
    return page->start + (page->total_slots + (page->hole >= 0)) * (uintptr_t)page->slot_size;
}

/* Gives the address of the hole; 0: none. */
static inline uintptr_t
cow_page_hole(const struct heap_page *page)
{
    return page->hole < 0 ? 0 : page->start + page->hole * (uintptr_t)page->slot_size;
}

/* Gives the number of the smallest slot at +p+. The slot may be free. */
static inline unsigned int
cow_page_slot(const struct heap_page *page, uintptr_t p)
{
    COW_ASSERT(p >= page->start && p - page->start <= HEAP_PAGE_SIZE);
    return (unsigned int)(p - page->start) / (unsigned int)BASE_SLOT_SIZE;
}

/* Gives the length of one of the page's slots in smallest slots. */
static inline unsigned int
cow_page_step(const struct heap_page *page)
{
    return page->slot_size / BASE_SLOT_SIZE;
}

/* Gives the number of the smallest slot behind the last slot. */
static inline unsigned int
cow_page_slots_end(const struct heap_page *page)
{
    return cow_page_slot(page, cow_page_end(page));
}

/* Is the slot at +p+ allocated? If it is not, its contents are undefined. */
static inline bool
cow_page_has(const struct heap_page *page, uintptr_t p)
{
    return cow_slot_map_has(page->allocated_bits, cow_page_slot(page, p));
}

/* Gives the number of the hole's first smallest slot; -1: there is no hole. */
static inline int
cow_page_hole_slot(const struct heap_page *page)
{
    return page->hole < 0 ? -1 : (int)(page->hole * cow_page_step(page));
}

/* Gives the free slots, as bits, of the last word from +*word+ down that has some (cow_slot_map_find). */
static inline bits_t
cow_page_find_free(const struct heap_page *page, unsigned int *word)
{
    return cow_slot_map_find(page->allocated_bits, cow_page_step(page), cow_page_slots_end(page),
                             cow_page_hole_slot(page), word);
}

/* Gives the number of free slots. */
static inline unsigned short
cow_page_count_free(const struct heap_page *page)
{
    return page->total_slots - cow_slot_map_count(page->allocated_bits);
}

/* Gives the address of the lowest slot that has a bit in +bits+, which are not 0, in word +word+ of a bitmap
 * of the page. */
static inline VALUE
cow_page_lowest_slot(const struct heap_page *page, size_t word, bits_t bits)
{
    COW_ASSERT(bits != 0);
    return page->start + (word * BITS_BITLENGTH + ntz_intptr(bits)) * BASE_SLOT_SIZE;
}

/* Gives the address of the first free slot; 0: the page is full. */
static VALUE
cow_page_first_free(const struct heap_page *page)
{
    for (unsigned int word = 0; word < HEAP_PAGE_BITMAP_LIMIT; word++) {
        const bits_t free = cow_slot_map_free_slots(page->allocated_bits, cow_page_step(page),
                                                    cow_page_slots_end(page), cow_page_hole_slot(page), word);

        if (free) return cow_page_lowest_slot(page, word, free);
    }
    return 0;
}

/* Empties the header of the slot at +p+, so that it says that the slot holds no object. */
static inline void
cow_page_clear_header(const struct heap_page *page, uintptr_t p)
{
    asan_unpoison_memory_region((void *)p, page->slot_size, false);
    *(VALUE *)p = cow_locate_slot_flag(page->body, p);
    asan_poison_memory_region((void *)p, page->slot_size);
}

/* Gives the bitmap of marks for a caller that reads it as a whole. With the locator "header" it is gathered
 * from the objects here. */
static inline bits_t *
cow_page_marks(struct heap_page *page)
{
    if (COW_LOCATE_MARKS_OBJECTS) {
        for (uintptr_t p = page->start; p < cow_page_end(page); p += page->slot_size) {
            bits_t *word = &page->mark_bits[BITMAP_INDEX(p)];

            if (cow_page_has(page, p) && cow_object_marked(p)) *word |= BITMAP_BIT(p);
            else *word &= ~BITMAP_BIT(p);
        }
    }
    return page->mark_bits;
}

/* Called after the bitmap of marks was written as a whole: with the locator "header", marks the objects
 * accordingly. */
static inline void
cow_page_marks_written(struct heap_page *page)
{
    if (COW_LOCATE_MARKS_OBJECTS) {
        for (uintptr_t p = page->start; p < cow_page_end(page); p += page->slot_size) {
            bool marked = MARKED_IN_BITMAP(page->mark_bits, p) != 0;

            if (!cow_page_has(page, p) || marked == cow_object_marked(p)) continue;
            if (marked) cow_object_mark(p);
            else cow_object_unmark(p);
        }
    }
}

/* Is the object old? An old object is always protected by write barriers. */
static inline bool
cow_bits_are_old(const struct cow_object_bits *bits)
{
    const cow_bits_t low = bits->word[COW_BITMAP_AGE_LOW * bits->stride];

    return (low & bits->word[COW_BITMAP_AGE_HIGH * bits->stride] & bits->mask) != 0;
}

/* Is the object a leaf, in which marking finds nothing (cow_note_leaf)? */
static inline bool
cow_bits_are_leaf(const struct cow_object_bits *bits)
{
    return cow_bits_are_old(bits) && cow_bit_test(bits, COW_BITMAP_LEAF);
}

/* Gives the age of an object, 0 to RVALUE_OLD_AGE; upstream's name. */
static int
RVALUE_AGE_GET(VALUE obj)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);
    return (int)cow_bit_test(&bits, COW_BITMAP_AGE_HIGH) << 1 | (int)cow_bit_test(&bits, COW_BITMAP_AGE_LOW);
}

/* Sets the age of an object, which is no leaf then; upstream's name. */
static void
RVALUE_AGE_SET(VALUE obj, int age)
{
    COW_ASSERT(0 <= age && age <= RVALUE_OLD_AGE);
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    cow_bit_assign(&bits, COW_BITMAP_AGE_LOW, age & 1);
    cow_bit_assign(&bits, COW_BITMAP_AGE_HIGH, age & 2);
    cow_bit_assign(&bits, COW_BITMAP_LEAF, false);
    if (age == RVALUE_OLD_AGE) {
        RB_FL_SET_RAW(obj, RUBY_FL_PROMOTED);
    }
    else {
        RB_FL_UNSET_RAW(obj, RUBY_FL_PROMOTED);
    }
}

/* Is +ptr+, which may be any word, the address of an allocated slot? Upstream's name. */
PUREFUNC(static inline bool is_pointer_to_heap(rb_objspace_t *objspace, const void *ptr);)
static inline bool
is_pointer_to_heap(rb_objspace_t *objspace, const void *ptr)
{
    register uintptr_t p = (uintptr_t)ptr;

    RB_DEBUG_COUNTER_INC(gc_isptr_trial);

    struct heap_page *page = cow_locate_find_page(p);

    if (page == NULL) return FALSE;
    RB_DEBUG_COUNTER_INC(gc_isptr_maybe);

    if (page->total_slots == 0) return FALSE; /* the page is in the list of empty pages */

    return (p - page->start) % page->slot_size == 0 && p < cow_page_end(page) && cow_page_has(page, p);
}

#endif /* COW_HEAP_PAGE_H */

#ifndef COW_HEAP_PAGE_H
#define COW_HEAP_PAGE_H

/*
 * heap_page: the slots of one heap page and the bits of one object.
 *
 * Job: where a page's slots begin and end, which of them are allocated, free or the hole; the header of a
 * slot without an object; the age of an object. All is arithmetic on the page's bitmaps.
 *
 * Entry points: heap_page_has, heap_page_find_free, heap_page_first_free, heap_page_count_free, heap_page_blank,
 * heap_page_marks and heap_page_marks_written; is_pointer_to_heap; RVALUE_AGE_GET and RVALUE_AGE_SET, which
 * replace upstream's.
 *
 * Who writes this memory after a fork: RVALUE_AGE_SET the bitmaps of ages, heap_page_blank the first word of
 * a slot that is being claimed.
 */

/* Instead of upstream's, which find all from the page's address. */
#undef GET_HEAP_PAGE
#undef NUM_IN_PAGE
#undef GET_HEAP_MARK_BITS
#undef GET_HEAP_PINNED_BITS
#undef GET_HEAP_UNCOLLECTIBLE_BITS
#undef GET_HEAP_WB_UNPROTECTED_BITS
#undef GET_HEAP_MARKING_BITS
#define GET_HEAP_PAGE(x) locate_page((uintptr_t)(x))
#define NUM_IN_PAGE(p) locate_slot((uintptr_t)(p))
#define GET_HEAP_MARK_BITS(x) locate_row((uintptr_t)(x), ROW_MARK)
#define GET_HEAP_PINNED_BITS(x) locate_row((uintptr_t)(x), ROW_PINNED)
#define GET_HEAP_UNCOLLECTIBLE_BITS(x) locate_row((uintptr_t)(x), ROW_UNCOLLECTIBLE)
#define GET_HEAP_WB_UNPROTECTED_BITS(x) locate_row((uintptr_t)(x), ROW_WB_UNPROTECTED)
#define GET_HEAP_MARKING_BITS(x) locate_row((uintptr_t)(x), ROW_MARKING)
#define GET_HEAP_REMEMBERED_BITS(x) locate_row((uintptr_t)(x), ROW_REMEMBERED)

/* Behind the last slot. */
static inline uintptr_t
heap_page_end(const struct heap_page *page)
{
    return page->start + (page->total_slots + (page->hole >= 0)) * (uintptr_t)page->slot_size;
}

/* The slot that must not be used; 0: none. */
static inline uintptr_t
heap_page_hole(const struct heap_page *page)
{
    return page->hole < 0 ? 0 : page->start + page->hole * (uintptr_t)page->slot_size;
}

/* Number of the smallest slot at +p+; of free slots, too, whose headers are anything. */
static inline unsigned int
heap_page_slot(const struct heap_page *page, uintptr_t p)
{
    return (unsigned int)(p - page->start) / (unsigned int)BASE_SLOT_SIZE;
}

/* How many smallest slots one of its slots is long, and all of them. */
static inline unsigned int
heap_page_step(const struct heap_page *page)
{
    return page->slot_size / BASE_SLOT_SIZE;
}

static inline unsigned int
heap_page_slots_end(const struct heap_page *page)
{
    return heap_page_slot(page, heap_page_end(page));
}

/* Is the slot at +p+ allocated? Where it is not, nothing in it counts. */
static inline bool
heap_page_has(const struct heap_page *page, uintptr_t p)
{
    return slot_map_has(page->allocated_bits, heap_page_slot(page, p));
}

/* The hole as a number of smallest slots; -1: there is none. */
static inline int
heap_page_hole_slot(const struct heap_page *page)
{
    return page->hole < 0 ? -1 : (int)(page->hole * heap_page_step(page));
}

/* The free slots of the first word from +*word+ on that has some (slot_map_find). */
static inline bits_t
heap_page_find_free(const struct heap_page *page, unsigned int *word)
{
    return slot_map_find(page->allocated_bits, heap_page_step(page), heap_page_slots_end(page), heap_page_hole_slot(page), word);
}

/* How many slots are free. */
static inline unsigned short
heap_page_count_free(const struct heap_page *page)
{
    return page->total_slots - slot_map_count(page->allocated_bits);
}

/* The lowest free slot; 0: the page is full. */
static VALUE
heap_page_first_free(const struct heap_page *page)
{
    unsigned int word = 0;
    const bits_t free = heap_page_find_free(page, &word);

    return free ? page->start + (word * BITS_BITLENGTH + ntz_intptr(free)) * BASE_SLOT_SIZE : 0;
}

/* Makes the header of a slot say that there is no object. */
static inline void
heap_page_blank(const struct heap_page *page, uintptr_t p)
{
    asan_unpoison_memory_region((void *)p, page->slot_size, false);
    *(VALUE *)p = locate_flag(page->body, p);
    asan_poison_memory_region((void *)p, page->slot_size);
}

/* The row of marks to be read as a whole. */
static inline bits_t *
heap_page_marks(struct heap_page *page)
{
    if (LOCATE_MARKS_OBJECTS) {
        for (uintptr_t p = page->start; p < heap_page_end(page); p += page->slot_size) {
            bits_t *word = &page->mark_bits[BITMAP_INDEX(p)];

            if (heap_page_has(page, p) && locate_marked(p)) *word |= BITMAP_BIT(p);
            else *word &= ~BITMAP_BIT(p);
        }
    }
    return page->mark_bits;
}

/* Afterwards its objects are marked as the row is, which was written as a whole. */
static inline void
heap_page_marks_written(struct heap_page *page)
{
    if (LOCATE_MARKS_OBJECTS) {
        for (uintptr_t p = page->start; p < heap_page_end(page); p += page->slot_size) {
            bool marked = MARKED_IN_BITMAP(page->mark_bits, p) != 0;

            if (!heap_page_has(page, p) || marked == locate_marked(p)) continue;
            if (marked) locate_mark(p);
            else locate_unmark(p);
        }
    }
}

/* Is the object old? Then it is protected by write barriers, too. */
static inline bool
cell_is_old(const struct locate_cell *cell)
{
    return (cell->word[ROW_AGE_LOW * cell->step] & cell->word[ROW_AGE_HIGH * cell->step] & cell->mask) != 0;
}

/* Is it known that marking finds nothing in the object (gc_note_leaf)? */
static inline bool
cell_is_leaf(const struct locate_cell *cell)
{
    return cell_is_old(cell) && locate_bit(cell, ROW_LEAF);
}

static int
RVALUE_AGE_GET(VALUE obj)
{
    const struct locate_cell cell = locate_cell((uintptr_t)obj);
    return (int)locate_bit(&cell, ROW_AGE_HIGH) << 1 | (int)locate_bit(&cell, ROW_AGE_LOW);
}

static void
RVALUE_AGE_SET(VALUE obj, int age)
{
    RUBY_ASSERT(age <= RVALUE_OLD_AGE);
    const struct locate_cell cell = locate_cell((uintptr_t)obj);

    locate_put_bit(&cell, ROW_AGE_LOW, age & 1);
    locate_put_bit(&cell, ROW_AGE_HIGH, age & 2);
    locate_put_bit(&cell, ROW_LEAF, false);
    if (age == RVALUE_OLD_AGE) {
        RB_FL_SET_RAW(obj, RUBY_FL_PROMOTED);
    }
    else {
        RB_FL_UNSET_RAW(obj, RUBY_FL_PROMOTED);
    }
}

PUREFUNC(static inline bool is_pointer_to_heap(rb_objspace_t *objspace, const void *ptr);)
static inline bool
is_pointer_to_heap(rb_objspace_t *objspace, const void *ptr)
{
    register uintptr_t p = (uintptr_t)ptr;

    RB_DEBUG_COUNTER_INC(gc_isptr_trial);

    struct heap_page *page = locate_known(p);

    if (page == NULL) return FALSE;
    RB_DEBUG_COUNTER_INC(gc_isptr_maybe);

    if (page->total_slots == 0) return FALSE; /* one of the empty ones */

    return (p - page->start) % page->slot_size == 0 && p < heap_page_end(page) && heap_page_has(page, p);
}

#endif /* COW_HEAP_PAGE_H */

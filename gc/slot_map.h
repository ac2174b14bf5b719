#ifndef COW_SLOT_MAP_H
#define COW_SLOT_MAP_H

/*
 * slot_map: which slots of a heap page are allocated. A bit for each, in a row of the collector's metadata;
 * and nothing in the slot.
 *
 * Job: an object that dies leaves its slot as it is. No list runs through free slots, so that freeing writes
 * no object page and allocating reads none. What a free slot holds is anything: nothing may judge a slot by
 * its header alone.
 *
 * Algorithm: allocation takes the free slots of a word of the row, all at once: their headers are made blank
 * (T_NONE), then their bits are set; objects are made there in turn, and which are left is a word that is
 * kept beside. So
 *
 *     bit clear                 free; not to be looked at
 *     bit set, header T_NONE    taken, not used yet
 *     bit set, another header   an object, alive or not swept yet
 *
 * After: section 3.4 of Nakamura and Matsumoto (seed 000), whose mark bits keep the sweep from writing live
 * objects; this keeps it from writing dead ones.
 *
 * Entry points: cow_slot_map_find and cow_slot_map_set, cow_slot_map_allocate and cow_slot_map_free;
 * cow_slot_map_has, cow_slot_map_has_shared, cow_slot_map_count and cow_slot_map_count_word;
 * cow_slot_map_consistent.
 *
 * Who writes this memory after a fork: who allocates, the rows of pages made since; a sweep, those in which
 * something died.
 */

#include "vocabulary.h"

/* The bits of a word that slots have, each of which is +step+ smallest slots long: a power
 * of two up to COW_BITS. */
static inline cow_bits_t
cow_slot_map_pattern(unsigned int step)
{
    return step == COW_BITS ? 1 : ~(cow_bits_t)0 / (((cow_bits_t)1 << step) - 1);
}

static inline bool
cow_slot_map_has(const cow_bits_t *row, unsigned int slot)
{
    return (row[slot / COW_BITS] >> slot % COW_BITS & 1) != 0;
}

/* The same where others may allocate and free slots of the row at the time: who sees an
 * allocated slot sees its header blank, or what its owner has made of it. */
static inline bool
cow_slot_map_has_shared(const cow_bits_t *row, unsigned int slot)
{
    return (__atomic_load_n(&row[slot / COW_BITS], __ATOMIC_ACQUIRE) >> slot % COW_BITS & 1) != 0;
}

/* How many bits are set in each byte of a word. (Compilers call a function to count bits where
 * not every processor of the kind has an instruction for it, as on x86-64.) */
static inline cow_bits_t
cow_slot_map_count_bytes(cow_bits_t word)
{
    word -= word >> 1 & ~(cow_bits_t)0 / 3;
    word = (word & ~(cow_bits_t)0 / 5) + (word >> 2 & ~(cow_bits_t)0 / 5);
    return (word + (word >> 4)) & ~(cow_bits_t)0 / 17;
}

/* The sum of a word's bytes. */
static inline unsigned int
cow_slot_map_sum_bytes(cow_bits_t bytes)
{
    const cow_bits_t pairs = (bytes & ~(cow_bits_t)0 / 257) + (bytes >> 8 & ~(cow_bits_t)0 / 257);

    return (unsigned int)(pairs * (~(cow_bits_t)0 / 65535) >> (COW_BITS - 16));
}

/* How many bits of a word are set. */
static inline unsigned int
cow_slot_map_count_word(cow_bits_t word)
{
    return cow_slot_map_sum_bytes(cow_slot_map_count_bytes(word));
}

/* How many slots are allocated. */
static inline unsigned int
cow_slot_map_count(const cow_bits_t *row)
{
    unsigned int count = 0;

    /* A byte has room for the counts of 31 words. */
    for (unsigned int i = 0; i < COW_BITMAP_WORDS; ) {
        const unsigned int end = COW_BITMAP_WORDS - i < 31 ? COW_BITMAP_WORDS : i + 31;
        cow_bits_t bytes = 0;

        while (i < end) bytes += cow_slot_map_count_bytes(row[i++]);
        count += cow_slot_map_sum_bytes(bytes);
    }
    return count;
}

/* Sets bits of one word. +shared+: others may read the word, or change other bits of it, at the
 * same time; then nothing is lost, and all that was written before is seen with the bits, but
 * the processor waits for all that it has to write. */
static inline void
cow_slot_map_set(cow_bits_t *word, cow_bits_t bits, bool shared)
{
    if (shared) __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
    else *word |= bits;
}

/* Clears bits of one word, as above. */
static inline void
cow_slot_map_clear(cow_bits_t *word, cow_bits_t bits, bool shared)
{
    if (shared) __atomic_fetch_and(word, ~bits, __ATOMIC_RELEASE);
    else *word &= ~bits;
}

static inline void
cow_slot_map_allocate(cow_bits_t *row, unsigned int slot, bool shared)
{
    cow_slot_map_set(&row[slot / COW_BITS], (cow_bits_t)1 << slot % COW_BITS, shared);
}

static inline void
cow_slot_map_free(cow_bits_t *row, unsigned int slot, bool shared)
{
    cow_slot_map_clear(&row[slot / COW_BITS], (cow_bits_t)1 << slot % COW_BITS, shared);
}

/* Is a slot of word +word+ allocated, or the hole: as bits of the word. */
static inline cow_bits_t
cow_slot_map_taken(const cow_bits_t *row, unsigned int word, int hole)
{
    if (hole < 0 || (unsigned int)hole / COW_BITS != word) return row[word];
    return row[word] | (cow_bits_t)1 << hole % COW_BITS;
}

/* The bits that slots have in word +word+ of a row, of those below +end+. */
static inline cow_bits_t
cow_slot_map_slots(unsigned int step, unsigned int word, unsigned int end)
{
    unsigned int base = word * COW_BITS;

    if (end <= base) return 0;
    if (end - base >= COW_BITS) return cow_slot_map_pattern(step);
    return cow_slot_map_pattern(step) & (((cow_bits_t)1 << (end - base)) - 1);
}

/*
 * Finds the free slots of the first word, from +*word+ on, that has some: of slots that are
 * +step+ smallest slots long, below +end+, and not +hole+, which must not be used (-1: none).
 * Gives their bits, and in +*word+ the word; 0: there are none. They are allocated by
 * cow_slot_map_set, when their headers are blank.
 */
static inline cow_bits_t
cow_slot_map_find(const cow_bits_t *row, unsigned int step, unsigned int end, int hole, unsigned int *word)
{
    for (; *word * COW_BITS < end; ++*word) {
        cow_bits_t free = ~cow_slot_map_taken(row, *word, hole) & cow_slot_map_slots(step, *word, end);

        if (free) return free;
    }
    return 0;
}

/* Are the bits of a page's row those of slots alone? */
static inline bool
cow_slot_map_consistent(const cow_bits_t *row, unsigned int step, unsigned int end, int hole)
{
    for (unsigned int i = 0; i < COW_BITMAP_WORDS; i++) {
        cow_bits_t allowed = cow_slot_map_slots(step, i, end);

        if (hole >= 0 && (unsigned int)hole / COW_BITS == i) allowed &= ~((cow_bits_t)1 << hole % COW_BITS);
        if (row[i] & ~allowed) return false;
    }
    return true;
}

#endif /* COW_SLOT_MAP_H */

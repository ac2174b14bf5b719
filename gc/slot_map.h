/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_SLOT_MAP_H
#define COW_SLOT_MAP_H

/*
 * slot_map: which slots of a heap page are allocated: a bit for each in a bitmap of the collector's metadata,
 * and nothing in the slot.
 *
 * Job: an object that dies leaves its slot as it is. No list runs through free slots, so freeing writes no
 * object page and allocating reads none. The contents of a free slot are undefined: nothing may judge a slot
 * by its header alone.
 *
 * Algorithm: a Ractor claims the free slots of one word of the bitmap, all at once: it empties their headers
 * (T_NONE), then sets their bits. It makes objects in them one by one; a word of its own has a bit for each
 * slot that is left. So
 *
 *     bit clear                 free; must not be read
 *     bit set, header T_NONE    claimed
 *     bit set, another header   an object, alive or not swept yet
 *
 * The number of bits in a word is counted within the word (a SWAR popcount): compilers call a function for it
 * where not every processor of the kind has an instruction, as on x86-64.
 *
 * After: section 3.4 of Nakamura and Matsumoto (seed 000), whose mark bits keep the sweep from writing live
 * objects; this file keeps it from writing dead ones.
 *
 * Entry points: cow_slot_map_find, cow_slot_map_free_slots, cow_slot_map_set and cow_slot_map_reverse;
 * cow_slot_map_allocate and cow_slot_map_free;
 * cow_slot_map_has, cow_slot_map_has_shared, cow_slot_map_count and cow_slot_map_count_word;
 * cow_slot_map_consistent.
 *
 * Who writes this memory after a fork: a process that allocates writes the bitmaps of open pages; a sweep
 * writes those of pages in which objects died.
 */

#include "vocabulary.h"

/* Gives the bits of a word that slots have, each of which is +step+ smallest slots long. */
static inline cow_bits_t
cow_slot_map_pattern(unsigned int step)
{
    COW_ASSERT(cow_is_step(step));
    return step == COW_BITS ? 1 : ~(cow_bits_t)0 / (((cow_bits_t)1 << step) - 1);
}

/* Is the slot allocated that begins at smallest slot +slot+? */
static inline bool
cow_slot_map_has(const cow_bits_t *bitmap, unsigned int slot)
{
    COW_ASSERT(slot < COW_BITMAP_WORDS * COW_BITS);
    return (bitmap[slot / COW_BITS] >> slot % COW_BITS & 1) != 0;
}

/* As cow_slot_map_has, where other Ractors may claim and free slots of the page meanwhile. A Ractor that sees
 * an allocated slot sees its header empty, or as its owner has written it. */
static inline bool
cow_slot_map_has_shared(const cow_bits_t *bitmap, unsigned int slot)
{
    COW_ASSERT(slot < COW_BITMAP_WORDS * COW_BITS);
    return (__atomic_load_n(&bitmap[slot / COW_BITS], __ATOMIC_ACQUIRE) >> slot % COW_BITS & 1) != 0;
}

/* Gives, in each byte, how many bits of that byte of +word+ are set. */
static inline cow_bits_t
cow_slot_map_count_bytes(cow_bits_t word)
{
    word -= word >> 1 & ~(cow_bits_t)0 / 3;
    word = (word & ~(cow_bits_t)0 / 5) + (word >> 2 & ~(cow_bits_t)0 / 5);
    return (word + (word >> 4)) & ~(cow_bits_t)0 / 17;
}

/* Gives the sum of a word's bytes. */
static inline unsigned int
cow_slot_map_sum_bytes(cow_bits_t bytes)
{
    const cow_bits_t pairs = (bytes & ~(cow_bits_t)0 / 257) + (bytes >> 8 & ~(cow_bits_t)0 / 257);

    return (unsigned int)(pairs * (~(cow_bits_t)0 / 65535) >> (COW_BITS - 16));
}

/* Gives how many bits of a word are set. */
static inline unsigned int
cow_slot_map_count_word(cow_bits_t word)
{
    return cow_slot_map_sum_bytes(cow_slot_map_count_bytes(word));
}

/* Gives how many slots are allocated. */
static inline unsigned int
cow_slot_map_count(const cow_bits_t *bitmap)
{
    unsigned int count = 0;

    /* A byte has room for the counts of 31 words: 31 * 8 < 256. */
    for (unsigned int i = 0; i < COW_BITMAP_WORDS; ) {
        const unsigned int end = COW_BITMAP_WORDS - i < 31 ? COW_BITMAP_WORDS : i + 31;
        cow_bits_t bytes = 0;

        while (i < end) bytes += cow_slot_map_count_bytes(bitmap[i++]);
        count += cow_slot_map_sum_bytes(bytes);
    }
    return count;
}

/* Sets bits of one word. +shared+ says that other Ractors may read the word, or change other bits of it,
 * meanwhile. Then the write is atomic, and a Ractor that sees the bits sees all that was written before; the
 * processor waits until its earlier writes are done. */
static inline void
cow_slot_map_set(cow_bits_t *word, cow_bits_t bits, bool shared)
{
    if (shared) __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
    else *word |= bits;
}

/* Clears bits of one word; +shared+ as for cow_slot_map_set. */
static inline void
cow_slot_map_clear(cow_bits_t *word, cow_bits_t bits, bool shared)
{
    if (shared) __atomic_fetch_and(word, ~bits, __ATOMIC_RELEASE);
    else *word &= ~bits;
}

/* Sets the bit of the slot that begins at smallest slot +slot+. */
static inline void
cow_slot_map_allocate(cow_bits_t *bitmap, unsigned int slot, bool shared)
{
    COW_ASSERT(slot < COW_BITMAP_WORDS * COW_BITS);
    cow_slot_map_set(&bitmap[slot / COW_BITS], (cow_bits_t)1 << slot % COW_BITS, shared);
}

/* Clears the bit of the slot that begins at smallest slot +slot+. */
static inline void
cow_slot_map_free(cow_bits_t *bitmap, unsigned int slot, bool shared)
{
    COW_ASSERT(slot < COW_BITMAP_WORDS * COW_BITS);
    cow_slot_map_clear(&bitmap[slot / COW_BITS], (cow_bits_t)1 << slot % COW_BITS, shared);
}

/* Gives the bits of the slots of word +word+ that are allocated, or the hole (-1: none). */
static inline cow_bits_t
cow_slot_map_taken(const cow_bits_t *bitmap, unsigned int word, int hole)
{
    COW_ASSERT(word < COW_BITMAP_WORDS && hole < COW_BITMAP_WORDS * COW_BITS);
    if (hole < 0 || (unsigned int)hole / COW_BITS != word) return bitmap[word];
    return bitmap[word] | (cow_bits_t)1 << hole % COW_BITS;
}

/* Gives the bits of word +word+ that slots below +end+ have. */
static inline cow_bits_t
cow_slot_map_slots(unsigned int step, unsigned int word, unsigned int end)
{
    unsigned int base = word * COW_BITS;

    if (end <= base) return 0;
    if (end - base >= COW_BITS) return cow_slot_map_pattern(step);
    return cow_slot_map_pattern(step) & (((cow_bits_t)1 << (end - base)) - 1);
}

/* Gives the bits of the free slots of a word: of slots that are +step+ smallest slots long, below smallest
 * slot +end+, and not the hole (-1: none). */
static inline cow_bits_t
cow_slot_map_free_slots(const cow_bits_t *bitmap, unsigned int step, unsigned int end, int hole,
                        unsigned int word)
{
    COW_ASSERT(end <= COW_BITMAP_WORDS * COW_BITS);
    return ~cow_slot_map_taken(bitmap, word, hole) & cow_slot_map_slots(step, word, end);
}

/* Finds the last word, from +*word+ down, that has a free slot (cow_slot_map_free_slots). Gives the bits of
 * its free slots and writes its number to +*word+; gives 0 if there is none. The caller empties their headers
 * and then calls cow_slot_map_set. */
static inline cow_bits_t
cow_slot_map_find(const cow_bits_t *bitmap, unsigned int step, unsigned int end, int hole, unsigned int *word)
{
    for (;; --*word) {
        const cow_bits_t free = cow_slot_map_free_slots(bitmap, step, end, hole, *word);

        if (free || *word == 0) return free;
    }
}

/* Gives the bits of a word in reverse: processors find the lowest one sooner than the highest one. */
static inline cow_bits_t
cow_slot_map_reverse(cow_bits_t bits)
{
    cow_bits_t mask = ~(cow_bits_t)0;

    for (unsigned int half = COW_BITS / 2; half > 0; half /= 2) {
        mask ^= mask << half;
        bits = (bits >> half & mask) | (bits << half & ~mask);
    }
    return bits;
}

/* Are all bits of the bitmap those of slots? */
static inline bool
cow_slot_map_consistent(const cow_bits_t *bitmap, unsigned int step, unsigned int end, int hole)
{
    for (unsigned int i = 0; i < COW_BITMAP_WORDS; i++) {
        cow_bits_t allowed = cow_slot_map_slots(step, i, end);

        if (hole >= 0 && (unsigned int)hole / COW_BITS == i) allowed &= ~((cow_bits_t)1 << hole % COW_BITS);
        if (bitmap[i] & ~allowed) return false;
    }
    return true;
}

#endif /* COW_SLOT_MAP_H */

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Free slots, a word at a time, for slots of all sizes: cc -I../../gc test_slot_map.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "slot_map.h"

static const unsigned int steps[] = { 1, 2, 4, 8, 16 };
enum { STEPS = sizeof(steps) / sizeof(steps[0]) };

/* Gives the number behind the last slot, as cow_page_slots_end does. */
static unsigned int
end_of(unsigned int step)
{
    return COW_PAGE_SLOTS / step * step;
}

static void
test_pattern(void **state)
{
    for (int s = 0; s < STEPS; s++) {
        for (unsigned int bit = 0; bit < COW_BITS; bit++) {
            assert_int_equal(cow_slot_map_pattern(steps[s]) >> bit & 1, bit % steps[s] == 0);
        }
    }
}

/* Against a count bit by bit: an empty bitmap, a full one, and random ones. */
static void
test_counts(void **state)
{
    srand(1);
    for (int turn = 0; turn < 2000; turn++) {
        cow_bitmap bitmap;
        unsigned int all = 0;

        for (unsigned int i = 0; i < COW_BITMAP_WORDS; i++) {
            unsigned int count = 0;

            for (unsigned int bit = 0; bit < COW_BITS; bit += 8) {
                bitmap[i] = bitmap[i] << 8 | (turn == 0 ? 0 : turn == 1 ? 0xff : rand() & 0xff);
            }
            for (unsigned int bit = 0; bit < COW_BITS; bit++) count += bitmap[i] >> bit & 1;
            assert_int_equal(cow_slot_map_count_word(bitmap[i]), count);
            all += count;
        }
        assert_int_equal(cow_slot_map_count(bitmap), all);
    }
}

static void
test_reverse(void **state)
{
    for (unsigned int bit = 0; bit < COW_BITS; bit++) {
        assert_true(cow_slot_map_reverse((cow_bits_t)1 << bit) == (cow_bits_t)1 << (COW_BITS - 1 - bit));
        assert_true(cow_slot_map_reverse(((cow_bits_t)2 << bit) - 1) ==
                    ~(cow_bits_t)0 << (COW_BITS - 1 - bit));
    }
}

static void
test_one(void **state)
{
    for (int s = 0; s < STEPS; s++) {
        for (unsigned int slot = 0; slot < end_of(steps[s]); slot += steps[s]) {
            cow_bitmap bitmap = { 0 };

            cow_slot_map_allocate(bitmap, slot, true);
            for (unsigned int i = 0; i < COW_PAGE_SLOTS; i++) {
                assert_int_equal(cow_slot_map_has(bitmap, i), i == slot);
            }
            assert_int_equal(cow_slot_map_count(bitmap), 1);
            assert_true(cow_slot_map_consistent(bitmap, steps[s], end_of(steps[s]), -1));
            assert_false(cow_slot_map_consistent(bitmap, steps[s], end_of(steps[s]), (int)slot));
            assert_false(cow_slot_map_consistent(bitmap, steps[s], slot, -1));
            if (steps[s] > 1) {
                cow_slot_map_allocate(bitmap, slot + 1, true);
                assert_false(cow_slot_map_consistent(bitmap, steps[s], end_of(steps[s]), -1));
                cow_slot_map_free(bitmap, slot + 1, true);
            }
            cow_slot_map_free(bitmap, slot, true);
            assert_int_equal(cow_slot_map_count(bitmap), 0);
        }
    }
}

/* All slots of an empty page are found, each once. */
static void
test_empty_page(void **state)
{
    for (int s = 0; s < STEPS; s++) {
        cow_bitmap bitmap = { 0 };
        cow_bits_t free;
        unsigned int word = COW_BITMAP_WORDS - 1, next = end_of(steps[s]);

        while ((free = cow_slot_map_find(bitmap, steps[s], end_of(steps[s]), -1, &word)) != 0) {
            cow_slot_map_set(&bitmap[word], free, s % 2);
            for (unsigned int bit = COW_BITS; bit-- > 0; ) {
                if (!(free >> bit & 1)) continue;
                next -= steps[s];
                assert_int_equal(word * COW_BITS + bit, next);
            }
        }
        assert_int_equal(next, 0);
        assert_int_equal(cow_slot_map_count(bitmap), COW_PAGE_SLOTS / steps[s]);
        word = COW_BITMAP_WORDS - 1;
        assert_true(cow_slot_map_find(bitmap, steps[s], end_of(steps[s]), -1, &word) == 0);
    }
}

/* The only free slot is found wherever it is, but not if it is the hole. */
static void
test_one_free(void **state)
{
    for (int s = 0; s < STEPS; s++) {
        const unsigned int step = steps[s], end = end_of(step);

        for (unsigned int slot = 0; slot < end; slot += step) {
            for (unsigned int from = 0; from < COW_BITMAP_WORDS; from++) {
                cow_bitmap bitmap = { 0 };
                unsigned int word = from;

                for (unsigned int i = 0; i < end; i += step) {
                    if (i != slot) cow_slot_map_allocate(bitmap, i, true);
                }
                assert_true(cow_slot_map_find(bitmap, step, end, (int)slot, &word) == 0);
                word = from;
                if (from < slot / COW_BITS) {
                    assert_true(cow_slot_map_find(bitmap, step, end, -1, &word) == 0);
                    continue;
                }
                assert_true(cow_slot_map_find(bitmap, step, end, -1, &word) ==
                            (cow_bits_t)1 << slot % COW_BITS);
                assert_int_equal(word, slot / COW_BITS);
                assert_false(cow_slot_map_has(bitmap, slot)); /* the search sets no bit */
            }
        }
    }
}

/* Random pages against an array that says which slots are free. */
static void
test_random(void **state)
{
    srandom(20261123);
    for (int round = 0; round < 20000; round++) {
        const unsigned int step = steps[round % STEPS], end = end_of(step), slots = end / step;
        bool free[COW_PAGE_SLOTS];
        cow_bitmap bitmap = { 0 };
        int hole = random() % 3 ? -1 : (int)(random() % slots * step);
        unsigned int full = random() % 101, word = COW_BITMAP_WORDS - 1, left = 0;
        cow_bits_t found;

        for (unsigned int i = 0; i < slots; i++) {
            free[i] = (int)(i * step) != hole && random() % 100 >= full;
            if (!free[i] && (int)(i * step) != hole) cow_slot_map_allocate(bitmap, i * step, round % 2);
            left += free[i];
        }

        unsigned int before = cow_slot_map_count(bitmap);
        while ((found = cow_slot_map_find(bitmap, step, end, hole, &word)) != 0) {
            cow_slot_map_set(&bitmap[word], found, round % 2);
            for (unsigned int bit = 0; bit < COW_BITS; bit++) {
                unsigned int slot = word * COW_BITS + bit;

                if (!(found >> bit & 1)) continue;
                assert_int_equal(slot % step, 0);
                assert_true(slot < end && free[slot / step]);
                free[slot / step] = false;
                left--;
                before++;
            }
            assert_true(cow_slot_map_consistent(bitmap, step, end, hole));
            assert_int_equal(cow_slot_map_count(bitmap), before);
        }
        assert_int_equal(left, 0);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pattern),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_reverse),
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_empty_page),
        cmocka_unit_test(test_one_free),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

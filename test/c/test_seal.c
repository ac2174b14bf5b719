/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When a heap is sealed, and which pages are: cc -I../../gc test_seal.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "seal_policy.h"

static void
test_mode(void **state)
{
    static const struct { const char *text; bool good; enum cow_seal_mode mode; } cases[] = {
        { NULL, true, COW_SEAL_WARMUP }, { "", true, COW_SEAL_WARMUP },
        { "off", true, COW_SEAL_OFF }, { "warmup", true, COW_SEAL_WARMUP }, { "auto", true, COW_SEAL_AUTO },
        { "0", false, COW_SEAL_WARMUP }, { "Auto", false, COW_SEAL_WARMUP },
        { "auto ", false, COW_SEAL_WARMUP },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum cow_seal_mode mode = COW_SEAL_WARMUP; /* stays where the text gives no value */
        assert_int_equal(cow_seal_mode_read(cases[i].text, &mode), cases[i].good);
        assert_int_equal(mode, cases[i].mode);
    }
}

static void
test_due(void **state)
{
    static const struct { size_t survivors, at_seal, least; bool due; } cases[] = {
        { 999, 0, 1000, false }, { 1000, 0, 1000, true },
        /* a second fork: less than an eighth is new, then an eighth */
        { 1000, 1000, 1000, false }, { 1124, 1000, 1000, false }, { 1125, 1000, 1000, true },
        /* objects have died since */
        { 1000, 2000, 1000, false },
        /* an eighth of little is rounded to 0; nothing new is not due */
        { 7, 7, 0, false }, { 8, 7, 0, true }, { 0, 0, 0, false },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(cow_seal_due(cases[i].survivors, cases[i].at_seal, cases[i].least), cases[i].due);
    }
}

/* A heap of fewer objects is never due. */
enum { LEAST = 1000 };

/* The factor of the inequality (seal_policy.h). */
enum { FACTOR = COW_SEAL_GROWTH + 1 };

/* A parent whose heap is prepared at each fork at which it may be. All sizes are in objects. */
struct parent {
    struct cow_seal_budget budget;
    size_t at_seal;  /* in the heap when it was sealed last */
    size_t most;     /* that any full marking has found */
    size_t last;     /* marked by the last preparation that found no growth */
    size_t marked;   /* by all preparations */
    size_t others;   /* marked by other full collections */
    int preparations;
};

/* Forks a parent whose heap has +live+ objects. A full marking has counted them if +exact+ is true; else a
 * minor one has counted +counted+ of them. Then the inequality of seal_policy.h holds. */
static void
fork_of(struct parent *parent, size_t live, size_t counted, bool exact)
{
    const struct cow_seal_budget before = parent->budget;

    if (exact) {
        cow_seal_marked(&parent->budget, live);
        parent->others += live;
        if (parent->most < live) parent->most = live;
        if (parent->at_seal > live) parent->at_seal = live;
    }
    if (!cow_seal_due(counted, parent->at_seal, LEAST)) return;
    if (!cow_seal_paid(&parent->budget, counted, exact)) return;

    cow_seal_prepared(&parent->budget, counted, exact, live, live);
    if (parent->budget.debt > before.debt) parent->last = live;
    if (parent->most < live) parent->most = live;
    parent->at_seal = live;
    parent->marked += live;
    parent->preparations++;
    assert_true(parent->budget.most <= parent->most);
    /* FACTOR times the most: the sum of sizes that grow by an eighth each. Each eighth is rounded down by
     * less than one object. */
    assert_true(parent->marked <= FACTOR * (parent->most + FACTOR) + parent->last +
                parent->others / COW_SEAL_DEBT);
}

/* A heap of constant size that looks a fifth larger at each fork, because a fifth was replaced. */
static void
test_budget_of_a_heap_of_constant_size(void **state)
{
    struct parent parent = { .at_seal = 0 };

    for (int i = 0; i < 1000; i++) fork_of(&parent, 100000, 120000, false);
    assert_int_equal(parent.preparations, 2);

    /* It makes a full collection of its own at every fifth fork: four of them pay for a preparation. */
    for (int i = 0; i < 1000; i++) fork_of(&parent, 100000, i % 5 ? 120000 : 100000, i % 5 == 0);
    assert_in_range(parent.preparations, 1000 / 5 / (COW_SEAL_DEBT + 1), 2 + 1000 / 5 / COW_SEAL_DEBT);
}

static void
test_budget_of_a_heap_that_grows(void **state)
{
    struct parent parent = { .at_seal = 0 };
    size_t live = LEAST, sealed = 0;

    for (int i = 0; i < 200; i++, live += live / 20) {
        fork_of(&parent, live, live, i % 7 == 0);
        assert_true(parent.at_seal >= live - live / COW_SEAL_GROWTH); /* less than an eighth is not sealed */
        sealed = live;
    }
    assert_true(parent.marked <= FACTOR * sealed);
    assert_int_equal(parent.budget.debt, 0);
}

/* A heap that has replaced its objects for long, and then grows. */
static void
test_budget_of_a_heap_that_grows_late(void **state)
{
    struct parent parent = { .at_seal = 0 };

    for (int i = 0; i < 100; i++) fork_of(&parent, 100000, 120000, false);
    assert_int_equal(parent.preparations, 2);
    fork_of(&parent, 150000, 170000, false); /* no full marking has said so */
    assert_int_equal(parent.preparations, 2);
    fork_of(&parent, 150000, 150000, true);
    assert_int_equal(parent.preparations, 3);
    assert_int_equal(parent.at_seal, 150000);
}

/* The inequality holds whatever the heap does and however its objects are counted (fork_of). */
static void
test_budget_of_any_heap(void **state)
{
    uint32_t random = 1;

    for (int kind = 0; kind < 64; kind++) {
        struct parent parent = { .at_seal = 0 };
        size_t live = 4000;

        for (int i = 0; i < 2000; i++) {
            random = random * 1664525 + 1013904223;
            const uint32_t dice = random >> 16;
            switch (kind % 4) {
              case 0: live = i % 2 ? 4000 : 6000; break; /* up and down */
              case 1: live = i % 100 < 50 ? live + live / 10 : live - live / 11; break;
              case 2: live = 2000 + dice % 60000; break;
              case 3: live = live > 3000 ? live - live / 50 : 100000; break; /* shrinks, and starts again */
            }
            const bool exact = dice % (kind / 4 + 1) == 0;
            fork_of(&parent, live, exact ? live : live + live * (dice % 16) / 8, exact);
        }
    }
}

static void
test_debt_does_not_overflow(void **state)
{
    struct cow_seal_budget budget = { 1000, 0 };

    cow_seal_prepared(&budget, 1000, false, 1000, SIZE_MAX / 2);
    assert_true(budget.debt == SIZE_MAX);
    cow_seal_marked(&budget, SIZE_MAX);
    assert_int_equal(budget.debt, 0);
    cow_seal_marked(&budget, 5);
    assert_int_equal(budget.debt, 0);
}

static void
test_roomy(void **state)
{
    assert_false(cow_seal_roomy(1999, 1000));
    assert_true(cow_seal_roomy(2000, 1000));
    assert_int_equal(cow_seal_growth(1500, 1000), 500);
    assert_int_equal(cow_seal_growth(2000, 1000), 0);
    assert_int_equal(cow_seal_growth(3000, 1000), 0);
    assert_true(cow_seal_growth(0, SIZE_MAX) == SIZE_MAX);
    assert_int_equal(cow_seal_growth_after(1500, 1000), 500);
    assert_int_equal(cow_seal_growth_after(1600, 800), 101);
    assert_int_equal(cow_seal_growth_after(0, 0), 1);

    assert_false(cow_seal_crowded(2249, 1000, 2000));
    assert_true(cow_seal_crowded(2250, 1000, 2000));
    assert_false(cow_seal_crowded(2250, 1200, 2000)); /* not roomy */
    assert_false(cow_seal_crowded(9000, 1000, 9000)); /* roomy, but nothing is new since the seal */

    assert_int_equal(cow_seal_excess(1600, 100), 0);
    assert_int_equal(cow_seal_excess(1600, 101), 1);
    assert_true(cow_seal_is_over(1600, 100));
    assert_false(cow_seal_is_over(1600, 101));
    assert_true(cow_seal_is_over(0, 0));
}

/* The emptiest pages are opened, and no more than needed. */
static void
test_opening(void **state)
{
    enum { PAGES = 200, SLOTS = 409, STRIDE = 37 /* prime to SLOTS + 1: fills of all classes */ };
    const size_t excesses[] = { 0, 1, 100, 5000, 40000, 1000000 };

    for (size_t i = 0; i < sizeof(excesses) / sizeof(excesses[0]); i++) {
        struct cow_seal_fills fills = { { 0 }, 0 };
        size_t opened = 0, most = 0, left = SLOTS;

        for (size_t page = 0; page < PAGES; page++) {
            cow_seal_fill_add(&fills, page * STRIDE % (SLOTS + 1), SLOTS);
        }
        size_t sum = 0;
        for (int fill = 0; fill < COW_SEAL_FILLS; fill++) sum += fills.closed[fill];
        assert_int_equal(sum, fills.sum);

        struct cow_seal_opening opening = cow_seal_opening(&fills, excesses[i]);
        for (size_t page = 0; page < PAGES; page++) {
            size_t live = page * STRIDE % (SLOTS + 1);

            if (cow_seal_opens(&opening, live, SLOTS)) {
                opened += SLOTS - live;
                if (most < live) most = live;
                assert_true(live < SLOTS);
            }
            else if (left > live) left = live;
        }
        if (excesses[i] < fills.sum) {
            /* by less than the slots of one page too many; out of order only within a class */
            assert_in_range(opened, excesses[i], excesses[i] == 0 ? 0 : excesses[i] + SLOTS);
            if (excesses[i] > 0) assert_true(most <= left + SLOTS / COW_SEAL_FILLS + 1);
        }
        else assert_int_equal(opened, fills.sum);
    }
}

static void
test_survivors(void **state)
{
    assert_int_equal(cow_seal_survivors(1000, 1000, 0), 1000);
    assert_int_equal(cow_seal_survivors(1000, 1000, 1), 1000);
    assert_int_equal(cow_seal_survivors(1000, 800, 1), 1000);
    assert_int_equal(cow_seal_survivors(1000, 1800, 0), 1000); /* no more than a heap grows by */
    assert_int_equal(cow_seal_survivors(1000, 1800, 0.5), 1400);
    assert_int_equal(cow_seal_survivors(1000, 1800, 1), 1800);
    assert_int_equal(cow_seal_survivors(1000, 1200, 0.5), 1000); /* less than an eighth is no growth */
    assert_int_equal(cow_seal_survivors(1000, 8000, 0), 2000); /* a quarter: no collection for long */
    assert_int_equal(cow_seal_survivors(0, 8000, 0), 2000);
    assert_int_equal(cow_seal_survivors(0, 8000, 1), 8000);
    assert_int_equal(cow_seal_survivors(0, 0, 0), 0);
}

static void
test_room(void **state)
{
    assert_int_equal(cow_seal_room(0), COW_SEAL_ROOM_LEAST);
    assert_int_equal(cow_seal_room(1000), COW_SEAL_ROOM_LEAST + 2000 * sizeof(void *));
    assert_true(cow_seal_room(SIZE_MAX) > SIZE_MAX / 4); /* it does not overflow */
}

static void
test_keep(void **state)
{
    size_t spare = 0;

    assert_int_equal(cow_seal_keep(0, 0, &spare), 0);
    assert_int_equal(cow_seal_keep(0, 800, &spare), 0);
    assert_int_equal(cow_seal_keep(99, 800, &spare), 0);
    assert_int_equal(cow_seal_keep(100, 800, &spare), 100);
    assert_int_equal(cow_seal_keep(800, 800, &spare), 100);
    assert_int_equal(cow_seal_keep(1, 1, &spare), 1);
    assert_int_equal(cow_seal_keep(100, 801, &spare), 0);
    assert_int_equal(cow_seal_keep(101, 801, &spare), 101);
}

/* Emptier pages are sealed as long as slots are left for them. */
static void
test_spare(void **state)
{
    size_t spare = cow_seal_spare(4000, 0);

    assert_int_equal(spare, 1000);
    assert_int_equal(cow_seal_keep(0, 800, &spare), 0);
    assert_int_equal(cow_seal_keep(400, 800, &spare), 100);
    assert_int_equal(spare, 1000);
    assert_int_equal(cow_seal_keep(99, 800, &spare), 50);
    assert_int_equal(spare, 299);
    assert_int_equal(cow_seal_keep(1, 301, &spare), 0);
    assert_int_equal(cow_seal_keep(1, 300, &spare), 1);
    assert_int_equal(spare, 0);

    assert_int_equal(cow_seal_spare(4000, 400), 600);
    assert_int_equal(cow_seal_spare(4000, 1000), 0);
    assert_int_equal(cow_seal_spare(4000, 5000), 0);
    assert_int_equal(cow_seal_spare(3, 0), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mode),
        cmocka_unit_test(test_due),
        cmocka_unit_test(test_budget_of_a_heap_of_constant_size),
        cmocka_unit_test(test_budget_of_a_heap_that_grows),
        cmocka_unit_test(test_budget_of_a_heap_that_grows_late),
        cmocka_unit_test(test_budget_of_any_heap),
        cmocka_unit_test(test_debt_does_not_overflow),
        cmocka_unit_test(test_roomy),
        cmocka_unit_test(test_opening),
        cmocka_unit_test(test_survivors),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_spare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The nursery's policy, by tables of cases: cc -I../../gc test_nursery.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "nursery_policy.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* For a table of cases: names the case that failed. */
#define ASSERT_CASE(number, found, expected) do { \
    size_t found_ = (found), expected_ = (expected); \
    if (found_ != expected_) \
        fail_msg("case %zu, " #found ": expected %zu, found %zu", (number), expected_, found_); \
} while (0)

/* What a heap inherited, before its first full collection. */
#define INHERITED(objects, slots, floor) { objects, slots, floor, slots, 0, 0 }
#define CHILD INHERITED(9000, 9000, 500)

static void
test_floor(void **state)
{
    static const struct { size_t least, inherited; double ratio; size_t floor; } cases[] = {
        {     0,         0, 0.20,      0 },
        {     1,         0, 1.00,      1 },
        { 32768,         0, 0.20, 163840 },
        { 32768,    700000, 0.20, 163840 },
        /* 2097152 = 64 * 32768: with more inherited slots the floor grows */
        { 32768,   2097152, 0.20, 163840 },
        { 32768,   2097152 + 64, 0.20, 163845 },
        { 32768,   4194304, 0.20, 327680 },
        {     1,   6400000, 0.50, 200000 },
        /* absurd settings do not wrap around */
        { SIZE_MAX,      0, 0.20, SIZE_MAX / 2 },
        { SIZE_MAX,      0, 1.00, SIZE_MAX / 2 },
        { SIZE_MAX / 4,  0, 0.01, SIZE_MAX / 2 },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        ASSERT_CASE(i, cow_nursery_floor(cases[i].least, cases[i].inherited, cases[i].ratio), cases[i].floor);
    }
}

static void
test_inherit(void **state)
{
    static const struct {
        size_t objects, slots, all, floor;
        struct cow_nursery_inheritance expected;
    } cases[] = {
        /* a parent no bigger than the floor: as if never forked */
        {    0,    0,      0, 1000, INHERITED(0, 0, 0) },
        {  900, 1000,   1000, 1000, INHERITED(0, 0, 0) },
        {  900, 1000,    999, 1000, INHERITED(0, 0, 0) },
        {  900, 1000,   1001, 1000, INHERITED(900, 1000, 999) },
        /* a heap without pages inherits nothing */
        {    0,    0,  10000, 1000, INHERITED(0, 0, 0) },
        /* a heap's share of the floor is its share of the slots, and an eighth at least */
        { 5000, 5000,  10000, 1000, INHERITED(5000, 5000, 500) },
        { 7000, 8000,  10000, 1000, INHERITED(7000, 8000, 800) },
        { 1250, 1250,  10000, 1000, INHERITED(1250, 1250, 125) },
        {    9,   10,  10000, 1000, INHERITED(9, 10, 125) },
        /* counts that are off (several Ractors) never give more objects than slots */
        { 1001, 1000,  10000, 1000, INHERITED(1000, 1000, 125) },
        { SIZE_MAX, 1000, 10000, 1000, INHERITED(1000, 1000, 125) },
        /* no floor at all */
        {   10,   20,     30,    0, INHERITED(10, 20, 0) },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct cow_nursery_inheritance found =
            cow_nursery_inherit(cases[i].objects, cases[i].slots, cases[i].all, cases[i].floor);

        ASSERT_CASE(i, found.objects, cases[i].expected.objects);
        ASSERT_CASE(i, found.slots, cases[i].expected.slots);
        ASSERT_CASE(i, found.floor, cases[i].expected.floor);
        ASSERT_CASE(i, found.at_last_full, cases[i].expected.at_last_full);
    }
}

static void
test_basis(void **state)
{
    static const struct {
        struct cow_nursery_inheritance inherited;
        size_t total, own, basis;
        bool within_floor;
    } cases[] = {
        /* never forked: upstream's rule */
        { INHERITED(0, 0, 0),     0,     0,     0, false },
        { INHERITED(0, 0, 0),     1,     1,     1, false },
        { INHERITED(0, 0, 0), 10000, 10000, 10000, false },
        /* a fresh child: the floor */
        { CHILD,  9000,     0,   500, true },
        { INHERITED(9000, 9100, 500),  9100,   100,   500, true },
        /* around the floor */
        { CHILD,  9499,   499,   500, true },
        { CHILD,  9500,   500,   500, false },
        { CHILD,  9501,   501,   501, false },
        /* a child that has grown: towards upstream's rule */
        { CHILD, 900000, 891000, 891000, false },
        /* a heap smaller than its floor has no more slots than it has */
        { INHERITED(9, 10, 500),    10,     1,    10, true },
        { INHERITED(9, 10, 500),     0,     0,     0, true },
        /* inherited pages were given back */
        { CHILD,  8000,     0,   500, true },
        { CHILD,   400,     0,   400, true },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        ASSERT_CASE(i, cow_nursery_own(&cases[i].inherited, cases[i].total), cases[i].own);
        ASSERT_CASE(i, cow_nursery_basis(&cases[i].inherited, cases[i].total), cases[i].basis);
        ASSERT_CASE(i, cow_nursery_within_floor(&cases[i].inherited, cases[i].total), cases[i].within_floor);
    }
}

static void
test_min_free(void **state)
{
    static const struct {
        struct cow_nursery_inheritance inherited;
        size_t total;
        double ratio;
        size_t free;
    } cases[] = {
        { CHILD,   9000, 0.20,    100 },
        { CHILD, 109000, 0.20,  20000 },
        { CHILD, 109000, 1.00, 100000 },
        /* never 0 */
        { INHERITED(9000, 9000, 0),   9000, 0.20,      1 },
        { INHERITED(3, 3, 4),      3, 0.20,      1 },
        { INHERITED(0, 0, 0),      0, 0.20,      1 },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        ASSERT_CASE(i, cow_nursery_min_free(&cases[i].inherited, cases[i].total, cases[i].ratio),
                    cases[i].free);
    }
}

/* A child's heap gets no more free slots than its demand. */
static void
test_demand(void **state)
{
    enum {
        TOTAL = 1100000, INHERITED_SLOTS = 1000000, FLOOR = 10000,
        BY_RATIO = (TOTAL - INHERITED_SLOTS) / 5, /* 0.2 of what the child has of its own */
        MOST = 1024, /* slots that upstream puts aside */
        MADE = 999400, /* objects between the second sweep below and the third */
        DEMAND = 2 * MADE + 1
    };
    const struct cow_nursery_inheritance fresh = {
        .floor = FLOOR, .slots = INHERITED_SLOTS, .objects = INHERITED_SLOTS, .allocated = 500
    };
    struct cow_nursery_inheritance never = INHERITED(0, 0, 0), child = fresh, full = fresh;

    /* never forked: nothing is recorded, and upstream's rule holds */
    cow_nursery_swept(&never, 7);
    assert_int_equal(never.allocated + never.demand, 0);
    assert_true(cow_nursery_pools(&never, MOST - 1, 5000, MOST));
    assert_false(cow_nursery_pools(&never, MOST, 1, MOST));

    /* no demand is known yet: the ratios */
    assert_int_equal(cow_nursery_min_free(&child, TOTAL, 0.2), BY_RATIO);
    assert_true(cow_nursery_pools(&child, 0, 90, MOST));
    /* no object since the fork: a demand of 1 */
    cow_nursery_swept(&child, 500);
    assert_int_equal(cow_nursery_min_free(&child, TOTAL, 0.2), 1);
    assert_false(cow_nursery_pools(&child, 0, 2, MOST));
    /* 100 objects: a demand of 2 * 100 + 1 */
    cow_nursery_swept(&child, 600);
    assert_int_equal(cow_nursery_min_free(&child, TOTAL, 0.2), 201);
    assert_true(cow_nursery_pools(&child, 0, 90, MOST));
    assert_true(cow_nursery_pools(&child, 201 - 90, 90, MOST));
    assert_false(cow_nursery_pools(&child, 201 - 90 + 1, 90, MOST));
    /* more than the ratios say */
    cow_nursery_swept(&child, 600 + MADE);
    assert_int_equal(cow_nursery_min_free(&child, TOTAL, 0.2), BY_RATIO);
    assert_true(cow_nursery_pools(&child, MOST - 1, 5000, MOST));
    assert_false(cow_nursery_pools(&child, MOST, 1, MOST));
    /* a sweep without new objects lowers it by an eighth */
    cow_nursery_swept(&child, 600 + MADE);
    assert_int_equal(child.demand, DEMAND - DEMAND / COW_NURSERY_DEMAND_FORGOTTEN);

    /* the heap for which a collection is made gets what the ratios say */
    cow_nursery_ran_out(&full, TOTAL, 0.2);
    cow_nursery_swept(&full, 555);
    assert_int_equal(cow_nursery_min_free(&full, TOTAL, 0.2), BY_RATIO);
    /* (7/8)^60 < 1/2000: the demand falls to a few slots */
    for (int i = 0; i < 60; i++) cow_nursery_swept(&full, 555);
    assert_true(cow_nursery_min_free(&full, TOTAL, 0.2) < 100);
    cow_nursery_ran_out(&never, TOTAL, 0.2);
    assert_int_equal(never.demand, 0);
    /* counts that go backwards, as they may with several Ractors, are a great demand */
    cow_nursery_swept(&child, 600 + MADE - 1);
    assert_int_equal(cow_nursery_min_free(&child, TOTAL, 0.2), BY_RATIO);
}

/* Between two full collections the heaps grow by a share of what they inherited. */
static void
test_may_grow(void **state)
{
    static const struct { size_t total, grown; } cases[] = {
        { 9000, 0 }, { 9001, 1 }, { 20000, 11000 }, { 8999, 0 }, { 0, 0 }
    };
    struct cow_nursery_inheritance inherited = INHERITED(8000, 9000, 500);

    for (size_t i = 0; i < LENGTH(cases); i++) {
        ASSERT_CASE(i, cow_nursery_grown(&inherited, cases[i].total), cases[i].grown);
    }
    cow_nursery_marked_fully(&inherited, 10000);
    assert_int_equal(cow_nursery_grown(&inherited, 10000), 0);
    assert_int_equal(cow_nursery_grown(&inherited, 10001), 1);

    /* by less than a quarter of 4000 */
    assert_true(cow_nursery_may_grow(0, 4000));
    assert_true(cow_nursery_may_grow(999, 4000));
    assert_false(cow_nursery_may_grow(1000, 4000));
    assert_false(cow_nursery_may_grow(SIZE_MAX, 4000));
    /* never forked: upstream's rule */
    assert_false(cow_nursery_may_grow(0, 0));
    assert_false(cow_nursery_may_grow(0, 3));
}

/* A heap within its floor grows until it has the free slots that it shall have at least, or by the goal's
 * ratio of what the child keeps. */
static void
test_extension(void **state)
{
    static const struct {
        struct cow_nursery_inheritance inherited;
        size_t total, free, extension;
    } cases[] = {
        { CHILD, 9000,   0, 100 },
        { CHILD, 9000,  99,   1 },
        /* by one at least, because it has no free page */
        { CHILD, 9000, 100,   1 },
        { CHILD, 9400, 400,   1 },
        { INHERITED(0, 0, 0),    0,   0,   1 },
        /* 400 kept: 0.4 / (1 - 0.4), two thirds of it, are more than 100 */
        { CHILD, 9400,   0, 266 },
        { CHILD, 9480,  80, 186 },
        { CHILD, 9150,   0, 100 },
        /* but not more than the demand */
        { { 9000, 9000, 500, 9000, 0, 200 }, 9400,   0, 200 },
        { { 9000, 9000, 500, 9000, 0,  60 }, 9400,   0,  60 },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        ASSERT_CASE(i, cow_nursery_extension(&cases[i].inherited, cases[i].total, cases[i].free, 0.20, 0.40),
                    cases[i].extension);
        /* without a goal, the free slots that it shall have at least */
        size_t least = cow_nursery_min_free(&cases[i].inherited, cases[i].total, 0.20);
        ASSERT_CASE(i, cow_nursery_extension(&cases[i].inherited, cases[i].total, cases[i].free, 0.20, 0.0),
                    least > cases[i].free ? least - cases[i].free : 1);
    }
}

/* In a child a page of large slots is charged like a page of the smallest ones. */
static void
test_charge(void **state)
{
    static const struct cow_nursery_inheritance child = CHILD, other = INHERITED(0, 0, 0);

    assert_int_equal(cow_nursery_charge(&child, 102, 1638), 1638);
    assert_int_equal(cow_nursery_charge(&child, 1638, 1638), 1638);
    assert_int_equal(cow_nursery_charge(&other, 102, 1638), 102);
}

static void
test_survived(void **state)
{
    static const struct { size_t objects, survivors, expected, vacancies; } cases[] = {
        { 900, 1000, 900, 100 },
        { 900,  900, 900, 100 },
        { 900,  899, 899, 101 },
        { 900,    0,   0, 1000 },
        {   0,    0,   0, 1000 },
        {   0,   10,   0, 1000 },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct cow_nursery_inheritance inherited = INHERITED(cases[i].objects, 1000, 50);

        cow_nursery_survived(&inherited, cases[i].survivors);
        ASSERT_CASE(i, inherited.objects, cases[i].expected);
        ASSERT_CASE(i, cow_nursery_vacancies(&inherited), cases[i].vacancies);
    }
}

/* What holds for every heap after a sweep, whatever it inherited:
 *
 *     free <= own <= basis <= total
 *     total <= floor, or not forked: basis = total
 */
static void
test_invariants(void **state)
{
    /* around a word's bits, slots of a page, and the floor of 32768 slots at a ratio of 0.2 */
    static const size_t sizes[] = {
        0, 1, 2, 63, 64, 65, 408, 1638, 10000, 163839, 163840, 163841, 700000, 12000000
    };

    for (size_t s = 0; s < LENGTH(sizes); s++) {
        for (size_t o = 0; o <= s; o++) {
            for (size_t f = 0; f < LENGTH(sizes); f++) {
                for (size_t t = 0; t < LENGTH(sizes); t++) {
                    size_t total = sizes[t];
                    struct cow_nursery_inheritance inherited =
                        cow_nursery_inherit(sizes[o], sizes[s], sizes[s] * 2, sizes[f]);

                    for (size_t v = 0; v < LENGTH(sizes) && sizes[v] <= total; v++) {
                        size_t free = total - sizes[v];

                        cow_nursery_survived(&inherited, sizes[v]);
                        size_t own = cow_nursery_own(&inherited, total);
                        size_t basis = cow_nursery_basis(&inherited, total);

                        assert_true(inherited.objects <= inherited.slots);
                        assert_true(free <= own);
                        assert_true(own <= basis);
                        assert_true(basis <= total);
                        if (inherited.slots == 0 || total <= inherited.floor) assert_true(basis == total);
                        assert_true(cow_nursery_min_free(&inherited, total, 0.2) >= 1);
                    }
                }
            }
        }
    }
}

/* As a child grows beyond what it inherited, its basis approaches all its slots. */
static void
test_grown_child_nears_upstream(void **state)
{
    enum { OBJECTS = 600000, SLOTS = 620000, FLOOR = 163840, GROWN = 64 };
    struct cow_nursery_inheritance inherited = cow_nursery_inherit(OBJECTS, SLOTS, SLOTS, FLOOR);
    size_t before = cow_nursery_basis(&inherited, SLOTS), last = 0;

    assert_int_equal(before, FLOOR);
    for (size_t total = SLOTS; total < (size_t)GROWN * SLOTS; total *= 2) {
        size_t basis = cow_nursery_basis(&inherited, total);

        assert_true(basis >= before);
        assert_true(total - basis <= inherited.objects);
        before = basis;
        last = total;
    }
    assert_int_equal(last, (size_t)GROWN / 2 * SLOTS);
    assert_int_equal(before, last - OBJECTS); /* 0.97 of all slots */
}

static void
test_bytes(void **state)
{
    static const struct { const char *text; bool good; size_t bytes; } cases[] = {
        { NULL,   true,  7 },
        { "",     true,  7 },
        { "0",    true,  0 },
        { "00",   true,  0 },
        { "0M",   true,  0 },
        { "010",  true,  10 },
        { "3k",   true,  3 << 10 },
        { "3K",   true,  3 << 10 },
        { "300m", true,  300 << 20 },
        { "1G",   true,  1 << 30 },
        { "9223372036854775807",  true,  SIZE_MAX / 2 },
        { "9223372036854775808",  false, 7 },
        { "99999999999999999999", false, 7 },
        { "9999999999G", false, 7 },
        { "-1",   false, 7 },
        { "+1",   false, 7 },
        { " 1",   true,  1 },
        { "1M \r\n", true, 1 << 20 },
        { " ",    false, 7 },
        { "1 G",  false, 7 },
        { "1.5G", false, 7 },
        { "0x10", false, 7 },
        { "1T",   false, 7 },
        { "1GB",  false, 7 },
        { "K",    false, 7 },
        { "much", false, 7 },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        size_t bytes = 7;

        ASSERT_CASE(i, cow_setting_bytes(cases[i].text, &bytes), cases[i].good);
        ASSERT_CASE(i, bytes, cases[i].bytes);
    }
}

static void
test_switch(void **state)
{
    static const struct { const char *text; bool good, on_if_on, on_if_off; } cases[] = {
        { NULL,  true,  true,  false },
        { "",    true,  true,  false },
        { "0",   true,  false, false },
        { "1",   true,  true,  true },
        { "2",   false, true,  false },
        { "00",  false, true,  false },
        { "10",  false, true,  false },
        { "1 ",  false, true,  false },
        { " 1",  false, true,  false },
        { "-1",  false, true,  false },
        { "yes", false, true,  false },
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        bool on = true, off = false;

        ASSERT_CASE(i, cow_setting_switch(cases[i].text, &on), cases[i].good);
        ASSERT_CASE(i, cow_setting_switch(cases[i].text, &off), cases[i].good);
        ASSERT_CASE(i, on, cases[i].on_if_on);
        ASSERT_CASE(i, off, cases[i].on_if_off);
    }
}

static void
test_faults_are_found(void **state)
{
    struct cow_nursery_inheritance inherited = CHILD;
    char text[200] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    assert_true(cow_nursery_consistent(&inherited, stderr));
    inherited.objects = inherited.slots + 1;
    assert_false(cow_nursery_consistent(&inherited, out));
    inherited.objects = inherited.slots;
    inherited.floor = 0;
    assert_false(cow_nursery_consistent(&inherited, out));
    fclose(out);
    assert_non_null(strstr(text, ".objects: expected"));
    assert_non_null(strstr(text, ".floor: expected"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_inherit),
        cmocka_unit_test(test_basis),
        cmocka_unit_test(test_min_free),
        cmocka_unit_test(test_demand),
        cmocka_unit_test(test_may_grow),
        cmocka_unit_test(test_extension),
        cmocka_unit_test(test_charge),
        cmocka_unit_test(test_survived),
        cmocka_unit_test(test_invariants),
        cmocka_unit_test(test_grown_child_nears_upstream),
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_faults_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

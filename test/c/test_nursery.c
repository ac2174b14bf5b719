/*
 * The nursery's policy, by tables: cc -I../../gc test_nursery.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nursery.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* For rows of tables: names the row that failed. */
#define ASSERT_ROW(row, got, expected) do { \
    size_t got_ = (got), expected_ = (expected); \
    if (got_ != expected_) fail_msg("row %zu: " #got " is %zu, not %zu", (row), got_, expected_); \
} while (0)

/* What a heap inherited, its first full collection yet to come. */
#define INHERITED(objects, slots, floor) { objects, slots, floor, slots, 0, 0 }
#define CHILD INHERITED(9000, 9000, 500)

static void
test_floor(void **state)
{
    static const struct { size_t least, inherited; double ratio; size_t floor; } rows[] = {
        {     0,         0, 0.20,      0 },
        {     1,         0, 1.00,      1 },
        { 32768,         0, 0.20, 163840 },
        { 32768,    700000, 0.20, 163840 },
        /* 64 slots for one: the inherited heap begins to count */
        { 32768,   2097152, 0.20, 163840 },
        { 32768,   2097152 + 64, 0.20, 163845 },
        { 32768,   4194304, 0.20, 327680 },
        {     1,   6400000, 0.50, 200000 },
        /* absurd settings do not wrap around */
        { SIZE_MAX,      0, 0.20, SIZE_MAX / 2 },
        { SIZE_MAX,      0, 1.00, SIZE_MAX / 2 },
        { SIZE_MAX / 4,  0, 0.01, SIZE_MAX / 2 },
    };

    for (size_t i = 0; i < LENGTH(rows); i++) {
        ASSERT_ROW(i, cow_nursery_floor(rows[i].least, rows[i].inherited, rows[i].ratio), rows[i].floor);
    }
}

static void
test_inherit(void **state)
{
    static const struct { size_t objects, slots, all, floor; struct cow_nursery_inheritance expected; } rows[] = {
        /* a parent no bigger than the floor: as if never forked */
        {    0,    0,      0, 1000, INHERITED(0, 0, 0) },
        {  900, 1000,   1000, 1000, INHERITED(0, 0, 0) },
        {  900, 1000,    999, 1000, INHERITED(0, 0, 0) },
        {  900, 1000,   1001, 1000, INHERITED(900, 1000, 999) },
        /* a heap without pages inherits nothing */
        {    0,    0,  10000, 1000, INHERITED(0, 0, 0) },
        /* shares of the floor */
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

    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct cow_nursery_inheritance got = cow_nursery_inherit(rows[i].objects, rows[i].slots, rows[i].all, rows[i].floor);
        ASSERT_ROW(i, got.objects, rows[i].expected.objects);
        ASSERT_ROW(i, got.slots, rows[i].expected.slots);
        ASSERT_ROW(i, got.floor, rows[i].expected.floor);
        ASSERT_ROW(i, got.at_last_full, rows[i].expected.at_last_full);
    }
}

static void
test_basis(void **state)
{
    static const struct {
        struct cow_nursery_inheritance inherited;
        size_t total, own, basis;
        bool within_floor;
    } rows[] = {
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

    for (size_t i = 0; i < LENGTH(rows); i++) {
        ASSERT_ROW(i, cow_nursery_own(&rows[i].inherited, rows[i].total), rows[i].own);
        ASSERT_ROW(i, cow_nursery_basis(&rows[i].inherited, rows[i].total), rows[i].basis);
        ASSERT_ROW(i, cow_nursery_within_floor(&rows[i].inherited, rows[i].total), rows[i].within_floor);
    }
}

static void
test_min_free(void **state)
{
    static const struct { struct cow_nursery_inheritance inherited; size_t total; double ratio; size_t free; } rows[] = {
        { CHILD,   9000, 0.20,    100 },
        { CHILD, 109000, 0.20,  20000 },
        { CHILD, 109000, 1.00, 100000 },
        /* never none */
        { INHERITED(9000, 9000, 0),   9000, 0.20,      1 },
        { INHERITED(3, 3, 4),      3, 0.20,      1 },
        { INHERITED(0, 0, 0),      0, 0.20,      1 },
    };

    for (size_t i = 0; i < LENGTH(rows); i++) {
        ASSERT_ROW(i, cow_nursery_min_free(&rows[i].inherited, rows[i].total, rows[i].ratio), rows[i].free);
    }
}

/* A child's heap is worth no more free slots than it will use. */
static void
test_demand(void **state)
{
    struct cow_nursery_inheritance never = INHERITED(0, 0, 0), child = { .floor = 10000, .slots = 1000000, .objects = 1000000, .allocated = 500 };
    const size_t total = 1100000;

    cow_nursery_swept(&never, 7);
    assert_int_equal(never.allocated + never.demand, 0);
    assert_true(cow_nursery_pools(&never, 1023, 5000, 1024));
    assert_false(cow_nursery_pools(&never, 1024, 1, 1024));

    size_t by_ratio = cow_nursery_min_free(&child, total, 0.2);
    assert_int_equal(by_ratio, 20000);
    assert_true(cow_nursery_pools(&child, 0, 90, 1024));
    cow_nursery_swept(&child, 500);
    assert_int_equal(cow_nursery_min_free(&child, total, 0.2), 1);
    assert_false(cow_nursery_pools(&child, 0, 2, 1024));
    cow_nursery_swept(&child, 600);
    assert_int_equal(cow_nursery_min_free(&child, total, 0.2), 201);
    assert_true(cow_nursery_pools(&child, 0, 90, 1024));
    assert_true(cow_nursery_pools(&child, 111, 90, 1024));
    assert_false(cow_nursery_pools(&child, 112, 90, 1024));
    cow_nursery_swept(&child, 1000000);
    assert_int_equal(cow_nursery_min_free(&child, total, 0.2), by_ratio);
    assert_true(cow_nursery_pools(&child, 1023, 5000, 1024));
    assert_false(cow_nursery_pools(&child, 1024, 1, 1024));
    cow_nursery_swept(&child, 1000000);
    assert_int_equal(child.demand, 1998801 - 1998801 / 8);
    /* the heap that a collection is made for is worth what the ratios say */
    struct cow_nursery_inheritance full = { .floor = 10000, .slots = 1000000, .objects = 1000000, .allocated = 500 };
    cow_nursery_ran_out(&full, total, 0.2);
    cow_nursery_swept(&full, 555);
    assert_int_equal(cow_nursery_min_free(&full, total, 0.2), by_ratio);
    for (int i = 0; i < 60; i++) cow_nursery_swept(&full, 555);
    assert_true(cow_nursery_min_free(&full, total, 0.2) < 100);
    cow_nursery_ran_out(&never, total, 0.2);
    assert_int_equal(never.demand, 0);
    cow_nursery_swept(&child, 999999); /* what other Ractors count may be lost */
    assert_int_equal(cow_nursery_min_free(&child, total, 0.2), by_ratio);
}

/* Between two full collections the heaps grow by a share of what they inherited. */
static void
test_may_grow(void **state)
{
    static const struct { size_t total, grown; } rows[] = { { 9000, 0 }, { 9001, 1 }, { 20000, 11000 }, { 8999, 0 }, { 0, 0 } };
    struct cow_nursery_inheritance inherited = INHERITED(8000, 9000, 500);

    for (size_t i = 0; i < LENGTH(rows); i++) ASSERT_ROW(i, cow_nursery_grown(&inherited, rows[i].total), rows[i].grown);
    cow_nursery_marked_fully(&inherited, 10000);
    assert_int_equal(cow_nursery_grown(&inherited, 10000), 0);
    assert_int_equal(cow_nursery_grown(&inherited, 10001), 1);

    assert_true(cow_nursery_may_grow(0, 4000));
    assert_true(cow_nursery_may_grow(999, 4000));
    assert_false(cow_nursery_may_grow(1000, 4000));
    assert_false(cow_nursery_may_grow(SIZE_MAX, 4000));
    /* never forked: upstream's rule */
    assert_false(cow_nursery_may_grow(0, 0));
    assert_false(cow_nursery_may_grow(0, 3));
}

/* A heap within its floor grows until it has what it shall have at least, or its goal of
 * what the child keeps. */
static void
test_extension(void **state)
{
    static const struct { struct cow_nursery_inheritance inherited; size_t total, free, extension; } rows[] = {
        { CHILD, 9000,   0, 100 },
        { CHILD, 9000,  99,   1 },
        /* by one at least: it has asked for some */
        { CHILD, 9000, 100,   1 },
        { CHILD, 9400, 400,   1 },
        { INHERITED(0, 0, 0),    0,   0,   1 },
        /* 400 kept: two thirds of it are more than 100 */
        { CHILD, 9400,   0, 266 },
        { CHILD, 9480,  80, 186 },
        { CHILD, 9150,   0, 100 },
        /* but not more than it is worth to have */
        { { 9000, 9000, 500, 9000, 0, 200 }, 9400,   0, 200 },
        { { 9000, 9000, 500, 9000, 0,  60 }, 9400,   0,  60 },
    };

    for (size_t i = 0; i < LENGTH(rows); i++) {
        ASSERT_ROW(i, cow_nursery_extension(&rows[i].inherited, rows[i].total, rows[i].free, 0.20, 0.40), rows[i].extension);
        /* without a goal, what it shall have at least */
        size_t least = cow_nursery_min_free(&rows[i].inherited, rows[i].total, 0.20);
        ASSERT_ROW(i, cow_nursery_extension(&rows[i].inherited, rows[i].total, rows[i].free, 0.20, 0.0),
                   least > rows[i].free ? least - rows[i].free : 1);
    }
}

/* A page of large slots is as dear as one of small ones, but only in a child. */
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
    static const struct { size_t objects, survivors, expected, holes; } rows[] = {
        { 900, 1000, 900, 100 },
        { 900,  900, 900, 100 },
        { 900,  899, 899, 101 },
        { 900,    0,   0, 1000 },
        {   0,    0,   0, 1000 },
        {   0,   10,   0, 1000 },
    };

    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct cow_nursery_inheritance inherited = INHERITED(rows[i].objects, 1000, 50);

        cow_nursery_survived(&inherited, rows[i].survivors);
        ASSERT_ROW(i, inherited.objects, rows[i].expected);
        ASSERT_ROW(i, cow_nursery_vacancies(&inherited), rows[i].holes);
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
    static const size_t sizes[] = { 0, 1, 2, 63, 64, 65, 408, 1638, 10000, 163839, 163840, 163841, 700000, 12000000 };

    for (size_t s = 0; s < LENGTH(sizes); s++) {
        for (size_t o = 0; o <= s; o++) {
            for (size_t f = 0; f < LENGTH(sizes); f++) {
                for (size_t t = 0; t < LENGTH(sizes); t++) {
                    size_t total = sizes[t];
                    struct cow_nursery_inheritance inherited = cow_nursery_inherit(sizes[o], sizes[s], sizes[s] * 2, sizes[f]);

                    for (size_t v = 0; v < LENGTH(sizes) && sizes[v] <= total; v++) {
                        size_t free = total - sizes[v];

                        cow_nursery_survived(&inherited, sizes[v]);
                        size_t own = cow_nursery_own(&inherited, total), basis = cow_nursery_basis(&inherited, total);

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

/* As a child grows beyond what it inherited, its basis nears all its slots. */
static void
test_grown_child_nears_upstream(void **state)
{
    struct cow_nursery_inheritance inherited = cow_nursery_inherit(600000, 620000, 620000, 163840);
    size_t before = cow_nursery_basis(&inherited, 620000);

    assert_int_equal(before, 163840);
    for (size_t total = 620000; total < 64 * 620000UL; total *= 2) {
        size_t basis = cow_nursery_basis(&inherited, total);

        assert_true(basis >= before);
        assert_true(total - basis <= inherited.objects);
        before = basis;
    }
    assert_true(before > 32 * 620000UL * 96 / 100);
}

static void
test_switch(void **state)
{
    static const struct { const char *text; bool good, on_if_on, on_if_off; } rows[] = {
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

    for (size_t i = 0; i < LENGTH(rows); i++) {
        bool on = true, off = false;

        ASSERT_ROW(i, cow_setting_switch(rows[i].text, &on), rows[i].good);
        ASSERT_ROW(i, cow_setting_switch(rows[i].text, &off), rows[i].good);
        ASSERT_ROW(i, on, rows[i].on_if_on);
        ASSERT_ROW(i, off, rows[i].on_if_off);
    }
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

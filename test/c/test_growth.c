/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The model of the heap's size, by programs that are played: cc -I../../gc test_growth.c -lcmocka -lm
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "growth_policy.h"

#define MB (1024.0 * 1024)
#define SHARE 0.05

/* A program, and what it has done so far. */
struct program {
    double rate;            /* bytes allocated in a ns */
    double malloc_part;     /* of them by malloc */
    double survives;        /* part of the objects' bytes that a minor collection leaves */
    double dies_later;      /* part of these that a full one frees */
    double live, young_garbage, old_garbage;
    struct cow_growth growth;
    struct cow_growth_sample sample;
    double allocated;
};

/* A minor marking takes 1 ms and a full one 10 ns an object of 100 bytes, to sweep one 2 ns. */
#define MINOR_NS 1e6
#define OBJECT_NS 10.0
#define SLOT_NS 2.0

/* The program allocates +bytes+, then a collection is made. */
static void
play(struct program *program, double bytes, bool full)
{
    struct cow_growth *growth = &program->growth;
    struct cow_growth_sample *sample = &program->sample;
    double objects = bytes * (1 - program->malloc_part);

    sample->cpu_ns += bytes / program->rate;
    sample->allocated[1] += objects;
    sample->malloced = bytes - objects;
    program->allocated += bytes;
    cow_growth_begin(growth, sample, full);
    program->live += objects * program->survives;
    program->old_garbage += objects * program->survives * program->dies_later;
    if (full) {
        program->live -= program->old_garbage;
        program->old_garbage = 0;
    }
    size_t count = (size_t)(program->live / 100);
    cow_growth_marked(growth, count, count * 2, program->live, SHARE);
    double marking = full ? OBJECT_NS * count : MINOR_NS, sweeping = SLOT_NS * count * 2;
    sample->marking_ns += marking;
    sample->sweeping_ns += sweeping;
    sample->cpu_ns += marking + sweeping;
    assert_true(cow_growth_consistent(growth, stderr));
}

/* The program allocates what it is allowed, so many times. */
static void
play_on(struct program *program, int collections)
{
    for (int i = 0; i < collections; i++) {
        double room = program->growth.room;
        play(program, room > 64 * 1024 ? room : 64 * 1024, !cow_growth_may_grow(&program->growth));
    }
}

static void
assert_near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= expected * tolerance))
        fail_msg("expected %g, found %g", expected, found);
}

static void
test_nothing_is_known_at_first(void **state)
{
    struct cow_growth growth = { 0 };
    struct cow_growth_sample sample = { 0 };

    assert_true(cow_growth_consistent(&growth, stderr));
    cow_growth_begin(&growth, &sample, false);
    cow_growth_marked(&growth, 1000, 2000, 100e3, SHARE);
    assert_true(cow_growth_consistent(&growth, stderr));
    assert_true(growth.room == COW_GROWTH_LEAST_ROOM && cow_growth_malloc_room(&growth) == 0);
    assert_near(cow_growth_heap_room(&growth, 0), COW_GROWTH_LEAST_ROOM / COW_GROWTH_HEAPS, 1e-9);
    assert_true(cow_growth_may_grow(&growth));
    double expected = 1000 * COW_GROWTH_OBJECT_NS + 2000 * COW_GROWTH_SLOT_NS;
    assert_near(cow_growth_minor_cost(&growth), expected, 1e-9);
}

static void
test_rule(void **state)
{
    /* A quarter of 100 MB where collections then take the target share of time. */
    assert_near(cow_growth_room(1, 25 * MB * SHARE, 1, 100 * MB, SHARE), 25 * MB, 1e-9);
    /* A quarter of the cost: half of the room. */
    assert_near(cow_growth_room(1, 25 * MB * SHARE / 4, 1, 100 * MB, SHARE), 12.5 * MB, 1e-9);
    /* Only a quarter dies: twice the room. */
    assert_near(cow_growth_room(1, 25 * MB * SHARE, 0.25, 100 * MB, SHARE), 50 * MB, 1e-9);
    /* A quarter of the target: twice the room. */
    assert_near(cow_growth_room(1, 25 * MB * SHARE, 1, 100 * MB, SHARE / 4), 50 * MB, 1e-9);
    /* Bounds of the waste, and of the room. */
    assert_near(cow_growth_room(1, 25 * MB * SHARE, 0, 100 * MB, SHARE), 50 * MB, 1e-9);
    assert_near(cow_growth_room(1, 25 * MB * 100, 1, 100 * MB, SHARE), COW_GROWTH_MOST * 100 * MB, 1e-9);
    assert_true(cow_growth_room(0, 1, 1, MB, SHARE) == COW_GROWTH_LEAST_ROOM);
    assert_true(cow_growth_room(1, 1, 1, 0, SHARE) == COW_GROWTH_LEAST_ROOM);
}

/* A program that keeps 20 MB and no more: the model knows what it does and what collections cost, and the
 * share of time that it leads to is what it predicts. */
static void
test_steady_program(void **state)
{
    struct program program = { .rate = 0.5, .malloc_part = 0.25, .live = 20 * MB };

    play_on(&program, 40);
    struct cow_growth *growth = &program.growth;
    assert_near(cow_growth_rate(growth), 0.5, 0.01);
    assert_near(growth->memory, 20 * MB + COW_GROWTH_BASE, 0.01);
    double cost = MINOR_NS + SLOT_NS * 2 * (size_t)(20 * MB / 100);
    assert_near(cow_growth_minor_cost(growth), cost, 0.01);
    assert_near(growth->room, sqrt(0.5 * cost / SHARE * COW_GROWTH_PAR * growth->memory), 0.01);
    assert_near(cow_growth_heap_room(growth, 1), growth->room * 0.75, 0.01);
    assert_near(cow_growth_malloc_room(growth), growth->room * 0.25, 0.01);
    assert_true(cow_growth_heap_room(growth, 0) == 0);

    double predicted = 0.5 * cost / growth->room;
    double marking = program.sample.marking_ns, sweeping = program.sample.sweeping_ns;
    double allocated = program.allocated;
    play_on(&program, 20);
    double gc = program.sample.marking_ns - marking + program.sample.sweeping_ns - sweeping;
    assert_near(gc / ((program.allocated - allocated) / 0.5), predicted, 0.05);
}

/* A program that keeps all that it makes is collected a few times only: it may double. */
static void
test_building_program(void **state)
{
    struct program program = { .rate = 0.1, .survives = 1 };
    int collections = 0, full = 0;

    while (program.live < 1000 * MB) {
        bool now = !cow_growth_may_grow(&program.growth);
        play(&program, program.growth.room > MB ? program.growth.room : MB, now);
        full += now;
        collections++;
    }
    assert_in_range(collections, 1, 30);
    assert_in_range(full, 1, 12);
    assert_true(program.growth.old_waste < COW_GROWTH_FIRST_WASTE);
    assert_true(cow_growth_old_factor(&program.growth) > 1.5);
}

/* What survives and dies later is waste: survivors may grow less until a full marking. */
static void
test_later_garbage(void **state)
{
    struct program keeps = { .rate = 0.5, .live = 50 * MB, .survives = 0.05 };
    struct program drops = { .rate = 0.5, .live = 50 * MB, .survives = 0.05, .dies_later = 0.95 };

    play_on(&keeps, 60);
    play_on(&drops, 60);
    assert_true(drops.growth.old_waste > 0.5);
    assert_true(keeps.growth.old_waste < 0.1);
    double drops_part = drops.growth.full_room / drops.growth.memory;
    double keeps_part = keeps.growth.full_room / keeps.growth.memory;
    assert_true(drops_part < keeps_part * 0.7);
}

/* A clock that stands still, goes back or cannot be read, and counters that fall: no room that is absurd. */
static void
test_clocks(void **state)
{
    const double clocks[] = { 0, 0, 1e15, 5, 1e9, 1e9, 2e9, 0, 1e18, 3 };
    struct cow_growth growth = { 0 };

    for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        struct cow_growth_sample sample = {
            .cpu_ns = clocks[i], .marking_ns = clocks[(i * 3) % 10], .sweeping_ns = clocks[(i * 7) % 10],
            .allocated = { clocks[(i * 9) % 10] }, .malloced = i % 3 * MB
        };
        cow_growth_begin(&growth, &sample, i % 4 == 3);
        cow_growth_marked(&growth, i * 1000, i * 1500, i * 1e5, SHARE);
        assert_true(cow_growth_consistent(&growth, stderr));
    }
    /* No progress for long. */
    for (int i = 0; i < 3000; i++) {
        struct cow_growth_sample sample = { .allocated = { i * MB } };
        cow_growth_begin(&growth, &sample, i % 9 == 8);
        cow_growth_marked(&growth, 1000, 1500, 1e5, SHARE);
        assert_true(cow_growth_consistent(&growth, stderr) && isfinite(cow_growth_rate(&growth)));
    }
    assert_true(cow_growth_size(cow_growth_rate(&growth)) == 0);
    assert_true(cow_growth_size(HUGE_VAL) == SIZE_MAX / 2 && cow_growth_size(7.9) == 7);
}

/* The child's clock starts at 0. It keeps its parent's prices. */
/* What has been allocated long ago, in one heap, says nothing of a program that allocates in another now; two
 * collections with hardly anything between them say nothing of it either. */
static void
test_a_program_is_known_by_what_it_does_now(void **state)
{
    struct cow_growth growth = { 0 };
    struct cow_growth_sample sample = { 0 };

    sample.allocated[1] = 100 * MB;
    for (int i = 0; i < 5; i++) {
        cow_growth_begin(&growth, &sample, false);
        cow_growth_marked(&growth, 10000, 20000, 1e6, SHARE);
        sample.cpu_ns += 1e6;
        sample.allocated[0] += MB;
    }
    assert_true(cow_growth_heap_room(&growth, 0) > growth.room * 0.9);
    sample.allocated[0] -= MB;
    sample.allocated[2] += 1000;
    for (int i = 0; i < 5; i++) {
        cow_growth_begin(&growth, &sample, true);
        cow_growth_marked(&growth, 10000, 20000, 1e6, SHARE);
        sample.cpu_ns += 1e6;
    }
    assert_true(cow_growth_heap_room(&growth, 0) > growth.room * 0.9);
}

/* One collection that took a hundred times as long makes the room at most a quarter bigger, and not for
 * long. */
static void
test_one_slow_collection(void **state)
{
    struct program program = { .rate = 0.5, .live = 20 * MB };

    play_on(&program, 40);
    const double room = program.growth.room;
    program.sample.marking_ns += 100 * MINOR_NS;
    program.sample.cpu_ns += 100 * MINOR_NS;
    play_on(&program, 1);
    assert_true(program.growth.room > room && program.growth.room < room * 1.25);
    play_on(&program, 5);
    assert_near(program.growth.room, room, 0.02);
}

static void
test_fork(void **state)
{
    struct program program = { .rate = 0.5, .live = 20 * MB };

    play_on(&program, 20);
    double cost = cow_growth_minor_cost(&program.growth), rate = cow_growth_rate(&program.growth);
    program.sample.cpu_ns = 0;
    cow_growth_pause(&program.growth);
    play(&program, MB, false);
    assert_near(cow_growth_minor_cost(&program.growth), cost, 0.01);
    assert_near(cow_growth_rate(&program.growth), rate, 0.01);
    play_on(&program, 20);
    assert_near(cow_growth_rate(&program.growth), rate, 0.01);
}

/* What survives of malloc's memory counts as kept, as much of it as of the objects; what is made in vain does
 * not. */
static void
test_blocks(void **state)
{
    struct program churns = { .rate = 0.5, .malloc_part = 0.9, .live = 20 * MB };
    struct program builds = { .rate = 0.5, .malloc_part = 0.5, .survives = 1 };

    play_on(&churns, 40);
    assert_near(churns.growth.memory, 20 * MB + COW_GROWTH_BASE, 0.01);
    while (builds.live < 100 * MB) play_on(&builds, 1);
    assert_near(builds.growth.blocks, builds.live, 0.1);
    assert_true(cow_growth_full_malloc_room(&builds.growth) > 10 * MB);
    assert_near(cow_growth_malloc_room(&builds.growth), builds.growth.room / 2, 0.01);
}

static void
test_targets(void **state)
{
    assert_true(cow_growth_target(0) && cow_growth_target(5) && cow_growth_target(0.01));
    assert_false(cow_growth_target(5e-324) || cow_growth_target(0.001) || cow_growth_target(-1));
    assert_false(cow_growth_target(50.1) || cow_growth_target(NAN) || cow_growth_target(HUGE_VAL));
}

static void
test_consistency(void **state)
{
    struct cow_growth good = { .memory = 3e6, .room = 2e6, .full_room = 5 }, bad = good;
    FILE *out = tmpfile();

    assert_non_null(out);
    assert_true(cow_growth_consistent(&good, out));
    bad.room = 2.1e6;
    assert_false(cow_growth_consistent(&bad, out));
    bad = good;
    bad.full_room = -1;
    assert_false(cow_growth_consistent(&bad, out));
    bad = good;
    bad.live = NAN;
    assert_false(cow_growth_consistent(&bad, out));
    char text[400] = "";
    rewind(out);
    assert_true(fread(text, 1, sizeof(text) - 1, out) > 0);
    fclose(out);
    assert_string_equal(text, "cow_growth.room: expected 0 to 2e+06, found 2.1e+06\n"
                              "cow_growth.full_room: expected 0 to 2e+06, found -1\n"
                              "cow_growth.live: expected a number of 0 or more, found nan\n");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_known_at_first),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_steady_program),
        cmocka_unit_test(test_building_program),
        cmocka_unit_test(test_later_garbage),
        cmocka_unit_test(test_clocks),
        cmocka_unit_test(test_a_program_is_known_by_what_it_does_now),
        cmocka_unit_test(test_one_slow_collection),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_consistency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

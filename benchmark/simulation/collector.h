/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SIMULATION_COLLECTOR_H
#define SIMULATION_COLLECTOR_H

/*
 * collector: the policies, as gc/heap_growth.c, gc/pressure.c and gc/default apply them.
 *
 * Entry points: collect, end_pressed, expected_share.
 */

#include "worker.h"

#define HEAP_PAGE 16384.0

static bool measured; /* the last half */

static bool
alive(int32_t pid)
{
    return true;
}

/* What the kernel would tell. */
static struct cow_pressure_reading
read_machine(struct cow_pressure_sums *sums, uint64_t now)
{
    const struct cow_pressure_sums last = *sums;
    const double passed_us = (double)(now - last.read_at) / 1000;
    struct cow_pressure_reading reading = COW_PRESSURE_NO_READING;

    *sums = (struct cow_pressure_sums){ machine.some_ns / 1000, machine.full_ns / 1000, now, 1 };
    if (last.read_at != 0 && passed_us > 0) {
        reading.some = cow_pressure_stalled(last.some_us, sums->some_us, passed_us);
        reading.full = cow_pressure_stalled(last.full_us, sums->full_us, passed_us);
    }
    reading.used = machine.resident;
    reading.allowed = machine.memory;
    return reading;
}

static void
sense(struct worker *worker, uint64_t now)
{
    struct cow_pressure_tree *tree = given.tree == 1 ? &machine.tree : NULL;
    const enum cow_pressure_level before = worker->pressure.level;
    enum cow_pressure_cause cause;
    enum cow_pressure_level level;
    bool files;

    if (!cow_pressure_due(&worker->pressure, now)) return;
    worker->pressure.read_at = now;
    if (tree == NULL || cow_pressure_tree_due(tree, now)) {
        struct cow_pressure_reading reading = read_machine(tree ? &tree->sums : &worker->sums, now);
        level = cow_pressure_of(&reading, &cause);
        if (tree) cow_pressure_tree_publish(tree, level, cause, true, now);
    }
    else {
        level = cow_pressure_tree_level(tree, &cause, &files, now);
    }
    if (cow_pressure_note(&worker->pressure, level, cause, now)) worker->gives = true;
    if (measured && worker->pressure.level != before) worker->changes++;
}

static int32_t
pid_of(const struct worker *worker)
{
    return (int32_t)(worker - workers) + 1;
}

/* A collection begins. Gives true if it shall be a full one because of pressure. */
static bool
begin_pressed(struct worker *worker, uint64_t now)
{
    if (policy != PRESSURE) return false;
    sense(worker, now);
    if (!cow_pressure_collects(&worker->pressure, now, worker->program_ns)) return false;
    if (given.tree == 1 && !cow_pressure_tree_turn(&machine.tree, pid_of(worker), alive, now)) return false;
    worker->collecting = worker->gives = true;
    worker->began_resident = worker->resident * machine.scale;
    return true;
}

/* Such a collection is over. */
static void
end_pressed(struct worker *worker, uint64_t now)
{
    worker->collecting = false;
    cow_pressure_collected(&worker->pressure, now, worker->program_ns, worker->cost, worker->began_resident,
                           worker->resident * machine.scale);
    if (given.tree == 1) cow_pressure_tree_done(&machine.tree, pid_of(worker));
}

/* Upstream's rule for the limits of malloc. */
static void
limit_malloc(struct worker *worker, bool full)
{
    double *limit = &worker->malloc_base, *old = &worker->old_malloc_base;
    const bool more = worker->old_malloced > worker->old_malloc_limit;

    if (worker->malloced > *limit) *limit = fmin(worker->malloced * 1.4, 32 * MB);
    else *limit = fmax(*limit * 0.98, 16 * MB);
    worker->malloced = 0;
    if (!full && more) {
        worker->needs_full = worker->full_for_malloc = true;
        if (worker->old_malloced > *old) *old = fmin(*old * 1.2, 128 * MB);
    }
    else if (full) {
        worker->old_malloced = 0;
        if (!worker->full_for_malloc) *old = fmax(*old / 1.02, 16 * MB);
        worker->full_for_malloc = false;
    }
}

/* Decides how much may be allocated until the next collection. */
static void
decide(struct worker *worker)
{
    struct cow_growth *growth = &worker->growth;
    const double kept = occupied(worker), size = worker->trace->size;

    worker->malloc_limit = worker->malloc_base;
    worker->old_malloc_limit = worker->old_malloc_base;
    if (policy == PRISTINE) return;
    cow_growth_marked(growth, (size_t)(kept / size), (size_t)(worker->heap / size), kept,
                      policy == PRESSURE ? cow_pressure_share(&worker->pressure, given.target / 100)
                                         : given.target / 100);
    const size_t malloc_least = 16 << 20;
    const double least = (double)(policy == PRESSURE ? cow_pressure_part(&worker->pressure, malloc_least)
                                                     : malloc_least);
    worker->malloc_limit = fmax(least, cow_growth_malloc_room(growth));
    worker->old_malloc_limit = fmax(least, cow_growth_full_malloc_room(growth)) + worker->malloc_limit;
    if (!cow_growth_consistent(growth, stderr)) abort();
    if (!cow_pressure_consistent(&worker->pressure, stderr)) abort();
}

/* The model's share of time in collections, minor and full ones. */
static double
expected_share(const struct cow_growth *growth)
{
    const double program_ns = growth->full_program_ns;
    const double full_rate = program_ns >= 1 ? growth->full_survived / program_ns : 0;

    if (growth->room <= 0 || growth->full_room <= 0) return 0;
    return cow_growth_rate(growth) * cow_growth_minor_cost(growth) / growth->room +
           full_rate * cow_growth_full_cost(growth) / growth->full_room;
}

/* Gives what of the model's room is the heap's. */
static double
heap_room(const struct worker *worker)
{
    return fmax(cow_growth_heap_room(&worker->growth, 1), HEAP_PAGE);
}

/* How many bytes of slots shall be free at least. */
static double
least_free(const struct worker *worker)
{
    if (policy == PRISTINE) return fmax(worker->heap, 10000 * worker->trace->size) * 0.2;
    return heap_room(worker) * COW_GROWTH_LEAST_FREE;
}

/* How many may be free at most. */
static double
most_free(const struct worker *worker)
{
    double most = fmax(worker->heap * 0.65, 10000 * worker->trace->size);

    if (policy == PRISTINE) return most;
    const double room = heap_room(worker);
    most = fmax(most, room);
    if (policy == GROWTH || worker->pressure.level == COW_PRESSURE_CALM) return most;
    return worker->pressure.level == COW_PRESSURE_MODERATE ? room + (most - room) / 2 : room;
}

/* Frees empty pages beyond what is kept. Without pressure a step of the sweep frees three of them, which is a
 * third of what it finds where all are empty. */
static void
free_pages(struct worker *worker)
{
    const double free = worker->heap - occupied(worker), over = free - most_free(worker);
    const double found = free * given.empty * (worker->gives ? 1 : 1.0 / 3);

    if (over > 0) worker->heap -= fmin(over, found);
    worker->gives = false;
}

/* Lets the heap grow, or asks for a full collection. +before+ was free, +freed+ has become so. */
static void
let_grow(struct worker *worker, bool full, double before, double freed)
{
    const double free = worker->heap - occupied(worker);
    const bool may = policy != PRISTINE && cow_growth_may_grow(&worker->growth);

    if (free >= least_free(worker)) return;
    if (worker->allowance < HEAP_PAGE && !may && !full && worker->collections - worker->last_full >= OLD) {
        worker->needs_full = true;
    }
    if (before >= HEAP_PAGE && freed <= before) return;
    if (!full && !may && worker->collections - worker->last_full >= OLD) {
        worker->needs_full = true;
        return;
    }
    if (policy == PRISTINE) {
        double factor = fmin((worker->heap - free) / (0.6 * worker->heap), 1.8);
        if (factor < 1) factor = 1.1;
        worker->allowance += worker->heap * (factor - 1);
    }
    else {
        worker->allowance += fmax(heap_room(worker) - free, HEAP_PAGE);
    }
}

/* What survived is one collection older. Gives the bytes of slots that are free now. */
static double
free_garbage(struct worker *worker, bool full)
{
    double freed = 0;

    for (int i = 0; i < (full ? CLASSES : OLD); i++) {
        freed += worker->dead[i].objects;
        worker->malloced -= fmin(worker->dead[i].malloced, worker->malloced);
        worker->old_malloced -= fmin(worker->dead[i].malloced, worker->old_malloced);
        worker->dead[i] = (struct bytes){ 0, 0 };
    }
    worker->live[OLD].objects += worker->live[OLD - 1].objects;
    worker->live[OLD].malloced += worker->live[OLD - 1].malloced;
    for (int i = OLD - 1; i > 0; i--) {
        worker->live[i] = worker->live[i - 1];
        worker->born[i] = worker->born[i - 1];
    }
    worker->live[0] = (struct bytes){ 0, 0 };
    worker->born[0] = worker->done;
    return freed;
}

static void
collect(struct worker *worker, uint64_t now)
{
    const double size = worker->trace->size, before = fmax(worker->heap - occupied(worker), 0);
    const double young = total(worker->live, false) - worker->live[OLD].objects;
    const bool pressed = begin_pressed(worker, now), full = worker->needs_full || pressed;

    worker->needs_full = false;
    worker->collections++;
    if (full) {
        worker->last_full = worker->collections;
        worker->full += measured;
    }
    worker->pressed_full += pressed && measured;
    worker->sample.malloced = worker->malloced;
    if (policy != PRISTINE) cow_growth_begin(&worker->growth, &worker->sample, full);
    limit_malloc(worker, full);

    const double freed = free_garbage(worker, full);
    const double marking = full ? given.object_ns * occupied(worker) / size
                                : given.roots_ns + given.object_ns * young / size;
    const double sweeping = given.slot_ns * worker->heap / size;
    worker->debt = worker->cost = marking + sweeping;
    worker->sample.marking_ns += marking;
    worker->sample.sweeping_ns += sweeping;
    worker->sample.cpu_ns += marking + sweeping;
    touch(worker, full ? worker->heap : fmin(worker->heap, freed + young), now);

    decide(worker);
    const double old = worker->live[OLD].objects + worker->dead[OLD].objects;
    if (full) {
        const double factor = policy == PRISTINE ? 2 : fmax(2, cow_growth_old_factor(&worker->growth));
        worker->old_limit = old * factor;
    }
    if (old > worker->old_limit) worker->needs_full = true;
    let_grow(worker, full, before, freed);
    free_pages(worker);
    if (worker->heap - occupied(worker) + worker->allowance < HEAP_PAGE) {
        if (full) worker->allowance = HEAP_PAGE;
        else worker->needs_full = true;
    }
    hold(worker, now);
}

#endif /* SIMULATION_COLLECTOR_H */

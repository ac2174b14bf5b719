/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SIMULATION_WORKER_H
#define SIMULATION_WORKER_H

/*
 * worker: a program that plays its trace, the memory that it holds, and the machine's memory.
 *
 * Job: memory that does not fit lies in a swap. Each page of a worker is as likely to be in memory as another
 * one of its pages; what one worker brings in all others lose in equal parts.
 *
 * Entry points: play_step, touch, hold, occupied.
 */

#include "trace.h"

#define SECOND UINT64_C(1000000000)
#define MB (1024.0 * 1024)
#define PAGE 4096.0

/* By how many collections an object has survived; the last is old. */
enum { CLASSES = 4, OLD = CLASSES - 1 };

struct worker {
    const struct trace *trace;
    uint64_t starts_at;
    int step;
    double part;    /* of the step that is done */
    double done;    /* steps in all */
    double born[OLD]; /* .done at the last collections: what was made before the oldest is old */

    /* By how many collections it has survived; the last is old. */
    struct bytes live[CLASSES], dead[CLASSES];
    double heap;      /* slots that there are */
    double allowance; /* by which the heap may grow */
    double held, resident; /* .resident counts in parts of machine.scale */
    double debt;      /* ns that the collection which is going on still takes */
    double stall;     /* ns to wait */

    /* Upstream's rules. */
    int collections, last_full;
    bool needs_full, full_for_malloc;
    double malloced, old_malloced; /* since the last collection; since the last full one */
    double malloc_base, malloc_limit, old_malloc_base, old_malloc_limit;
    double old_limit;

    struct cow_growth growth;
    struct cow_growth_sample sample;
    struct cow_pressure pressure;
    struct cow_pressure_sums sums; /* where it reads for itself */
    bool collecting, gives;        /* for pressure */
    double began_resident, cost;

    /* What is reported. */
    double program_ns, gc_ns, stalled_ns;
    double expected; /* ns in collections, by the model */
    int changes, full, pressed_full;
};

static struct {
    double memory, resident, scale;
    uint64_t device_free;
    double some_ns, full_ns;
    struct cow_pressure_tree tree;
} machine;

static struct worker *workers;

/* The machine. */

/* Gives a number from 0 to 1. A linear congruential generator, of which the high bits are taken. */
static double
chance(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) / (double)(UINT64_C(1) << 53);
}

/* The worker waits until the device has moved so many pages for it. */
static void
wait_for(struct worker *worker, double faults, double moved, uint64_t now)
{
    const double least = faults * given.latency_us * 1000;

    if (machine.device_free < now) machine.device_free = now;
    machine.device_free += (uint64_t)(moved * given.device_us * 1000);
    const double device = moved > 0 ? (double)(machine.device_free - now) : 0;
    worker->stall += device > least ? device : least;
}

/* So many bytes of the worker come into memory. Gives how many pages others lose for it. */
static double
bring(struct worker *worker, double bytes)
{
    worker->resident += bytes / machine.scale;
    machine.resident += bytes;
    const double over = machine.resident - machine.memory;
    if (over <= 0) return 0;
    machine.scale *= machine.memory / machine.resident;
    machine.resident = machine.memory;
    if (machine.scale < 1e-100) {
        for (int i = 0; i < (int)given.workers; i++) workers[i].resident *= machine.scale;
        machine.scale = 1;
    }
    return over / PAGE;
}

/* The worker touches so many bytes that it holds. */
static void
touch(struct worker *worker, double bytes, uint64_t now)
{
    const double missing = worker->held - worker->resident * machine.scale;

    if (missing < PAGE || worker->held < PAGE) return;
    double faults = bytes / PAGE * missing / worker->held;
    if (faults * PAGE > missing) faults = missing / PAGE;
    wait_for(worker, faults, faults + bring(worker, faults * PAGE), now);
}

static double
total(const struct bytes *classes, bool malloced)
{
    double sum = 0;

    for (int i = 0; i < CLASSES; i++) sum += malloced ? classes[i].malloced : classes[i].objects;
    return sum;
}

static double
occupied(const struct worker *worker)
{
    return total(worker->live, false) + total(worker->dead, false);
}

/* Takes into account that the worker holds more or less than it did. New memory is filled with zeros, and the
 * worker waits only for what others lose for it. */
static void
hold(struct worker *worker, uint64_t now)
{
    const double malloced = total(worker->live, true) + total(worker->dead, true);
    const double held = worker->heap + malloced + given.process * MB, before = worker->held;
    const double more = held - before;

    worker->held = held;
    if (more > 0) {
        const double lost = bring(worker, more);
        if (lost > 0) wait_for(worker, 0, lost, now);
    }
    else if (before > 0) {
        const double resident = worker->resident * (held / before);
        machine.resident -= (worker->resident - resident) * machine.scale;
        worker->resident = resident;
    }
}

/* The program. */

/* By how many collections it has survived that what is so many steps old. */
static int
class_of(const struct worker *worker, double age)
{
    const double born = worker->done - age;
    int class = 0;

    while (class < OLD && born < worker->born[class]) class++;
    return class;
}

/* So many bytes die, of +class+ if it has them, else of older ones, else of younger ones. */
static void
die(struct worker *worker, int class, struct bytes bytes)
{
    for (int i = 0; i < CLASSES; i++) {
        const int at = i < CLASSES - class ? class + i : CLASSES - 1 - i;
        struct bytes *live = &worker->live[at];
        const struct bytes gone = { fmin(bytes.objects, live->objects),
                                    fmin(bytes.malloced, live->malloced) };

        live->objects -= gone.objects;
        live->malloced -= gone.malloced;
        worker->dead[at].objects += gone.objects;
        worker->dead[at].malloced += gone.malloced;
        bytes.objects -= gone.objects;
        bytes.malloced -= gone.malloced;
    }
}

/* The program goes on from step .repeats of its trace, without what it has beyond what it had then. */
static void
begin_anew(struct worker *worker)
{
    const struct bytes *then = &worker->trace->restarts;

    worker->step = worker->trace->repeats;
    die(worker, OLD, (struct bytes){ fmax(total(worker->live, false) - then->objects, 0),
                                     fmax(total(worker->live, true) - then->malloced, 0) });
}

/* Plays +part+ of the step. */
static void
play_step(struct worker *worker, double part, uint64_t now)
{
    const struct step *step = &worker->trace->steps[worker->step];
    const struct bytes allocated = { step->allocated.objects * part, step->allocated.malloced * part };
    const struct bytes kept = { fmin(step->kept.objects * part, allocated.objects),
                                fmin(step->kept.malloced * part, allocated.malloced) };
    const double free = worker->heap - occupied(worker);

    worker->part += part;
    worker->done += part;
    worker->program_ns += step->cpu_ns * part;
    worker->sample.cpu_ns += step->cpu_ns * part;
    worker->sample.allocated[1] += allocated.objects;
    worker->malloced += allocated.malloced;
    worker->old_malloced += allocated.malloced;
    worker->live[0].objects += kept.objects;
    worker->live[0].malloced += kept.malloced;
    worker->dead[0].objects += allocated.objects - kept.objects;
    worker->dead[0].malloced += allocated.malloced - kept.malloced;
    for (int i = 0; i < step->count; i++) {
        const struct drop *drop = &step->drops[i];
        die(worker, class_of(worker, drop->age),
            (struct bytes){ drop->bytes.objects * part, drop->bytes.malloced * part });
    }
    if (allocated.objects > free) {
        worker->heap += allocated.objects - free;
        worker->allowance -= allocated.objects - free;
    }
    hold(worker, now);
    touch(worker, fmin(allocated.objects, free) + given.reads * step->cpu_ns * part / 1e6 * PAGE, now);
    if (worker->part >= 1 - 1e-9) {
        worker->part = 0;
        if (++worker->step == worker->trace->count) begin_anew(worker);
    }
}

#endif /* SIMULATION_WORKER_H */

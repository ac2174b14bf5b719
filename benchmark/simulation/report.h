/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SIMULATION_REPORT_H
#define SIMULATION_REPORT_H

/*
 * report: what is looked at once a second, and the figures of the last half of the time.
 *
 * Entry points: look, report.
 */

#include "worker.h"

/* Output. */

/* What is looked at once a second. */
struct look { double held, kept, resident, level, stalled, program; };

static struct look
look(double *stalled_before, double *program_before)
{
    const double count = given.workers;
    double stalled = 0, program = 0;
    struct look found = { 0 };

    for (int i = 0; i < (int)count; i++) {
        found.held += workers[i].held;
        found.kept += total(workers[i].live, false) + total(workers[i].live, true) + given.process * MB;
        found.level += workers[i].pressure.level / count;
        stalled += workers[i].stalled_ns;
        program += workers[i].program_ns;
    }
    found.resident = machine.resident;
    found.stalled = (stalled - *stalled_before) / (double)SECOND / count;
    found.program = (program - *program_before) / (double)SECOND;
    *stalled_before = stalled;
    *program_before = program;
    return found;
}

/* Gives which part of +all+ that is; 0 if there is nothing. */
static double
part_of(double some, double all)
{
    return all > 0 ? some / all : 0;
}

/* Gives the second from which on the memory stays within 5 % of its mean in the last half; -1 if it leaves
 * that in the last tenth of the time. */
static double
settled(const struct look *looks, int count, double mean)
{
    int last = -1;

    for (int i = 0; i < count; i++) {
        if (fabs(looks[i].held - mean) > mean * 0.05) last = i;
    }
    return last + 1 < count - count / 10 ? last + 2 : -1;
}

static void
report(const struct look *looks, int count, const struct worker *half)
{
    const int number_of = (int)given.workers, first = count / 2;
    const double seconds = count - first, minutes = seconds / 60 * number_of;
    struct worker sum = { 0 };
    double squares = 0, least = INFINITY, mean = 0, kept = 0, peak = 0, level = 0;

    for (int i = 0; i < number_of; i++) {
        const double own = workers[i].program_ns - half[i].program_ns;

        squares += own * own;
        least = fmin(least, own);
        sum.program_ns += own;
        sum.gc_ns += workers[i].gc_ns - half[i].gc_ns;
        sum.stalled_ns += workers[i].stalled_ns - half[i].stalled_ns;
        sum.expected += workers[i].expected - half[i].expected;
        sum.changes += workers[i].changes;
        sum.full += workers[i].full;
        sum.pressed_full += workers[i].pressed_full;
    }
    for (int i = 0; i < count; i++) peak = fmax(peak, looks[i].held);
    for (int i = first; i < count; i++) {
        mean += looks[i].held / seconds;
        kept += looks[i].kept / seconds;
        level += looks[i].level / seconds;
    }
    const double program = sum.program_ns;
    const struct { const char *name; double value; } figures[] = {
        { "work", program / seconds / SECOND },      /* s of the programs' own time in a second */
        { "gc", part_of(sum.gc_ns, program + sum.gc_ns) },
        { "expected", part_of(sum.expected, program + sum.expected) },
        { "stalled", sum.stalled_ns / seconds / SECOND / number_of },
        { "mean", mean / MB }, { "peak", peak / MB },
        { "kept", kept / MB },                       /* of that, what lives, and the processes */
        { "fairness", part_of(program * program, squares * number_of) },
        { "least", part_of(least * number_of, program) },
        { "level", level },
        { "changes", sum.changes / minutes }, { "full", sum.full / minutes },
        { "pressed_full", sum.pressed_full / minutes },
        { "settled", settled(looks, count, mean) },
    };
    printf("{\"policy\":\"%s\",\"workers\":%d", policy_names[policy], number_of);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        printf(",\"%s\":%.6g", figures[i].name, figures[i].value);
    }
    if (given.series == 1) {
        printf(",\"series\":[");
        for (int i = 0; i < count; i++) {
            printf("%s[%d,%.6g,%.6g,%.4g,%.4g,%.5g]", i ? "," : "", i + 1, looks[i].held / MB,
                   looks[i].resident / MB, looks[i].level, looks[i].stalled, looks[i].program);
        }
        printf("]");
    }
    printf("}\n");
}

#endif /* SIMULATION_REPORT_H */

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SIMULATION_OPTIONS_H
#define SIMULATION_OPTIONS_H

/*
 * options: what can be given to the simulation, and what each worker and the machine have.
 *
 * Entry points: set, usage, stop.
 */

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "growth_policy.h"
#include "pressure_tree.h"

enum policy { PRISTINE, GROWTH, PRESSURE, POLICIES };
static const char *const policy_names[] = { "pristine", "growth", "pressure" };

static enum policy policy = PRESSURE;

/* What can be given as --NAME NUMBER. Prices were measured by hand with GC.stat of the programs recorded. */
static struct {
    double workers, memory, cpus, seconds, seed, series;
    double target;      /* RUBY_GC_TARGET_TIME, per cent */
    double object_ns;   /* Wm: to mark an object */
    double slot_ns;     /* Ws: to sweep a slot */
    double roots_ns;    /* to mark the roots in a minor collection */
    double process;     /* MB of a worker besides its objects and their memory */
    double empty;       /* part of the free slots that lies in empty pages */
    double reads;       /* pages at random that a program touches in a ms of its own time */
    double latency_us;  /* until a page is there */
    double device_us;   /* the swap device moves one page in this time */
    double spread;      /* s in which the workers start */
    double tree;        /* 1: the workers are one tree; 0: each reads for itself */
} given = {
    .workers = 1, .memory = 16384, .cpus = 16, .seconds = 600, .seed = 1, .series = 0, .target = 5,
    .object_ns = 50, .slot_ns = 5, .roots_ns = 5e5, .process = 8, .empty = 0.5, .reads = 5,
    .latency_us = 80, .device_us = 10, .spread = 10, .tree = 1,
};

static const struct { const char *name; double *value, least, most; } options[] = {
    { "workers", &given.workers, 1, COW_PRESSURE_PROCESSES },
    { "memory", &given.memory, 1, 1e9 },
    { "cpus", &given.cpus, 1, 4096 },
    { "seconds", &given.seconds, 10, 1e6 },
    { "seed", &given.seed, 0, 4e9 },
    { "series", &given.series, 0, 1 },
    { "target", &given.target, COW_GROWTH_LEAST_TARGET_TIME, COW_GROWTH_MOST_TARGET_TIME },
    { "object-ns", &given.object_ns, 0, 1e6 },
    { "slot-ns", &given.slot_ns, 0, 1e6 },
    { "roots-ns", &given.roots_ns, 0, 1e9 },
    { "process", &given.process, 0, 1e6 },
    { "empty", &given.empty, 0, 1 },
    { "reads", &given.reads, 0, 1e6 },
    { "latency-us", &given.latency_us, 0, 1e6 },
    { "device-us", &given.device_us, 0, 1e6 },
    { "spread", &given.spread, 0, 1e6 },
    { "tree", &given.tree, 0, 1 },
};
enum { OPTIONS = sizeof(options) / sizeof(options[0]) };

static void
stop(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("simulate: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static void
usage(void)
{
    printf("usage: simulate [--policy pristine|growth|pressure] [--NAME NUMBER]... TRACE...\n"
           "plays traces for many workers on one machine; worker i plays trace i\n");
    for (int i = 0; i < OPTIONS; i++) {
        printf("  --%-10s %g to %g (default %g)\n", options[i].name, options[i].least, options[i].most,
               *options[i].value);
    }
}

static void
set(const char *name, const char *text)
{
    char *end;

    if (text == NULL) stop("%s wants a value", name);
    if (strcmp(name, "--policy") == 0) {
        for (int i = 0; i < POLICIES; i++) {
            if (strcmp(text, policy_names[i]) == 0) {
                policy = (enum policy)i;
                return;
            }
        }
        stop("--policy is pristine, growth or pressure, not %s", text);
    }
    for (int i = 0; i < OPTIONS; i++) {
        if (strncmp(name, "--", 2) != 0 || strcmp(name + 2, options[i].name) != 0) continue;
        const double value = strtod(text, &end);
        const bool whole = options[i].value <= &given.series || options[i].value == &given.tree;

        if (*text == '\0' || *end != '\0' || !(options[i].least <= value && value <= options[i].most) ||
            (whole && value != floor(value))) {
            stop("%s wants a %snumber from %g to %g, not %s", name, whole ? "whole " : "", options[i].least,
                 options[i].most, text);
        }
        *options[i].value = value;
        return;
    }
    stop("there is no option %s (see --help)", name);
}

#endif /* SIMULATION_OPTIONS_H */

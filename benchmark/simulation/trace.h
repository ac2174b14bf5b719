/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SIMULATION_TRACE_H
#define SIMULATION_TRACE_H

/*
 * trace: what a program allocates in each of its steps, and when that dies, as it was recorded (record).
 *
 * Entry point: read_trace.
 */

#include <errno.h>
#include "options.h"

enum { MOST_TRACES = 8, MOST_STEPS = 4096, MOST_DROPS = 65536 };

/* Bytes in slots, and of malloc. */
struct bytes { double objects, malloced; };

struct drop { double age; struct bytes bytes; };

struct step {
    double cpu_ns, objects;
    struct bytes allocated, kept;
    const struct drop *drops;
    int count;
};

struct trace {
    struct step *steps;
    int count, repeats;
    struct bytes base;     /* before the first step */
    struct bytes restarts; /* before step .repeats */
    double size;           /* of a slot */
};

static struct trace traces[MOST_TRACES];
static int trace_count;

/* Traces. */

static double
number(const char **text, const char *path, int line)
{
    char *end;
    const double found = strtod(*text, &end);

    if (end == *text || !(found >= 0) || !isfinite(found)) {
        stop("%s:%d: a number of 0 or more is missing", path, line);
    }
    while (*end == '\t' || *end == ':' || *end == ',') end++;
    *text = end;
    return found;
}

static struct bytes
both(const char **text, const char *path, int line)
{
    const double objects = number(text, path, line);

    return (struct bytes){ objects, number(text, path, line) };
}

static void
read_step(struct step *step, const char *text, const char *path, int line)
{
    static struct drop drops[MOST_DROPS];
    static int used;

    number(&text, path, line); /* of the step */
    step->cpu_ns = number(&text, path, line);
    step->objects = number(&text, path, line);
    step->allocated = both(&text, path, line);
    step->kept = both(&text, path, line);
    step->drops = drops + used;
    if (step->cpu_ns < 1) stop("%s:%d: a step takes no time", path, line);
    if (*text == '-') return;
    while (*text != '\n' && *text != '\0') {
        if (used == MOST_DROPS) stop("%s:%d: there are more than %d drops", path, line, MOST_DROPS);
        drops[used].age = number(&text, path, line);
        drops[used].bytes = both(&text, path, line);
        used++;
        step->count++;
    }
}

/* What lives before step .repeats, and the mean size of a slot. */
static void
look_over(struct trace *trace, double base_objects)
{
    struct bytes live = trace->base;
    double objects = base_objects, bytes = trace->base.objects;

    trace->restarts = live;
    for (int i = 0; i < trace->count; i++) {
        const struct step *step = &trace->steps[i];

        if (i == trace->repeats) trace->restarts = live;
        objects += step->objects;
        bytes += step->allocated.objects;
        live.objects += step->kept.objects;
        live.malloced += step->kept.malloced;
        for (int k = 0; k < step->count; k++) {
            live.objects -= step->drops[k].bytes.objects;
            live.malloced -= step->drops[k].bytes.malloced;
        }
    }
    trace->size = objects > 0 ? bytes / objects : 40;
}

static void
read_trace(struct trace *trace, const char *path)
{
    FILE *file = fopen(path, "r");
    static char line[65536];
    double base_objects = 0;

    if (file == NULL) stop("%s: %s", path, strerror(errno));
    trace->steps = calloc(MOST_STEPS, sizeof(struct step));
    if (trace->steps == NULL) stop("there is no memory for a trace");
    for (int count = 1; fgets(line, sizeof(line), file); count++) {
        const char *text = line;

        if (strncmp(line, "repeats\t", 8) == 0) {
            text += 8;
            trace->repeats = (int)fmin(number(&text, path, count), MOST_STEPS);
        }
        else if (strncmp(line, "base\t", 5) == 0) {
            text += 5;
            base_objects = number(&text, path, count);
            trace->base = both(&text, path, count);
        }
        else if (*line >= '0' && *line <= '9') {
            if (trace->count == MOST_STEPS) stop("%s: there are more than %d steps", path, MOST_STEPS);
            read_step(&trace->steps[trace->count++], line, path, count);
        }
        else if (*line != '#' && strncmp(line, "step\t", 5) != 0) {
            stop("%s:%d: this is no line of a trace", path, count);
        }
    }
    fclose(file);
    if (trace->count == 0) stop("%s: there is no step", path);
    if (trace->repeats >= trace->count) stop("%s: it repeats from a step that is not there", path);
    look_over(trace, base_objects);
}

#endif /* SIMULATION_TRACE_H */

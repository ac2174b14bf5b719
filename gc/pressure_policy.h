/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PRESSURE_POLICY_H
#define COW_PRESSURE_POLICY_H

/*
 * pressure_policy: when others need the memory that a process has beyond what it keeps.
 *
 * Job: says, from what the system tells (pressure_files.h), at which of three levels a process is:
 *
 *     calm      the heap may be as big as growth_policy.h says.
 *     moderate  the extra memory is halved, and what is free goes back to the system.
 *     critical  it is a third or a quarter, and full collections find what is free, one a window.
 *
 * Algorithm: a level rises at once. It falls by one when COW_PRESSURE_CALM_WINDOWS windows have passed in
 * which no reading would have raised it so far, so that memory is not asked for again as soon as it is given
 * back. What raises it:
 *
 *     stalls    processes have waited for memory in a tenth of the time (moderate), all of them at once
 *               (critical). These are the kernel's "some" and "full" (PSI) since the last reading.
 *     cgroup    the memory in use, without pages of files, is nine tenths of the limit (moderate), or 97 %
 *               (critical); or the kernel has ended a process of the cgroup (critical).
 *     limit     the same, of RUBY_GC_MEMORY_LIMIT; critical above it.
 *     faults    the process has waited for a page that was not in memory (moderate). This is the rule of
 *               the second seed, but applied once a window: a program that reads mapped files has such faults
 *               all the time.
 *
 * Between two full collections for pressure at least a window passes, and the program runs at least as long
 * as the last one took, so that they never take more than half of the time. Where one has gained less than a
 * twentieth of the process's memory, twice as long passes as before it: what lives stays, however often it
 * is marked.
 *
 * Entry points: cow_pressure_read (a reading has been made), cow_pressure_fault (a page is asked for),
 * cow_pressure_share, cow_pressure_part, cow_pressure_collects, cow_pressure_collected,
 * cow_pressure_mode_read,
 * cow_pressure_consistent.
 *
 * Who writes this memory after a fork: a process writes the struct, in its objspace, at readings.
 *
 * Times are in ns, memory is in bytes. All functions are pure but for the struct that they get.
 */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "assertion.h"
#include "setting_values.h"

enum cow_pressure_level { COW_PRESSURE_CALM, COW_PRESSURE_MODERATE, COW_PRESSURE_CRITICAL };

/* What raised a level. */
enum cow_pressure_cause {
    COW_PRESSURE_NONE,
    COW_PRESSURE_STALLS,
    COW_PRESSURE_CGROUP,
    COW_PRESSURE_LIMIT,
    COW_PRESSURE_FAULTS,
    COW_PRESSURE_TREE /* another process of the same tree (pressure_tree.h) */
};

static const char *const cow_pressure_level_names[] = { "calm", "moderate", "critical" };

/* The values of RUBY_GC_PRESSURE: what is asked. auto asks psi and cgroup, and rusage where neither can be
 * read. A limit of the user's holds in each but off. */
enum cow_pressure_mode {
    COW_PRESSURE_AUTO, COW_PRESSURE_RUSAGE, COW_PRESSURE_PSI, COW_PRESSURE_OF_CGROUP, COW_PRESSURE_OFF
};

static const char *const cow_pressure_mode_names[] = { "auto", "rusage", "psi", "cgroup", "off" };

/* The window: readings are no closer to each other than half of it. Unprivileged watchers of PSI have windows
 * of 2 s. */
#define COW_PRESSURE_WINDOW_NS UINT64_C(2000000000)
enum { COW_PRESSURE_CALM_WINDOWS = 2 };

/* After a process's memory was asked for, it is not asked for again for so many times as long as that took;
 * but for the longest rest at most. */
#define COW_PRESSURE_TAKING 10
#define COW_PRESSURE_LONGEST_REST_NS (8 * COW_PRESSURE_WINDOW_NS)

/* The share of time stalled from which on a level is raised; systemd's default for MEMORY_PRESSURE_WATCH is a
 * tenth, too. */
#define COW_PRESSURE_STALLED 0.1

/* A full collection has gained something if so much of the memory or less is left; if none does, they are at
 * most so far from each other. */
#define COW_PRESSURE_GAIN 0.95
#define COW_PRESSURE_MOST_WAIT_NS (32 * COW_PRESSURE_WINDOW_NS)

/* Parts of a limit. */
#define COW_PRESSURE_MODERATE_PART 0.9
#define COW_PRESSURE_CRITICAL_PART 0.97

/* What was read. A number below 0 was not. */
struct cow_pressure_reading {
    double some, full;          /* shares of the time since the last reading */
    double used, allowed;       /* of the cgroup */
    double killed;              /* 1: a process of the cgroup, lately */
    double own, own_allowed;    /* of the process or its tree */
};

#define COW_PRESSURE_NO_READING { -1, -1, -1, -1, -1, -1, -1 }

/* All 0 at first. */
struct cow_pressure {
    enum cow_pressure_level level;
    enum cow_pressure_cause cause; /* of .level; COW_PRESSURE_NONE when calm */
    uint64_t read_at;    /* when the last reading was made; 0: none was */
    uint64_t pressed_at; /* when a reading last justified .level, or it fell */
    uint64_t gave_at;    /* when free memory was last given back for it */
    uint64_t collected_at; /* when the last full collection for pressure was over; 0: none was made */
    double busy_ns;      /* the program's own time when that one was over */
    double cost_ns;      /* what it took */
    uint64_t wait_ns;    /* so long the next one waits; 0: a window */
    long faults;         /* major faults, when a page was last asked for */
    bool faults_known;
    uint64_t faulted_at; /* when the process last collected for one; 0: it has not */
};

/* Reads RUBY_GC_PRESSURE into +mode+; false if +text+ is no value (setting_values.h). */
static inline bool
cow_pressure_mode_read(const char *text, enum cow_pressure_mode *mode)
{
    int index = *mode;

    if (!cow_setting_name(text, cow_pressure_mode_names, COW_PRESSURE_OFF + 1, &index)) return false;
    *mode = (enum cow_pressure_mode)index;
    return true;
}

/* Is it time for a reading? A clock that has gone back counts as one. */
static inline bool
cow_pressure_due(const struct cow_pressure *pressure, uint64_t now)
{
    return pressure->read_at == 0 || now < pressure->read_at ||
           now - pressure->read_at >= COW_PRESSURE_WINDOW_NS / 2;
}

/* Raises +*level+ to +to+, because of +by+. */
static inline void
cow_pressure_raise(enum cow_pressure_level *level, enum cow_pressure_cause *cause,
                   enum cow_pressure_level to, enum cow_pressure_cause by)
{
    if (*level >= to) return;
    *level = to;
    *cause = by;
}

/* Gives the level that one reading justifies, and writes what for to +cause+. */
static inline enum cow_pressure_level
cow_pressure_of(const struct cow_pressure_reading *reading, enum cow_pressure_cause *cause)
{
    enum cow_pressure_level level = COW_PRESSURE_CALM;

    *cause = COW_PRESSURE_NONE;
    if (reading->full >= COW_PRESSURE_STALLED) {
        cow_pressure_raise(&level, cause, COW_PRESSURE_CRITICAL, COW_PRESSURE_STALLS);
    }
    if (reading->own_allowed >= 0 && reading->own > reading->own_allowed) {
        cow_pressure_raise(&level, cause, COW_PRESSURE_CRITICAL, COW_PRESSURE_LIMIT);
    }
    if (reading->killed > 0 ||
        (reading->allowed >= 0 && reading->used >= reading->allowed * COW_PRESSURE_CRITICAL_PART)) {
        cow_pressure_raise(&level, cause, COW_PRESSURE_CRITICAL, COW_PRESSURE_CGROUP);
    }
    if (reading->some >= COW_PRESSURE_STALLED) {
        cow_pressure_raise(&level, cause, COW_PRESSURE_MODERATE, COW_PRESSURE_STALLS);
    }
    if (reading->own_allowed >= 0 && reading->own >= reading->own_allowed * COW_PRESSURE_MODERATE_PART) {
        cow_pressure_raise(&level, cause, COW_PRESSURE_MODERATE, COW_PRESSURE_LIMIT);
    }
    if (reading->allowed >= 0 && reading->used >= reading->allowed * COW_PRESSURE_MODERATE_PART) {
        cow_pressure_raise(&level, cause, COW_PRESSURE_MODERATE, COW_PRESSURE_CGROUP);
    }
    return level;
}

/* Takes a level that was found at +now+ into account. Gives true if what is free shall be given back: the
 * level has risen, or a window has passed at a level that lasts. */
static inline bool
cow_pressure_note(struct cow_pressure *pressure, enum cow_pressure_level level, enum cow_pressure_cause cause,
                  uint64_t now)
{
    if (level > COW_PRESSURE_CALM && level >= pressure->level) {
        const bool gives = level > pressure->level || now - pressure->gave_at >= COW_PRESSURE_WINDOW_NS;

        pressure->level = level;
        pressure->cause = cause;
        pressure->pressed_at = now;
        if (gives) pressure->gave_at = now;
        return gives;
    }
    if (pressure->level > COW_PRESSURE_CALM &&
        now - pressure->pressed_at >= COW_PRESSURE_CALM_WINDOWS * COW_PRESSURE_WINDOW_NS) {
        pressure->level = (enum cow_pressure_level)(pressure->level - 1);
        pressure->pressed_at = now;
        if (pressure->level == COW_PRESSURE_CALM) {
            pressure->cause = COW_PRESSURE_NONE;
            pressure->wait_ns = 0;
        }
    }
    return false;
}

/* Called when a page is asked for, when the process has had +faults+ major faults. Gives true if there was
 * one since the last call, and the process has not collected for one in this window: it shall collect first.
 */
static inline bool
cow_pressure_fault(struct cow_pressure *pressure, long faults, uint64_t now)
{
    const bool more = pressure->faults_known && faults > pressure->faults;

    pressure->faults = faults;
    pressure->faults_known = true;
    if (!more) return false;
    if (pressure->faulted_at != 0 && now - pressure->faulted_at < COW_PRESSURE_WINDOW_NS) return false;
    pressure->faulted_at = now;
    return true;
}

/* Gives the share of time in collections that is aimed at: +share+ when calm. A room is as the root of it
 * (growth_policy.h), so four times the share halve it. Half of the time is the most: from there a share of
 * 5 per cent leaves a third of the room. */
static inline double
cow_pressure_share(const struct cow_pressure *pressure, double share)
{
    const double factors[] = { 1, 4, 16 };
    const double wanted = share * factors[pressure->level], most = 0.5;

    if (pressure->level == COW_PRESSURE_CALM || share >= most) return share;
    return wanted < most ? wanted : most;
}

/* Gives which part holds of a limit that no price of collections decides: it is halved and
 * quartered. */
static inline size_t
cow_pressure_part(const struct cow_pressure *pressure, size_t limit)
{
    return limit >> pressure->level;
}

/* Shall the next collection be a full one because of pressure? +busy_ns+ is the time that the program has
 * taken without collections. */
static inline bool
cow_pressure_collects(const struct cow_pressure *pressure, uint64_t now, double busy_ns)
{
    if (pressure->level < COW_PRESSURE_CRITICAL) return false;
    if (pressure->collected_at == 0) return true;
    if (now - pressure->collected_at < COW_PRESSURE_WINDOW_NS) return false;
    if (now - pressure->collected_at < pressure->wait_ns) return false;
    return busy_ns - pressure->busy_ns >= pressure->cost_ns;
}

/* Called when such a collection is over, which took +cost_ns+. The process began it with +before+ bytes of
 * memory and ended it with +after+; below 0 if that is not known. */
static inline void
cow_pressure_collected(struct cow_pressure *pressure, uint64_t now, double busy_ns, double cost_ns,
                       double before, double after)
{
    const uint64_t last = pressure->wait_ns > 0 ? pressure->wait_ns : COW_PRESSURE_WINDOW_NS;

    if (after < 0 || after <= before * COW_PRESSURE_GAIN) pressure->wait_ns = 0;
    else pressure->wait_ns = last < COW_PRESSURE_MOST_WAIT_NS / 2 ? last * 2 : COW_PRESSURE_MOST_WAIT_NS;
    pressure->collected_at = now;
    pressure->busy_ns = busy_ns;
    pressure->cost_ns = cost_ns;
}

/* Checks the invariants; writes the first difference to +out+ and gives false. */
static inline bool
cow_pressure_consistent(const struct cow_pressure *pressure, FILE *out)
{
    if (pressure->level < COW_PRESSURE_CALM || pressure->level > COW_PRESSURE_CRITICAL) {
        fprintf(out, "cow_pressure.level: expected 0 to 2, found %d\n", (int)pressure->level);
        return false;
    }
    if ((pressure->level == COW_PRESSURE_CALM) != (pressure->cause == COW_PRESSURE_NONE)) {
        fprintf(out, "cow_pressure.cause: expected %s for level %s, found %d\n",
                pressure->level == COW_PRESSURE_CALM ? "none" : "one",
                cow_pressure_level_names[pressure->level], (int)pressure->cause);
        return false;
    }
    if (!isfinite(pressure->busy_ns) || !(pressure->cost_ns >= 0 && isfinite(pressure->cost_ns))) {
        fprintf(out, "cow_pressure.cost_ns: expected numbers, found %g and %g\n", pressure->cost_ns,
                pressure->busy_ns);
        return false;
    }
    return true;
}

/* Gives the ns after which a process's memory may be asked for again if that took +taking+ ns. */
static inline uint64_t
cow_pressure_rest(uint64_t taking)
{
    const uint64_t longest = COW_PRESSURE_LONGEST_REST_NS;

    return taking < longest / COW_PRESSURE_TAKING ? COW_PRESSURE_TAKING * taking : longest;
}

#endif /* COW_PRESSURE_POLICY_H */

#ifndef COW_SEAL_H
#define COW_SEAL_H

/*
 * seal: whether a process prepares its heap before it forks, and which pages are
 * closed to allocation then.
 *
 * Job: what the parent has made is shared with its children for as long as nobody
 * writes there. Before the fork all objects are marked and made old at once, so
 * that no child has to; then their pages are sealed: neither parent nor child makes
 * objects in them any more, and no minor collection looks at them but for what is
 * remembered. A dead object in a sealed page is cleaned up when a full collection
 * finds it, and its slot stays closed.
 *
 * Algorithm:
 *
 *     due    = enough objects have survived the last collection, and an eighth
 *              more than when the heap was sealed last
 *     closed = a page with at least an eighth of its slots live; and emptier ones,
 *              as long as closed pages hold back less than a quarter of all slots
 *
 * So a heap that grows without end is prepared at the cost of at most nine full
 * collections of what it is in the end, and forks in a row prepare it once.
 *
 * A page that falls below that eighth is opened again, an emptier one when half of
 * its objects have died: then little is shared, and much is held back. So closed
 * slots are at most seven times the live ones and that quarter.
 *
 * After: Android's zygote space (compacted, then closed before the first fork),
 * CPython's gc.freeze.
 *
 * Entry points: seal_mode_read (RUBY_GC_SEAL), seal_survivors, seal_due and seal_room
 * (before a fork), seal_spare and seal_floor (for each page, then); a page with fewer live
 * objects than its floor at the end of a full marking is opened.
 *
 * Who writes this memory after a fork: nobody; all functions are pure. What is
 * sealed stands in struct heap_page and is written before the fork.
 *
 * Knobs (environment):
 *     RUBY_GC_SEAL           auto (default): before the first fork, and again when
 *                            the heap has grown. warmup: only what Process.warmup has
 *                            prepared. off: never.
 *     RUBY_GC_FORK_COMPACT   1: the heap is compacted, too, as by Process.warmup.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "setting.h"

enum seal_mode { SEAL_OFF, SEAL_WARMUP, SEAL_AUTO };

static const char *const seal_mode_names[] = { "off", "warmup", "auto" };

/* A page is closed while one in so many of its slots is live. */
#ifndef SEAL_SLOTS_PER_LIVE
# define SEAL_SLOTS_PER_LIVE 8
#endif

/* Emptier pages are closed while all closed slots are one in so many of all. */
#ifndef SEAL_SLOTS_PER_SPARE
# define SEAL_SLOTS_PER_SPARE 4
#endif

/* The heap is sealed anew when it has grown by its own size divided by this. */
#ifndef SEAL_GROWTH
# define SEAL_GROWTH 8
#endif

/* One in so many objects that no collection has looked at is taken to survive: more than a
 * heap ever grows by between two collections. */
#ifndef SEAL_LIVE_PER_SURVIVOR
# define SEAL_LIVE_PER_SURVIVOR 4
#endif

/* Live objects below which a heap is not worth a full collection. */
#ifndef SEAL_LEAST_LIVE
# define SEAL_LEAST_LIVE 65536
#endif

/* Bytes that a heap's preparation may take, however small it is. */
#ifndef SEAL_ROOM_LEAST
# define SEAL_ROOM_LEAST (4 * 1024 * 1024)
#endif

/* Reads RUBY_GC_SEAL (setting.h). */
static inline bool
seal_mode_read(const char *text, enum seal_mode *mode)
{
    int place = *mode;

    if (!setting_name(text, seal_mode_names, SEAL_AUTO + 1, &place)) return false;
    *mode = (enum seal_mode)place;
    return true;
}

/* How many objects to reckon with: +survivors+ of the last collection, or a part of the
 * +live+ ones where there are many more by now, as none was made (GC.disable). */
static inline size_t
seal_survivors(size_t survivors, size_t live)
{
    size_t least = live / SEAL_LIVE_PER_SURVIVOR;

    return least > survivors ? least : survivors;
}

/* Is the heap worth a full collection before this fork? +survivors+ objects have
 * survived the last collection (seal_survivors), +then+ when it was sealed last (0:
 * never); a heap of fewer than +least+ is not. */
static inline bool
seal_due(size_t survivors, size_t then, size_t least)
{
    return survivors >= least && survivors > then && survivors - then >= then / SEAL_GROWTH;
}

/* Bytes that must be had for a heap with +live+ objects to be prepared: the mark stack has
 * an entry for each at most, malloc may take as much again to make room for it, and
 * the pages are noted. A collection that finds no memory ends the process. */
static inline size_t
seal_room(size_t live)
{
    size_t entries = SIZE_MAX / (2 * sizeof(void *)) / 2;

    return SEAL_ROOM_LEAST + (live < entries ? live : entries) * 2 * sizeof(void *);
}

/* Slots that emptier pages may hold back: of +slots+ in all, +closed+ are already. */
static inline size_t
seal_spare(size_t slots, size_t closed)
{
    size_t spare = slots / SEAL_SLOTS_PER_SPARE;

    return spare > closed ? spare - closed : 0;
}

/* How many objects must live in a page for it to stay closed; 0: it is not closed at
 * all. +live+ of its +slots+ slots are taken; an emptier page takes its holes from
 * +spare+. */
static inline size_t
seal_floor(size_t live, size_t slots, size_t *spare)
{
    size_t floor = (slots + SEAL_SLOTS_PER_LIVE - 1) / SEAL_SLOTS_PER_LIVE;

    if (live == 0 || live >= floor) return live == 0 ? 0 : floor;
    if (slots - live > *spare) return 0;

    *spare -= slots - live;
    return (live + 1) / 2;
}

#endif /* COW_SEAL_H */

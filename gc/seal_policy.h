/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_SEAL_POLICY_H
#define COW_SEAL_POLICY_H

/*
 * seal_policy: the policy of sealing: whether a process prepares its heap before it forks, and which pages it
 * closes to allocation. seal.c is the mechanism: it seals and opens pages as this file says.
 *
 * Job: parent and children share what the parent has made for as long as nobody writes there. Before the fork
 * a full collection marks all objects and makes them old, so that no child has to. Then their pages are
 * sealed: neither parent nor child makes objects there any more, and a minor collection looks only at what is
 * remembered there. When a full collection finds a dead object in a sealed page, the object is cleaned up and
 * its slot stays closed.
 *
 * Algorithm:
 *
 *     due      = enough objects have survived the last collection, and an eighth more than when the heap was
 *                sealed last
 *     grown    = an eighth more than the most that were ever found
 *     paid     = no debt is left, or a full marking says that the heap has grown
 *     prepared = due and paid
 *     sealed   = a page with at least an eighth of its slots live; and emptier ones, as long as closed slots
 *                are less than a quarter of all slots
 *
 * How many objects survive is known exactly after a full marking only: a minor one also counts old objects
 * that have died. So a heap of constant size that replaces its objects looks as if it grew. A preparation
 * that finds no growth is therefore a debt, which the other full collections of the process pay off: four
 * times what the preparation marked. For each behaviour of the heap holds (struct cow_seal_budget)
 *
 *     marked by preparations <= 9 * most + last + marked by other full collections / 4
 *
 * where most is the greatest number of objects that a full marking has found, and last is what the last
 * preparation that found no growth has marked. A heap that grows without end is prepared at the cost of at
 * most nine full collections of its final size, and successive forks prepare it once. A heap of constant size
 * is prepared twice, and then at most once in four full collections that it makes anyway. A heap that has
 * really grown is sealed at the next fork or, while there is a debt, at the next one after a full collection.
 *
 * A page is opened again when less than that eighth of its slots is live, an emptier page when half of its
 * objects have died: then little is shared there, and many slots are closed. So closed slots are at most
 * seven times the live ones and that quarter.
 *
 * That is the rule of a child, whose sealed pages are shared. A slot there is dearer than a slot in a page of
 * its own: the first object that a child made there would copy an OS page, most of whose slots are in use. A
 * process that has sealed pages itself opens some of them sooner:
 *
 *     roomy    = two slots for each live object
 *     crowded  = roomy, and an eighth more slots than when the heap was sealed last
 *     excess   = closed - slots / 16
 *     over     = at most one slot in 16 is sealed
 *
 * Where the heap is roomy, a full collection comes before it grows. Where it is crowded, each full marking
 * opens the emptiest of its own pages until there is no excess. A heap that is sealed again while it is roomy
 * leaves the emptiest pages open likewise. When the seal is over, the parent's heaps are sized by upstream's
 * rule again. So a parent that replaces its objects has about as many slots as without a seal, and one in
 * sixteen; and a parent that keeps nothing new since its fork opens nothing, however many slots are closed.
 *
 * After: Android's zygote space (compacted, then closed before the first fork), CPython's gc.freeze.
 *
 * Entry points: cow_seal_mode_read (RUBY_GC_SEAL); cow_seal_survivors, cow_seal_due, cow_seal_paid and
 * cow_seal_room (before a fork); cow_seal_prepared (after the preparation), cow_seal_marked (after another
 * full marking); cow_seal_spare and cow_seal_keep (for each page that is sealed); cow_seal_roomy,
 * cow_seal_growth, cow_seal_growth_after, cow_seal_crowded, cow_seal_excess and cow_seal_is_over (for the
 * parent's heap as a whole); cow_seal_fill_add, cow_seal_opening and cow_seal_opens (which pages it opens).
 *
 * Who writes this memory after a fork: parent and child each write the few words of their own struct
 * cow_seal_budget. All functions are pure but for the struct that they get.
 *
 * Settings (environment):
 *     RUBY_GC_SEAL           auto (default): before the first fork, and again when the heap has grown.
 *                            warmup: only what Process.warmup has prepared. off: never.
 *     RUBY_GC_FORK_COMPACT   1: the preparation also compacts the heap, as Process.warmup does.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "assertion.h"
#include "setting_values.h"

/* The values of RUBY_GC_SEAL, in ascending order of what they seal. */
enum cow_seal_mode { COW_SEAL_OFF, COW_SEAL_WARMUP, COW_SEAL_AUTO };

static const char *const cow_seal_mode_names[] = { "off", "warmup", "auto" };

/* A page is sealed while at least 1 / this of its slots are live. Chosen, not measured. */
#ifndef COW_SEAL_SLOTS_PER_LIVE
# define COW_SEAL_SLOTS_PER_LIVE 8
#endif

/* Emptier pages are sealed while closed slots are less than 1 / this of all slots. Chosen, not measured. */
#ifndef COW_SEAL_SLOTS_PER_SPARE
# define COW_SEAL_SLOTS_PER_SPARE 4
#endif

/* The heap is sealed again when it has grown by its own size divided by this. Chosen, not measured. */
#ifndef COW_SEAL_GROWTH
# define COW_SEAL_GROWTH 8
#endif

/* A preparation that found no growth is paid off when other full collections have marked so many times what
 * it marked. With 4 a heap that replaces a fifth between two forks is prepared at 3 or 4 of 30 forks, in
 * place of 29 (a81861e). */
#ifndef COW_SEAL_DEBT
# define COW_SEAL_DEBT 4
#endif

/* A parent with so many slots for each live object is roomy. A heap without a seal that replaces its old
 * objects has as many: upstream makes a full collection when there are twice as many old objects as the last
 * one left. */
#ifndef COW_SEAL_SLOTS_PER_SURVIVOR
# define COW_SEAL_SLOTS_PER_SURVIVOR 2
#endif

/* Then at most 1 / this of its slots may be closed. With 16 a parent that replaces its objects has 0.94 to
 * 1.07 times the slots that it has without a seal, in place of 1.2 to 1.7 (a81861e). */
#ifndef COW_SEAL_SLOTS_PER_CLOSED
# define COW_SEAL_SLOTS_PER_CLOSED 16
#endif

/* Number of classes of pages by how full they are. Chosen, not measured. */
#ifndef COW_SEAL_FILLS
# define COW_SEAL_FILLS 64
#endif

/* Where no collection was made for long, 1 / this of the live objects is taken to survive: a heap never grows
 * by so much between two collections. Chosen, not measured. */
#ifndef COW_SEAL_LIVE_PER_SURVIVOR
# define COW_SEAL_LIVE_PER_SURVIVOR 4
#endif

/* A heap with fewer live objects is not worth a full collection. Chosen, not measured. */
#ifndef COW_SEAL_LEAST_LIVE
# define COW_SEAL_LEAST_LIVE 65536
#endif

/* Bytes that the preparation of the smallest heap may take. Chosen, not measured. */
#ifndef COW_SEAL_ROOM_LEAST
# define COW_SEAL_ROOM_LEAST (4 * 1024 * 1024)
#endif

/* Reads RUBY_GC_SEAL into +mode+. Gives false, and leaves +mode+ alone, if +text+ is no value
 * (setting_values.h). */
static inline bool
cow_seal_mode_read(const char *text, enum cow_seal_mode *mode)
{
    int index = *mode;

    if (!cow_setting_name(text, cow_seal_mode_names, COW_SEAL_AUTO + 1, &index)) return false;
    *mode = (enum cow_seal_mode)index;
    return true;
}

/* Gives with how many objects cow_seal_due shall reckon: with the +survivors+ of the last collection, or with
 * more where it is long ago. Of the +live+ objects, many of which may be dead, the part +surviving+ of those
 * made since is taken to survive (growth_policy.h), and a quarter of all at least (GC.disable). */
static inline size_t
cow_seal_survivors(size_t survivors, size_t live, double surviving)
{
    COW_ASSERT(0 <= surviving && surviving <= 1);
    size_t since = live > survivors ? (size_t)((live - survivors) * surviving) : 0;
    size_t least = live / COW_SEAL_LIVE_PER_SURVIVOR;

    if (since < survivors / COW_SEAL_GROWTH) since = 0;
    return least > survivors + since ? least : survivors + since;
}

/* Is the heap worth a full collection before this fork? +survivors+ are as cow_seal_survivors gives them,
 * +at_seal+ those when the heap was sealed last (0: never). A heap of fewer than +least+ is not. */
static inline bool
cow_seal_due(size_t survivors, size_t at_seal, size_t least)
{
    return survivors >= least && survivors > at_seal && survivors - at_seal >= at_seal / COW_SEAL_GROWTH;
}

/*
 * What preparations have cost, in objects.
 *
 * Invariant (test/c/test_seal.c):
 *     marked by preparations since the start <= 9 * most + last + others / COW_SEAL_DEBT
 */
struct cow_seal_budget {
    size_t most; /* found by a full marking that prepared the heap, or for which it was prepared */
    size_t debt; /* what other full collections must still mark before a preparation may be made in vain */
};

/* Are +survivors+ an eighth more than +most+? */
static inline bool
cow_seal_grown(size_t survivors, size_t most)
{
    return survivors > most && survivors - most >= most / COW_SEAL_GROWTH;
}

/* May a heap that is due be prepared? +exact+ says that a full marking has counted +survivors+. */
static inline bool
cow_seal_paid(const struct cow_seal_budget *budget, size_t survivors, bool exact)
{
    return budget->debt == 0 || (exact && cow_seal_grown(survivors, budget->most));
}

/* Called after a preparation that was made for +survivors+ objects and found +found+ live. +marked+ is what
 * all its collections marked, if there were several. */
static inline void
cow_seal_prepared(struct cow_seal_budget *budget, size_t survivors, bool exact, size_t found, size_t marked)
{
    size_t counted = exact && survivors > found ? survivors : found;

    if (!cow_seal_grown(counted, budget->most)) {
        budget->debt = marked < SIZE_MAX / COW_SEAL_DEBT ? marked * COW_SEAL_DEBT : SIZE_MAX;
    }
    if (budget->most < counted) budget->most = counted;
}

/* Called after any other full collection, which marked +marked+ objects. */
static inline void
cow_seal_marked(struct cow_seal_budget *budget, size_t marked)
{
    budget->debt -= marked < budget->debt ? marked : budget->debt;
}

/* Gives the bytes that must be free for a heap of +live+ objects to be prepared: the mark stack has at most
 * an entry for each, malloc may take as much again while it grows, and the pages are listed. A collection
 * that finds no memory ends the process. */
static inline size_t
cow_seal_room(size_t live)
{
    size_t entries = SIZE_MAX / (2 * sizeof(void *)) / 2;

    return COW_SEAL_ROOM_LEAST + (live < entries ? live : entries) * 2 * sizeof(void *);
}

/* Gives how many more slots emptier pages may close. +slots+ is the number of all slots, +closed+ that of the
 * closed ones. */
static inline size_t
cow_seal_spare(size_t slots, size_t closed)
{
    size_t spare = slots / COW_SEAL_SLOTS_PER_SPARE;

    return spare > closed ? spare - closed : 0;
}

/* Gives how many objects must live in a page for it to stay sealed; 0: it is not sealed at all. +live+ of its
 * +slots+ slots hold a live object. The free slots of an emptier page are subtracted from +spare+. */
static inline size_t
cow_seal_keep(size_t live, size_t slots, size_t *spare)
{
    COW_ASSERT(live <= slots);
    size_t floor = (slots + COW_SEAL_SLOTS_PER_LIVE - 1) / COW_SEAL_SLOTS_PER_LIVE;

    if (live == 0 || live >= floor) return live == 0 ? 0 : floor;
    if (slots - live > *spare) return 0;

    *spare -= slots - live;
    return (live + 1) / 2;
}

/* Are there so many slots for +live+ objects that no more should be closed or added? */
static inline bool
cow_seal_roomy(size_t slots, size_t live)
{
    return slots / COW_SEAL_SLOTS_PER_SURVIVOR >= live;
}

/* Gives by how many slots such a heap may grow before the next full marking. */
static inline size_t
cow_seal_growth(size_t slots, size_t live)
{
    size_t roomy =
        live < SIZE_MAX / COW_SEAL_SLOTS_PER_SURVIVOR ? live * COW_SEAL_SLOTS_PER_SURVIVOR : SIZE_MAX;

    return roomy > slots ? roomy - slots : 0;
}

/* The same when the seal is over: upstream's rule says when the heap may grow, but it grows in smaller
 * steps. */
static inline size_t
cow_seal_growth_after(size_t slots, size_t live)
{
    size_t growth = cow_seal_growth(slots, live);
    size_t step = slots / COW_SEAL_SLOTS_PER_CLOSED + 1;

    return growth > step ? growth : step;
}

/* Shall a heap of +slots+ slots open pages? It had +at_seal+ slots when it was sealed last. */
static inline bool
cow_seal_crowded(size_t slots, size_t live, size_t at_seal)
{
    return cow_seal_roomy(slots, live) && slots > at_seal && slots - at_seal >= at_seal / COW_SEAL_GROWTH;
}

/* Are hardly any of the +slots+ slots sealed? */
static inline bool
cow_seal_is_over(size_t slots, size_t sealed)
{
    return sealed <= slots / COW_SEAL_SLOTS_PER_CLOSED;
}

/* Gives how many of the +closed+ slots are too many in a roomy heap of +slots+ slots. */
static inline size_t
cow_seal_excess(size_t slots, size_t closed)
{
    size_t allowed = slots / COW_SEAL_SLOTS_PER_CLOSED;

    return closed > allowed ? closed - allowed : 0;
}

/* Closed slots of pages, in classes by how full the pages are. */
struct cow_seal_fills {
    size_t closed[COW_SEAL_FILLS];
    size_t sum; /* = closed[0] + closed[1] + ... */
};

/* Which pages shall be opened: those of the classes below .fill, and of that class until .rest closed slots
 * are open. */
struct cow_seal_opening {
    unsigned int fill;
    size_t rest;
};

/* Gives the class of a page with +live+ live objects in +slots+ slots. */
static inline unsigned int
cow_seal_fill(size_t live, size_t slots)
{
    COW_ASSERT(slots > 0 && live <= slots);
    return (unsigned int)(live * COW_SEAL_FILLS / (slots + 1));
}

/* Adds a page. */
static inline void
cow_seal_fill_add(struct cow_seal_fills *fills, size_t live, size_t slots)
{
    fills->closed[cow_seal_fill(live, slots)] += slots - live;
    fills->sum += slots - live;
}

/* Says which pages to open so that +excess+ fewer slots are closed: the emptiest. */
static inline struct cow_seal_opening
cow_seal_opening(const struct cow_seal_fills *fills, size_t excess)
{
    struct cow_seal_opening opening = { 0, excess };

    while (opening.fill < COW_SEAL_FILLS && fills->closed[opening.fill] < opening.rest) {
        opening.rest -= fills->closed[opening.fill++];
    }
    return opening;
}

/* Shall this page be opened? Called once for each page that was added. A page without closed slots is never
 * opened. */
static inline bool
cow_seal_opens(struct cow_seal_opening *opening, size_t live, size_t slots)
{
    unsigned int fill = cow_seal_fill(live, slots);

    if (live == slots || fill > opening->fill) return false;
    if (fill < opening->fill) return true;
    if (opening->rest == 0) return false;
    opening->rest -= slots - live < opening->rest ? slots - live : opening->rest;
    return true;
}

#endif /* COW_SEAL_POLICY_H */

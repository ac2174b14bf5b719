#ifndef COW_SEAL_H
#define COW_SEAL_H

/*
 * seal: whether a process prepares its heap before it forks, and which pages are closed to allocation then.
 *
 * Job: what the parent has made is shared with its children for as long as nobody writes there. Before the
 * fork all objects are marked and made old at once, so that no child has to; then their pages are sealed:
 * neither parent nor child makes objects in them any more, and no minor collection looks at them but for what
 * is remembered. A dead object in a sealed page is cleaned up when a full collection finds it, and its slot
 * stays closed.
 *
 * Algorithm:
 *
 *     worth    = enough objects have survived the last collection, and an eighth more than
 *                when the heap was sealed last
 *     grown    = an eighth more than the most that were ever found
 *     due      = worth, and either no debt is left or a full marking says that it has grown
 *     closed   = a page with at least an eighth of its slots live; and emptier ones,
 *                as long as closed pages hold back less than a quarter of all slots
 *
 * How many survive is known exactly after a full marking only: a minor one counts old objects that have died.
 * So a heap of constant size that replaces its objects looks as if it grew. A preparation that finds no
 * growth is therefore a debt, which the other full collections of the process pay off: four times what it
 * marked. For each behaviour of the heap holds (struct cow_seal_budget)
 *
 *     marked by preparations <= 9 * most + last + marked by other full collections / 4
 *
 * where most is the greatest number of objects that a full marking has found, and last what the last
 * preparation that found no growth has marked. A heap that grows without end is prepared at the cost of at
 * most nine full collections of what it is in the end, forks in a row prepare it once; a heap of constant
 * size is prepared twice, and then at most once in four full collections that it makes anyway. What has
 * really grown is sealed at the next fork, or, while there is a debt, at the next one after a full
 * collection.
 *
 * A page that falls below that eighth is opened again, an emptier one when half of its objects have died:
 * then little is shared, and much is held back. So closed slots are at most seven times the live ones and
 * that quarter.
 *
 * That is the rule of a child, whose inherited pages are shared: a slot there is dearer than one in a page of
 * its own, for the first object in it copies an OS page, and the others of that page are taken. A process
 * that has sealed pages itself holds their closed slots:
 *
 *     roomy    = two slots for each live object
 *     crowded  = roomy, and an eighth more slots than when the heap was sealed last
 *     excess   = closed - slots / 16
 *     over     = at most one slot in 16 is sealed
 *
 * Where it is roomy, a full collection comes before its heaps grow. Where it is crowded, each full marking
 * opens the emptiest of its own pages until there is no excess. A heap that is sealed again while it is roomy
 * leaves the emptiest pages open likewise. When the seal is over, the parent's heaps are sized by upstream's
 * rule again. So a parent that replaces its objects has about as many slots as without a seal, and one in
 * sixteen; and one that keeps nothing new since its fork opens nothing, however many slots are closed.
 *
 * After: Android's zygote space (compacted, then closed before the first fork), CPython's gc.freeze.
 *
 * Entry points: cow_seal_mode_read (RUBY_GC_SEAL), cow_seal_survivors, cow_seal_due, cow_seal_paid and
 * cow_seal_room (before a fork), cow_seal_prepared (after the preparation), cow_seal_marked (after another
 * full marking), cow_seal_spare and cow_seal_keep (for each page that is sealed); a page with fewer live
 * objects than its floor at the end of a full marking is opened. cow_seal_growth, cow_seal_growth_after,
 * cow_seal_crowded, cow_seal_excess and cow_seal_is_over (the parent's heap as a whole), cow_seal_fill_add,
 * cow_seal_opening and cow_seal_opens (which pages it opens).
 *
 * Who writes this memory after a fork: parent and child the few words of their own struct cow_seal_budget;
 * all functions are pure but for the struct they are given. What is sealed stands in struct heap_page and is
 * written before the fork.
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

enum cow_seal_mode { COW_SEAL_OFF, COW_SEAL_WARMUP, COW_SEAL_AUTO };

static const char *const cow_seal_mode_names[] = { "off", "warmup", "auto" };

/* A page is closed while one in so many of its slots is live. */
#ifndef COW_SEAL_SLOTS_PER_LIVE
# define COW_SEAL_SLOTS_PER_LIVE 8
#endif

/* Emptier pages are closed while all closed slots are one in so many of all. */
#ifndef COW_SEAL_SLOTS_PER_SPARE
# define COW_SEAL_SLOTS_PER_SPARE 4
#endif

/* The heap is sealed anew when it has grown by its own size divided by this. */
#ifndef COW_SEAL_GROWTH
# define COW_SEAL_GROWTH 8
#endif

/* A preparation that found no growth is paid off when other full collections have marked so
 * many times what it marked. */
#ifndef COW_SEAL_DEBT
# define COW_SEAL_DEBT 4
#endif

/* A parent with so many slots for each live object is roomy. As many has a heap without a seal
 * that replaces its old objects: a full collection comes when there are twice as many as have
 * lived. */
#ifndef COW_SEAL_SLOTS_PER_SURVIVOR
# define COW_SEAL_SLOTS_PER_SURVIVOR 2
#endif

/* One in so many of its slots may then be closed. */
#ifndef COW_SEAL_SLOTS_PER_CLOSED
# define COW_SEAL_SLOTS_PER_CLOSED 16
#endif

/* Classes of pages by how many of their slots are live. */
#ifndef COW_SEAL_FILLS
# define COW_SEAL_FILLS 64
#endif

/* One in so many objects that no collection has looked at is taken to survive: more than a
 * heap ever grows by between two collections. */
#ifndef COW_SEAL_LIVE_PER_SURVIVOR
# define COW_SEAL_LIVE_PER_SURVIVOR 4
#endif

/* Live objects below which a heap is not worth a full collection. */
#ifndef COW_SEAL_LEAST_LIVE
# define COW_SEAL_LEAST_LIVE 65536
#endif

/* Bytes that a heap's preparation may take, however small it is. */
#ifndef COW_SEAL_ROOM_LEAST
# define COW_SEAL_ROOM_LEAST (4 * 1024 * 1024)
#endif

/* Reads RUBY_GC_SEAL (setting.h). */
static inline bool
cow_seal_mode_read(const char *text, enum cow_seal_mode *mode)
{
    int place = *mode;

    if (!cow_setting_name(text, cow_seal_mode_names, COW_SEAL_AUTO + 1, &place)) return false;
    *mode = (enum cow_seal_mode)place;
    return true;
}

/* How many objects to reckon with: +survivors+ of the last collection, or a part of the
 * +live+ ones where there are many more by now, as none was made (GC.disable). */
static inline size_t
cow_seal_survivors(size_t survivors, size_t live)
{
    size_t least = live / COW_SEAL_LIVE_PER_SURVIVOR;

    return least > survivors ? least : survivors;
}

/* Is the heap worth a full collection before this fork? +survivors+ objects have
 * survived the last collection (cow_seal_survivors), +then+ when it was sealed last (0:
 * never); a heap of fewer than +least+ is not. */
static inline bool
cow_seal_due(size_t survivors, size_t then, size_t least)
{
    return survivors >= least && survivors > then && survivors - then >= then / COW_SEAL_GROWTH;
}

/*
 * What preparations have cost. All are numbers of objects.
 *
 *     marked by preparations since the start <= 9 * most + last + others / COW_SEAL_DEBT
 *     debt = what others (full collections that prepare nothing) have yet to mark until a
 *            preparation may be made in vain again
 */
struct cow_seal_budget {
    size_t most; /* found by a full marking, where the heap was prepared for it or by it */
    size_t debt;
};

/* Are there an eighth more +survivors+ than +most+? */
static inline bool
cow_seal_grown(size_t survivors, size_t most)
{
    return survivors > most && survivors - most >= most / COW_SEAL_GROWTH;
}

/* May the heap be prepared, if it is worth it? +exact+: the +survivors+ are those of a full
 * marking. */
static inline bool
cow_seal_paid(const struct cow_seal_budget *budget, size_t survivors, bool exact)
{
    return budget->debt == 0 || (exact && cow_seal_grown(survivors, budget->most));
}

/* The heap was prepared for +survivors+, of which +found+ lived; +marked+ in all, where the
 * preparation made several collections. */
static inline void
cow_seal_prepared(struct cow_seal_budget *budget, size_t survivors, bool exact, size_t found, size_t marked)
{
    size_t known = exact && survivors > found ? survivors : found;

    if (!cow_seal_grown(known, budget->most)) {
        budget->debt = marked < SIZE_MAX / COW_SEAL_DEBT ? marked * COW_SEAL_DEBT : SIZE_MAX;
    }
    if (budget->most < known) budget->most = known;
}

/* Another full collection has marked so many objects. */
static inline void
cow_seal_marked(struct cow_seal_budget *budget, size_t marked)
{
    budget->debt -= marked < budget->debt ? marked : budget->debt;
}

/* Bytes that must be had for a heap with +live+ objects to be prepared: the mark stack has
 * an entry for each at most, malloc may take as much again to make room for it, and
 * the pages are listed. A collection that finds no memory ends the process. */
static inline size_t
cow_seal_room(size_t live)
{
    size_t entries = SIZE_MAX / (2 * sizeof(void *)) / 2;

    return COW_SEAL_ROOM_LEAST + (live < entries ? live : entries) * 2 * sizeof(void *);
}

/* Slots that emptier pages may hold back: of +slots+ in all, +closed+ are already. */
static inline size_t
cow_seal_spare(size_t slots, size_t closed)
{
    size_t spare = slots / COW_SEAL_SLOTS_PER_SPARE;

    return spare > closed ? spare - closed : 0;
}

/* How many objects must live in a page for it to stay closed; 0: it is not closed at
 * all. +live+ of its +slots+ slots are taken; an emptier page takes its holes from
 * +spare+. */
static inline size_t
cow_seal_keep(size_t live, size_t slots, size_t *spare)
{
    size_t floor = (slots + COW_SEAL_SLOTS_PER_LIVE - 1) / COW_SEAL_SLOTS_PER_LIVE;

    if (live == 0 || live >= floor) return live == 0 ? 0 : floor;
    if (slots - live > *spare) return 0;

    *spare -= slots - live;
    return (live + 1) / 2;
}

/* Are there so many +slots+ for +live+ objects that no more should be closed or added? */
static inline bool
cow_seal_roomy(size_t slots, size_t live)
{
    return slots / COW_SEAL_SLOTS_PER_SURVIVOR >= live;
}

/* By how many slots may such a heap grow until a full marking has said what lives? */
static inline size_t
cow_seal_growth(size_t slots, size_t live)
{
    size_t roomy =
        live < SIZE_MAX / COW_SEAL_SLOTS_PER_SURVIVOR ? live * COW_SEAL_SLOTS_PER_SURVIVOR : SIZE_MAX;

    return roomy > slots ? roomy - slots : 0;
}

/* And when the seal is over? Upstream's rule says when it may grow, but in smaller steps. */
static inline size_t
cow_seal_growth_after(size_t slots, size_t live)
{
    size_t growth = cow_seal_growth(slots, live);
    size_t step = slots / COW_SEAL_SLOTS_PER_CLOSED + 1;

    return growth > step ? growth : step;
}

/* Shall a heap of +slots+ slots open pages? It had +then+ when it was sealed last. */
static inline bool
cow_seal_crowded(size_t slots, size_t live, size_t then)
{
    return cow_seal_roomy(slots, live) && slots > then && slots - then >= then / COW_SEAL_GROWTH;
}

/* Is hardly any of the +slots+ slots sealed, or no longer? */
static inline bool
cow_seal_is_over(size_t slots, size_t sealed)
{
    return sealed <= slots / COW_SEAL_SLOTS_PER_CLOSED;
}

/* How many of the +closed+ slots are too many, then. */
static inline size_t
cow_seal_excess(size_t slots, size_t closed)
{
    size_t allowed = slots / COW_SEAL_SLOTS_PER_CLOSED;

    return closed > allowed ? closed - allowed : 0;
}

/* Closed slots of pages, by how full the pages are. */
struct cow_seal_fills {
    size_t closed[COW_SEAL_FILLS];
    size_t sum; /* = closed[0] + closed[1] + ... */
};

/* Pages of the classes below are opened, and of the class itself until rest is used up. */
struct cow_seal_opening {
    unsigned int fill;
    size_t rest;
};

/* pre: live <= slots, 0 < slots */
static inline unsigned int
cow_seal_fill(size_t live, size_t slots)
{
    return (unsigned int)(live * COW_SEAL_FILLS / (slots + 1));
}

static inline void
cow_seal_fill_add(struct cow_seal_fills *fills, size_t live, size_t slots)
{
    fills->closed[cow_seal_fill(live, slots)] += slots - live;
    fills->sum += slots - live;
}

/* Which pages to open so that +excess+ fewer slots are closed: the emptiest. */
static inline struct cow_seal_opening
cow_seal_opening(const struct cow_seal_fills *fills, size_t excess)
{
    struct cow_seal_opening opening = { 0, excess };

    while (opening.fill < COW_SEAL_FILLS && fills->closed[opening.fill] < opening.rest) {
        opening.rest -= fills->closed[opening.fill++];
    }
    return opening;
}

/* Is a page among them? To be asked once for each. A page with no closed slot never is. */
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

#endif /* COW_SEAL_H */

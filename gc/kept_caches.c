/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * kept_caches: inherited caches of the interpreter that a child leaves as they are; included by vm.c.
 *
 * Job: where a call site sees objects of several classes or shapes, its cache goes to and fro, and a worker
 * copies the page for it; so it does for a site that it runs a few times in its life. A child looks for what
 * it needs without storing it, some times, before it stores it: misses are counted in tables of the process's
 * own, by address. Caches whose addresses agree in some bits are counted together, and are stored earlier or
 * later than others. Ractors count without a lock, and may miscount.
 *
 * A call that stores nothing has its call cache from the table of the class, which keeps it alive
 * (doc/call-caches.md, note 2).
 *
 * Entry points: rb_cc_keeps_index (what has been asked before: it is inherited), rb_site_keeps_cache.
 *
 * Who writes this memory after a fork: a child, the two tables.
 */

#include "vm_words_streams.h"

/* Shall an inherited call cache keep the index that it has, although an object of another shape was seen?
 * After many such objects it takes theirs: the program may see no others any more. */
bool
rb_cc_keeps_index(const struct rb_callcache *cc)
{
    enum { COUNTERS = 1024, MOST_MISSES = 4096 };
    static uint16_t misses[COUNTERS];
    uint16_t *count = &misses[(VALUE)cc / (sizeof(VALUE) * 5) % COUNTERS];

    if (*count >= MOST_MISSES) return false;
    ++*count;
    return true;
}

/* Shall a call site, or the inline cache of an instance variable, keep what it has, although it does not fit?
 * Only an inherited one, and only for some calls. In a rehearsed Rails worker 3 calls saved a seventh of what
 * it lost of the VM's words, 20 a fifth, 250 a quarter (by hand): a few sites see many classes. */
bool
rb_site_keeps_cache(const void *site)
{
    enum {
        COUNTERS_LOG2 = 15,
        COUNTER_BITS = 4,
        MOST_MISSES = (1 << COUNTER_BITS) - 1,
        COUNTERS_PER_WORD = 64 / COUNTER_BITS
    };
    static uint64_t misses[(1 << COUNTERS_LOG2) / COUNTERS_PER_WORD];

    if (rb_gc_fork_depth == 0) return false;
    /* Multiplicative hashing by the golden ratio (Knuth, The Art of Computer Programming, 6.4). */
    const uint64_t hash = (uintptr_t)site / sizeof(struct rb_call_data) * UINT64_C(0x9e3779b97f4a7c15);
    const size_t counter = hash >> (64 - COUNTERS_LOG2);
    const int shift = counter % COUNTERS_PER_WORD * COUNTER_BITS;
    uint64_t *word = &misses[counter / COUNTERS_PER_WORD];

    if ((*word >> shift & MOST_MISSES) == MOST_MISSES) return false;
    if (!rb_gc_vm_words_inherited_p(site)) return false;
    *word += UINT64_C(1) << shift;
    return true;
}

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_REGEXP_USES_H
#define COW_REGEXP_USES_H

/*
 * regexp_uses: which regexps are being matched at this moment; included by re.c.
 *
 * Job: while a regexp is being matched, nobody may compile it anew in its place. Upstream counts the matches
 * in the regexp, so each match writes to the object's heap page, which forked processes share. Here the
 * process has a table of counters, which the address of a regexp chooses. Two regexps may share a counter:
 * then one of them is compiled apart, for one match, although the other alone is in use.
 *
 * Where several Ractors run, upstream's field counts. A match that a thread has begun before remembers which
 * of the two it has counted in. A match that an exception ends is counted for ever, as upstream counts it.
 * An extension that asks for the field alone, as a strscan for Ruby 3.2 does, must call rb_reg_onig_match.
 *
 * Entry points: cow_regexp_counter, cow_regexp_used; rb_reg_postfork_child.
 *
 * Who writes this memory after a fork: each match writes one counter of the process's own 4 KB.
 */

#include "vm_sync.h"

/* Chosen so that the counters fill an OS page. */
#define COW_REGEXP_COUNTERS 512

static unsigned long cow_regexp_counters[COW_REGEXP_COUNTERS];

/* Gives the counter of the process that stands for the regexp +re+. */
static inline unsigned long *
cow_regexp_own_counter(VALUE re)
{
    return &cow_regexp_counters[re / (sizeof(VALUE) * 5) % COW_REGEXP_COUNTERS];
}

/* Gives the counter in which a match of +re+ that begins now must be counted. */
static inline unsigned long *
cow_regexp_counter(VALUE re)
{
    return ruby_single_main_ractor ? cow_regexp_own_counter(re) : &RREGEXP(re)->usecnt;
}

/* In a child: the matches of the parent's other threads do not go on. */
void
rb_reg_postfork_child(void)
{
    for (int i = 0; i < COW_REGEXP_COUNTERS; i++) {
        if (cow_regexp_counters[i] > 0) cow_regexp_counters[i] = 0;
    }
}

/* Is +re+ being matched, or another regexp that shares its counter? */
static inline bool
cow_regexp_used(VALUE re)
{
    return RREGEXP(re)->usecnt > 0 || *cow_regexp_own_counter(re) > 0;
}

#endif /* COW_REGEXP_USES_H */

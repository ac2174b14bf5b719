/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_REGEXP_USES_H
#define COW_REGEXP_USES_H

/*
 * regexp_uses: which regexps are being matched at this moment; included by re.c.
 *
 * Job: while a regexp is being matched, nobody may compile it anew in its place. Upstream counts the matches
 * in the regexp, so each match writes to the object's heap page. For an inherited regexp the process has a
 * table of counters instead, of which the address of the regexp chooses one. Two regexps may share a counter:
 * then one of them is compiled apart, for one match, although the other alone is in use.
 *
 * A regexp of the process's own is counted as upstream counts it, and all are where several Ractors run. A
 * match remembers which of the two it has counted in, because it may fork, or another Ractor may start,
 * before it ends. A match that an exception ends, or that another thread of the parent was in at the fork, is
 * counted for ever, as upstream counts it. An extension that asks for the field alone, as a strscan for Ruby
 * 3.2 does, must call rb_reg_onig_match.
 *
 * Entry points: cow_regexp_counter, cow_regexp_used.
 *
 * Who writes this memory after a fork: in a child each match of an inherited regexp writes one counter of the
 * process's own 4 KB.
 */

#include "internal/gc.h"
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
    return ruby_single_main_ractor && rb_gc_obj_inherited_p(re) ? cow_regexp_own_counter(re)
                                                                 : &RREGEXP(re)->usecnt;
}

/* Is +re+ being matched, or another inherited regexp that shares its counter? */
static inline bool
cow_regexp_used(VALUE re)
{
    return RREGEXP(re)->usecnt > 0 || *cow_regexp_own_counter(re) > 0;
}

#endif /* COW_REGEXP_USES_H */

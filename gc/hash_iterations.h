/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_HASH_ITERATIONS_H
#define COW_HASH_ITERATIONS_H

/*
 * hash_iterations: which inherited hashes the main Ractor is iterating over; included by hash.c.
 *
 * Job: a hash that is being iterated over must not be rehashed, nor get new keys. Upstream counts the
 * iterations in the hash's flags, so each iteration writes to the object's heap page. Where the hash is
 * inherited, the process lists the iteration here instead. A hash may be listed several times, and counted in
 * its flags as well: an iteration that was going on at the fork, or for which there was no room, is counted
 * there.
 *
 * Only the main Ractor uses the list: another Ractor can reach inherited hashes only if they are frozen, and
 * iterations over frozen hashes are not counted. Its threads take turns. An iteration that never ends,
 * because its fiber was given up, stays in the list, which keeps its hash alive; upstream's count stays in
 * the hash likewise.
 *
 * Entry points: cow_hash_iteration_begin, cow_hash_iteration_end, cow_hash_iterated; rb_hash_mark_iterations,
 * which the VM's marking calls.
 *
 * Who writes this memory after a fork: each iteration over an inherited hash writes an entry.
 */

#include "ractor_core.h"

/* So many iterations over inherited hashes may be going on; further ones are counted in the hashes. */
#define COW_HASH_ITERATIONS 32

static struct {
    size_t count;
    VALUE hashes[COW_HASH_ITERATIONS];
} cow_hash_iterations;

/* Lists an iteration over +hash+. Gives false if it must be counted in the hash's flags. */
static inline bool
cow_hash_iteration_begin(VALUE hash)
{
    if (!rb_gc_obj_inherited_p(hash) || !rb_ractor_main_p()) return false;
    if (cow_hash_iterations.count == COW_HASH_ITERATIONS) return false;

    cow_hash_iterations.hashes[cow_hash_iterations.count++] = hash;
    return true;
}

/* Gives the position behind the last entry of +hash+; 0: it is not listed. */
static inline size_t
cow_hash_iteration_find(VALUE hash)
{
    size_t i = cow_hash_iterations.count;

    while (i > 0 && cow_hash_iterations.hashes[i - 1] != hash) i--;
    return i;
}

/* Removes an entry of +hash+. Gives false if there is none: the iteration was counted in the flags. */
static inline bool
cow_hash_iteration_end(VALUE hash)
{
    if (RB_LIKELY(cow_hash_iterations.count == 0) || !rb_ractor_main_p()) return false;
    size_t i = cow_hash_iteration_find(hash);
    if (i == 0) return false;

    VALUE *entry = &cow_hash_iterations.hashes[i - 1];

    MEMMOVE(entry, entry + 1, VALUE, cow_hash_iterations.count - i);
    cow_hash_iterations.count--;
    return true;
}

/* Is an iteration over +hash+ listed? */
static inline bool
cow_hash_iterated(VALUE hash)
{
    if (RB_LIKELY(cow_hash_iterations.count == 0)) return false;
    return rb_ractor_main_p() && cow_hash_iteration_find(hash) > 0;
}

/* Marks the hashes that are listed, and keeps them where they are. */
void
rb_hash_mark_iterations(void)
{
    for (size_t i = 0; i < cow_hash_iterations.count; i++) rb_gc_mark(cow_hash_iterations.hashes[i]);
}

#endif /* COW_HASH_ITERATIONS_H */

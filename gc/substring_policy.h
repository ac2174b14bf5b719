/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_SUBSTRING_POLICY_H
#define COW_SUBSTRING_POLICY_H

/*
 * substring_policy: which slices of a string share its bytes. substrings.c is the mechanism.
 *
 * Job: a slice that shares costs a slot and no copy, but keeps all bytes of its parent for as long as it
 * lives, and the parent's next change copies the parent. So a slice shares where it is large enough to gain
 * by it, where it is no small part of what it would keep, and where the parent is not about to change.
 *
 * Rule, all lengths in bytes:
 *
 *     shared = length >= least
 *              and (16 * length >= root, or this process has inherited the bytes: that costs it nothing)
 *              and the parent is not changed
 *              and (it is frozen, or shares its bytes already, or is not growing)
 *     growing = it has room for an eighth of its length: somebody appends to it
 *     changed = it was changed since others shared its bytes, or C code that may change it has had its
 *               address; slices of such a string are copies from then on
 *
 * The sixteenth is asked of each slice by itself, so no root lives on for slices that together are less of
 * it. A larger part would leave out what parsers take most: 5 KB of 50 KB.
 *
 * Entry points: cow_substring_shares.
 *
 * Who writes this memory after a fork: nobody; there is none.
 */

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the shortest slice that shares. A copy of so few costs less than the slower life of a slice. */
#define COW_SUBSTRING_LEAST 1024
/* A slice is at least this part of the root. */
#define COW_SUBSTRING_PART 16
/* A string with this part of its length to spare grows. */
#define COW_SUBSTRING_ROOM 8

/* What the rule asks of a parent; lengths in bytes. */
struct cow_substring_parent {
    size_t length;
    size_t room;    /* beyond the length; of a string that does not share */
    size_t root;    /* length of what a slice keeps */
    bool frozen;
    bool shared;
    bool changed;
    bool inherited;
};

/* Does a slice of so many bytes share those of the parent? */
static inline bool
cow_substring_shares(const struct cow_substring_parent *parent, size_t length)
{
    if (length < COW_SUBSTRING_LEAST) return false;
    if (!parent->inherited && length < parent->root / COW_SUBSTRING_PART) return false;
    if (parent->changed) return false;
    return parent->frozen || parent->shared || parent->room < parent->length / COW_SUBSTRING_ROOM;
}

#endif /* COW_SUBSTRING_POLICY_H */

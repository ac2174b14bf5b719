/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_SWEEP_MODES_H
#define COW_SWEEP_MODES_H

/*
 * sweep_modes: how dead objects and empty heap pages are swept: the choices that the second seed compared.
 * sweep.c is the mechanism.
 *
 *     keep        dead objects that need no cleanup are freed without being read (slot_map.h); an empty page
 *                 is kept and used again. The default.
 *     discard     as keep, and the memory of an empty page goes back to the system at once. It reads as 0
 *                 when it is used again.
 *     visit-all   each slot is visited, as CRuby does: dead objects are read and their headers emptied, free
 *                 slots are read.
 *
 * After: Nakamura, "Improving Memory Management for Ruby" (seed 001), which calls them proposed, discard and
 * normalsweep. CowRuby 0.1 took these names, and they are still read.
 *
 * Entry point: cow_sweep_mode_read (RUBY_GC_SWEEP).
 *
 * Who writes this memory after a fork: nobody; this file has no memory of its own. Where heap pages are no
 * whole OS pages of an arena (alignoff, large OS pages) discard keeps them.
 */

#include "setting_values.h"

/* The values of RUBY_GC_SWEEP. */
enum cow_sweep_mode { COW_SWEEP_KEEP, COW_SWEEP_DISCARD, COW_SWEEP_VISIT_ALL };

static const char *const cow_sweep_mode_names[] = { "keep", "discard", "visit-all" };
static const char *const cow_sweep_mode_old_names[] = { "proposed", "discard", "normalsweep" };

/* Reads RUBY_GC_SWEEP into +mode+. Gives false, and leaves +mode+ alone, if +text+ is no value
 * (setting_values.h). */
static inline bool
cow_sweep_mode_read(const char *text, enum cow_sweep_mode *mode)
{
    int index = *mode;

    if (!cow_setting_name(text, cow_sweep_mode_names, COW_SWEEP_VISIT_ALL + 1, &index) &&
        !cow_setting_name(text, cow_sweep_mode_old_names, COW_SWEEP_VISIT_ALL + 1, &index)) {
        return false;
    }
    *mode = (enum cow_sweep_mode)index;
    return true;
}

#endif

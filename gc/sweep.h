#ifndef COW_SWEEP_H
#define COW_SWEEP_H

/*
 * sweep: how the heap pages are swept in which nothing lives any more; the choices that
 * the second seed compared.
 *
 *     proposed      dead objects that own nothing are freed without being looked at
 *                   (slot_map.h); the page is kept and used again. The default.
 *     discard       so, too, and the memory of a page that has become free goes to the
 *                   system at once. It reads as zero when it is used again.
 *     normalsweep   each slot is visited, as CRuby does: dead ones are looked at and made
 *                   blank, free ones are read.
 *
 * After: Nakamura, "Improving Memory Management for Ruby" (seed 001), whose names they are.
 *
 * Entry point: cow_sweep_mode_read (RUBY_GC_SWEEP).
 *
 * Who writes this memory after a fork: nobody; where heap pages are not OS pages of
 * arenas (alignoff, big OS pages) discard keeps them.
 */

#include "setting.h"

enum cow_sweep_mode { COW_SWEEP_PROPOSED, COW_SWEEP_DISCARD, COW_SWEEP_NORMAL };

static const char *const cow_sweep_mode_names[] = { "proposed", "discard", "normalsweep" };

/* Reads RUBY_GC_SWEEP (setting.h). */
static inline bool
cow_sweep_mode_read(const char *text, enum cow_sweep_mode *mode)
{
    int place = *mode;

    if (!cow_setting_name(text, cow_sweep_mode_names, COW_SWEEP_NORMAL + 1, &place)) return false;
    *mode = (enum cow_sweep_mode)place;
    return true;
}

#endif

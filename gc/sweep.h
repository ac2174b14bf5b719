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
 * Entry point: sweep_mode_read (RUBY_GC_SWEEP).
 *
 * Who writes this memory after a fork: nobody; where heap pages are not OS pages of
 * arenas (alignoff, big OS pages) discard keeps them.
 */

#include "setting.h"

enum sweep_mode { SWEEP_PROPOSED, SWEEP_DISCARD, SWEEP_NORMAL };

static const char *const sweep_mode_names[] = { "proposed", "discard", "normalsweep" };

/* Reads RUBY_GC_SWEEP (setting.h). */
static inline bool
sweep_mode_read(const char *text, enum sweep_mode *mode)
{
    int place = *mode;

    if (!setting_name(text, sweep_mode_names, SWEEP_NORMAL + 1, &place)) return false;
    *mode = (enum sweep_mode)place;
    return true;
}

#endif

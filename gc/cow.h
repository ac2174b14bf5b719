#ifndef COW_H
#define COW_H

/*
 * cow: includes this directory into gc/default/default.c, and says in which order.
 *
 *     where default.c includes        what must be defined before
 *     cow.h                           upstream's headers
 *     locate.c                        struct heap_page, complete
 *     heap_page.h                     upstream's macros for bitmaps, which it replaces
 *     heap.h                          rb_objspace_t and the macro heaps
 *     free_slot.h                     gc_report
 *     page_body.h, grant.h            the list of empty pages
 *     allocate.h, claim.h             before newobj_init; before heap_next_free_page
 *     walk.c                          each_obj_callback, each_page_callback
 *     duties.h, stat.h                before the shutdown; before objspace_free_slots
 *     sweep.c                         gc_sweep_plane
 *     growth.c, seal.c                heap_allocatable_slots_expand; sweep.c
 *     mark_order.h, mark.c            push_mark_stack_chunk; pop_mark_stack
 *     verify.c                        struct verify_internal_consistency_struct
 *     prepare.c, fork.c               garbage_collect; prepare.c
 *     settings.c                      get_envparam_size
 *
 * Files that end in .h and need nothing of the interpreter (vocabulary, os, setting, nursery, seal, sweep,
 * mark_stack, arena, alignoff, page_map, malloc_pages, slot_map, poison) have unit tests in test/c.
 *
 * COW_HEAP is defined from here on. Upstream's functions that this directory replaces stand in default.c
 * between #ifndef COW_HEAP and #endif, so that a patch need not remove them.
 */

struct heap_page;
struct cow_walk;

#define COW_HEAP 1

#define COW_SLOT_SIZE BASE_SLOT_SIZE
#ifndef HAVE_MMAP
# define COW_HAS_MMAP 0
#endif

#include "setting.h"
#include "nursery.h"
#include "seal.h"
#include "sweep.h"
#include "mark_stack.h"

/* In ruby_gc_params_t. */
struct cow_settings {
    size_t nursery_least_slots; /* 0: children are sized like any process */
    enum cow_seal_mode seal_mode;
    bool seal_compact;
    enum cow_sweep_mode sweep_mode;
};

#define COW_SETTINGS { COW_NURSERY_LEAST_SLOTS, COW_SEAL_AUTO, false, COW_SWEEP_PROPOSED }

/* In each heap page. */
struct cow_seal_page {
    unsigned short keep; /* a sealed page with fewer objects is opened */
    unsigned short sealed : 1;
    unsigned short remembering : 1; /* in .remembering of its heap */
    unsigned short has_duties : 1; /* may hold an object whose end is seen outside the process */
};

/* In each heap. */
struct cow_seal_heap {
    struct heap_page *last; /* sealed pages stand first in .pages: the last of them */
    struct heap_page *last_inherited; /* in a child, the last of them that its parent has sealed */
    size_t pages, slots; /* sealed */
    size_t live; /* objects there, when they were sealed, or at the end of the last full marking */
    /* Sealed pages with objects that a minor marking must look at; there is room for all pages. */
    struct heap_page **remembering;
    size_t remembering_count;
};

/* In the objspace. */
struct cow_seal_space {
    size_t count; /* how often the heap was sealed */
    size_t survivors; /* of the last collection */
    size_t survivors_at_seal; /* of the one before the heap was sealed last */
    bool exact; /* .survivors are those of a full marking */
    size_t live; /* survivors of the last full marking */
    size_t slots; /* when the heap was sealed last */
    size_t closed; /* slots of what this process has sealed itself, after the last full marking */
    struct cow_seal_budget budget;
    size_t sized; /* .count when the nursery was sized by what is sealed */
};

#endif /* COW_H */

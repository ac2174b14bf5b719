/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_H
#define COW_H

/*
 * cow: the order in which gc/default/default.c includes this directory, and the state that upstream's structs
 * embed.
 *
 *     default.c includes              after it has defined
 *     cow.h                           upstream's headers
 *     locate_bits.c                   struct heap_page, complete
 *     heap_page.h                     upstream's macros for bitmaps, which it replaces
 *     page_list.h                     rb_objspace_t and the macro heaps
 *     free_slot.h                     gc_report
 *     page_memory.h, page_grants.h    the list of empty pages
 *     new_object.h, claim_slots.h     (before newobj_init; before heap_next_free_page)
 *     heap_walk.c                     each_obj_callback, each_page_callback
 *     exit_duties.h, gc_stat.h        (before the shutdown; before objspace_free_slots)
 *     sweep.c                         gc_sweep_plane
 *     heap_growth.c, seal.c           heap_allocatable_slots_expand; sweep.c (which include
 *                                     pressure.c, vm_words.c)
 *     mark_push.h, mark.c             push_mark_stack_chunk; pop_mark_stack
 *     verify.c                        struct verify_internal_consistency_struct
 *     prepare_heap.c, fork.c          garbage_collect; prepare_heap.c (which includes allocator.c)
 *     config.c, environment.c         (before GC.config); get_envparam_size; prepare_heap.c
 *
 * gc.c includes update_reference.c, late_names.c, vm_hooks.c and census.c; symbol.c includes symbol_names.c;
 * version.c includes revision.h; vm.c includes young_tables.c, kept_caches.c, foreign.c and iseq_jit.h,
 * vm_method.c foreign_invokers.c; iseq.c and thread_sync.c include vm_words_streams.h, re.c regexp_uses.h,
 * hash.c hash_iterations.h, string.c substrings.c.
 *
 * The other headers need nothing of the interpreter, and test/c has unit tests of them: assertion,
 * vocabulary, os, setting_values, nursery_policy, growth_policy, pressure_policy, pressure_files,
 * pressure_tree, fork_report, seal_policy, substring_policy, sweep_modes, mark_stack, arena, alignoff,
 * page_map, malloc_pages, locate_bits, slot_map, poison, vm_words.
 *
 * COW_HEAP is defined from here on. Upstream's functions that this directory replaces stand in default.c
 * between #ifndef COW_HEAP and #endif, so that a patch need not remove them.
 *
 * Who writes this memory after a fork: the structs below lie in the objspace, in rb_heap_t and in the
 * descriptors of heap pages. A process writes those of its objspace and its heaps in each collection; the
 * files that use them say when.
 */

struct heap_page;
struct cow_walk;

#define COW_HEAP 1

/* The number of forks between the process that started the interpreter and this one. */
extern unsigned int rb_gc_fork_depth;

#define COW_SLOT_SIZE BASE_SLOT_SIZE
#ifndef HAVE_MMAP
# define COW_HAS_MMAP 0
#endif

#include "setting_values.h"
#include "nursery_policy.h"
#include "growth_policy.h"
#include "pressure_policy.h"
#include "pressure_tree.h"
#include "seal_policy.h"
#include "sweep_modes.h"
#include "mark_stack.h"
#include "allocator.h"

/* Which of upstream's settings are given, by what they decide (cow_given). */
enum cow_given {
    COW_GIVEN_FREE_SLOTS = 1,  /* RUBY_GC_HEAP_FREE_SLOTS and its ratios */
    COW_GIVEN_GROWTH = 2,      /* RUBY_GC_HEAP_GROWTH_FACTOR, RUBY_GC_HEAP_GROWTH_MAX_SLOTS */
    COW_GIVEN_SLOTS = COW_GIVEN_FREE_SLOTS | COW_GIVEN_GROWTH,
    COW_GIVEN_OLD_OBJECTS = 4, /* RUBY_GC_HEAP_OLDOBJECT_LIMIT_FACTOR */
    COW_GIVEN_MALLOC = 8,      /* RUBY_GC_MALLOC_LIMIT... */
    COW_GIVEN_OLDMALLOC = 16   /* RUBY_GC_OLDMALLOC_LIMIT... */
};

/* By which rule a heap was allowed to grow: upstream's ratios, growth_policy.h or nursery_policy.h. */
enum cow_growth_rule { COW_GROWN_BY_RATIOS, COW_GROWN_BY_MODEL, COW_GROWN_BY_NURSERY };

/* What heap_growth.c knows besides the model. */
struct cow_growth_limits {
    /* Limits of malloc by upstream's rule, where other ones may hold; 0 before the first collection. */
    size_t malloc, oldmalloc;
    bool oldmalloc_rules; /* the collection that begins applies the rule of .oldmalloc */
    bool inherited; /* the process was forked by a big one: the model does not hold */
    size_t grown[COW_GROWN_BY_NURSERY + 1]; /* how often, by which rule; for GC.stat */
};

/* What the process knows of pressure, in the objspace (pressure.c). */
struct cow_pressure_space {
    struct cow_pressure policy;
    struct cow_pressure_files files;
    struct cow_pressure_tree *tree; /* NULL: the process has neither forked nor been forked */
    struct cow_pressure_sums sums; /* of the last reading, where they do not stand in the tree */
    double taken;      /* bytes that the process and its tree took, at .taken_at */
    uint64_t taken_at; /* 0: they have not been asked for */
    double taken_anonymous; /* the process's anonymous memory then; below 0: not known */
    uint64_t taking;   /* ns that it took to ask */
    bool noted;       /* the process has a note in the tree of what it takes */
    bool faults_only; /* no file can be read: only faults tell of pressure */
    bool gives;       /* the collection that goes on gives memory back when it has swept */
    bool collecting;  /* it is a full one for pressure, and has a turn (pressure_tree.h) */
    double began;     /* the CPU time when it began, in ns */
    double resident;  /* the process's memory then, in bytes; below 0: not known */
    /* Numbers for GC.stat. */
    size_t readings, collections, releases, released_bytes;
    size_t levels[COW_PRESSURE_CRITICAL + 1], causes[COW_PRESSURE_TREE + 1];
};

/* Settings of the process, in ruby_gc_params_t (environment.c reads them). */
struct cow_settings {
    size_t nursery_least_slots; /* 0: the nursery is off */
    double target_time; /* the share of time for collections, in per cent; 0: the model is off */
    unsigned int given; /* enum cow_given, a sum */
    enum cow_pressure_mode pressure_mode;
    size_t memory_limit; /* bytes that the process and those that it has forked may take; 0: no limit */
    enum cow_seal_mode seal_mode;
    bool seal_compact;
    enum cow_sweep_mode sweep_mode;
    bool fork_report;
};

#define COW_SETTINGS \
    { COW_NURSERY_LEAST_SLOTS, COW_GROWTH_TARGET_TIME, 0, COW_PRESSURE_AUTO, 0, COW_SEAL_AUTO, false, \
      COW_SWEEP_KEEP, false }

/* What the seal records of a heap page, in its descriptor. */
struct cow_seal_page {
    unsigned short keep; /* the page is opened when fewer objects than this live in it */
    unsigned short sealed : 1;
    unsigned short remembering : 1; /* it stands in .remembering of its heap */
    unsigned short has_duties : 1; /* an object in it has a duty, or may get one (exit_duties.h) */
    unsigned short fork_depth : 13; /* rb_gc_fork_depth of the process that sealed it */
};

/* Above it, .fork_depth no longer tells a page of a process from one of its parents. */
#define COW_SEAL_FORK_DEPTH_MAX ((1u << 13) - 1)

/* What the seal records of a heap, in rb_heap_t; cow_verify_seal recomputes it. */
struct cow_seal_heap {
    struct heap_page *last; /* the last sealed page of .pages, where they stand first; NULL: none */
    struct heap_page *last_inherited; /* in a child: the last one that its parent has sealed */
    size_t pages, slots; /* numbers of sealed pages, and of slots in them */
    size_t live; /* objects in them, counted at the seal and at the end of each full marking */
    /* Sealed pages with objects that a minor marking must look at. The array has room for all pages. */
    struct heap_page **remembering;
    size_t remembering_count;
};

/* What the seal records of the process, in the objspace. All but .count, .exact and .sized are numbers of
 * objects or slots. */
struct cow_seal_space {
    size_t count; /* number of seals so far */
    size_t survivors; /* objects that the last marking left */
    size_t survivors_at_seal; /* .survivors when the heap was sealed last */
    bool exact; /* a full marking has counted .survivors */
    size_t live; /* objects that the last full marking left */
    size_t slots; /* slots of all heaps when the heap was sealed last */
    size_t closed; /* closed slots of pages that this process has sealed itself, at the last full marking */
    struct cow_seal_budget budget;
    size_t sized; /* .count when the sealed pages last determined the nursery's size */
};

/* Who runs the finalizers of dead objects, in the objspace. */
struct cow_finalizer {
    const void *thread; /* that runs them, or ran them last */
    VALUE zombies; /* a list: the object whose finalizers run, and those that are next; 0: none */
};

#endif /* COW_H */

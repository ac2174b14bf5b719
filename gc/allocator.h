/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_ALLOCATOR_H
#define COW_ALLOCATOR_H

/*
 * allocator: makes malloc know about fork, as far as the malloc in use lets it.
 *
 * Job: a forked child that allocates in the holes between the blocks that it has inherited, or writes into
 * such a block to free it, copies an OS page each time. What is done about it depends on the allocator:
 *
 *                   before a fork that seals     in a child, at the fork       an inherited block is freed
 *     jemalloc 5    free pages given back,       an arena of its own, also     past the thread's cache;
 *                   the cache emptied, an        for threads that start later  pages that become free are
 *                   arena made for children                                    given back at once
 *     glibc         free pages given back,       -                             not at all, if it is small,
 *                   holes filled                                               up to a bound
 *     mimalloc      free pages given back        a heap of its own             by free
 *     tcmalloc      free pages given back        -                             by free
 *     others        -                            -                             by free
 *
 * glibc has no way to give a thread another arena. So the parent fills the holes: it allocates blocks of ever
 * smaller sizes, until each comes from the top of the heap. They are freed at the next seal, and in the next
 * full collection after the parent has worked: then it needs its holes and would only make new ones. It fills
 * them no more, until it has twice as much as then. Neither does a child whose memory is for the most part
 * inherited: to free the blocks and to fill the holes would write all of that.
 *
 * Which blocks are inherited: with glibc, those of its main heap below the top at the fork. With jemalloc,
 * all within 2 MB of what was private writable memory when the parent last noted it (cow_jemalloc_prefork).
 * That errs for blocks of the child next to inherited memory, which are then freed past the cache, and for
 * what the parent has mapped since, which is freed as if the child had made it.
 *
 * Entry points: cow_allocator_free, cow_allocator_realloc. In allocator.c: cow_allocator_find;
 * cow_allocator_trim, cow_allocator_warmup, cow_allocator_collecting and cow_allocator_prefork in a parent,
 * cow_allocator_inherit and cow_allocator_thread in a child; cow_allocator_allocated.
 *
 * Who writes this memory after a fork: a child writes the words below at the fork, and the counters of blocks
 * that it leaves. The bitmap it only reads; its parent writes it again after a seal.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef __GLIBC__
# include <malloc.h>
#endif

/* glibc has mallinfo2 since 2.33. */
#if defined(__GLIBC_PREREQ)
# define COW_ALLOCATOR_HAS_MALLINFO __GLIBC_PREREQ(2, 33)
#else
# define COW_ALLOCATOR_HAS_MALLINFO 0
#endif

/* Bits of an address of a program (arena.h). */
#ifdef __x86_64__
# define COW_ALLOCATOR_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 47 : 32)
#else
# define COW_ALLOCATOR_ADDRESS_BITS (UINTPTR_MAX > 0xffffffffu ? 48 : 32)
#endif

enum {
    COW_ALLOCATOR_REGION_SHIFT = 21, /* 2 MB */
    /* A chain of forks makes so many arenas (or heaps of mimalloc's); then its children take turns. Each has
     * some 130 KB, and 30 KB of it is written at a fork. */
    COW_ALLOCATOR_MOST_ARENAS = 8,
    /* More holes are not filled: that would take too long. */
    COW_ALLOCATOR_MOST_FILLERS = 200000,
    /* The largest block that may be left, in bytes. */
    COW_ALLOCATOR_MOST_LEFT = 1024,
    /* How many bytes of blocks a process and those that it descends from may leave. */
    COW_ALLOCATOR_LEAVE_LIMIT = 8 << 20
};
#define COW_ALLOCATOR_MAP_SIZE \
    ((size_t)1 << (COW_ALLOCATOR_ADDRESS_BITS - COW_ALLOCATOR_REGION_SHIFT - 3))

enum cow_allocator_kind {
    COW_ALLOCATOR_OTHER,
    COW_ALLOCATOR_GLIBC,
    COW_ALLOCATOR_JEMALLOC,
    COW_ALLOCATOR_MIMALLOC,
    COW_ALLOCATOR_TCMALLOC
};

/* A block that fills a hole. */
struct cow_allocator_filler { struct cow_allocator_filler *next; };

/* What an allocator has beside malloc; NULL where it does not. */
struct cow_allocator_calls {
    /* jemalloc */
    int (*control)(const char *name, void *old, size_t *old_size, void *new_value, size_t new_size);
    void (*deallocate)(void *block, int flags);
    void *(*reallocate)(void *block, size_t size, int flags);
    /* mimalloc */
    void (*collect)(bool force);
    void *(*heap_new)(void);
    void *(*heap_set_default)(void *heap);
    /* tcmalloc */
    void (*release_free_memory)(void);
    /* glibc */
    int (*trim)(size_t pad);
#if COW_ALLOCATOR_HAS_MALLINFO
    struct mallinfo2 (*information)(void);
#endif
    /* all of them */
    size_t (*usable_size)(void *block);
};

struct cow_allocator {
    enum cow_allocator_kind kind;
    bool on; /* false: the user has switched this file off */
    struct cow_allocator_calls calls;
    unsigned char *inherited; /* jemalloc: a bit for each 2 MB of addresses; NULL: none is set */
    /* glibc: the main heap without its top, at the fork, if its holes were filled; or 0. */
    uintptr_t inherited_from, inherited_size;

    /* jemalloc: the arenas that this process and those that it descends from have made. */
    unsigned arenas[COW_ALLOCATOR_MOST_ARENAS];
    unsigned arena_count; /* the number of these */
    const unsigned *own_arena; /* the one of these that this process allocates in; NULL: jemalloc's choice */
    bool background; /* jemalloc: does it have a thread that gives memory back? */

    /* What a child will have as +own_arena+ and +inherited+, if +children_ready+; either may be NULL. When
     * the bitmap was made the process had sealed its heap and made objects so often. */
    bool children_ready;
    size_t children_seals, children_objects;
    const unsigned *children_arena;
    unsigned char *children_inherited;

    unsigned heap_count; /* mimalloc: how many heaps this process and those that it descends from have made */

    struct cow_allocator_filler *fillers;
    size_t filler_count, filler_bytes;
    bool filled; /* is no hole left? */
    size_t filled_seals, filled_objects, filled_bytes; /* then: seals, objects made, bytes allocated */

    size_t leave_limit; /* bytes; 0: no block is left */
    size_t left_bytes, left_blocks; /* of this process and those that it descends from */
    size_t inherited_bytes; /* glibc: what was allocated at the fork; 0 in a process that was not forked */
};

static struct cow_allocator cow_allocator;

static void cow_allocator_collecting(size_t objects, size_t live);
static void cow_allocator_free_inherited(void *block);
static void *cow_allocator_realloc_inherited(void *block, size_t size);

/* Is the block, as far as its address tells, inherited? */
static inline bool
cow_allocator_inherited_p(const void *block)
{
    const uintptr_t address = (uintptr_t)block, region = address >> COW_ALLOCATOR_REGION_SHIFT;

    if (address - cow_allocator.inherited_from < cow_allocator.inherited_size) return true;
    return cow_allocator.inherited != NULL && region / 8 < COW_ALLOCATOR_MAP_SIZE &&
           (cow_allocator.inherited[region / 8] >> region % 8 & 1);
}

/* Frees what malloc gave. */
static inline void
cow_allocator_free(void *block)
{
    if (cow_allocator_inherited_p(block)) cow_allocator_free_inherited(block);
    else free(block);
}

/* Does what realloc does. +block+ is not NULL, and +size+ is not 0. */
static inline void *
cow_allocator_realloc(void *block, size_t size)
{
    if (cow_allocator_inherited_p(block)) return cow_allocator_realloc_inherited(block, size);
    return realloc(block, size);
}

#endif /* COW_ALLOCATOR_H */

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_ALLOCATOR_H
#define COW_ALLOCATOR_H

/*
 * allocator: makes malloc know about fork, as far as the malloc in use lets it.
 *
 * Job: a forked child that allocates in the holes between the blocks that it has inherited, or writes into
 * such a block to free it, copies an OS page each time. What is done about it depends on the allocator:
 *
 *                   before a fork                in a child, at the fork       an inherited block is freed
 *     jemalloc 5    free pages given back,       an arena of its own, also     past the thread's cache;
 *                   the cache emptied, an        for threads that start later  free pages are given back
 *                   arena made for children                                    after a full collection
 *     glibc         free pages given back and    -                             not at all, if it is small,
 *                   holes filled, after a seal                                 up to a bound
 *     mimalloc      free pages given back,       a heap of its own             by free
 *                   at a seal
 *     tcmalloc      the same                     -                             by free
 *     others        -                            -                             by free
 *
 * glibc has no way to give a thread another arena. So the parent fills the holes: it allocates blocks of ever
 * smaller sizes, until each comes from the top of the heap. They are freed at the next seal. A parent that
 * works between its seals needs its holes, and would only make new ones: it fills them once, and again when
 * it is quiet or has twice as much. Neither does a child fill them whose memory is for the most part
 * inherited: to free the blocks and to fill the holes would write all of that.
 *
 * Which blocks are inherited: with glibc, those of its main heap that were there when the holes were filled.
 * With jemalloc, all within 2 MB of what was private writable memory when the parent last noted it
 * (cow_jemalloc_prefork). That errs for blocks of the child next to inherited memory, which are then freed
 * past the cache, and for what the parent has mapped since, which is freed as if the child had made it.
 *
 * Entry points: cow_allocator_free, cow_allocator_realloc. In allocator.c: cow_allocator_find;
 * cow_allocator_trim, cow_allocator_warmup and cow_allocator_prefork in a parent; cow_allocator_inherit,
 * cow_allocator_thread and cow_allocator_collected in a child; cow_allocator_release,
 * cow_allocator_allocated.
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
/* Bytes of the bitmap of regions: whole OS pages. */
#define COW_ALLOCATOR_MAP_SIZE \
    ((((size_t)1 << (COW_ALLOCATOR_ADDRESS_BITS - COW_ALLOCATOR_REGION_SHIFT - 3)) + 0xffff) & \
     ~(size_t)0xffff)

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
    uintptr_t inherited_from, inherited_size; /* glibc: the main heap whose holes the parent filled; or 0 */

    /* jemalloc: the arenas that this process and those that it descends from have made. */
    unsigned arenas[COW_ALLOCATOR_MOST_ARENAS];
    unsigned arena_count; /* the number of these */
    const unsigned *own_arena; /* the one of these that this process allocates in; NULL: jemalloc's choice */
    bool background; /* jemalloc: does it have a thread that gives memory back? */
    size_t collections; /* the number of full collections when a child last gave free pages back */

    /* jemalloc: what a child will have as +own_arena+ and +inherited+; +children_ready+: neither is NULL.
     * When they were made the process had sealed its heap and made objects so often. */
    bool children_ready;
    size_t children_seals, children_objects;
    const unsigned *children_arena;
    unsigned char *children_inherited;

    unsigned heap_count; /* mimalloc: how many heaps this process and those that it descends from have made */

    /* glibc: what fills holes. Where from and of which size is the heap in which no hole is left; or 0. */
    struct cow_allocator_filler *fillers;
    size_t filler_count, filler_bytes;
    uintptr_t filled_from, filled_size;
    size_t filled_bytes; /* when holes were last filled: bytes allocated */
    /* At the first fork after the last seal: the number of seals, objects made, bytes allocated. */
    size_t noted_seals, noted_objects, noted_bytes;

    size_t leave_limit; /* bytes; 0: no block is left */
    size_t left_bytes, left_blocks; /* of this process and those that it descends from */
    size_t inherited_bytes; /* glibc: what the parent had as +noted_bytes+ */
};

static struct cow_allocator cow_allocator;

static void cow_allocator_collected(size_t full_collections);
static void cow_allocator_release(bool child, bool critical);
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

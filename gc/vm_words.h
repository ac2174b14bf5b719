/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_VM_WORDS_H
#define COW_VM_WORDS_H

/*
 * vm_words: memory for the few words of an iseq that the VM writes while it runs (call sites, inline caches,
 * the words of the JIT), and for mutexes.
 *
 * Job: upstream's malloc puts these words between those that nobody writes, so a forked child copies an OS
 * page for each few of them. Here they lie side by side, and a child that has written all of them has copied
 * no more than their size.
 *
 * Blocks of one stream lie one behind the other in an extent; a stream takes extents from a region, which is
 * address space that is committed step by step. A block that is freed goes to the free list of its size. A
 * process never takes again what it has inherited, and does not link it into a list: both would write. So a
 * child loses what it frees there, at most what it has inherited.
 *
 * Where the system gives no region, no memory for one, or where the regions are full, cow_vm_words_alloc
 * gives NULL, and the caller asks malloc; cow_vm_words_has tells the blocks of the two apart.
 *
 * Entry points: cow_vm_words_alloc, cow_vm_words_free, cow_vm_words_has; cow_vm_words_seal in a parent,
 * cow_vm_words_inherit in a child; cow_vm_words_verify.
 *
 * Who writes this memory after a fork: a child writes the blocks of the iseqs that it runs and of the mutexes
 * that it locks, and extents of its own for those that it makes.
 */

#include <stdio.h>
#include "assertion.h"
#include "os.h"
#include "poison.h"
#include "vm_words_streams.h"

/* Bytes of a region, and their number. An application of 33,000 iseqs needs 4 MB. */
#ifndef COW_VM_WORDS_REGION
# define COW_VM_WORDS_REGION ((size_t)64 << 20)
#endif
#ifndef COW_VM_WORDS_REGIONS
# define COW_VM_WORDS_REGIONS 8
#endif
/* Where the process may map less than so many regions, it gets none. */
#define COW_VM_WORDS_SPARE 32

enum {
    COW_VM_WORDS_UNIT = 16,
    COW_VM_WORDS_EXTENT = 16 * 1024,
    COW_VM_WORDS_STEP = 64 * 1024, /* so much is committed at once */
    COW_VM_WORDS_SMALL = 1024, /* up to here each multiple of the unit has a free list */
    COW_VM_WORDS_LARGEST = 256 * 1024, /* up to here each power of two has one; larger blocks are malloc's */
    COW_VM_WORDS_LISTS = COW_VM_WORDS_SMALL / COW_VM_WORDS_UNIT + 8
};

/* "CowWords", at the beginning of each region, for those who look at a process from outside
 * (benchmark/lib/memory/page_kinds.rb). */
#define COW_VM_WORDS_SIGN UINT64_C(0x7364726f57776f43)

struct cow_vm_words_free {
    struct cow_vm_words_free *next;
};

struct cow_vm_words_region {
    char *start;
    size_t used, committed; /* bytes from the start: given to streams; readable and writable */
    size_t inherited; /* bytes from the start that a parent of this process had used */
};

struct cow_vm_words {
    struct cow_vm_words_region regions[COW_VM_WORDS_REGIONS];
    size_t count; /* regions */
    bool denied; /* the system gave no further region; not asked again */
    struct {
        char *next, *end; /* the rest of the extent */
        struct cow_vm_words_free *free[COW_VM_WORDS_LISTS];
    } streams[COW_VM_WORDS_STREAMS];
    size_t live; /* bytes of blocks that are in use, inherited ones included */
    size_t lost; /* bytes of inherited blocks that this process has freed */
};

/* Gives the number of the free list for blocks of +size+ bytes, and rounds +size+ up to what they have. */
static inline size_t
cow_vm_words_list(size_t *size)
{
    COW_ASSERT(0 < *size && *size <= COW_VM_WORDS_LARGEST);
    if (*size <= COW_VM_WORDS_SMALL) {
        *size = (*size + COW_VM_WORDS_UNIT - 1) / COW_VM_WORDS_UNIT * COW_VM_WORDS_UNIT;
        return *size / COW_VM_WORDS_UNIT - 1;
    }
    size_t list = COW_VM_WORDS_SMALL / COW_VM_WORDS_UNIT, rounded = 2 * COW_VM_WORDS_SMALL;

    for (; rounded < *size; rounded *= 2) list++;
    *size = rounded;
    return list;
}

/* Gives the region that +block+ lies in; NULL: it is not in one. */
static inline const struct cow_vm_words_region *
cow_vm_words_region(const struct cow_vm_words *words, const void *block)
{
    for (size_t i = words->count; i-- > 0; ) {
        const struct cow_vm_words_region *region = &words->regions[i];

        if ((uintptr_t)block - (uintptr_t)region->start < COW_VM_WORDS_REGION) return region;
    }
    return NULL;
}

/* Does +block+ lie in a region? If not, it is malloc's. */
static inline bool
cow_vm_words_has(const struct cow_vm_words *words, const void *block)
{
    return cow_vm_words_region(words, block) != NULL;
}

/* Was +block+, which lies in a region, there when the process was forked? */
static inline bool
cow_vm_words_inherited(const struct cow_vm_words *words, const void *block)
{
    const struct cow_vm_words_region *region = cow_vm_words_region(words, block);

    return (uintptr_t)block - (uintptr_t)region->start < region->inherited;
}

/* Commits so much that +used+ bytes of the region can be used. Gives false if the system refuses. */
static inline bool
cow_vm_words_commit(struct cow_vm_words_region *region, size_t used)
{
    if (used <= region->committed) return true;
    if (used > COW_VM_WORDS_REGION) return false;
    size_t committed = (used + COW_VM_WORDS_STEP - 1) / COW_VM_WORDS_STEP * COW_VM_WORDS_STEP;

    if (!cow_os_commit(region->start + region->committed, committed - region->committed)) return false;
    cow_os_name(region->start, committed, "Ruby:VM words");
    region->committed = committed;
    return true;
}

/* Adds a region. Gives false if the system refuses it, or if the process may map too little. */
static inline bool
cow_vm_words_add_region(struct cow_vm_words *words)
{
    const struct cow_os_span span = { 0, COW_VM_WORDS_REGION };

    if (words->denied || words->count == COW_VM_WORDS_REGIONS) return false;
    words->denied = true;
    if (cow_os_address_space() / COW_VM_WORDS_SPARE < COW_VM_WORDS_REGION) return false;
    char *start = cow_os_reserve(&span, 1, COW_VM_WORDS_STEP);
    if (start == NULL) return false;
    struct cow_vm_words_region region = { start, COW_VM_WORDS_UNIT, 0, 0 };

    if (!cow_vm_words_commit(&region, COW_VM_WORDS_EXTENT)) {
        cow_os_free(start, COW_VM_WORDS_REGION);
        return false;
    }
    ((uint64_t *)start)[0] = COW_VM_WORDS_SIGN;
    ((uint64_t *)start)[1] = COW_VM_WORDS_REGION;
    words->regions[words->count++] = region;
    words->denied = false;
    return true;
}

/* Ends the stream's extent: what is left of it goes to the free lists. */
static inline void
cow_vm_words_end_extent(struct cow_vm_words *words, enum cow_vm_words_stream stream)
{
    size_t left = (size_t)(words->streams[stream].end - words->streams[stream].next), size;

    for (; left > 0; left -= size) {
        size = left < COW_VM_WORDS_SMALL ? left : COW_VM_WORDS_SMALL;
        struct cow_vm_words_free *block = (struct cow_vm_words_free *)words->streams[stream].next;
        struct cow_vm_words_free **list = &words->streams[stream].free[cow_vm_words_list(&size)];

        words->streams[stream].next += size;
        block->next = *list;
        *list = block;
        cow_poison(block, size);
    }
}

/* Gives the stream an extent that has room for +size+ bytes. Gives false if there is no memory. */
static inline bool
cow_vm_words_extend(struct cow_vm_words *words, enum cow_vm_words_stream stream, size_t size)
{
    const size_t extent = size > COW_VM_WORDS_EXTENT ? size : COW_VM_WORDS_EXTENT;

    if (words->count == 0 && !cow_vm_words_add_region(words)) return false;
    struct cow_vm_words_region *region = &words->regions[words->count - 1];
    /* The first extent of a region is shorter by the sign, so that the others begin with an OS page. */
    size_t end =
        (region->used + extent + COW_VM_WORDS_EXTENT - 1) / COW_VM_WORDS_EXTENT * COW_VM_WORDS_EXTENT;
    if (end - COW_VM_WORDS_EXTENT >= region->used + size) end -= COW_VM_WORDS_EXTENT;

    if (!cow_vm_words_commit(region, end)) {
        if (end <= COW_VM_WORDS_REGION || !cow_vm_words_add_region(words)) return false;
        return cow_vm_words_extend(words, stream, size);
    }
    cow_vm_words_end_extent(words, stream);
    words->streams[stream].next = region->start + region->used;
    words->streams[stream].end = region->start + end;
    region->used = end;
    return true;
}

/* Gives +size+ bytes that are 0; NULL if there is no memory, or if the block is too large. */
static inline void *
cow_vm_words_alloc(struct cow_vm_words *words, enum cow_vm_words_stream stream, size_t size)
{
    if (size > COW_VM_WORDS_LARGEST) return NULL;
    struct cow_vm_words_free **list = &words->streams[stream].free[cow_vm_words_list(&size)], *block = *list;

    if (block != NULL) {
        cow_unpoison(block, size);
        *list = block->next;
        memset(block, 0, size);
    }
    else {
        if ((size_t)(words->streams[stream].end - words->streams[stream].next) < size &&
            !cow_vm_words_extend(words, stream, size)) {
            return NULL;
        }
        block = (struct cow_vm_words_free *)words->streams[stream].next;
        words->streams[stream].next += size;
    }
    words->live += size;
    return block;
}

/* Frees a block of +size+ bytes that cow_vm_words_alloc gave for the same stream. */
static inline void
cow_vm_words_free(struct cow_vm_words *words, enum cow_vm_words_stream stream, void *block, size_t size)
{
    COW_ASSERT(cow_vm_words_has(words, block));
    struct cow_vm_words_free **list = &words->streams[stream].free[cow_vm_words_list(&size)];

    words->live -= size;
    if (cow_vm_words_inherited(words, block)) {
        words->lost += size;
    }
    else {
        ((struct cow_vm_words_free *)block)->next = *list;
        *list = block;
    }
    cow_poison(block, size);
}

/* In a parent, when it seals the heap: what it allocates from now on stands in other OS pages than what its
 * children will share. Freed blocks are used again all the same, or a parent that forks for ever would
 * lose them. */
static inline void
cow_vm_words_seal(struct cow_vm_words *words)
{
    const uintptr_t page = cow_os->page_size();

    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        const uintptr_t next = ((uintptr_t)words->streams[i].next + page - 1) / page * page;
        char *end = words->streams[i].end;

        words->streams[i].next = next < (uintptr_t)end ? (char *)next : end;
    }
}

/* In a child: all blocks that are there are inherited. */
static inline void
cow_vm_words_inherit(struct cow_vm_words *words)
{
    for (size_t i = 0; i < words->count; i++) words->regions[i].inherited = words->regions[i].used;
    memset(words->streams, 0, sizeof(words->streams));
    words->lost = 0;
}

/* Are the free lists and the regions consistent? Prints what is not to +out+. */
static inline bool
cow_vm_words_verify(const struct cow_vm_words *words, FILE *out)
{
    size_t used = 0, free_bytes = 0;

    for (size_t i = 0; i < words->count; i++) {
        const struct cow_vm_words_region *region = &words->regions[i];

        used += region->used;
        if (region->used > region->committed || region->committed > COW_VM_WORDS_REGION ||
            region->inherited > region->used || *(uint64_t *)region->start != COW_VM_WORDS_SIGN) {
            fprintf(out, "cow_vm_words.regions[%zu]: expected .inherited <= .used <= .committed <= %zu and "
                         "the sign, found %zu, %zu, %zu, %#llx\n",
                    i, COW_VM_WORDS_REGION, region->inherited, region->used, region->committed,
                    (unsigned long long)*(uint64_t *)region->start);
            return false;
        }
    }
    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        for (size_t list = 0; list < COW_VM_WORDS_LISTS; list++) {
            const size_t small = COW_VM_WORDS_SMALL / COW_VM_WORDS_UNIT;
            const size_t size = list < small ? (list + 1) * COW_VM_WORDS_UNIT
                                             : (size_t)(2 * COW_VM_WORDS_SMALL) << (list - small);

            const struct cow_vm_words_free *block = words->streams[i].free[list], *next;

            for (; block; block = next) {
                const struct cow_vm_words_region *region = cow_vm_words_region(words, block);
                const size_t offset = region ? (size_t)((const char *)block - region->start) : 0;

                if (region == NULL || offset < region->inherited || offset + size > region->used ||
                    offset % COW_VM_WORDS_UNIT != 0) {
                    fprintf(out, "cow_vm_words.streams[%d].free[%zu]: expected a block of %zu bytes of this "
                                 "process, found %p\n", i, list, size, (const void *)block);
                    return false;
                }
                free_bytes += size;
                cow_unpoison(block, sizeof(*block));
                next = block->next;
                cow_poison(block, sizeof(*block));
            }
        }
    }
    if (words->live + words->lost + free_bytes > used) {
        fprintf(out, "cow_vm_words: expected .live + .lost + free blocks <= the regions' .used, "
                     "found %zu + %zu + %zu, %zu\n", words->live, words->lost, free_bytes, used);
        return false;
    }
    return true;
}

#endif /* COW_VM_WORDS_H */

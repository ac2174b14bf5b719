/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_VM_WORDS_H
#define COW_VM_WORDS_H

/*
 * vm_words: memory for the few words of an iseq that the VM writes while it runs (call sites, inline caches,
 * the words of the JIT), and for mutexes; and, apart from these, for YJIT's data.
 *
 * Job: upstream's malloc puts these words between those that nobody writes, so a forked child copies an OS
 * page for each few of them. Here they lie side by side, and a child that has written all of them has copied
 * no more than their size.
 *
 * Blocks of one stream lie one behind the other in an extent; a stream takes extents from a region, which is
 * address space that is committed step by step. A block that is freed goes to the free list of its size. A
 * child does not take again what it has inherited, and does not link it into a list: both would write. It
 * remembers what it frees there, and leaves the lists of its parent as they are, until it forks itself: a
 * process that forks uses again all that is free. A child goes on in its parent's extents, with the first OS
 * page in which nothing is used. If its parent has left more than half as much free as is in use, a child
 * takes that as well: a chain of forks would grow otherwise.
 *
 * Where the system gives no region, no memory for one, or where the regions are full, cow_vm_words_alloc
 * gives NULL, and the caller asks malloc; cow_vm_words_has tells the blocks of the two apart.
 *
 * Entry points: cow_vm_words_alloc, cow_vm_words_take, cow_vm_words_free, cow_vm_words_has,
 * cow_vm_words_inherited; cow_vm_words_decommit after a collection; cow_vm_words_seal and
 * cow_vm_words_prefork in a parent, cow_vm_words_inherit in a child; cow_vm_words_verify.
 *
 * Who writes this memory after a fork: a child writes the blocks of the iseqs that it runs and of the mutexes
 * that it locks, and extents of its own for those that it makes.
 */

#include <stdio.h>
#include "assertion.h"
#include "os.h"
#include "poison.h"
#include "vm_words_streams.h"

/* Regions of each kind. An application of 33,000 iseqs needs 4 MB. */
#ifndef COW_VM_WORDS_REGIONS
# define COW_VM_WORDS_REGIONS 8
#endif
/* Where the process may map less than so many regions, it gets none. */
#define COW_VM_WORDS_SPARE 32

enum {
    COW_VM_WORDS_UNIT = 8,
    COW_VM_WORDS_HEAD = 16, /* of a region: the sign and the size */
    COW_VM_WORDS_EXTENT = 16 * 1024,
    COW_VM_WORDS_JIT_EXTENT = 256 * 1024, /* few extents, as counters go by the address (iseq_jit.h) */
    COW_VM_WORDS_STEP = 64 * 1024, /* so much is committed at once */
    COW_VM_WORDS_SMALL = 1024, /* up to here each multiple of the unit has a free list */
    COW_VM_WORDS_LARGE = 8 * 1024, /* from here on the memory of a free block can be decommitted */
    COW_VM_WORDS_LARGEST = 256 * 1024, /* up to here each power of two has one; larger blocks are malloc's */
    COW_VM_WORDS_LISTS = COW_VM_WORDS_SMALL / COW_VM_WORDS_UNIT + 8
};

/* "CowWords" and "CowYjits", at the beginning of each region, for those who look at a process from outside
 * (lib/cowruby/memory/page_kinds.rb). */
#define COW_VM_WORDS_SIGN UINT64_C(0x7364726f57776f43)
#define COW_VM_WORDS_YJIT_SIGN UINT64_C(0x7374696a59776f43)

struct cow_vm_words_free {
    struct cow_vm_words_free *next;
};

/* A free block of COW_VM_WORDS_LARGE bytes or more. */
struct cow_vm_words_large {
    struct cow_vm_words_free free;
    bool decommitted; /* all its OS pages but those of this struct */
};

struct cow_vm_words_region {
    char *start;
    size_t used, committed; /* bytes from the start: given to streams; readable and writable */
    size_t inherited; /* bytes from the start that a parent had used at the fork; 0 when the process forks */
};

/* An inherited block that a child has freed; its size says in which list it belongs. */
struct cow_vm_words_lost {
    struct cow_vm_words_free *block;
    size_t size;
    enum cow_vm_words_stream stream;
};

struct cow_vm_words {
    uint64_t sign; /* of each region */
    const char *name; /* of each region, in /proc/PID/maps */
    int sized_streams; /* the blocks of stream i of so many have i + 1 units */
    struct cow_vm_words_region regions[COW_VM_WORDS_REGIONS];
    size_t count; /* regions */
    bool denied; /* the system gave no further region; not asked again */
    struct {
        char *next, *end; /* the rest of the extent */
        char *own, *own_end; /* the part of an inherited extent that is this process's; NULL: none is */
    } streams[COW_VM_WORDS_STREAMS];
    /* Of each stream, by size; most are empty. What a child does not use it does not write. */
    struct cow_vm_words_free *free_lists[COW_VM_WORDS_STREAMS][COW_VM_WORDS_LISTS];
    struct cow_vm_words_free *inherited_lists[COW_VM_WORDS_STREAMS][COW_VM_WORDS_LISTS]; /* the parent's */
    struct cow_vm_words_lost *lost; /* remembered; malloc's */
    size_t lost_count, lost_room;
    size_t live; /* bytes of blocks that are in use, inherited ones included */
    size_t free; /* bytes of blocks in the free lists */
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

/* Gives how many bytes the blocks of a free list have. */
static inline size_t
cow_vm_words_list_size(size_t list)
{
    const size_t small = COW_VM_WORDS_SMALL / COW_VM_WORDS_UNIT;

    return list < small ? (list + 1) * COW_VM_WORDS_UNIT : (size_t)(2 * COW_VM_WORDS_SMALL) << (list - small);
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

/* Does +block+ lie in a region, and was it there when the process was forked? */
static inline bool
cow_vm_words_inherited(const struct cow_vm_words *words, const void *block)
{
    const struct cow_vm_words_region *region = cow_vm_words_region(words, block);

    if (region == NULL || (uintptr_t)block - (uintptr_t)region->start >= region->inherited) return false;
    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        if (words->streams[i].own <= (const char *)block && (const char *)block < words->streams[i].own_end)
            return false;
    }
    return true;
}

/* Enters a free block of +size+ bytes into the list of its size, which has to be that of a list. */
static inline void
cow_vm_words_enter(struct cow_vm_words *words, enum cow_vm_words_stream stream, void *memory, size_t size)
{
    struct cow_vm_words_free *block = memory;
    struct cow_vm_words_free **list = &words->free_lists[stream][cow_vm_words_list(&size)];

    cow_unpoison(block, size);
    block->next = *list;
    if (size >= COW_VM_WORDS_LARGE) ((struct cow_vm_words_large *)block)->decommitted = false;
    *list = block;
    words->free += size;
    cow_poison(block, size);
}

/* Remembers a free block of +size+ bytes that is inherited. Where there is no memory for that it is lost. */
static inline void
cow_vm_words_remember(struct cow_vm_words *words, enum cow_vm_words_stream stream, void *block, size_t size)
{
    if (words->lost_count == words->lost_room) {
        const size_t room = words->lost_room ? words->lost_room * 2 : 64;
        struct cow_vm_words_lost *lost = cow_os->allocate(room * sizeof(*lost));

        if (lost == NULL) return;
        if (words->lost_count > 0) memcpy(lost, words->lost, words->lost_count * sizeof(*lost));
        cow_os->deallocate(words->lost);
        words->lost = lost;
        words->lost_room = room;
    }
    words->lost[words->lost_count++] = (struct cow_vm_words_lost){ block, size, stream };
}

/* Calls +give+ for the memory from +from+ to +to+, in pieces of which each is a free block, as large as the
 * stream can use. */
static inline void
cow_vm_words_cut(struct cow_vm_words *words, enum cow_vm_words_stream stream, char *from, const char *to,
                 void (*give)(struct cow_vm_words *, enum cow_vm_words_stream, void *, size_t))
{
    const size_t most = (int)stream < words->sized_streams ? ((size_t)stream + 1) * COW_VM_WORDS_UNIT
                                                           : COW_VM_WORDS_SMALL;

    for (size_t size; from < to; from += size) {
        size = (size_t)(to - from) < most ? (size_t)(to - from) : most;
        give(words, stream, from, size);
    }
}

/* Gives the beginning of the first OS page of the stream's extent in which nothing is used. */
static inline char *
cow_vm_words_unused(const struct cow_vm_words *words, int stream)
{
    const uintptr_t page = cow_os->page_size();
    char *next = (char *)(((uintptr_t)words->streams[stream].next + page - 1) / page * page);

    return next < words->streams[stream].end ? next : words->streams[stream].end;
}

/* Commits so much that +used+ bytes of the region can be used. Gives false if the system refuses. */
static inline bool
cow_vm_words_commit(struct cow_vm_words_region *region, size_t used, const char *name)
{
    if (used <= region->committed) return true;
    if (used > COW_VM_WORDS_REGION) return false;
    size_t committed = (used + COW_VM_WORDS_STEP - 1) / COW_VM_WORDS_STEP * COW_VM_WORDS_STEP;

    if (!cow_os_commit(region->start + region->committed, committed - region->committed)) return false;
    cow_os_name(region->start, committed, name);
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
    struct cow_vm_words_region region = { start, COW_VM_WORDS_HEAD, 0, 0 };

    if (!cow_vm_words_commit(&region, COW_VM_WORDS_EXTENT, words->name)) {
        cow_os_free(start, COW_VM_WORDS_REGION);
        return false;
    }
    ((uint64_t *)start)[0] = words->sign;
    ((uint64_t *)start)[1] = COW_VM_WORDS_REGION;
    words->regions[words->count++] = region;
    words->denied = false;
    return true;
}

/* Gives the stream an extent that has room for +size+ bytes. Gives false if there is no memory. */
static inline bool
cow_vm_words_extend(struct cow_vm_words *words, enum cow_vm_words_stream stream, size_t size)
{
    const size_t least = stream == COW_VM_WORDS_JIT && words->sized_streams == 0 ? COW_VM_WORDS_JIT_EXTENT
                                                                                 : COW_VM_WORDS_EXTENT;
    const size_t extent = size > least ? size : least;

    if (words->count == 0 && !cow_vm_words_add_region(words)) return false;
    struct cow_vm_words_region *region = &words->regions[words->count - 1];
    /* The first extent of a region is shorter by the sign, so that the others begin with an OS page. */
    size_t end =
        (region->used + extent + COW_VM_WORDS_EXTENT - 1) / COW_VM_WORDS_EXTENT * COW_VM_WORDS_EXTENT;
    if (end - COW_VM_WORDS_EXTENT >= region->used + size) end -= COW_VM_WORDS_EXTENT;

    if (!cow_vm_words_commit(region, end, words->name)) {
        if (end <= COW_VM_WORDS_REGION || !cow_vm_words_add_region(words)) return false;
        return cow_vm_words_extend(words, stream, size);
    }
    cow_vm_words_cut(words, stream, words->streams[stream].next, words->streams[stream].end,
                     cow_vm_words_enter);
    words->streams[stream].next = region->start + region->used;
    words->streams[stream].end = region->start + end;
    region->used = end;
    return true;
}

/* Gives +size+ bytes, which are 0 if +zeroed+, else whatever is in them; NULL if there is no memory or if the
 * block is too large. */
static inline void *
cow_vm_words_take(struct cow_vm_words *words, enum cow_vm_words_stream stream, size_t size,
                  bool zeroed)
{
    if (size > COW_VM_WORDS_LARGEST) return NULL;
    struct cow_vm_words_free **list = &words->free_lists[stream][cow_vm_words_list(&size)], *block = *list;

    if (block != NULL) {
        cow_unpoison_contents(block, sizeof(*block));
        *list = block->next;
        cow_unpoison(block, size);
        words->free -= size;
        if (zeroed) memset(block, 0, size); /* what was never used is 0 */
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

/* Gives +size+ bytes that are 0, or NULL. */
static inline void *
cow_vm_words_alloc(struct cow_vm_words *words, enum cow_vm_words_stream stream, size_t size)
{
    return cow_vm_words_take(words, stream, size, true);
}

/* Frees a block of +size+ bytes that the functions above gave for the same stream. */
static inline void
cow_vm_words_free(struct cow_vm_words *words, enum cow_vm_words_stream stream, void *block, size_t size)
{
    COW_ASSERT(cow_vm_words_has(words, block));
    (void)cow_vm_words_list(&size);
    words->live -= size;
    if (cow_vm_words_inherited(words, block)) {
        cow_vm_words_remember(words, stream, block, size);
        cow_poison(block, size);
    }
    else {
        cow_vm_words_enter(words, stream, block, size);
    }
}

/* Gives the OS pages of the stream's large free blocks back to the system, once after each use. */
static inline void
cow_vm_words_decommit(struct cow_vm_words *words, enum cow_vm_words_stream stream)
{
    const uintptr_t page = cow_os->page_size();
    size_t size = COW_VM_WORDS_LARGE;

    for (size_t list = cow_vm_words_list(&size); list < COW_VM_WORDS_LISTS; list++) {
        for (struct cow_vm_words_free *block = words->free_lists[stream][list], *next; block; block = next) {
            struct cow_vm_words_large *large = (struct cow_vm_words_large *)block;
            const uintptr_t from = ((uintptr_t)(large + 1) + page - 1) / page * page;
            const uintptr_t to = ((uintptr_t)block + cow_vm_words_list_size(list)) / page * page;

            cow_unpoison_contents(large, sizeof(*large));
            next = block->next;
            if (!large->decommitted) { /* its page may be shared: it is written once */
                if (from < to) cow_os_decommit((void *)from, to - from);
                large->decommitted = true;
            }
            cow_poison(large, sizeof(*large));
        }
    }
}

/* In a parent, when it seals the heap: what it allocates from now on stands in other OS pages than what its
 * children will share, as long as no block is free. */
static inline void
cow_vm_words_seal(struct cow_vm_words *words)
{
    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        char *next = cow_vm_words_unused(words, i);

        cow_vm_words_cut(words, i, words->streams[i].next, next, cow_vm_words_enter);
        words->streams[i].next = next;
    }
}

/* Before a fork: what was inherited and is free is used again from now on. */
static inline void
cow_vm_words_prefork(struct cow_vm_words *words)
{
    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        for (size_t list = 0; list < COW_VM_WORDS_LISTS; list++) {
            struct cow_vm_words_free **inherited = &words->inherited_lists[i][list];

            for (struct cow_vm_words_free *block = *inherited, *next; block; block = next) {
                cow_unpoison_contents(block, sizeof(*block));
                next = block->next;
                cow_vm_words_enter(words, i, block, cow_vm_words_list_size(list));
            }
            if (*inherited) *inherited = NULL;
        }
        words->streams[i].own = words->streams[i].own_end = NULL;
    }
    for (size_t i = 0; i < words->lost_count; i++)
        cow_vm_words_enter(words, words->lost[i].stream, words->lost[i].block, words->lost[i].size);
    words->lost_count = 0;
    for (size_t i = 0; i < words->count; i++) words->regions[i].inherited = 0;
}

/* In a child: all blocks that are there are inherited, unless too much is free. */
static inline void
cow_vm_words_inherit(struct cow_vm_words *words)
{
    if (words->free > words->live / 2 + COW_VM_WORDS_STEP) return;
    for (size_t i = 0; i < words->count; i++) words->regions[i].inherited = words->regions[i].used;
    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        char *next = words->streams[i].next;

        words->streams[i].own = words->streams[i].next = cow_vm_words_unused(words, i);
        words->streams[i].own_end = words->streams[i].end;
        /* To remember each block of a few bytes would take more memory than it is worth. */
        if (i >= words->sized_streams)
            cow_vm_words_cut(words, i, next, words->streams[i].own, cow_vm_words_remember);
        for (size_t list = 0; list < COW_VM_WORDS_LISTS; list++) {
            /* Most lists are empty, and stay so. */
            struct cow_vm_words_free **free = &words->free_lists[i][list];

            if (words->inherited_lists[i][list] == *free) continue;
            words->inherited_lists[i][list] = *free;
            *free = NULL;
        }
    }
    words->free = 0;
}

/* Checks the free blocks of a list, of +size+ bytes each, and adds their bytes to +sum+, which is to stay
 * within +most+. Prints a fault to +out+. */
static inline bool
cow_vm_words_verify_list(const struct cow_vm_words *words, const struct cow_vm_words_free *block, size_t size,
                         bool inherited, const char *name, int stream, size_t *sum, size_t most, FILE *out)
{
    for (const struct cow_vm_words_free *next; block; block = next) {
        const struct cow_vm_words_region *region = cow_vm_words_region(words, block);
        const size_t offset = region ? (size_t)((const char *)block - region->start) : 0;

        if (region == NULL || offset + size > region->used || offset % COW_VM_WORDS_UNIT != 0 ||
            cow_vm_words_inherited(words, block) != inherited) {
            fprintf(out, "cow_vm_words.%s[%d], blocks of %zu bytes: expected one that is %s, found %p\n",
                    name, stream, size, inherited ? "inherited" : "this process's", (const void *)block);
            return false;
        }
        /* A block that was freed twice is its own next one. */
        *sum += size;
        if (*sum > most) {
            fprintf(out, "cow_vm_words.%s[%d], blocks of %zu bytes: expected a list that ends within the "
                    "regions' %zu bytes, found one that does not\n", name, stream, size, most);
            return false;
        }
        cow_unpoison_contents(block, sizeof(*block));
        next = block->next;
        cow_poison(block, sizeof(*block));
    }
    return true;
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
            region->inherited > region->used || *(uint64_t *)region->start != words->sign) {
            fprintf(out, "cow_vm_words.regions[%zu]: expected .inherited <= .used <= .committed <= %zu and "
                         "the sign, found %zu, %zu, %zu, %#llx\n",
                    i, COW_VM_WORDS_REGION, region->inherited, region->used, region->committed,
                    (unsigned long long)*(uint64_t *)region->start);
            return false;
        }
    }
    for (int i = 0; i < COW_VM_WORDS_STREAMS; i++) {
        for (size_t list = 0; list < COW_VM_WORDS_LISTS; list++) {
            const size_t size = cow_vm_words_list_size(list);

            if (!cow_vm_words_verify_list(words, words->free_lists[i][list], size, false, "free_lists", i,
                                          &free_bytes, used, out) ||
                !cow_vm_words_verify_list(words, words->inherited_lists[i][list], size, true,
                                          "inherited_lists", i, &free_bytes, used, out)) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < words->lost_count; i++) {
        const struct cow_vm_words_lost *lost = &words->lost[i];

        free_bytes += lost->size;
        if (!cow_vm_words_inherited(words, lost->block)) {
            fprintf(out, "cow_vm_words.lost[%zu]: expected an inherited block, found %p\n", i,
                    (const void *)lost->block);
            return false;
        }
    }
    if (free_bytes < words->free || words->live + free_bytes > used) {
        fprintf(out, "cow_vm_words: expected .free <= free blocks, .live + free blocks <= the regions' "
                     ".used, found %zu, %zu, %zu, %zu\n", words->free, free_bytes, words->live, used);
        return false;
    }
    return true;
}

#endif /* COW_VM_WORDS_H */

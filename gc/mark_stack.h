/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_MARK_STACK_H
#define COW_MARK_STACK_H

/*
 * mark_stack: memory for the mark stack.
 *
 * Job: a full collection of a big heap pushes an entry for each element of a big array or hash: megabytes. If
 * malloc's memory held them from one collection to the next, every child would inherit them, and its first
 * collection and the parent's next one would copy them, although nobody needs their contents. So each chunk
 * is a mapping of its own. Before a fork all chunks that are not in use go back to the system; afterwards
 * parent and child keep one each.
 *
 * A chunk is large, so that mapping it costs little compared with filling it: a page fault for each 512
 * entries, which are as many objects to mark.
 *
 * Entry points: cow_mark_stack_alloc_chunk, cow_mark_stack_free_chunk.
 *
 * Who writes this memory after a fork: a process that collects writes chunks of its own.
 */

#include "os.h"

enum {
    COW_MARK_STACK_CHUNK = 64 * 1024, /* bytes */
    COW_MARK_STACK_ENTRIES = (COW_MARK_STACK_CHUNK - (int)sizeof(void *)) / (int)sizeof(void *),
    /* Chunks with which a process begins, and which a process keeps that shares its memory. */
    COW_MARK_STACK_FIRST_CHUNKS = 1,
    COW_MARK_STACK_KEPT_CHUNKS = 1
};

/* Gives a chunk of +size+ bytes, a multiple of the OS page where there is mmap; NULL if there is no
 * memory. */
static inline void *
cow_mark_stack_alloc_chunk(size_t size)
{
    return cow_os_alloc(size);
}

/* Gives a chunk of +size+ bytes back to the system. */
static inline void
cow_mark_stack_free_chunk(void *chunk, size_t size)
{
    cow_os_free(chunk, size);
}

#endif /* COW_MARK_STACK_H */

#ifndef COW_MARK_STACK_H
#define COW_MARK_STACK_H

/*
 * mark_stack: memory for the stack of marking.
 *
 * Job: a full collection of a big heap stacks an entry for each element of a big array
 * or hash: megabytes. Kept in malloc's memory from one collection to the next, they are
 * inherited by every child and copied by its first collection, and by the parent's next
 * one, although nobody needs what they hold. So a chunk is mapped by itself: before a
 * fork all chunks that are not in use are given back, and afterwards parent and child keep
 * one.
 *
 * A chunk is large, so that mapping it costs little beside filling it: a page fault for
 * each 512 entries, which are as many objects to mark.
 *
 * Entry points: cow_mark_stack_alloc_chunk, cow_mark_stack_free_chunk.
 *
 * Who writes this memory after a fork: whoever collects, and what it writes is its own.
 */

#include "os.h"

enum {
    COW_MARK_STACK_CHUNK = 64 * 1024, /* bytes */
    COW_MARK_STACK_ENTRIES = (COW_MARK_STACK_CHUNK - (int)sizeof(void *)) / (int)sizeof(void *),
    /* Chunks that a process begins with, and that one keeps which shares its memory. */
    COW_MARK_STACK_FIRST_CHUNKS = 1,
    COW_MARK_STACK_KEPT_CHUNKS = 1
};

/* Gives a chunk of +size+ bytes, or NULL where there is no memory. */
static inline void *
cow_mark_stack_alloc_chunk(size_t size)
{
    return cow_os_alloc(size);
}

/* Gives a chunk back. */
static inline void
cow_mark_stack_free_chunk(void *chunk, size_t size)
{
    cow_os_free(chunk, size);
}

#endif /* COW_MARK_STACK_H */

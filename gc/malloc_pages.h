#ifndef COW_MALLOC_PAGES_H
#define COW_MALLOC_PAGES_H

/*
 * malloc_pages: heap pages that are plain malloc's, for locators that need no arena.
 *
 * Job: holds what is known of such pages, and their bitmaps, in chunks of COW_CHUNK_PAGES pages. In a chunk
 * the bitmaps of one kind follow each other, as in an arena: if they were as far apart as what malloc gives,
 * all of them would compete for the same few lines of a cache.
 *
 * Entry points: cow_malloc_pages_alloc and cow_malloc_pages_free; cow_malloc_page_of;
 * cow_malloc_pages_clear_kind; cow_malloc_pages_bytes, cow_malloc_pages_consistent.
 *
 * Who writes this memory after a fork: every collection the bitmaps of the pages that it collects; a process
 * that takes or frees a page, its chunk.
 *
 * struct heap_page must be complete where this is included.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vocabulary.h"
#include "alignoff.h"
#include "page_map.h"

struct cow_chunk;

/* What is known of a heap page that is not an arena's. */
struct cow_malloc_page {
    _Alignas(COW_ALIGNOFF_HEADER_ALIGN) struct heap_page page; /* first: its address is the struct's */
    uintptr_t body;
    void *allocation; /* what malloc gave for the body */
    struct cow_chunk *chunk;
    cow_bits_t *bitmap; /* of the first kind, in the chunk */
};

enum { COW_CHUNK_PAGES = COW_BITS, COW_CHUNK_STRIDE = COW_CHUNK_PAGES * COW_BITMAP_WORDS };

/*
 * Invariants (cow_malloc_pages_consistent):
 *     bit i of .taken is set  <=>  pages[i].chunk == this chunk
 *     pages[i].bitmap == bitmaps[0][i] where bit i is set
 *     *link == this chunk; taken != 0
 */
struct cow_chunk {
    _Alignas(COW_BITMAP_ALIGN) cow_bitmap bitmaps[COW_BITMAP_KINDS][COW_CHUNK_PAGES];
    struct cow_malloc_page pages[COW_CHUNK_PAGES];
    cow_bits_t taken; /* bit i: pages[i] */
    struct cow_chunk *next, **link; /* in a list; what points to this one there */
    void *allocation; /* what malloc gave for the chunk */
};

/*
 * Invariants (cow_malloc_pages_consistent):
 *     count = number of bits of .taken in all chunks
 *     chunks[0] have room, chunks[1] have none
 *     the map leads from both ends of each page's body to it, unless a search finds it
 */
struct cow_malloc_pages {
    size_t count;
    struct cow_chunk *chunks[2]; /* [0]: with room for a page; [1]: full */
    struct cow_page_map map; /* of alignoff's pages */
};

static inline struct cow_malloc_page *
cow_malloc_page_of(struct heap_page *page)
{
    return (struct cow_malloc_page *)page;
}

#endif /* COW_MALLOC_PAGES_H */

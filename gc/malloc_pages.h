/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_MALLOC_PAGES_H
#define COW_MALLOC_PAGES_H

/*
 * malloc_pages: heap pages whose memory malloc gives, for locators without arenas.
 *
 * Job: keeps the metadata of such pages in chunks of COW_CHUNK_PAGES pages. In a chunk the bitmaps of one
 * kind follow each other, as in an arena. If they were as far apart as malloc's blocks, all of them would
 * compete for the same few lines of a cache.
 *
 * Entry points: cow_malloc_page_of. In malloc_pages.c: cow_malloc_pages_alloc and cow_malloc_pages_free;
 * cow_malloc_pages_clear_kind; cow_malloc_pages_bytes, cow_malloc_pages_consistent.
 *
 * Who writes this memory after a fork: a collection writes the bitmaps of the pages that it collects; a
 * process that allocates or frees a page writes its chunk.
 *
 * struct heap_page must be complete before this file is included.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vocabulary.h"
#include "alignoff.h"
#include "page_map.h"

struct cow_chunk;

/* The metadata of one heap page of malloc's. */
struct cow_malloc_page {
    _Alignas(COW_ALIGNOFF_HEADER_ALIGN) struct heap_page page; /* first: both have one address */
    uintptr_t body;
    void *allocation; /* what malloc gave for the body */
    struct cow_chunk *chunk;
    cow_bits_t *bitmap; /* the page's bitmap of the first kind, in .chunk */
};

/* Pages of a chunk, and the stride between two kinds of bitmaps in it, in words. */
enum { COW_CHUNK_PAGES = COW_BITS, COW_CHUNK_STRIDE = COW_CHUNK_PAGES * COW_BITMAP_WORDS };

/*
 * Invariants (cow_malloc_pages_consistent):
 *     bit i of .taken is set  =>  pages[i].chunk == this chunk
 *     pages[i].bitmap == bitmaps[0][i] where bit i is set
 *     *link == this chunk; taken != 0
 */
struct cow_chunk {
    _Alignas(COW_BITMAP_ALIGN) cow_bitmap bitmaps[COW_BITMAP_KINDS][COW_CHUNK_PAGES];
    struct cow_malloc_page pages[COW_CHUNK_PAGES];
    cow_bits_t taken; /* bit i: pages[i] is in use */
    struct cow_chunk *next, **link; /* the next chunk of the list, and the pointer to this one */
    void *allocation; /* what malloc gave for the chunk */
};

/*
 * Invariants (cow_malloc_pages_consistent):
 *     count = number of bits of .taken in all chunks
 *     chunks[0] have room, chunks[1] have none
 *     the map leads from both ends of each page's body to the page, unless the locator is a search
 */
struct cow_malloc_pages {
    size_t count;
    struct cow_chunk *chunks[2]; /* lists: [0] of those with room for a page, [1] of full ones */
    struct cow_page_map map; /* empty if the locator is a search */
};

/* Gives the struct of which +page+ is the descriptor. */
static inline struct cow_malloc_page *
cow_malloc_page_of(struct heap_page *page)
{
    return (struct cow_malloc_page *)page;
}

#endif /* COW_MALLOC_PAGES_H */

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * malloc_pages: the parts of malloc_pages.h that are not inlined.
 */

#include "malloc_pages.h"

/* Allocates +size+ bytes at a multiple of +alignment+ (a power of two) from an allocator that promises
 * no alignment. Writes to +allocation+ what must be freed. Gives NULL, and NULL in +allocation+, if there is
 * no memory. */
static void *
cow_malloc_aligned(size_t size, size_t alignment, void **allocation)
{
    COW_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0);
    *allocation = cow_os->allocate(size + alignment - 1);
    if (*allocation == NULL) return NULL;
    return (void *)(((uintptr_t)*allocation + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

/* Moves a chunk to the list in which it belongs after a change of .taken, or frees it if it is empty. */
static void
cow_chunk_sort(struct cow_malloc_pages *pages, struct cow_chunk *chunk)
{
    if (chunk->link) {
        *chunk->link = chunk->next;
        if (chunk->next) chunk->next->link = chunk->link;
    }
    if (chunk->taken == 0) {
        cow_os->deallocate(chunk->allocation);
        return;
    }

    struct cow_chunk **list = &pages->chunks[~chunk->taken == 0];
    chunk->next = *list;
    if (chunk->next) chunk->next->link = &chunk->next;
    chunk->link = list;
    *list = chunk;
}

/* Gives a chunk with room for a page, a new one if need be; NULL if there is no memory. */
static struct cow_chunk *
cow_chunk_with_room(struct cow_malloc_pages *pages)
{
    void *allocation;
    struct cow_chunk *chunk = pages->chunks[0];

    if (chunk) return chunk;

    chunk = cow_malloc_aligned(sizeof(*chunk), _Alignof(struct cow_chunk), &allocation);
    if (chunk == NULL) return NULL;
    chunk->taken = 0;
    chunk->link = NULL;
    chunk->allocation = allocation;
    return chunk;
}

/* Takes the metadata of one page from a chunk that has room. The descriptor and the bitmaps are 0. */
static struct cow_malloc_page *
cow_chunk_take_page(struct cow_malloc_pages *pages, struct cow_chunk *chunk)
{
    COW_ASSERT(~chunk->taken != 0);
    int index = __builtin_ctzll(~chunk->taken);
    struct cow_malloc_page *page = &chunk->pages[index];

    chunk->taken |= (cow_bits_t)1 << index;
    cow_chunk_sort(pages, chunk);
    memset(page, 0, sizeof(*page));
    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++)
        memset(chunk->bitmaps[kind][index], 0, COW_BITMAP_SIZE);
    page->chunk = chunk;
    page->bitmap = chunk->bitmaps[0][index];
    return page;
}

/* Allocates a heap page; with the VM lock. If +aligned+ is true its body lies at a multiple of its size and a
 * search finds it; else the page header and the page map lead to it. Gives NULL if there is no memory. */
static struct cow_malloc_page *
cow_malloc_pages_alloc(struct cow_malloc_pages *pages, bool aligned)
{
    void *allocation, *body;

    if (aligned) body = cow_malloc_aligned(COW_PAGE_SIZE, COW_PAGE_SIZE, &allocation);
    else body = allocation = cow_os->allocate(COW_PAGE_SIZE);
    if (allocation == NULL) return NULL;

    struct cow_chunk *chunk = NULL;
    if (aligned || cow_page_map_reserve(&pages->map, (uintptr_t)body)) chunk = cow_chunk_with_room(pages);
    if (chunk == NULL) {
        cow_os->deallocate(allocation);
        return NULL;
    }

    struct cow_malloc_page *page = cow_chunk_take_page(pages, chunk);
    page->allocation = allocation;
    page->body = (uintptr_t)body;
    if (!aligned) {
        memcpy((void *)cow_alignoff_boundary(page->body), &page, sizeof(page));
        cow_page_map_put(&pages->map, page->body, page, page->bitmap);
    }
    pages->count++;
    return page;
}

/* Frees a heap page; with the VM lock. +aligned+ is as for cow_malloc_pages_alloc. */
static void
cow_malloc_pages_free(struct cow_malloc_pages *pages, struct cow_malloc_page *page, bool aligned)
{
    struct cow_chunk *chunk = page->chunk;

    COW_ASSERT(chunk->taken >> (page - chunk->pages) & 1);
    if (!aligned) cow_page_map_remove(&pages->map, page->body);
    pages->count--;
    cow_os->deallocate(page->allocation);
    chunk->taken &= ~((cow_bits_t)1 << (page - chunk->pages));
    cow_chunk_sort(pages, chunk);
}

/* Clears the bitmaps of one kind of all pages. */
static void
cow_malloc_pages_clear_kind(struct cow_malloc_pages *pages, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    for (int full = 0; full < 2; full++) {
        for (struct cow_chunk *chunk = pages->chunks[full]; chunk; chunk = chunk->next) {
            memset(chunk->bitmaps[kind], 0, sizeof(chunk->bitmaps[kind]));
        }
    }
}

/* Gives the bytes of the pages' metadata and of the page map. */
static size_t
cow_malloc_pages_bytes(const struct cow_malloc_pages *pages)
{
    size_t chunks = 0;

    for (int full = 0; full < 2; full++) {
        for (const struct cow_chunk *chunk = pages->chunks[full]; chunk; chunk = chunk->next) chunks++;
    }
    return chunks * sizeof(struct cow_chunk) + cow_page_map_bytes(&pages->map);
}

/* Recomputes what the chunks record; writes the first difference to +out+ and gives false. +find+ says
 * whether every index leads to a page. */
static bool
cow_malloc_pages_consistent(const struct cow_malloc_pages *pages,
                            bool (*find)(const struct cow_malloc_page *page), FILE *out)
{
    size_t taken = 0;

    for (int full = 0; full < 2; full++) {
        for (struct cow_chunk *const *link = &pages->chunks[full]; *link; link = &(*link)->next) {
            const struct cow_chunk *chunk = *link;

            if (chunk->link != link || chunk->taken == 0 || (~chunk->taken == 0) != full) {
                fprintf(out, "cow_chunk %p: expected .link %p and .taken %s, found %p and %#zx\n",
                        (void *)chunk, (void *)link, full ? "full" : "neither empty nor full",
                        (void *)chunk->link, (size_t)chunk->taken);
                return false;
            }
            for (int i = 0; i < COW_CHUNK_PAGES; i++) {
                const struct cow_malloc_page *page = &chunk->pages[i];

                if (!(chunk->taken >> i & 1)) continue;
                taken++;
                if (page->chunk == chunk && page->bitmap == chunk->bitmaps[0][i] && find(page)) continue;
                fprintf(out,
                        "cow_malloc_page %#zx: expected .chunk %p, .bitmap %p and every index to lead to it, "
                        "found %p, %p%s\n",
                        (size_t)page->body, (void *)chunk, (void *)chunk->bitmaps[0][i], (void *)page->chunk,
                        (void *)page->bitmap, find(page) ? "" : " and an index that does not");
                return false;
            }
        }
    }
    if (taken == pages->count) return true;
    fprintf(out, "cow_malloc_pages.count: expected %zu, found %zu\n", taken, pages->count);
    return false;
}

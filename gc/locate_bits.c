/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * locate_bits: the parts of locate_bits.h that are not inlined: heap pages are allocated, freed, laid out and
 * verified.
 */

#include "locate_bits.h"
#include "os.c"
#include "arena.c"
#include "page_map.c"
#include "malloc_pages.c"

/* As cow_locate_alloc_page, of malloc's memory. */
static struct heap_page *
cow_locate_alloc_malloc_page(void **body)
{
#if COW_LOCATE_SEARCHES
    if (!cow_search_reserve(&cow_locate_space.search)) return NULL;
#endif
    struct cow_malloc_page *page =
        cow_malloc_pages_alloc(&cow_locate_space.malloc_pages, COW_LOCATE_SEARCHES);

    if (page == NULL) return NULL;
#if COW_LOCATE_SEARCHES
    cow_search_insert(&cow_locate_space.search, page);
#endif
    *body = (void *)page->body;
    return &page->page;
}

/* Allocates a heap page; with the VM lock. Gives its descriptor, which is 0, and writes to +body+ where its
 * slots stand, whose contents are undefined. Its bitmaps are 0. Gives NULL if there is no memory. */
static struct heap_page *
cow_locate_alloc_page(void **body)
{
    if (COW_LOCATE_MALLOCED) return cow_locate_alloc_malloc_page(body);

    void *memory = cow_arena_alloc_page(&cow_locate_space.arenas);
    if (memory == NULL) {
        if (COW_LOCATE_BY != COW_LOCATE_ARENA || cow_locate_space.arenas.count > 0) return NULL;

        struct heap_page *page = cow_locate_alloc_malloc_page(body);
        cow_locate_space.unaligned = page != NULL;
        return page;
    }

    struct heap_page *page = cow_arena_descriptor((uintptr_t)memory);
    cow_unpoison(page, sizeof(*page));
    memset(page, 0, sizeof(*page));
    *body = memory;
    return page;
}

/* Frees a heap page; with the VM lock. +body+ is what cow_locate_alloc_page wrote. */
static void
cow_locate_free_page(struct heap_page *page, void *body)
{
    if (!COW_LOCATE_MALLOCED) {
        cow_poison(page, sizeof(*page));
        cow_arena_free_page(&cow_locate_space.arenas, body);
        return;
    }
#if COW_LOCATE_SEARCHES
    cow_search_remove(&cow_locate_space.search, cow_malloc_page_of(page));
#endif
    cow_malloc_pages_free(&cow_locate_space.malloc_pages, cow_malloc_page_of(page), COW_LOCATE_SEARCHES);
}

/* Gives the memory of the pages back that were freed last. */
static void
cow_locate_give_back(void)
{
    if (!COW_LOCATE_MALLOCED) cow_arena_give_back(&cow_locate_space.arenas);
}

/* Gives a heap page's memory back to the system where it can. The page stays allocated; its contents are
 * undefined. */
static void
cow_locate_decommit_page(void *body)
{
    if (!COW_LOCATE_MALLOCED) cow_arena_decommit_page(body);
}

/* Can cow_locate_decommit give back the memory of heap pages? Not where they are no whole OS pages. */
static bool
cow_locate_can_decommit(void)
{
    return COW_HAS_MMAP && !COW_LOCATE_MALLOCED && cow_os->page_size() <= COW_PAGE_SIZE;
}

/* Gives the memory of neighbouring heap pages back to the system; their contents are undefined from then on.
 * Gives false if the system refuses. */
static bool
cow_locate_decommit(void *from, size_t size)
{
    return cow_os_decommit(from, size);
}

/* Lays a page out for slots of +slot_size+ bytes. Gives the index of the hole, or -1 if there is none. The
 * hole reads as a free slot. Gives -2 if malloc's address does not fit, which is a bug. */
static int
cow_locate_lay_out(struct heap_page *page, size_t slot_size)
{
    COW_ASSERT(cow_is_slot_size(slot_size));
    struct cow_alignoff_layout layout;

    if (!COW_LOCATE_UNALIGNED) return -1;
    if (!cow_alignoff_lay_out(cow_malloc_page_of(page)->body, slot_size, &layout)) return -2;
    cow_alignoff_write_header(&layout, slot_size, page);
    return layout.hole < layout.slots ? (int)layout.hole : -1;
}

/* Clears the mark bits of all heap pages. */
static void
cow_clear_all_marks(void)
{
    cow_malloc_pages_clear_kind(&cow_locate_space.malloc_pages, COW_BITMAP_MARK);
    cow_arena_clear_kind(&cow_locate_space.arenas, COW_BITMAP_MARK);
}

/* ---- statistics and verification */

/* Gives the bytes of address space that heap pages and their metadata have (GC.stat, reserved_bytes). */
static inline size_t
cow_locate_reserved_bytes(void)
{
    return cow_locate_space.arenas.reserved_bytes + cow_locate_space.malloc_pages.count * COW_PAGE_SIZE;
}

/* Gives how many of these may be written to (GC.stat, committed_bytes). */
static inline size_t
cow_locate_committed_bytes(void)
{
    return cow_locate_space.arenas.committed_bytes + cow_locate_space.malloc_pages.count * COW_PAGE_SIZE;
}

/* Gives the bytes of metadata (GC.stat, metadata_bytes). */
static inline size_t
cow_locate_metadata_bytes(void)
{
    return cow_locate_space.arenas.head_bytes + cow_malloc_pages_bytes(&cow_locate_space.malloc_pages);
}

/* Does every index (page header and page map, or the search) lead to this page, from both ends of its
 * body? */
static bool
cow_locate_finds(const struct cow_malloc_page *page)
{
#if COW_LOCATE_SEARCHES
    return cow_search(&cow_locate_space.search, page->body) == page &&
        cow_search(&cow_locate_space.search, page->body + COW_PAGE_MASK) == page;
#else
    return cow_locate_word(cow_alignoff_boundary(page->body)) == (uintptr_t)page &&
        cow_page_map_consistent_at(&cow_locate_space.malloc_pages.map, page->body, page, page->bitmap);
#endif
}

/* Recomputes what is recorded of all heap pages; writes the first difference to +out+ and gives false. */
static bool
cow_locate_consistent(FILE *out)
{
    size_t malloced = cow_locate_space.malloc_pages.count, arenas = cow_locate_space.arenas.count;

    if (malloced > 0 && arenas > 0) {
        fprintf(out,
                "cow_locate_space: expected .malloc_pages.count 0 or .arenas.count 0, found %zu and %zu\n",
                malloced, arenas);
        return false;
    }
#if COW_LOCATE_SEARCHES
    if (cow_locate_space.search.count != malloced) {
        fprintf(out, "cow_locate_space.search.count: expected %zu, found %zu\n", malloced,
                cow_locate_space.search.count);
        return false;
    }
    if (!cow_search_consistent(&cow_locate_space.search, out)) return false;
#endif
    return cow_malloc_pages_consistent(&cow_locate_space.malloc_pages, cow_locate_finds, out) &&
        cow_arena_consistent(&cow_locate_space.arenas, out);
}

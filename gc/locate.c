/* The slow part of locate.h: heap pages are allocated, freed, laid out and verified. */

#include "locate.h"
#include "os.c"
#include "arena.c"
#include "page_map.c"
#include "malloc_pages.c"

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

/* Allocates a heap page, and writes to +body+ where its slots stand. What is known of it is zero; the
 * contents of its slots are undefined. Gives NULL where there is no memory. */
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

/* Frees a heap page; +body+ as cow_locate_alloc_page gave it. */
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

/* Gives a heap page's memory back to the system where it can; the page stays allocated, and its contents are
 * undefined. */
static void
cow_locate_decommit_page(void *body)
{
    if (!COW_LOCATE_MALLOCED) cow_arena_decommit_page(body);
}

/* Lays a page out for slots of +slot_size+ bytes. Gives the index of the hole, a slot that must not be used,
 * or -1 if there is none. The hole reads as a free slot. Gives -2 if malloc's address does not fit: a bug. */
static int
cow_locate_lay_out(struct heap_page *page, size_t slot_size)
{
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

static inline size_t
cow_locate_reserved_bytes(void)
{
    return cow_locate_space.arenas.reserved_bytes + cow_locate_space.malloc_pages.count * COW_PAGE_SIZE;
}

static inline size_t
cow_locate_committed_bytes(void)
{
    return cow_locate_space.arenas.committed_bytes + cow_locate_space.malloc_pages.count * COW_PAGE_SIZE;
}

static inline size_t
cow_locate_metadata_bytes(void)
{
    return cow_locate_space.arenas.head_bytes + cow_malloc_pages_bytes(&cow_locate_space.malloc_pages);
}

/* Does every index (header and map, or the search) lead to this page, from both ends of its body? */
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

/* Recomputes what is kept; writes the first difference to +out+ and gives false. */
static bool
cow_locate_consistent(FILE *out)
{
    size_t malloced = cow_locate_space.malloc_pages.count, arenas = cow_locate_space.arenas.count;

    if (malloced > 0 && arenas > 0) {
        fprintf(out, "cow_locate_space: expected pages of malloc or arenas, found %zu pages and %zu arenas\n",
                malloced, arenas);
        return false;
    }
#if COW_LOCATE_SEARCHES
    if (cow_locate_space.search.count != malloced) {
        fprintf(out, "cow_search_space.count: expected %zu, found %zu\n", malloced,
                cow_locate_space.search.count);
        return false;
    }
    if (!cow_search_consistent(&cow_locate_space.search, out)) return false;
#endif
    return cow_malloc_pages_consistent(&cow_locate_space.malloc_pages, cow_locate_finds, out) &&
        cow_arena_consistent(&cow_locate_space.arenas, out);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * arena: the parts of arena.h that are not inlined: arenas are reserved, committed and released; heap pages
 * are allocated and freed.
 */

#include "arena.h"

/* Adds [from, to), rounded to whole OS pages, to +count+ spans in ascending order; joins it to the last one
 * if they touch. Gives the new number of spans. */
static int
cow_arena_add_span(struct cow_os_span *spans, int count, size_t from, size_t to)
{
    const size_t unit = cow_os->page_size();

    from = from / unit * unit;
    to = (to + unit - 1) / unit * unit;
    if (count > 0 && from <= spans[count - 1].to) {
        spans[count - 1].to = to;
        return count;
    }
    spans[count] = (struct cow_os_span){ from, to };
    return count + 1;
}

/* Writes to +spans+ (room for COW_ARENA_SPANS) which bytes of an arena are reserved whose heap pages end with
 * number +pages+, and gives their number: the arena's own fields, the bitmaps and the descriptors of its heap
 * pages, and the heap pages. A whole arena is one span, because each span is a mapping and there may be many
 * arenas. */
static int
cow_arena_spans(size_t pages, struct cow_os_span *spans)
{
    COW_ASSERT(COW_ARENA_FIRST < pages && pages <= COW_ARENA_PAGES);
    int count = 0;

    if (pages == COW_ARENA_PAGES) return cow_arena_add_span(spans, count, 0, COW_ARENA_SIZE);

    count = cow_arena_add_span(spans, count, 0, offsetof(struct cow_arena, bits));
    for (size_t kind = 0; kind < COW_BITMAP_KINDS; kind++) {
        const size_t bitmaps = offsetof(struct cow_arena, bits) + kind * sizeof(cow_bitmap[COW_ARENA_PAGES]);

        count = cow_arena_add_span(spans, count, bitmaps + COW_ARENA_FIRST * COW_BITMAP_SIZE,
                                   bitmaps + pages * COW_BITMAP_SIZE);
    }
    const size_t descriptors = offsetof(struct cow_arena, descriptors);
    count = cow_arena_add_span(spans, count, descriptors + COW_ARENA_FIRST * sizeof(struct heap_page),
                               descriptors + pages * sizeof(struct heap_page));
    return cow_arena_add_span(spans, count, (size_t)COW_ARENA_FIRST << HEAP_PAGE_ALIGN_LOG,
                              pages << HEAP_PAGE_ALIGN_LOG);
}

/* As cow_arena_spans, but only what lies in the arena's head: the last span is cut off where the head
 * ends. */
static int
cow_arena_head_spans(size_t pages, struct cow_os_span *spans)
{
    const size_t head = (size_t)COW_ARENA_FIRST << HEAP_PAGE_ALIGN_LOG;
    int count = cow_arena_spans(pages, spans);

    while (spans[count - 1].from >= head) count--;
    if (spans[count - 1].to > head) spans[count - 1].to = head;
    return count;
}

/* Gives how many bytes are reserved for the head of an arena whose heap pages end with number +pages+. */
static size_t
cow_arena_head_bytes(size_t pages)
{
    struct cow_os_span spans[COW_ARENA_SPANS];
    size_t bytes = 0;

    for (int i = cow_arena_head_spans(pages, spans) - 1; i >= 0; i--) bytes += spans[i].to - spans[i].from;
    return bytes;
}

/* Ends the reservation of an arena. Gives false, and changes nothing, if the system refuses to unmap the heap
 * pages, which come first. If it refuses a later span, the addresses of that span are lost and nobody uses
 * them. */
static bool
cow_arena_unmap(struct cow_arena *arena, size_t pages)
{
    struct cow_os_span spans[COW_ARENA_SPANS];
    const int count = cow_arena_spans(pages, spans);

    for (int i = count - 1; i >= 0; i--) {
        if (!cow_os_free((char *)arena + spans[i].from, spans[i].to - spans[i].from) && i == count - 1)
            return false;
    }
    return true;
}

/* Commits and names the head of an arena. Gives false if the system refuses. */
static bool
cow_arena_commit_head(struct cow_arena *arena, size_t pages)
{
    struct cow_os_span spans[COW_ARENA_SPANS];

    for (int i = cow_arena_head_spans(pages, spans) - 1; i >= 0; i--) {
        char *from = (char *)arena + spans[i].from;

        if (!cow_os_commit(from, spans[i].to - spans[i].from)) return false;
        cow_os_name(from, spans[i].to - spans[i].from, "Ruby:GC:metadata");
    }
    return true;
}

/* Makes an arena of the largest size for which the system gives addresses: halves the size until it has
 * COW_ARENA_LEAST_PAGES. Gives NULL if the system refuses them all. */
static struct cow_arena *
cow_arena_create(struct cow_arena_space *space)
{
    struct cow_os_span spans[COW_ARENA_SPANS];
    struct cow_arena *arena = NULL;
    size_t pages = 0;

    for (int log = cow_arena_greatest_log(); arena == NULL; log--) {
        const size_t tried = (size_t)1 << log >> HEAP_PAGE_ALIGN_LOG;
        const bool last = tried <= COW_ARENA_LEAST_PAGES;

        pages = COW_ARENA_FIRST + (last ? COW_ARENA_LEAST_PAGES : tried);
        if (pages > COW_ARENA_PAGES) pages = COW_ARENA_PAGES;
        arena = cow_os_reserve(spans, cow_arena_spans(pages, spans), COW_ARENA_SIZE);
        if (arena && ((uintptr_t)arena >> COW_ARENA_LOG >= COW_ARENA_NUMBERS ||
                      !cow_arena_commit_head(arena, pages))) {
            cow_arena_unmap(arena, pages);
            arena = NULL;
        }
        if (arena == NULL) space->denied++;
        if (arena == NULL && last) return NULL;
    }
    const size_t number = (uintptr_t)arena >> COW_ARENA_LOG;

    memcpy(arena->sign, COW_ARENA_SIGN, sizeof(arena->sign));
    arena->head = (size_t)COW_ARENA_FIRST << HEAP_PAGE_ALIGN_LOG;
    arena->descriptors_at = offsetof(struct cow_arena, descriptors);
    arena->free_at = offsetof(struct cow_arena, free);
    arena->allocated_at = offsetof(struct cow_arena, bits) + COW_BITMAP_ALLOCATED * sizeof(arena->bits[0]);
    arena->descriptor_size = sizeof(struct heap_page);
    arena->bitmap_size = sizeof(cow_bitmap);
    arena->page_size = COW_PAGE_SIZE;
    arena->pages = pages;
    arena->committed = COW_ARENA_FIRST;
    for (size_t group = 0; group < COW_ARENA_GROUPS; group++) {
        arena->free[group] = cow_arena_group_bits(group, COW_ARENA_FIRST, pages);
    }
    arena->lowest = COW_ARENA_FIRST / COW_ARENA_GROUP_PAGES;
    arena->made = space->made++;
    if (space->last == NULL) space->last = &space->arenas;
    *space->last = arena;
    space->last = &arena->next;
    if (space->open == NULL) space->open = arena;
    space->table[number / 64] |= UINT64_C(1) << number % 64;
    const size_t head = cow_arena_head_bytes(pages);
    space->count++;
    space->reserved_bytes += head + ((pages - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    space->committed_bytes += head;
    space->head_bytes += head;
    return arena;
}

/* Takes an arena out of the space and releases it. The caller no longer uses a page of it. If the system
 * refuses, the arena stays in the space, empty. */
static void
cow_arena_destroy(struct cow_arena_space *space, struct cow_arena *arena)
{
    struct cow_arena **link = &space->arenas;
    size_t number = (uintptr_t)arena >> COW_ARENA_LOG;
    size_t pages = arena->pages, committed = arena->committed, head = cow_arena_head_bytes(pages);

    while (*link != arena) link = &(*link)->next;
    struct cow_arena *next = arena->next;
    space->table[number / 64] &= ~(UINT64_C(1) << number % 64);
    cow_unpoison(&arena->descriptors[COW_ARENA_FIRST], (pages - COW_ARENA_FIRST) * sizeof(struct heap_page));
    cow_unpoison(cow_arena_page_address(arena, COW_ARENA_FIRST),
                 (committed - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    if (!cow_arena_unmap(arena, pages)) {
        space->table[number / 64] |= UINT64_C(1) << number % 64;
        cow_poison(cow_arena_page_address(arena, COW_ARENA_FIRST),
                   (committed - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
        return;
    }
    if (cow_arena_of((uintptr_t)space->freed) == arena) space->freed_bytes = 0;
    *link = next;
    if (next == NULL) space->last = link;
    if (space->open == arena) space->open = next;
    space->count--;
    space->reserved_bytes -= head + ((pages - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    space->committed_bytes -= head + ((committed - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG);
    space->head_bytes -= head;
}

/* Commits the heap pages of an arena up to and including +number+, COW_ARENA_COMMIT_PAGES at a time. Gives
 * false if the system refuses. */
static bool
cow_arena_commit_to(struct cow_arena_space *space, struct cow_arena *arena, size_t number)
{
    COW_ASSERT(number < arena->pages);
    if (number < arena->committed) return true;

    size_t to = (number / COW_ARENA_COMMIT_PAGES + 1) * COW_ARENA_COMMIT_PAGES;
    if (to > arena->pages) to = arena->pages;
    void *from = cow_arena_page_address(arena, arena->committed);
    if (!cow_os_commit(from, (to - arena->committed) << HEAP_PAGE_ALIGN_LOG)) {
        /* Memory is short: commit no more than is needed, in whole OS pages. */
        const size_t unit = cow_os->page_size() > COW_PAGE_SIZE ? cow_os->page_size() / COW_PAGE_SIZE : 1;

        to = (number / unit + 1) * unit;
        if (to > arena->pages) to = arena->pages;
        if (!cow_os_commit(from, (to - arena->committed) << HEAP_PAGE_ALIGN_LOG)) return false;
    }

    size_t size = (to - arena->committed) << HEAP_PAGE_ALIGN_LOG;
    cow_os_name(from, size, "Ruby:GC:heap pages");
    cow_poison(from, size);
    space->committed_bytes += size;
    arena->committed = to;
    return true;
}

/* Allocates the heap page with the lowest address of an arena. Takes pages of groups with sealed pages only
 * if +among_sealed+ is true. Gives NULL if there is none, or no memory. */
static void *
cow_arena_alloc_page_from(struct cow_arena_space *space, struct cow_arena *arena, bool among_sealed)
{
    bool found = false;
    const size_t groups = (arena->pages + COW_ARENA_GROUP_PAGES - 1) / COW_ARENA_GROUP_PAGES;

    for (size_t group = arena->lowest; group < groups; group++) {
        if (arena->free[group] == 0) continue;
        if (!found) arena->lowest = group;
        found = true;
        if (!among_sealed && !cow_arena_group_is_open(arena, group)) continue;

        size_t number = group * COW_ARENA_GROUP_PAGES + cow_lowest_bit(arena->free[group]);
        if (!cow_arena_commit_to(space, arena, number)) return NULL;
        arena->free[group] &= arena->free[group] - 1;
        arena->used++;
        cow_unpoison(cow_arena_page_address(arena, number), COW_PAGE_SIZE);
        return cow_arena_page_address(arena, number);
    }
    return NULL;
}

/* Does the arena have free pages that are apart from sealed ones? */
static bool
cow_arena_is_open(const struct cow_arena *arena)
{
    for (size_t group = arena->lowest; group < COW_ARENA_GROUPS; group++) {
        if (cow_arena_group_is_open(arena, group)) return true;
    }
    return false;
}

/* Gives the memory of heap pages back to the system if OS pages are no larger than heap pages. */
static void
cow_arena_decommit(void *from, size_t size)
{
    if (cow_os->page_size() <= COW_PAGE_SIZE) cow_os_decommit(from, size);
}

/* Gives the memory of freed pages back. */
static void
cow_arena_give_back(struct cow_arena_space *space)
{
    if (space->freed_bytes > 0) cow_arena_decommit(space->freed, space->freed_bytes);
    space->freed_bytes = 0;
}

/* Allocates a heap page; with the VM lock. The contents of the page are undefined, its bitmaps are 0. Gives
 * NULL if the system has no memory. */
static void *
cow_arena_alloc_page(struct cow_arena_space *space)
{
    void *page;

    cow_arena_give_back(space); /* before one of these is in use again */
    /* A heap of 64 GB has 512 arenas, and their fields compete for the same lines of the CPU's cache. */
    while (space->open && !cow_arena_is_open(space->open)) space->open = space->open->next;
    for (struct cow_arena *arena = space->open; arena; arena = arena->next) {
        if ((page = cow_arena_alloc_page_from(space, arena, false))) return page;
    }
    struct cow_arena *made = cow_arena_create(space);
    if (made && (page = cow_arena_alloc_page_from(space, made, false))) return page;
    for (struct cow_arena *arena = space->arenas; arena; arena = arena->next) {
        if ((page = cow_arena_alloc_page_from(space, arena, true))) return page;
    }
    return NULL;
}

/* Gives a heap page's memory back. The page stays allocated; its contents are undefined. */
static void
cow_arena_decommit_page(void *page)
{
    COW_ASSERT((uintptr_t)page % COW_PAGE_SIZE == 0);
    cow_arena_decommit(page, COW_PAGE_SIZE);
}

/* Frees a heap page; with the VM lock. Its memory goes back when a page is freed that is no neighbour, or
 * cow_arena_give_back is called. If its arena has no other page in use, and is not the last arena, releases
 * the arena. */
static void
cow_arena_free_page(struct cow_arena_space *space, void *page)
{
    COW_ASSERT((uintptr_t)page % COW_PAGE_SIZE == 0 && cow_arena_contains(space, (uintptr_t)page));
    struct cow_arena *arena = cow_arena_of((uintptr_t)page);
    size_t number = cow_arena_page_number((uintptr_t)page), group = number / COW_ARENA_GROUP_PAGES;

    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++)
        cow_arena_clear_words(arena->bits[kind][number], COW_BITMAP_WORDS);
    arena->free[group] |= UINT64_C(1) << number % 64;
    arena->used--;
    if (group < arena->lowest) arena->lowest = group;
    cow_arena_open_group(space, arena, group);
    cow_poison(page, COW_PAGE_SIZE);
    if (space->freed_bytes == 0 || (char *)page != space->freed + space->freed_bytes) {
        cow_arena_give_back(space);
        space->freed = page;
    }
    space->freed_bytes += COW_PAGE_SIZE;
    if (arena->used == 0 && space->count > 1) cow_arena_destroy(space, arena);
}

/* Releases all arenas with the pages that are in use. What the system refuses stays as it is. */
static void
cow_arena_release_all(struct cow_arena_space *space)
{
    struct cow_arena *next;

    for (struct cow_arena *arena = space->arenas; arena; arena = next) {
        next = arena->next;
        cow_arena_destroy(space, arena);
    }
}

/* Clears the bitmaps of one kind of all pages. */
static void
cow_arena_clear_kind(struct cow_arena_space *space, enum cow_bitmap_kind kind)
{
    COW_ASSERT(kind < COW_BITMAP_KINDS);
    for (struct cow_arena *arena = space->arenas; arena; arena = arena->next) {
        memset(arena->bits[kind][COW_ARENA_FIRST], 0, (arena->committed - COW_ARENA_FIRST) * COW_BITMAP_SIZE);
    }
}

/* Are all bitmaps of page number +page+ 0? */
static bool
cow_arena_page_is_clear(const struct cow_arena *arena, size_t page)
{
    cow_bits_t any = 0;

    for (int kind = 0; kind < COW_BITMAP_KINDS; kind++) {
        for (int i = 0; i < COW_BITMAP_WORDS; i++) any |= arena->bits[kind][page][i];
    }
    return any == 0;
}

/* Recomputes what the space and its arenas record; writes the first difference to +out+ and gives false. */
static bool
cow_arena_consistent(const struct cow_arena_space *space, FILE *out)
{
    size_t count = 0, reserved = 0, committed = 0, heads = 0;
    bool passed = true; /* before .open */

    for (const struct cow_arena *arena = space->arenas; arena; arena = arena->next) {
        size_t number = (uintptr_t)arena >> COW_ARENA_LOG, free = 0;

        if (arena == space->open) passed = false;
        if (passed && cow_arena_is_open(arena)) {
            fprintf(out, "cow_arena_space, .open: expected the arena %p or one before it, found %p\n",
                    (void *)arena, (void *)space->open);
            return false;
        }
        if (arena->made >= (arena->next ? arena->next->made : space->made)) {
            fprintf(out, "cow_arena %p, .made: expected less than that of the next arena, or of the space, "
                    "found %zu\n", (void *)arena, arena->made);
            return false;
        }
        if ((uintptr_t)arena & COW_ARENA_MASK || !(space->table[number / 64] >> number % 64 & 1)) {
            fprintf(out, "cow_arena %p: expected a multiple of COW_ARENA_SIZE with a bit in "
                    "cow_arena_space.table, found another address\n", (void *)arena);
            return false;
        }
        if (arena->committed < COW_ARENA_FIRST || arena->pages < arena->committed ||
            COW_ARENA_PAGES < arena->pages) {
            fprintf(out, "cow_arena %p: expected %d <= .committed <= .pages <= %d, found %zu, %zu\n",
                    (void *)arena, (int)COW_ARENA_FIRST, (int)COW_ARENA_PAGES, arena->committed,
                    arena->pages);
            return false;
        }
        for (size_t group = 0; group < COW_ARENA_GROUPS; group++) {
            uint64_t bits = arena->free[group];

            if (bits & ~cow_arena_group_bits(group, COW_ARENA_FIRST, arena->pages) ||
                (bits && group < arena->lowest)) {
                fprintf(out, "cow_arena %p, .free of group %zu: expected bits of pages only, and none below "
                        "group .lowest, found %#llx with .lowest %zu\n",
                        (void *)arena, group, (unsigned long long)bits, arena->lowest);
                return false;
            }
            if (cow_arena_group_bits(group, arena->committed, arena->pages) & ~bits) {
                fprintf(out, "cow_arena %p, .free of group %zu: expected all pages from .committed %zu on, "
                        "found %#llx\n", (void *)arena, group, arena->committed, (unsigned long long)bits);
                return false;
            }
            for (free += (size_t)__builtin_popcountll(bits); bits; bits &= bits - 1) {
                size_t page = group * COW_ARENA_GROUP_PAGES + cow_lowest_bit(bits);
                if (!cow_arena_page_is_clear(arena, page)) {
                    fprintf(out, "cow_arena %p, .bits of free page %zu: expected 0, found others\n",
                            (void *)arena, page);
                    return false;
                }
            }
            if (arena->free[group] == cow_arena_group_bits(group, COW_ARENA_FIRST, arena->pages) &&
                arena->sealed[group] > 0) {
                fprintf(out, "cow_arena %p, .sealed of group %zu without used pages: expected 0, found %d\n",
                        (void *)arena, group, arena->sealed[group]);
                return false;
            }
        }
        if (arena->used + free != arena->pages - COW_ARENA_FIRST) {
            fprintf(out, "cow_arena %p: expected .used %zu, found %zu\n", (void *)arena,
                    arena->pages - COW_ARENA_FIRST - free, arena->used);
            return false;
        }
        count++;
        heads += cow_arena_head_bytes(arena->pages);
        reserved += (arena->pages - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG;
        committed += (arena->committed - COW_ARENA_FIRST) << HEAP_PAGE_ALIGN_LOG;
    }
    for (size_t at = 0; at < space->freed_bytes; at += COW_PAGE_SIZE) {
        const uintptr_t page = (uintptr_t)space->freed + at;
        const size_t number = page >> COW_ARENA_LOG;

        if (!(space->table[number / 64] >> number % 64 & 1) || cow_arena_contains(space, page)) {
            fprintf(out, "cow_arena_space, .freed: expected free pages of arenas, found %p\n", (void *)page);
            return false;
        }
    }
    if (passed && space->open) {
        fprintf(out, "cow_arena_space, .open: expected one of the arenas, found %p\n", (void *)space->open);
        return false;
    }
    reserved += heads;
    committed += heads;
    if (count != space->count || reserved != space->reserved_bytes || committed != space->committed_bytes ||
        heads != space->head_bytes) {
        fprintf(out, "cow_arena_space: expected .count %zu, .reserved_bytes %zu, .committed_bytes %zu, "
                ".head_bytes %zu, found %zu, %zu, %zu, %zu\n",
                count, reserved, committed, heads, space->count, space->reserved_bytes,
                space->committed_bytes, space->head_bytes);
        return false;
    }
    return true;
}

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_LOCATE_BY_SEARCH_H
#define COW_LOCATE_BY_SEARCH_H

/*
 * locate_by_search: finds a heap page by a search through all of them. Only the locators "linear" and
 * "binary" (the paper's figures 3 and 4) have it, for comparison with the locators that ship.
 *
 * Algorithm: the pages stand in a table in the order of their addresses. A Ractor searches the table without
 * a lock while another, with the VM lock, may change it. So a seqlock guards the table: .changes is odd
 * during a change, and a search that saw a change is repeated. (No process forks during a change: the other
 * Ractors wait at a fork.)
 *
 * After: Nakamura and Matsumoto (seed 000), section 3.
 *
 * Entry points: cow_search, cow_search_reserve, cow_search_insert, cow_search_remove, cow_search_consistent.
 *
 * Who writes this memory after a fork: a process that allocates or frees a heap page writes the table.
 */

#include "malloc_pages.h"

/* A page, and the address of its body, so that a search reads no page. */
struct cow_search_entry {
    uintptr_t body;
    struct cow_malloc_page *page;
};

/* A table that became too small stays in memory, because another Ractor may still search it. All such tables
 * together are shorter than the one in use. */
struct cow_search_table {
    struct cow_search_table *outgrown;
    size_t room;
    struct cow_search_entry entries[];
};

/*
 * Invariants (cow_search_consistent):
 *     count <= table->room; changes is even
 *     entries[i].body == entries[i].page->body
 *     entries[i].body + COW_PAGE_SIZE <= entries[i + 1].body
 */
struct cow_search_space {
    struct cow_search_table *table; /* NULL: no page has been inserted yet */
    size_t count;
    unsigned int changes;
};

/* Lower bound: gives the index of the first of +count+ entries whose body is >= +address+; +count+ if there
 * is none. */
static inline size_t
cow_search_lower_bound(const struct cow_search_table *table, size_t count, uintptr_t address)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->entries[middle].body < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Searches +count+ entries of a table that may be changing. Gives the page in whose body +address+ lies;
 * NULL: none. */
static inline struct cow_malloc_page *
cow_search_once(const struct cow_search_table *table, size_t count, uintptr_t address)
{
#if COW_LOCATE_BY == COW_LOCATE_LINEAR
    for (size_t i = 0; i < count; i++) {
        if (address - table->entries[i].body < COW_PAGE_SIZE) return table->entries[i].page;
    }
    return NULL;
#else
    size_t above = address < UINTPTR_MAX ? cow_search_lower_bound(table, count, address + 1) : count;

    if (above == 0 || address - table->entries[above - 1].body >= COW_PAGE_SIZE) return NULL;
    return table->entries[above - 1].page;
#endif
}

/* Gives the page in whose body +address+ lies; NULL: none. Any Ractor may call it without a lock. */
static inline struct cow_malloc_page *
cow_search(const struct cow_search_space *space, uintptr_t address)
{
    for (;;) {
        unsigned int changes = __atomic_load_n(&space->changes, __ATOMIC_ACQUIRE);
        const struct cow_search_table *table = __atomic_load_n(&space->table, __ATOMIC_ACQUIRE);
        size_t count = __atomic_load_n(&space->count, __ATOMIC_RELAXED);

        if (table == NULL) return NULL;
        struct cow_malloc_page *page =
            cow_search_once(table, count < table->room ? count : table->room, address);

        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (changes % 2 == 0 && __atomic_load_n(&space->changes, __ATOMIC_RELAXED) == changes) return page;
    }
}

/* Makes room in the table for one more page; with the VM lock. Gives false if there is no memory. */
static inline bool
cow_search_reserve(struct cow_search_space *space)
{
    struct cow_search_table *table = space->table;

    if (table && space->count < table->room) return true;

    size_t room = table ? table->room * 2 : 64;
    struct cow_search_table *larger = cow_os->allocate(sizeof(*larger) + room * sizeof(larger->entries[0]));
    if (larger == NULL) return false;

    larger->outgrown = table;
    larger->room = room;
    if (table) memcpy(larger->entries, table->entries, space->count * sizeof(larger->entries[0]));
    __atomic_store_n(&space->table, larger, __ATOMIC_RELEASE);
    return true;
}

/* The seqlock: called before and after each change; .changes is odd between the two calls. */
static inline void
cow_search_change(struct cow_search_space *space)
{
    __atomic_fetch_add(&space->changes, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Inserts a page, for which cow_search_reserve has made room; with the VM lock. */
static inline void
cow_search_insert(struct cow_search_space *space, struct cow_malloc_page *page)
{
    COW_ASSERT(space->table != NULL && space->count < space->table->room);
    size_t index = cow_search_lower_bound(space->table, space->count, page->body);
    struct cow_search_entry *entry = &space->table->entries[index];

    cow_search_change(space);
    memmove(entry + 1, entry, (space->count - index) * sizeof(*entry));
    *entry = (struct cow_search_entry){ .body = page->body, .page = page };
    space->count++;
    cow_search_change(space);
}

/* Removes a page that was inserted; with the VM lock. */
static inline void
cow_search_remove(struct cow_search_space *space, const struct cow_malloc_page *page)
{
    COW_ASSERT(space->table != NULL && space->count > 0);
    size_t index = cow_search_lower_bound(space->table, space->count, page->body);
    struct cow_search_entry *entry = &space->table->entries[index];

    COW_ASSERT(index < space->count && entry->page == page);
    cow_search_change(space);
    space->count--;
    memmove(entry, entry + 1, (space->count - index) * sizeof(*entry));
    cow_search_change(space);
}

/* Recomputes what the space records; writes the first difference to +out+ and gives false. */
static inline bool
cow_search_consistent(const struct cow_search_space *space, FILE *out)
{
    size_t room = space->table ? space->table->room : 0;

    if (space->changes % 2 != 0 || room < space->count) {
        fprintf(out, "cow_search_space: expected even .changes and .table->room >= %zu, found %u and %zu\n",
                space->count, space->changes, room);
        return false;
    }
    for (size_t i = 0; i < space->count; i++) {
        const struct cow_search_entry *entry = &space->table->entries[i];

        if (entry->body != entry->page->body) {
            fprintf(out, "cow_search_table.entries[%zu].body: expected %#zx, found %#zx\n", i,
                    (size_t)entry->page->body, (size_t)entry->body);
            return false;
        }
        if (i > 0 && entry[-1].body + COW_PAGE_SIZE > entry->body) {
            fprintf(out, "cow_search_table.entries[%zu].body: expected at least %#zx, found %#zx\n", i,
                    (size_t)(entry[-1].body + COW_PAGE_SIZE), (size_t)entry->body);
            return false;
        }
    }
    return true;
}

#endif /* COW_LOCATE_BY_SEARCH_H */

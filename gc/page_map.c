/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * page_map: the parts of page_map.h that are not inlined: changes, statistics and verification.
 */

#include "page_map.h"

/* ---- changes; the caller holds the VM lock */

/* Makes the table that holds entry +number+ unless it exists. Gives false if there is no memory, or if no
 * address has that number. */
static bool
cow_page_map_make_table(struct cow_page_map *map, uintptr_t number)
{
    uintptr_t index = cow_page_map_node_index(number);

    if (index >= COW_PAGE_MAP_NODES) return false;
    if (map->nodes[index] == NULL) {
        struct cow_page_map_node *node = cow_os->allocate_zeroed(sizeof(*node));
        if (node == NULL) return false;
        __atomic_store_n(&map->nodes[index], node, __ATOMIC_RELEASE);
    }

    struct cow_page_map_table **link = (struct cow_page_map_table **)cow_page_map_table_link(map, number);
    if (*link == NULL) {
        struct cow_page_map_table *table = cow_os->allocate_zeroed(sizeof(*table));
        if (table == NULL) return false;
        __atomic_store_n(link, table, __ATOMIC_RELEASE);
    }
    return true;
}

/* Makes room for the entry of a heap page at +body+, and for lookups of all its addresses. Gives false if
 * there is no memory, or if malloc's address has too many bits. */
static bool
cow_page_map_reserve(struct cow_page_map *map, uintptr_t body)
{
    return cow_page_map_make_table(map, cow_page_map_number(body)) &&
        cow_page_map_make_table(map, cow_page_map_number(body + COW_PAGE_MASK));
}

/* Writes entry +number+ and the pointer beside it, and their copies in the table before. The table must exist
 * (cow_page_map_reserve). */
static void
cow_page_map_write(struct cow_page_map *map, uintptr_t number, cow_page_map_entry entry, void *page)
{
    struct cow_page_map_table *table = cow_page_map_table(map, number);
    size_t i = number % COW_PAGE_MAP_TABLE;

    COW_ASSERT(table != NULL);
    table->entries[i] = entry;
    table->pages[i] = page;
    if (i == 0 && (table = cow_page_map_table(map, number - 1)) != NULL) {
        table->entries[COW_PAGE_MAP_TABLE] = entry;
        table->pages[COW_PAGE_MAP_TABLE] = page;
    }
}

/* Enters a heap page at +body+, for which cow_page_map_reserve gave true and which overlaps no other: +page+
 * is its descriptor, +bitmap+ its first bitmap. */
static void
cow_page_map_put(struct cow_page_map *map, uintptr_t body, void *page, cow_bits_t *bitmap)
{
    uintptr_t boundary = cow_alignoff_boundary(body);

    COW_ASSERT((uintptr_t)bitmap % COW_BITMAP_ALIGN == 0 && (uint64_t)(uintptr_t)bitmap < UINT64_C(1) << 54);
    COW_ASSERT(cow_page_map_find(map, body) == NULL && cow_page_map_find(map, body + COW_PAGE_MASK) == NULL);
    cow_page_map_write(map, cow_page_map_number(boundary),
                       (cow_page_map_entry)((uintptr_t)bitmap / COW_BITMAP_ALIGN) << 16 | (boundary - body),
                       page);
}

/* Removes the heap page at +body+, which was entered. */
static void
cow_page_map_remove(struct cow_page_map *map, uintptr_t body)
{
    COW_ASSERT(cow_page_map_find(map, body) != NULL);
    cow_page_map_write(map, cow_page_map_number(cow_alignoff_boundary(body)), 0, NULL);
}

/* ---- statistics and verification */

/* Gives the bytes that the map has allocated. The system gives memory to a table only where it is written. */
static inline size_t
cow_page_map_bytes(const struct cow_page_map *map)
{
    size_t bytes = 0;

    for (size_t i = 0; i < COW_PAGE_MAP_NODES; i++) {
        const struct cow_page_map_node *node = map->nodes[i];

        if (node == NULL) continue;
        bytes += sizeof(*node);
        for (size_t j = 0; j < COW_PAGE_MAP_NODE; j++) {
            if (node->tables[j]) bytes += sizeof(struct cow_page_map_table);
        }
    }
    return bytes;
}

/* Do both ends of a heap page at +body+ lead to +page+ and +bitmap+? */
static inline bool
cow_page_map_consistent_at(const struct cow_page_map *map, uintptr_t body, const void *page,
                           const cow_bits_t *bitmap)
{
    for (unsigned int offset = 0; offset < COW_PAGE_SIZE; offset += COW_PAGE_MASK) {
        if (cow_page_map_find(map, body + offset) != page) return false;

        struct cow_page_map_answer answer = cow_page_map_lookup(map, body + offset);
        if (answer.bitmap != bitmap || answer.offset != offset) return false;
    }
    return true;
}

/* Frees the whole map; for tests. */
static inline void
cow_page_map_free(struct cow_page_map *map)
{
    for (size_t i = 0; i < COW_PAGE_MAP_NODES; i++) {
        struct cow_page_map_node *node = map->nodes[i];

        for (size_t j = 0; node && j < COW_PAGE_MAP_NODE; j++) cow_os->deallocate(node->tables[j]);
        cow_os->deallocate(node);
        map->nodes[i] = NULL;
    }
}

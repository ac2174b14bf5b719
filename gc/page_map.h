/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PAGE_MAP_H
#define COW_PAGE_MAP_H

/*
 * page_map: finds the heap page in which an address lies, where malloc gives the memory of heap pages,
 * without reading the page.
 *
 * Job: alignoff's flag stands in the object, so finding a mark bit by it means to wait for the object's
 * memory. Marking uses the page map instead. The map reads eight bytes for each heap page, and these stay in
 * the cache. Any address may be looked up; it need not be an object's.
 *
 * Algorithm: a heap page of 2^k bytes at any address holds exactly one multiple of 2^k, its boundary, and no
 * two pages hold the same. The map has an entry for each multiple, by its number. The low 16 bits of an entry
 * say how many bytes of the page lie below the boundary; they are also 0 where no page has that boundary. So
 * an address that is +offset+ bytes above multiple number n lies
 *
 *     in the page of entry n + 1     if offset + below(n + 1) >= 2^k
 *     in the page of entry n         else, if offset + below(n) < 2^k
 *     in no page                     else
 *
 * and (offset + below) mod 2^k is its offset in either page. The rest of the entry is the address of the
 * page's first bitmap, a multiple of 64, without its last six bits.
 *
 * The entries stand in tables, which are the lowest of three levels of a radix tree. Because entry n + 1 may
 * be the first one of the next table, each table ends with a copy of that entry.
 *
 * A Ractor may look up its object's page while another, with the VM lock, enters or removes a page. No node
 * is ever moved or freed, and an entry of another page claims no address of this page, whether it is read
 * before or after the change.
 *
 * After: the page maps of tcmalloc and jemalloc, whose key is the number of an aligned page.
 *
 * Entry points: cow_page_map_lookup, cow_page_map_find. In page_map.c: cow_page_map_reserve,
 * cow_page_map_put, cow_page_map_remove, cow_page_map_bytes, cow_page_map_consistent_at.
 *
 * Who writes this memory after a fork: a process that allocates or frees a heap page writes one entry or two.
 */

#include <stdlib.h>
#include <string.h>
#include "vocabulary.h"
#include "os.h"
#include "alignoff.h"

/* Addresses of malloc's have at most so many bits, also where the system has longer ones. */
#define COW_PAGE_MAP_ADDRESS_LOG (UINTPTR_MAX > 0xffffffffu ? 48 : 32)

/* The three levels: entries of a table, tables of a node, nodes of a map. */
enum {
    COW_PAGE_MAP_TABLE_LOG = 13,
    COW_PAGE_MAP_NODE_LOG =
        UINTPTR_MAX > 0xffffffffu ? 10 : 32 - HEAP_PAGE_ALIGN_LOG - COW_PAGE_MAP_TABLE_LOG,
    COW_PAGE_MAP_TABLE = 1 << COW_PAGE_MAP_TABLE_LOG,
    COW_PAGE_MAP_NODE = 1 << COW_PAGE_MAP_NODE_LOG,
    COW_PAGE_MAP_NODES_LOG =
        COW_PAGE_MAP_ADDRESS_LOG - HEAP_PAGE_ALIGN_LOG - COW_PAGE_MAP_TABLE_LOG - COW_PAGE_MAP_NODE_LOG,
    COW_PAGE_MAP_NODES = 1 << COW_PAGE_MAP_NODES_LOG,
    COW_BITMAP_ALIGN = 64
};

/* What the map records of one boundary. */
typedef uint64_t cow_page_map_entry;

/* Invariant: element COW_PAGE_MAP_TABLE of both arrays is a copy of element 0 in the next table, if that
 * exists. */
struct cow_page_map_table {
    cow_page_map_entry entries[COW_PAGE_MAP_TABLE + 1];
    void *pages[COW_PAGE_MAP_TABLE + 1]; /* descriptors; NULL: no heap page has the boundary */
};

/* A node of the middle level. */
struct cow_page_map_node {
    struct cow_page_map_table *tables[COW_PAGE_MAP_NODE];
};

/* A map; all of it is 0 when it is empty. */
struct cow_page_map {
    struct cow_page_map_node *nodes[COW_PAGE_MAP_NODES];
};

/* What a lookup finds. */
struct cow_page_map_answer {
    cow_bits_t *bitmap;  /* the first bitmap of the heap page */
    unsigned int offset; /* of the address in the page */
};

/* ---- lookup */

/* Gives the number of the multiple of COW_PAGE_SIZE at or below +address+. */
static inline uintptr_t
cow_page_map_number(uintptr_t address)
{
    return address >> HEAP_PAGE_ALIGN_LOG;
}

/* Gives the index of the top-level node for entry +number+. */
static inline uintptr_t
cow_page_map_node_index(uintptr_t number)
{
    return number >> (COW_PAGE_MAP_TABLE_LOG + COW_PAGE_MAP_NODE_LOG);
}

/* Gives how many bytes of the entry's page lie below the boundary. */
static inline unsigned int
cow_page_map_below(cow_page_map_entry entry)
{
    return (unsigned int)(entry & 0xffff);
}

/* Gives the address of the pointer to the table that holds entry +number+. Its node must exist. */
static inline struct cow_page_map_table *const *
cow_page_map_table_link(const struct cow_page_map *map, uintptr_t number)
{
    COW_ASSERT(cow_page_map_node_index(number) < COW_PAGE_MAP_NODES);
    const struct cow_page_map_node *node = map->nodes[cow_page_map_node_index(number)];

    COW_ASSERT(node != NULL);
    return &node->tables[(number >> COW_PAGE_MAP_TABLE_LOG) % COW_PAGE_MAP_NODE];
}

/* Gives the table that holds entry +number+; NULL: there is none. */
static inline struct cow_page_map_table *
cow_page_map_table(const struct cow_page_map *map, uintptr_t number)
{
    uintptr_t node = cow_page_map_node_index(number);

    if (node >= COW_PAGE_MAP_NODES || __atomic_load_n(&map->nodes[node], __ATOMIC_ACQUIRE) == NULL)
        return NULL;
    return __atomic_load_n(cow_page_map_table_link(map, number), __ATOMIC_ACQUIRE);
}

/* Gives the descriptor of the heap page in which +address+ lies; NULL: it lies in none. */
static inline void *
cow_page_map_find(const struct cow_page_map *map, uintptr_t address)
{
    const unsigned int offset = (unsigned int)(address & COW_PAGE_MASK);
    const struct cow_page_map_table *table = cow_page_map_table(map, cow_page_map_number(address));
    const size_t i = cow_page_map_number(address) % COW_PAGE_MAP_TABLE;

    if (table == NULL) return NULL;
    if (offset + cow_page_map_below(table->entries[i + 1]) >= COW_PAGE_SIZE) return table->pages[i + 1];
    return offset + cow_page_map_below(table->entries[i]) < COW_PAGE_SIZE ? table->pages[i] : NULL;
}

/* Finds the first bitmap of the heap page in which +address+ lies, and the offset in the page. +address+ must
 * lie in a heap page. */
static inline struct cow_page_map_answer
cow_page_map_lookup(const struct cow_page_map *map, uintptr_t address)
{
    COW_ASSERT(cow_page_map_find(map, address) != NULL);
    const uintptr_t number = cow_page_map_number(address);
    const unsigned int offset = (unsigned int)(address & COW_PAGE_MASK);
    const struct cow_page_map_table *table = *cow_page_map_table_link(map, number);
    const volatile cow_page_map_entry *entry = &table->entries[number % COW_PAGE_MAP_TABLE];
    const cow_page_map_entry first = entry[0], second = entry[1];
    const cow_page_map_entry found = offset + cow_page_map_below(second) < COW_PAGE_SIZE ? first : second;

    return (struct cow_page_map_answer){
        .bitmap = (cow_bits_t *)(uintptr_t)((found >> 16) * COW_BITMAP_ALIGN),
        .offset = (offset + cow_page_map_below(found)) & COW_PAGE_MASK
    };
}

#endif /* COW_PAGE_MAP_H */

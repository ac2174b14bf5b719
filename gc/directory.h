#ifndef COW_DIRECTORY_H
#define COW_DIRECTORY_H

/*
 * directory: which heap page an address lies in, where heap pages are plain malloc's,
 * without a look at what stands there.
 *
 * Job: alignoff's flag is the object's, so to ask it for the mark bit of each reference is
 * to wait for each object's memory. Marking asks the directory, of which it reads eight
 * bytes a heap page; they stay in the cache. And any address may be asked for, which need
 * not be an object's.
 *
 * Algorithm: a heap page of 2^k bytes at any address holds just one multiple of 2^k, its
 * boundary, and no two hold the same. The directory has an entry for each such multiple, by
 * number. The low half-word of an entry says how many bytes of the page are below the
 * boundary; it is 0, too, where no page has it. So an address, in bytes above the multiple of
 * number n, lies
 *
 *     in the page of entry n + 1   if in + below(n + 1) >= 2^k
 *     in that of entry n           else, if in + below(n) < 2^k
 *     in none                      else
 *
 * and (in + below) mod 2^k is its offset in either. The rest of the entry is the address of
 * the page's first row, a multiple of 64, without its last six bits.
 *
 * The entries are the leaves of a radix tree of three levels. As entry n + 1 may be the next
 * leaf's first, each leaf ends with a copy of that.
 *
 * After: the page maps of tcmalloc and jemalloc, whose key is the number of an aligned page.
 *
 * Entry points: directory_at, directory_known, directory_reserve, directory_put,
 * directory_remove, directory_bytes, directory_consistent_at.
 *
 * Who writes this memory after a fork: who takes or gives a heap page, one entry or two.
 *
 * A Ractor may ask for its object's page while another, which has the lock of the VM, puts or
 * removes one: no node is ever moved or freed, and another page's entry, old, new or none,
 * claims no address of the asker's page.
 */

#include <stdlib.h>
#include <string.h>
#include "vocabulary.h"
#include "alignoff.h"

/* Addresses have at most so many bits: malloc's have, where the system has more, too. */
#define DIRECTORY_ADDRESS_LOG (UINTPTR_MAX > 0xffffffffu ? 48 : 32)

enum {
    DIRECTORY_LEAF_LOG = 13,
    DIRECTORY_NODE_LOG = UINTPTR_MAX > 0xffffffffu ? 10 : 32 - HEAP_PAGE_ALIGN_LOG - DIRECTORY_LEAF_LOG,
    DIRECTORY_LEAF = 1 << DIRECTORY_LEAF_LOG,
    DIRECTORY_NODE = 1 << DIRECTORY_NODE_LOG,
    DIRECTORY_NODES = 1 << (DIRECTORY_ADDRESS_LOG - HEAP_PAGE_ALIGN_LOG - DIRECTORY_LEAF_LOG - DIRECTORY_NODE_LOG),
    DIRECTORY_ROW_ALIGN = 64
};

/* Of one boundary. */
typedef uint64_t directory_entry;

/* The last of each: as the next leaf's first. */
struct directory_leaf {
    directory_entry entries[DIRECTORY_LEAF + 1];
    void *known[DIRECTORY_LEAF + 1]; /* of the page; NULL: no heap page has the boundary */
};

struct directory_node {
    struct directory_leaf *leaves[DIRECTORY_NODE];
};

/* All zero: nothing was ever put. */
struct directory {
    struct directory_node *nodes[DIRECTORY_NODES];
};

/* What the directory says of an address. */
struct directory_answer {
    cow_bits_t *row;     /* the first row of its heap page */
    unsigned int offset; /* of the address in it */
};

/* ---- to ask */

static inline uintptr_t
directory_number(uintptr_t address)
{
    return address >> HEAP_PAGE_ALIGN_LOG;
}

/* Number of the node with the leaf with the entry of that number. */
static inline uintptr_t
directory_node_number(uintptr_t number)
{
    return number >> (DIRECTORY_LEAF_LOG + DIRECTORY_NODE_LOG);
}

static inline unsigned int
directory_below(directory_entry entry)
{
    return (unsigned int)(entry & 0xffff);
}

/* Where a leaf is told of that has the entry of that number.
 * pre: the node is there */
static inline struct directory_leaf *const *
directory_place(const struct directory *directory, uintptr_t number)
{
    const struct directory_node *node = directory->nodes[directory_node_number(number)];

    return &node->leaves[(number >> DIRECTORY_LEAF_LOG) % DIRECTORY_NODE];
}

/* The leaf; NULL: there is none. */
static inline struct directory_leaf *
directory_leaf(const struct directory *directory, uintptr_t number)
{
    uintptr_t node = directory_node_number(number);

    if (node >= DIRECTORY_NODES || __atomic_load_n(&directory->nodes[node], __ATOMIC_ACQUIRE) == NULL) return NULL;
    return __atomic_load_n(directory_place(directory, number), __ATOMIC_ACQUIRE);
}

/* pre: +address+ lies in a heap page */
static inline struct directory_answer
directory_at(const struct directory *directory, uintptr_t address)
{
    const uintptr_t number = directory_number(address);
    const unsigned int in = (unsigned int)(address & COW_PAGE_MASK);
    const volatile directory_entry *entry = &(*directory_place(directory, number))->entries[number % DIRECTORY_LEAF];
    const directory_entry here = entry[0], next = entry[1];
    const directory_entry found = in + directory_below(next) < COW_PAGE_SIZE ? here : next;

    return (struct directory_answer){
        .row = (cow_bits_t *)(uintptr_t)((found >> 16) * DIRECTORY_ROW_ALIGN),
        .offset = (in + directory_below(found)) & COW_PAGE_MASK
    };
}

/* What is known of the heap page that +address+ lies in; NULL: it lies in none. */
static inline void *
directory_known(const struct directory *directory, uintptr_t address)
{
    const unsigned int in = (unsigned int)(address & COW_PAGE_MASK);
    const struct directory_leaf *leaf = directory_leaf(directory, directory_number(address));
    const size_t place = directory_number(address) % DIRECTORY_LEAF;

    if (leaf == NULL) return NULL;
    if (in + directory_below(leaf->entries[place + 1]) >= COW_PAGE_SIZE) return leaf->known[place + 1];
    return in + directory_below(leaf->entries[place]) < COW_PAGE_SIZE ? leaf->known[place] : NULL;
}

/* ---- to change; who does has the lock of the VM */

/* Sees to the leaf with the entry of that number. Gives false where there is no memory, or no
 * such number. */
static bool
directory_make_leaf(struct directory *directory, uintptr_t number)
{
    uintptr_t node_number = directory_node_number(number);

    if (node_number >= DIRECTORY_NODES) return false;
    if (directory->nodes[node_number] == NULL) {
        struct directory_node *node = calloc(1, sizeof(*node));
        if (node == NULL) return false;
        __atomic_store_n(&directory->nodes[node_number], node, __ATOMIC_RELEASE);
    }

    struct directory_leaf **place = (struct directory_leaf **)directory_place(directory, number);
    if (*place == NULL) {
        struct directory_leaf *leaf = calloc(1, sizeof(*leaf));
        if (leaf == NULL) return false;
        __atomic_store_n(place, leaf, __ATOMIC_RELEASE);
    }
    return true;
}

/* Sees to it that a heap page at +body+ can be put, and all addresses in it asked for.
 * Gives false where there is no memory, or malloc's addresses are too long. */
static bool
directory_reserve(struct directory *directory, uintptr_t body)
{
    return directory_make_leaf(directory, directory_number(body)) &&
        directory_make_leaf(directory, directory_number(body + COW_PAGE_MASK));
}

static void
directory_write(struct directory *directory, uintptr_t number, directory_entry entry, void *known)
{
    struct directory_leaf *leaf = directory_leaf(directory, number);
    size_t place = number % DIRECTORY_LEAF;

    leaf->entries[place] = entry;
    leaf->known[place] = known;
    if (place == 0 && (leaf = directory_leaf(directory, number - 1)) != NULL) {
        leaf->entries[DIRECTORY_LEAF] = entry;
        leaf->known[DIRECTORY_LEAF] = known;
    }
}

/* Notes what is known of a heap page, and where the first of its rows stands.
 * pre: directory_reserve for it; no page overlaps it; +row+ is a multiple of 64 below 2^54 */
static void
directory_put(struct directory *directory, uintptr_t body, void *known, cow_bits_t *row)
{
    uintptr_t boundary = alignoff_boundary(body);

    directory_write(directory, directory_number(boundary),
                    (directory_entry)((uintptr_t)row / DIRECTORY_ROW_ALIGN) << 16 | (boundary - body), known);
}

static void
directory_remove(struct directory *directory, uintptr_t body)
{
    directory_write(directory, directory_number(alignoff_boundary(body)), 0, NULL);
}

/* ---- to be told */

/* What it takes of malloc, at most: the system gives memory to a leaf where it is written. */
static inline size_t
directory_bytes(const struct directory *directory)
{
    size_t bytes = 0;

    for (size_t i = 0; i < DIRECTORY_NODES; i++) {
        const struct directory_node *node = directory->nodes[i];

        if (node) bytes += sizeof(*node);
        for (size_t j = 0; node && j < DIRECTORY_NODE; j++) bytes += node->leaves[j] ? sizeof(struct directory_leaf) : 0;
    }
    return bytes;
}

/* Is that what both ends of a heap page lead to? */
static inline bool
directory_consistent_at(const struct directory *directory, uintptr_t body, const void *known, const cow_bits_t *row)
{
    for (unsigned int offset = 0; offset < COW_PAGE_SIZE; offset += COW_PAGE_MASK) {
        struct directory_answer answer = directory_at(directory, body + offset);

        if (directory_known(directory, body + offset) != known || answer.row != row || answer.offset != offset) return false;
    }
    return true;
}

/* Gives all of it back; for tests. */
static inline void
directory_free(struct directory *directory)
{
    for (size_t i = 0; i < DIRECTORY_NODES; i++) {
        struct directory_node *node = directory->nodes[i];

        for (size_t j = 0; node && j < DIRECTORY_NODE; j++) free(node->leaves[j]);
        free(node);
        directory->nodes[i] = NULL;
    }
}

#endif /* COW_DIRECTORY_H */

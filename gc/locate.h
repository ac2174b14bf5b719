#ifndef COW_LOCATE_H
#define COW_LOCATE_H

/*
 * locate: from an object's address to its heap page, its slot and its bits. One
 * interface over five ways, of which a build has one (--with-mark-locator):
 *
 *     arena     by arithmetic; heap pages stand at multiples of their size in arenas
 *               (arena.h). The default. Where not one arena can be had it is alignoff.
 *     alignoff  by arithmetic and one flag of the object; heap pages are plain malloc's
 *               (alignoff.h). Where only an object's bits are asked for, as in marking, and
 *               where any address is, by a directory (directory.h).
 *     binary    by a binary search over all heap pages, as figure 4 of the paper.
 *     linear    by looking at one heap page after the other, as its figure 3.
 *     header    as arena; but the mark bit stands in the object, as before bitmap
 *               marking. It is gathered into the page's row where that is read.
 *
 * The last three are there to be compared with.
 *
 * After: Nakamura and Matsumoto, "Ruby Garbage Collection Using Efficient Bitmap Marking",
 * section 3 (seed 000).
 *
 * Entry points: locate_page, locate_row, locate_slot and locate_cell of an object;
 * locate_known of any address; locate_take and locate_give, locate_seal, locate_unseal and
 * locate_discard of a heap page; locate_lay_out when it is cut into slots; locate_flag when
 * a slot is handed out; locate_marked, locate_cell_marked, locate_mark, locate_mark_first,
 * locate_unmark and locate_clear_marks; locate_consistent.
 *
 * Who writes this memory after a fork: as in arena.h. Where pages are malloc's, their
 * blocks' groups are written by every collection.
 *
 * struct heap_page must be complete where this is included.
 */

#include <stdlib.h>
#include "vocabulary.h"
#include "alignoff.h"
#include "arena.h"
#include "directory.h"
#include "poison.h"
#include "slot_map.h"

#define LOCATE_ARENA 1
#define LOCATE_ALIGNOFF 2
#define LOCATE_BINARY 3
#define LOCATE_LINEAR 4
#define LOCATE_HEADER 5

#ifndef LOCATE_BY
# define LOCATE_BY LOCATE_ARENA
#endif

#if LOCATE_BY == LOCATE_ARENA
# define LOCATE_NAME "arena"
#elif LOCATE_BY == LOCATE_ALIGNOFF
# define LOCATE_NAME "alignoff"
#elif LOCATE_BY == LOCATE_BINARY
# define LOCATE_NAME "binary"
#elif LOCATE_BY == LOCATE_LINEAR
# define LOCATE_NAME "linear"
#elif LOCATE_BY == LOCATE_HEADER
# define LOCATE_NAME "header"
#else
# error "LOCATE_BY is one of the five"
#endif

#define LOCATE_SEARCHES (LOCATE_BY == LOCATE_BINARY || LOCATE_BY == LOCATE_LINEAR)

/* Marks stand in the objects. */
#define LOCATE_MARKS_OBJECTS (LOCATE_BY == LOCATE_HEADER)

/* The bit of an object's flags that is the locator's: alignoff's, or the mark. */
#define LOCATE_FLAG ALIGNOFF_FLAG

struct locate_group;

/* What is known of a heap page that is not an arena's. */
struct locate_block {
    _Alignas(ALIGNOFF_HEADER_ALIGN) struct heap_page page; /* first: its address is the block's */
    uintptr_t body;
    void *whole_body; /* what malloc gave */
    struct locate_group *group;
    cow_bits_t *row; /* of the first kind, in the group */
};

enum { LOCATE_GROUP = COW_BITS, LOCATE_STEP = LOCATE_GROUP * COW_ROW_WORDS };

/* Blocks of several pages, with their rows of one kind after each other, as in an arena: rows
 * as far apart as what malloc gives would take the same few lines of a cache. */
struct locate_group {
    _Alignas(DIRECTORY_ROW_ALIGN) cow_row rows[ROW_KINDS][LOCATE_GROUP];
    struct locate_block blocks[LOCATE_GROUP];
    cow_bits_t taken; /* bit i: blocks[i] */
    struct locate_group *next, **link; /* in a list; what points to this one there */
    void *whole;
};

/* What binary and linear search: a block and, so that no block is read, where its page begins. */
struct locate_entry {
    uintptr_t body;
    struct locate_block *block;
};

/* A table that was outgrown stays in memory, as somebody may still search it; all of
 * them together are shorter than the one that is used. */
struct locate_table {
    struct locate_table *outgrown;
    size_t room;
    struct locate_entry entries[];
};

/*
 * The heap pages of a process.
 *
 * Where they are searched, a Ractor asks for its objects' pages without a lock, while another, which has the lock,
 * may take or give one. So .changes is odd meanwhile, and who finds after its search that it
 * was, or is another, searches again. (No process forks meanwhile: all Ractors wait then.)
 *
 * Invariants (locate_consistent):
 *     either .arenas has none or .count is 0
 *     .groups have .count blocks, each group one at least
 *     where they are searched, the first .count entries of .table are those blocks, by
 *     ascending .body, which they tell, its room suffices, and .changes is even
 *     else a block's header and the directory lead to it
 */
static struct {
    struct arena_space arenas;
    struct locate_table *table; /* NULL: none was ever searched */
    size_t count;
    unsigned int changes;
    bool unaligned; /* no arena could be had */
    struct locate_group *groups[2]; /* [0]: with room for a block; [1]: full */
    struct directory directory; /* of alignoff's pages */
} locate_space;

/* Are heap pages found by alignoff? */
#if LOCATE_BY == LOCATE_ARENA
# define LOCATE_UNALIGNED (__builtin_expect(locate_space.unaligned, false))
#else
# define LOCATE_UNALIGNED (LOCATE_BY == LOCATE_ALIGNOFF)
#endif

/* ---- of an object */

/* Of a slot's flags or a header, for which a free slot or a hole may be asked, too. */
READS_POISON static inline uintptr_t
locate_word(uintptr_t address)
{
    return *(const uintptr_t *)address;
}

static inline bool
locate_flagged(uintptr_t object)
{
    return (locate_word(object) & LOCATE_FLAG) != 0;
}

/* How many of the first +count+ entries have a body below +address+: the place of one whose
 * body it is. */
static inline size_t
locate_place(const struct locate_table *table, size_t count, uintptr_t address)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->entries[middle].body < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The block whose page +address+ lies in; NULL: none. */
static inline struct locate_block *
locate_search_once(const struct locate_table *table, size_t count, uintptr_t address)
{
#if LOCATE_BY == LOCATE_LINEAR
    for (size_t i = 0; i < count; i++) {
        if (address - table->entries[i].body < COW_PAGE_SIZE) return table->entries[i].block;
    }
    return NULL;
#else
    size_t above = address < UINTPTR_MAX ? locate_place(table, count, address + 1) : count;

    if (above == 0 || address - table->entries[above - 1].body >= COW_PAGE_SIZE) return NULL;
    return table->entries[above - 1].block;
#endif
}

static inline struct locate_block *
locate_search(uintptr_t address)
{
    for (;;) {
        unsigned int changes = __atomic_load_n(&locate_space.changes, __ATOMIC_ACQUIRE);
        const struct locate_table *table = __atomic_load_n(&locate_space.table, __ATOMIC_ACQUIRE);
        size_t count = __atomic_load_n(&locate_space.count, __ATOMIC_RELAXED);

        if (table == NULL) return NULL;
        struct locate_block *block = locate_search_once(table, count < table->room ? count : table->room, address);

        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (changes % 2 == 0 && __atomic_load_n(&locate_space.changes, __ATOMIC_RELAXED) == changes) return block;
    }
}

static inline struct locate_block *
locate_block_of(uintptr_t object)
{
    if (LOCATE_SEARCHES) return locate_search(object);
    return (struct locate_block *)locate_word(alignoff_header(object, locate_flagged(object)));
}

static inline struct heap_page *
locate_page(uintptr_t object)
{
    if (LOCATE_SEARCHES || LOCATE_UNALIGNED) return &locate_block_of(object)->page;
    return arena_descriptor(object);
}

static inline cow_bits_t *
locate_row(uintptr_t object, enum row_kind kind)
{
    if (LOCATE_SEARCHES || LOCATE_UNALIGNED) return locate_block_of(object)->row + kind * (size_t)LOCATE_STEP;
    return arena_row_of(object, kind);
}

/* Number of the smallest slot that the object begins in, in its heap page. */
static inline unsigned int
locate_slot(uintptr_t object)
{
    if (LOCATE_UNALIGNED) return (unsigned int)(object - locate_block_of(object)->body) / (unsigned int)COW_SLOT_SIZE;
    return cow_slot_index(object);
}

/* Where all bits of one object stand, for who asks for several of them: the words of two
 * kinds that follow each other are .step words apart. */
struct locate_cell {
    cow_bits_t *word; /* of the first kind */
    cow_bits_t mask;
    size_t step;
};

static inline struct locate_cell
locate_cell(uintptr_t object)
{
    struct locate_cell cell;
    unsigned int slot;

    if (LOCATE_SEARCHES || LOCATE_UNALIGNED) {
        struct directory_answer at;

        if (LOCATE_SEARCHES) {
            const struct locate_block *block = locate_search(object);
            at = (struct directory_answer){ block->row, (unsigned int)(object - block->body) };
        }
        else {
            at = directory_at(&locate_space.directory, object); /* not by its flag: that must be waited for */
        }
        slot = at.offset / (unsigned int)COW_SLOT_SIZE;
        cell.word = at.row;
        cell.step = LOCATE_STEP;
    }
    else {
        slot = cow_slot_index(object);
        cell.word = arena_row_of(object, 0);
        cell.step = (size_t)ARENA_PAGES * COW_ROW_WORDS;
    }
    cell.word += slot / COW_BITS;
    cell.mask = (cow_bits_t)1 << slot % COW_BITS;
    return cell;
}

static inline bool
locate_bit(const struct locate_cell *cell, enum row_kind kind)
{
    return (cell->word[kind * cell->step] & cell->mask) != 0;
}

static inline void
locate_set_bit(const struct locate_cell *cell, enum row_kind kind)
{
    cell->word[kind * cell->step] |= cell->mask;
}

static inline void
locate_clear_bit(const struct locate_cell *cell, enum row_kind kind)
{
    cell->word[kind * cell->step] &= ~cell->mask;
}

/* Writes only what is not so yet: children share the rows of pages that stay as they are. */
static inline void
locate_put_bit(const struct locate_cell *cell, enum row_kind kind, bool bit)
{
    if (locate_bit(cell, kind) != bit) cell->word[kind * cell->step] ^= cell->mask;
}

/* ---- of any address */

/* The heap page that +address+ lies in; NULL where it lies in none. */
static inline struct heap_page *
locate_known(uintptr_t address)
{
    if (LOCATE_SEARCHES) return (struct heap_page *)locate_search(address);
    if (LOCATE_UNALIGNED) return directory_known(&locate_space.directory, address);
    return arena_knows(address) ? arena_descriptor(address) : NULL;
}

/* ---- of a heap page */

static inline struct locate_block *
locate_block(struct heap_page *page)
{
    return (struct locate_block *)page;
}

/* Memory at a multiple of +alignment+ from an allocator that knows of none; +whole+ is
 * what is to be freed. */
static inline void *
locate_aligned(size_t size, size_t alignment, void **whole)
{
    *whole = malloc(size + alignment - 1);
    return (void *)(((uintptr_t)*whole + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

/* Makes room in the table for one more block. */
static bool
locate_room(void)
{
    struct locate_table *table = locate_space.table;

    if (table && locate_space.count < table->room) return true;

    size_t room = table ? table->room * 2 : 64;
    struct locate_table *larger = malloc(sizeof(*larger) + room * sizeof(larger->entries[0]));
    if (larger == NULL) return false;

    larger->outgrown = table;
    larger->room = room;
    if (table) memcpy(larger->entries, table->entries, locate_space.count * sizeof(larger->entries[0]));
    __atomic_store_n(&locate_space.table, larger, __ATOMIC_RELEASE);
    return true;
}

/* Before and after the entries are changed. */
static void
locate_change(void)
{
    __atomic_fetch_add(&locate_space.changes, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Puts a block into the table, or takes it out. */
static void
locate_tabulate(struct locate_block *block, bool in)
{
    size_t place = locate_place(locate_space.table, locate_space.count, block->body);
    struct locate_entry *there = &locate_space.table->entries[place];

    locate_change();
    if (in) {
        memmove(there + 1, there, (locate_space.count - place) * sizeof(*there));
        *there = (struct locate_entry){ .body = block->body, .block = block };
        locate_space.count++;
    }
    else {
        locate_space.count--;
        memmove(there, there + 1, (locate_space.count - place) * sizeof(*there));
    }
    locate_change();
}

/* Puts a group into the list that it belongs to now, or, as it is empty, gives it back. */
static void
locate_sort_group(struct locate_group *group)
{
    if (group->link) {
        *group->link = group->next;
        if (group->next) group->next->link = group->link;
    }
    if (group->taken == 0) {
        free(group->whole);
        return;
    }

    struct locate_group **list = &locate_space.groups[~group->taken == 0];
    group->next = *list;
    if (group->next) group->next->link = &group->next;
    group->link = list;
    *list = group;
}

/* A group with room for a block; NULL: there is no memory. */
static struct locate_group *
locate_roomy_group(void)
{
    void *whole;
    struct locate_group *group = locate_space.groups[0];

    if (group) return group;

    group = locate_aligned(sizeof(*group), _Alignof(struct locate_group), &whole);
    if (whole == NULL) return NULL;
    group->taken = 0;
    group->link = NULL;
    group->whole = whole;
    return group;
}

/* A block with nothing but zeros in it and its rows. */
static struct locate_block *
locate_take_of_group(struct locate_group *group)
{
    int place = __builtin_ctzll(~group->taken);
    struct locate_block *block = &group->blocks[place];

    group->taken |= (cow_bits_t)1 << place;
    locate_sort_group(group);
    memset(block, 0, sizeof(*block));
    for (int kind = 0; kind < ROW_KINDS; kind++) memset(group->rows[kind][place], 0, COW_ROW_SIZE);
    block->group = group;
    block->row = group->rows[0][place];
    return block;
}

static void
locate_give_to_group(struct locate_block *block)
{
    struct locate_group *group = block->group;

    group->taken &= ~((cow_bits_t)1 << (block - group->blocks));
    locate_sort_group(group);
}

static struct heap_page *
locate_take_block(void **body)
{
    void *whole_body, *memory;

    if (LOCATE_SEARCHES) memory = locate_aligned(COW_PAGE_SIZE, COW_PAGE_SIZE, &whole_body);
    else memory = whole_body = malloc(COW_PAGE_SIZE);
    if (whole_body == NULL) return NULL;

    struct locate_group *group = NULL;
    if ((LOCATE_SEARCHES ? locate_room() : directory_reserve(&locate_space.directory, (uintptr_t)memory))) {
        group = locate_roomy_group();
    }
    if (group == NULL) {
        free(whole_body);
        return NULL;
    }

    struct locate_block *block = locate_take_of_group(group);
    block->whole_body = whole_body;
    block->body = (uintptr_t)memory;
    if (LOCATE_SEARCHES) {
        locate_tabulate(block, true);
    }
    else {
        memcpy((void *)alignoff_boundary(block->body), &block, sizeof(block));
        directory_put(&locate_space.directory, block->body, block, block->row);
        locate_space.count++;
    }
    *body = memory;
    return &block->page;
}

/* Hands out a heap page, and in +body+ where its slots stand. What is known of it is
 * zero, what stands in it anything. Gives NULL where there is no memory. */
static struct heap_page *
locate_take(void **body)
{
    if (LOCATE_SEARCHES || LOCATE_UNALIGNED) return locate_take_block(body);

    void *memory = arena_take(&locate_space.arenas);
    if (memory == NULL) {
        if (LOCATE_BY != LOCATE_ARENA || locate_space.arenas.count > 0) return NULL;

        struct heap_page *page = locate_take_block(body);
        locate_space.unaligned = page != NULL;
        return page;
    }

    struct heap_page *page = arena_descriptor((uintptr_t)memory);
    unpoison(page, sizeof(*page));
    memset(page, 0, sizeof(*page));
    *body = memory;
    return page;
}

/* Takes a heap page back; +body+ as locate_take gave it. */
static void
locate_give(struct heap_page *page, void *body)
{
    if (!LOCATE_SEARCHES && !LOCATE_UNALIGNED) {
        poison(page, sizeof(*page));
        arena_give(&locate_space.arenas, body);
        return;
    }

    struct locate_block *block = locate_block(page);

    if (LOCATE_SEARCHES) {
        locate_tabulate(block, false);
    }
    else {
        directory_remove(&locate_space.directory, block->body);
        locate_space.count--;
    }
    free(block->whole_body);
    locate_give_to_group(block);
}

/* Gives a heap page's memory back to the system, where it can; the page stays handed out, and
 * what stands in it is anything. */
static void
locate_discard(void *body)
{
    if (!LOCATE_SEARCHES && !LOCATE_UNALIGNED) arena_discard(body);
}

/* Notes that a heap page is sealed, or no longer. */
static inline void
locate_seal(void *body)
{
    if (!LOCATE_SEARCHES && !LOCATE_UNALIGNED) arena_seal(body);
}

static inline void
locate_unseal(void *body)
{
    if (!LOCATE_SEARCHES && !LOCATE_UNALIGNED) arena_unseal(body);
}

/* The row of a heap page: as locate_row of its objects. */
static inline cow_bits_t *
locate_page_row(struct heap_page *page, void *body, enum row_kind kind)
{
    return LOCATE_SEARCHES || LOCATE_UNALIGNED ? locate_block(page)->row + kind * (size_t)LOCATE_STEP : arena_row_of((uintptr_t)body, kind);
}

/* ---- of a slot */

/* Number of a slot that must not be used, for slots of +slot_size+ bytes; -1: all may
 * be. It then reads as a free slot. */
static inline int
locate_lay_out(struct heap_page *page, size_t slot_size)
{
    struct alignoff_layout layout;

    if (!LOCATE_UNALIGNED) return -1;
    if (!alignoff_lay_out(locate_block(page)->body, slot_size, &layout)) abort(); /* not what malloc may give */
    alignoff_write_header(&layout, slot_size, page);
    return layout.hole < layout.slots ? (int)layout.hole : -1;
}

/* The locator's part of the flags that an object at +address+ of a heap page at +body+
 * is to carry. */
static inline uintptr_t
locate_flag(void *body, uintptr_t address)
{
    return LOCATE_UNALIGNED && alignoff_before((uintptr_t)body, address) ? LOCATE_FLAG : 0;
}

/* The locator's part of the flags that stay with a slot, whatever object is in it. It is
 * asked without a look at what the locator is: where it is arena no slot has the flag. */
static inline uintptr_t
locate_kept(uintptr_t flags)
{
    return LOCATE_BY == LOCATE_ARENA || LOCATE_BY == LOCATE_ALIGNOFF ? flags & LOCATE_FLAG : 0;
}

/* ---- marks */

/* Is the object whose cell is given marked? */
static inline bool
locate_cell_marked(uintptr_t object, const struct locate_cell *cell)
{
    return LOCATE_MARKS_OBJECTS ? locate_flagged(object) : locate_bit(cell, ROW_MARK);
}

/* Marks the object whose cell is given; false where it was marked before. */
static inline bool
locate_mark_first(uintptr_t object, const struct locate_cell *cell)
{
    if (locate_cell_marked(object, cell)) return false;
    if (LOCATE_MARKS_OBJECTS) *(uintptr_t *)object |= LOCATE_FLAG;
    else locate_set_bit(cell, ROW_MARK);
    return true;
}

static inline bool
locate_marked(uintptr_t object)
{
    struct locate_cell cell = locate_cell(object);

    return locate_cell_marked(object, &cell);
}

static inline void
locate_mark(uintptr_t object)
{
    if (LOCATE_MARKS_OBJECTS) {
        *(uintptr_t *)object |= LOCATE_FLAG;
        return;
    }

    struct locate_cell cell = locate_cell(object);
    locate_set_bit(&cell, ROW_MARK);
}

static inline void
locate_unmark(uintptr_t object)
{
    if (LOCATE_MARKS_OBJECTS) {
        *(uintptr_t *)object &= ~LOCATE_FLAG;
        return;
    }

    struct locate_cell cell = locate_cell(object);
    locate_clear_bit(&cell, ROW_MARK);
}

/* Clears the rows of marks of all heap pages. */
static void
locate_clear_marks(void)
{
    for (int full = 0; full < 2; full++) {
        for (struct locate_group *group = locate_space.groups[full]; group; group = group->next) {
            memset(group->rows[ROW_MARK], 0, sizeof(group->rows[ROW_MARK]));
        }
    }
    arena_clear_kind(&locate_space.arenas, ROW_MARK);
}

/* ---- to be told */

static inline size_t
locate_reserved_bytes(void)
{
    return locate_space.arenas.reserved_bytes + locate_space.count * COW_PAGE_SIZE;
}

static inline size_t
locate_committed_bytes(void)
{
    return locate_space.arenas.committed_bytes + locate_space.count * COW_PAGE_SIZE;
}

static inline size_t
locate_metadata_bytes(void)
{
    size_t groups = 0;

    for (int full = 0; full < 2; full++) {
        for (const struct locate_group *group = locate_space.groups[full]; group; group = group->next) groups++;
    }
    return locate_space.arenas.head_bytes + groups * sizeof(struct locate_group) + directory_bytes(&locate_space.directory);
}

/* Does all lead to the block that is to lead to it, and to its bits? */
static bool
locate_block_consistent(const struct locate_group *group, int place, FILE *out)
{
    const struct locate_block *block = &group->blocks[place];
    bool found;

    if (LOCATE_SEARCHES) found = locate_search(block->body) == block && locate_search(block->body + COW_PAGE_MASK) == block;
    else found = locate_word(alignoff_boundary(block->body)) == (uintptr_t)block &&
        directory_consistent_at(&locate_space.directory, block->body, block, block->row);

    if (found && block->group == group && block->row == group->rows[0][place]) return true;
    fprintf(out, "heap page %#zx: what is to lead to it, or to its bits, leads elsewhere\n", (size_t)block->body);
    return false;
}

/* Are the groups in their lists, with as many blocks as there are? */
static bool
locate_groups_consistent(FILE *out)
{
    size_t taken = 0;

    for (int full = 0; full < 2; full++) {
        for (struct locate_group *const *link = &locate_space.groups[full]; *link; link = &(*link)->next) {
            const struct locate_group *group = *link;

            if (group->link != link || group->taken == 0 || (~group->taken == 0) != full) {
                fprintf(out, "a group of heap pages is in a list that it is not for: %#zx\n", (size_t)group->taken);
                return false;
            }
            for (int place = 0; place < LOCATE_GROUP; place++) {
                if (!(group->taken >> place & 1)) continue;
                if (!locate_block_consistent(group, place, out)) return false;
                taken++;
            }
        }
    }
    if (taken != locate_space.count) fprintf(out, "%zu heap pages of malloc, %zu in groups\n", locate_space.count, taken);
    return taken == locate_space.count;
}

/* Does the table that is searched tell of as many, in order? */
static bool
locate_table_consistent(FILE *out)
{
    size_t room = locate_space.table ? locate_space.table->room : 0;

    if (locate_space.changes % 2 != 0 || room < locate_space.count) {
        fprintf(out, "%zu heap pages of malloc, room for %zu, %u changes\n", locate_space.count, room, locate_space.changes);
        return false;
    }
    for (size_t i = 0; i < locate_space.count; i++) {
        const struct locate_entry *entry = &locate_space.table->entries[i];

        if (entry->body != entry->block->body) {
            fprintf(out, "heap page %zu begins at %#zx, not at %#zx\n", i, (size_t)entry->block->body, (size_t)entry->body);
            return false;
        }
        if (i > 0 && entry[-1].body + COW_PAGE_SIZE > entry->body) {
            fprintf(out, "heap pages %zu and %zu overlap: %#zx, %#zx\n", i - 1, i, (size_t)entry[-1].body, (size_t)entry->body);
            return false;
        }
    }
    return true;
}

/* Recomputes what is kept; tells the first difference on +out+ and gives false. */
static bool
locate_consistent(FILE *out)
{
    if (locate_space.count > 0 && locate_space.arenas.count > 0) {
        fprintf(out, "%zu heap pages of malloc, %zu arenas\n", locate_space.count, locate_space.arenas.count);
        return false;
    }
    if (LOCATE_SEARCHES && !locate_table_consistent(out)) return false;
    return locate_groups_consistent(out) && arena_consistent(&locate_space.arenas, out);
}

#endif /* COW_LOCATE_H */

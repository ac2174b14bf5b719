/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_EXIT_DUTIES_H
#define COW_EXIT_DUTIES_H

/*
 * exit_duties: in which order a process that ends finalizes objects, and which inherited ones a child does.
 *
 * Job: a child that ends leaves the memory of inherited objects to the system. What can be seen outside the
 * process it does as any process: it writes a file's buffer and calls an extension's free function. An object
 * with such a cleanup has a duty.
 *
 * Entry points: cow_exit_walk_begin and cow_exit_walk_next; cow_only_duties, cow_has_duty, cow_may_get_duty,
 * cow_page_each_cleanup; cow_exit_free_pages.
 *
 * Who writes this memory after a fork: a child that ends writes the objects with a duty, to finalize them.
 */

/* Does the object have a duty: can its end be seen outside the process? A file has one, because it writes
 * what is in its buffer. An extension's data has one if its free function does more than free memory: it may
 * commit, unlock or unlink. An extension may set the function of untyped data, and the type of typed data, at
 * any time, so the process calls this when it ends. */
static bool
cow_has_duty(VALUE obj)
{
    switch (BUILTIN_TYPE(obj)) {
      case T_FILE:
        return true;
      case T_DATA:
        if (!RTYPEDDATA_P(obj)) return true;
        return RTYPEDDATA_TYPE(obj)->function.dfree != NULL &&
               RTYPEDDATA_TYPE(obj)->function.dfree != RUBY_DEFAULT_FREE;
      default:
        return false;
    }
}

/* May the object get a duty later? An extension may give its data another type. Procs and methods, of which
 * there are many, belong to the VM and keep theirs. */
static bool
cow_may_get_duty(VALUE obj)
{
    return BUILTIN_TYPE(obj) == T_DATA && !rb_obj_is_proc(obj) && !rb_obj_is_method(obj);
}

/* Does this process, which ends, finalize only the objects with a duty on this page? A child does so on
 * sealed pages, because the system takes all their memory at once. It does its duties also as a daemon, and
 * if its parent has left by exit! or exec. */
static inline bool
cow_only_duties(rb_objspace_t *objspace, const struct heap_page *page)
{
    return objspace->flags.forked_child && page->seal.sealed && !ruby_free_at_exit_p();
}

/* The pages of a process that ends: those of the arena that was made last, from its last page to its first,
 * and so on. A heap that has only grown has its newest page first. Where pages are malloc's, the one that was
 * added last. CRuby goes upwards by addresses, but mmap gives it pages downwards. */
struct cow_exit_walk {
    const struct cow_arena *arena; /* whose pages are given; NULL: pages are malloc's */
    size_t rest; /* pages of the arena, or of .sorted, that are left to be looked at */
};

/* Gives the arena that was made before +arena+ (NULL: the last one of all); NULL if there is none. */
static inline const struct cow_arena *
cow_exit_older_arena(const struct cow_arena *arena)
{
    const struct cow_arena *older = NULL;

    for (const struct cow_arena *each = cow_locate_space.arenas.arenas; each != arena; each = each->next)
        older = each;
    return older;
}

/* Begins a walk. No page may be added or freed until it ends. */
static inline struct cow_exit_walk
cow_exit_walk_begin(const rb_objspace_t *objspace)
{
    const struct cow_arena *arena = cow_exit_older_arena(NULL);

    return (struct cow_exit_walk){
        arena, arena ? arena->committed : rb_darray_size(objspace->heap_pages.sorted)
    };
}

/* Gives the next page; NULL behind the last. */
static struct heap_page *
cow_exit_walk_next(const rb_objspace_t *objspace, struct cow_exit_walk *walk)
{
    if (walk->arena == NULL)
        return walk->rest > 0 ? rb_darray_get(objspace->heap_pages.sorted, --walk->rest) : NULL;

    for (;;) {
        while (walk->rest > COW_ARENA_FIRST) {
            const uintptr_t address = (uintptr_t)cow_arena_page_address(walk->arena, --walk->rest);

            if (cow_arena_contains(&cow_locate_space.arenas, address)) return cow_arena_descriptor(address);
        }
        const struct cow_arena *older = cow_exit_older_arena(walk->arena);
        if (older == NULL) return NULL;
        *walk = (struct cow_exit_walk){ older, older->committed };
    }
}

/* For each object of a page that has a cleanup bit. The others own nothing that must be freed. */
#define cow_page_each_cleanup(page, obj) \
    for (VALUE word_ = 0, obj = cow_page_next_cleanup((page), &word_, 0); obj; \
         obj = cow_page_next_cleanup((page), &word_, obj))

/* Gives the first such object after +obj+, or the first one of the page if +obj+ is 0; gives 0 behind the
 * last. +word+ is the number of the word with the bit of +obj+; the caller begins with 0. */
static inline VALUE
cow_page_next_cleanup(const struct heap_page *page, VALUE *word, VALUE obj)
{
    bits_t above = obj ? ~(bits_t)1 << cow_page_slot(page, obj) % BITS_BITLENGTH : ~(bits_t)0;

    for (; *word < HEAP_PAGE_BITMAP_LIMIT; ++*word, above = ~(bits_t)0) {
        const bits_t rest = page->allocated_bits[*word] & page->cleanup_bits[*word] & above;

        if (rest) return cow_page_lowest_slot(page, *word, rest);
    }
    return 0;
}

/* Frees all heap pages at the end of the VM: arenas as wholes, as each page would be a call of the system. */
static void
cow_exit_free_pages(rb_objspace_t *objspace)
{
    if (!COW_LOCATE_MALLOCED) {
        cow_arena_release_all(&cow_locate_space.arenas);
        return;
    }
    for (size_t i = 0; i < rb_darray_size(objspace->heap_pages.sorted); i++)
        heap_page_free(objspace, rb_darray_get(objspace->heap_pages.sorted, i));
}

#endif /* COW_EXIT_DUTIES_H */

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * heap_walk: ObjectSpace's walks of the heap.
 *
 * Job: a walk lists the pages of all heaps and calls back with runs of allocated slots, page by page. Other
 * Ractors may allocate meanwhile, so it writes nothing.
 *
 * Entry points: cow_walk_heap, rb_gc_impl_each_free_slots, objspace_each_objects and objspace_each_pages
 * (upstream's names); cow_page_each_run, cow_page_is_walked, cow_walks_postfork_child.
 *
 * Who writes this memory after a fork: nobody. A child frees the walks of threads that it does not have.
 */

static void gc_rest(rb_objspace_t *objspace);

/* A walk of the heap. Other Ractors may run meanwhile, claim slots of the pages and fill them, so the walk
 * writes nothing there. As long as a walk exists, nothing is marked in steps or swept lazily, the header of
 * an object that dies is emptied, and the page at which the walk is stays in its heap (cow_page_is_walked). A
 * walk whose Fiber is never resumed goes on until the process ends. */
struct cow_walk {
    struct cow_walk *next;
    rb_objspace_t *objspace;
    const void *thread; /* that walks. A child that another thread has forked drops the walk. */
    struct heap_page *page; /* at which the walk is */

    each_obj_callback *each_obj_callback; /* called with runs of slots; or NULL */
    bool free; /* with runs of free slots, not of allocated ones */
    each_page_callback *each_page_callback; /* called with each page; or NULL */
    void *data; /* the last argument of a callback */

    size_t ends[HEAP_COUNT]; /* index in .pages behind the last page of each heap */
    uintptr_t pages[]; /* .start of each page when the walk began */
};

/* Calls back with each run of allocated slots of a page, or of free ones. Slots that are claimed or freed
 * meanwhile may be among them or not. If the callback gives another value than 0, ends and gives that. */
static int
cow_page_each_run(const struct heap_page *page, bool free, each_obj_callback *callback, void *data)
{
    const uintptr_t end = cow_page_end(page), hole = cow_page_hole(page);
    const size_t size = page->slot_size;
    uintptr_t p = page->start;

    while (p < end) {
        const uintptr_t from = p;
        int result;

        while (p < end && p != hole &&
               cow_slot_map_has_shared(page->allocated_bits, cow_page_slot(page, p)) != free)
            p += size;
        if (p == from) p += size;
        else if ((result = (*callback)((void *)from, (void *)p, size, data)) != 0) return result;
    }
    return 0;
}

/* Begins a walk: lists all pages. Gives NULL if there is no memory. */
static struct cow_walk *
cow_walk_begin(rb_objspace_t *objspace)
{
    const unsigned int level = rb_gc_vm_lock();
    size_t count = 0;

    gc_rest(objspace);
    for (int i = 0; i < HEAP_COUNT; i++) count += heaps[i].total_pages;

    struct cow_walk *walk = malloc(sizeof(*walk) + count * sizeof(walk->pages[0]));
    if (walk) {
        *walk = (struct cow_walk){ .next = objspace->walks, .objspace = objspace };
        walk->thread = rb_gc_current_thread();
        count = 0;
        for (int i = 0; i < HEAP_COUNT; i++) {
            struct heap_page *page;

            ccan_list_for_each(&heaps[i].pages, page, page_node) walk->pages[count++] = page->start;
            walk->ends[i] = count;
        }
        objspace->walks = walk;
    }
    rb_gc_vm_unlock(level);
    return walk;
}

/* Is a walk at this page? The caller has the VM lock. */
static inline bool
cow_page_is_walked(const rb_objspace_t *objspace, const struct heap_page *page)
{
    const struct cow_walk *walk = objspace->walks;

    while (walk && walk->page != page) walk = walk->next;
    return walk != NULL;
}

/* Ends a walk; rb_ensure calls it. */
static VALUE
cow_walk_end(VALUE arg)
{
    struct cow_walk *walk = (struct cow_walk *)arg, **link = &walk->objspace->walks;
    const unsigned int level = rb_gc_vm_lock();

    while (*link != walk) link = &(*link)->next;
    *link = walk->next;
    rb_gc_vm_unlock(level);
    free(walk);
    return Qnil;
}

/* Drops, in a child, the walks of other threads than the one that forked: they do not exist in the child. */
static void
cow_walks_postfork_child(rb_objspace_t *objspace)
{
    struct cow_walk **link = &objspace->walks, *walk;

    while ((walk = *link) != NULL) {
        if (walk->thread == rb_gc_current_thread()) {
            link = &walk->next;
        }
        else {
            *link = walk->next;
            free(walk);
        }
    }
}

/* Makes the callbacks of a walk; rb_ensure calls it. */
static VALUE
cow_walk_go(VALUE arg)
{
    struct cow_walk *walk = (struct cow_walk *)arg;
    rb_objspace_t *objspace = walk->objspace;

    for (size_t i = 0, n = 0; i < HEAP_COUNT; n = walk->ends[i++]) {
        for (; n < walk->ends[i]; n++) {
            /* Since the walk began a fork may have reordered the pages, and pages may have been freed. */
            struct heap_page *page = walk->page = cow_locate_find_page(walk->pages[n]);

            if (page == NULL || page->heap != &heaps[i] || page->start != walk->pages[n]) continue;
            if (walk->each_obj_callback &&
                cow_page_each_run(page, walk->free, walk->each_obj_callback, walk->data) != 0)
                break;
            if (walk->each_page_callback && (*walk->each_page_callback)(page, walk->data) != 0) break;
        }
    }
    return Qnil;
}

/* Walks the heap with one of the two callbacks; the other is NULL. +free+ as in struct cow_walk. Raises
 * NoMemoryError if there is no memory. */
static void
cow_walk_heap(rb_objspace_t *objspace, each_obj_callback *each_run, bool free, each_page_callback *each_page,
              void *data)
{
    struct cow_walk *walk = cow_walk_begin(objspace);

    if (!walk) rb_memerror();
    walk->each_obj_callback = each_run;
    walk->free = free;
    walk->each_page_callback = each_page;
    walk->data = data;
    rb_ensure(cow_walk_go, (VALUE)walk, cow_walk_end, (VALUE)walk);
}

/* Calls back with each run of free slots (rb_objspace_each_free_slots). */
void
rb_gc_impl_each_free_slots(void *objspace_ptr, each_obj_callback *callback, void *data)
{
    cow_walk_heap(objspace_ptr, callback, true, NULL, data);
}

/* Upstream's entry point. Ignores +protected+, which protects upstream's walk from a sweep. */
static void
objspace_each_objects(rb_objspace_t *objspace, each_obj_callback *callback, void *data, bool protected)
{
    cow_walk_heap(objspace, callback, false, NULL, data);
}

/* Upstream's entry point; +protected+ likewise. */
static void
objspace_each_pages(rb_objspace_t *objspace, each_page_callback *callback, void *data, bool protected)
{
    cow_walk_heap(objspace, NULL, false, callback, data);
}

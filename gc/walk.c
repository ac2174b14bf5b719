/*
 * walk: ObjectSpace's walks of the heap.
 *
 * Job: a walk lists the pages that there are and calls back with runs of allocated slots, page by page. Other
 * Ractors may allocate beside it, so it writes nothing.
 *
 * Entry points: cow_walk_heap, objspace_each_objects and objspace_each_pages (upstream's names),
 * cow_page_is_walked, cow_walks_postfork_child.
 *
 * Who writes this memory after a fork: nobody.
 */

static void gc_rest(rb_objspace_t *objspace);

/*
 * A walk of the heap. Other Ractors may run beside it, take slots of the pages and fill them:
 * so it writes nothing there. While it goes on nothing is marked in steps or swept lazily,
 * what dies is made blank, and the page that it is at does not leave its heap (cow_page_is_walked).
 * A walk whose Fiber is never resumed holds that page and its own list, and no more.
 */
struct cow_walk {
    struct cow_walk *next;
    rb_objspace_t *objspace;
    const void *thread; /* whose walk it is: a child of another thread does not go on with it */
    struct heap_page *page; /* that it is at */

    each_obj_callback *each_obj_callback; /* with runs of slots; or NULL */
    bool free; /* of free slots, and not of those that are taken */
    each_page_callback *each_page_callback;
    void *data;

    size_t ends[HEAP_COUNT]; /* which of .pages are the last of each heap, and one more */
    uintptr_t pages[]; /* where those began when the walk did */
};

/* Calls back with each run of taken slots, or of free ones: slots taken or freed meanwhile
 * may be among them or not. Another value than 0 ends it, and is given. */
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

/* Gives NULL where there is no memory. */
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

/* Is a walk at this page? To be called under the VM lock. */
static inline bool
cow_page_is_walked(const rb_objspace_t *objspace, const struct heap_page *page)
{
    const struct cow_walk *walk = objspace->walks;

    while (walk && walk->page != page) walk = walk->next;
    return walk != NULL;
}

static VALUE
cow_walk_end(VALUE arg)
{
    struct cow_walk *walk = (struct cow_walk *)arg, **place = &walk->objspace->walks;
    const unsigned int level = rb_gc_vm_lock();

    while (*place != walk) place = &(*place)->next;
    *place = walk->next;
    rb_gc_vm_unlock(level);
    free(walk);
    return Qnil;
}

/* In a child only the thread that forked goes on with what it did. */
static void
cow_walks_postfork_child(rb_objspace_t *objspace)
{
    struct cow_walk **place = &objspace->walks, *walk;

    while ((walk = *place) != NULL) {
        if (walk->thread == rb_gc_current_thread()) {
            place = &walk->next;
        }
        else {
            *place = walk->next;
            free(walk);
        }
    }
}

static VALUE
cow_walk_go(VALUE arg)
{
    struct cow_walk *walk = (struct cow_walk *)arg;
    rb_objspace_t *objspace = walk->objspace;

    for (size_t i = 0, n = 0; i < HEAP_COUNT; n = walk->ends[i++]) {
        for (; n < walk->ends[i]; n++) {
            /* Meanwhile a fork may have given the pages another order, and pages may have gone. */
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

/* With one of both callbacks. */
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

void
rb_gc_impl_each_free_slots(void *objspace_ptr, each_obj_callback *callback, void *data)
{
    cow_walk_heap(objspace_ptr, callback, true, NULL, data);
}

/* Upstream's entry points. +protected+ is for upstream's way: ours writes nothing. */
static void
objspace_each_objects(rb_objspace_t *objspace, each_obj_callback *callback, void *data, bool protected)
{
    cow_walk_heap(objspace, callback, false, NULL, data);
}

static void
objspace_each_pages(rb_objspace_t *objspace, each_page_callback *callback, void *data, bool protected)
{
    cow_walk_heap(objspace, NULL, false, callback, data);
}

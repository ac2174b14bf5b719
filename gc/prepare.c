/*
 * prepare: brings the heap in order before a fork, and in Process.warmup.
 *
 * Job: full collections until hardly anything dies; all survivors become old; then the pages are sealed.
 * Finalizers run between collections, without the VM lock.
 *
 * Entry points: cow_seal_wanted, cow_seal_prepare, cow_prepare_heap, rb_gc_impl_prepare_heap.
 *
 * Who writes this memory after a fork: nobody: all of it happens before.
 */

/* How often Process.warmup collects at most, and after how few dead objects it stops. */
#ifndef COW_PREPARE_HEAP_MAX_ROUNDS
# define COW_PREPARE_HEAP_MAX_ROUNDS 4
#endif
#ifndef COW_PREPARE_HEAP_DEAD_SLOTS
# define COW_PREPARE_HEAP_DEAD_SLOTS 256
#endif

/* May the heap be sealed in this +mode+, and is it big enough? */
static bool
cow_seal_wanted(rb_objspace_t *objspace, enum cow_seal_mode mode)
{
    return gc_params.cow.seal_mode >= mode && gc_config_full_mark_val && !dont_gc_val() && !during_gc &&
           !finalizing && objspace_live_slots(objspace) >= COW_SEAL_LEAST_LIVE;
}

/* Takes the VM lock and stops the other Ractors; gives what cow_seal_unlock takes. Between the two no
 * Ruby runs: a finalizer that forked would wait for the lock that its own thread holds, and
 * what it made between a collection that promotes and the seal would be sealed, but young. */
static unsigned int
cow_seal_lock(void)
{
    unsigned int level = rb_gc_vm_lock();

    rb_gc_vm_barrier();
    return level;
}

static void
cow_seal_unlock(unsigned int level)
{
    rb_gc_vm_unlock(level);
}

/* One full collection after which all survivors are old, then seals.
 * Finalizers wait: the caller runs them, without the lock. */
static void
cow_seal_prepare(rb_objspace_t *objspace)
{
    unsigned int level = cow_seal_lock();

    gc_rest(objspace);
    garbage_collect(objspace, GPR_FLAG_AT_ONCE | GPR_FLAG_PROMOTE);
    if (!is_lazy_sweeping(objspace) && !is_incremental_marking(objspace)) {
        cow_seal_pages(objspace);
        cow_heap_allowance_reset(objspace);
    }
    cow_seal_unlock(level);
}

/* Opens what is sealed: Process.warmup compacts all. */
static void
cow_prepare_heap_begin(rb_objspace_t *objspace)
{
    unsigned int level = cow_seal_lock();

    gc_rest(objspace);
    for (int i = 0; i < HEAP_COUNT; i++) {
        while (heaps[i].seal.last) cow_seal_open_page(objspace, &heaps[i], heaps[i].seal.last);
    }
    for (int i = 0; i < HEAP_COUNT; i++) {
        struct heap_page *page;

        ccan_list_for_each(&heaps[i].pages, page, page_node) {
            cow_page_each_run(page, false, gc_set_candidate_object_i, objspace);
        }
    }
    cow_seal_unlock(level);
}

/* One collection of Process.warmup. When few objects died, or where +last+ says so, the heap
 * is in order: it is sealed then, if +seal+ says so, and true returned. */
static bool
cow_prepare_heap_round(rb_objspace_t *objspace, bool seal, bool last)
{
    unsigned int level = cow_seal_lock();
    size_t live_slots = objspace_live_slots(objspace);
    int full_marking_p = gc_config_full_mark_val;
    double orig_max_free_slots = gc_params.heap_free_slots_max_ratio;

    /* Other threads run between two rounds, so both are set for the collection alone.
     * The ratio moves all empty pages onto empty_pages. */
    gc_config_full_mark_set(TRUE);
    gc_params.heap_free_slots_max_ratio = 0.0;
    garbage_collect(objspace, GPR_FLAG_AT_ONCE | GPR_FLAG_COMPACT | (seal ? GPR_FLAG_PROMOTE : 0));
    gc_params.heap_free_slots_max_ratio = orig_max_free_slots;
    gc_config_full_mark_set(full_marking_p);

    /* What dies lets other objects die in the next GC (a symbol its name).
     * Each that is left costs every child an OS page. */
    last = last || objspace_live_slots(objspace) + COW_PREPARE_HEAP_DEAD_SLOTS >= live_slots;
    if (last) {
        objspace->heap_pages.allocatable_slots = 0;
        heap_pages_free_unused_pages(objspace);
        GC_ASSERT(objspace->empty_pages_count == 0);
        if (seal && !is_lazy_sweeping(objspace)) cow_seal_pages(objspace);
        cow_heap_allowance_reset(objspace);
    }
    cow_seal_unlock(level);
    return last;
}

/* Before a fork, whose code knows of no finalizers. */
static void
cow_finalize_as_job(void *objspace_ptr)
{
    rb_objspace_t *objspace = objspace_ptr;

    if (heap_pages_deferred_final) rb_gc_call_as_postponed_job(gc_finalize_deferred, objspace);
}

static void
cow_prepare_heap(rb_objspace_t *objspace, void (*finalize)(void *))
{
    bool seal = cow_seal_wanted(objspace, COW_SEAL_WARMUP);
    int rounds = COW_PREPARE_HEAP_MAX_ROUNDS;

    cow_prepare_heap_begin(objspace);
    do {
        (*finalize)(objspace);
    } while (!cow_prepare_heap_round(objspace, seal, --rounds == 0));
    (*finalize)(objspace);

#if defined(HAVE_MALLOC_TRIM) && !defined(RUBY_ALTERNATIVE_MALLOC_HEADER)
    malloc_trim(0);
#endif
}

void
rb_gc_impl_prepare_heap(void *objspace_ptr)
{
    cow_prepare_heap(objspace_ptr, gc_finalize_deferred);
}

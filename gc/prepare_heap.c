/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * prepare_heap: prepares the heap before a fork, and in Process.warmup.
 *
 * Job: before a fork makes one full collection; in Process.warmup, full collections until few objects die in
 * one. All survivors become old. Then the pages are sealed. Finalizers run between collections, without the
 * VM lock.
 *
 * Entry points: cow_seal_wanted, cow_seal_prepare, cow_prepare_heap, cow_prepare_heap_for_fork,
 * cow_finalize_as_job, rb_gc_impl_prepare_heap.
 *
 * Who writes this memory after a fork: nobody. All of it happens before the fork.
 */

/* The most collections of Process.warmup. */
#ifndef COW_PREPARE_HEAP_MAX_ROUNDS
# define COW_PREPARE_HEAP_MAX_ROUNDS 4
#endif
/* Process.warmup makes no further collection when one has freed at most so many objects. */
#ifndef COW_PREPARE_HEAP_DEAD_SLOTS
# define COW_PREPARE_HEAP_DEAD_SLOTS 256
#endif

#include "allocator.c"
#include "allocator_stat.c"

bool rb_gc_try_before_seal(void); /* vm_hooks.c */

/* May the heap be sealed if the setting is at least +mode+, and is it big enough? */
static bool
cow_seal_wanted(rb_objspace_t *objspace, enum cow_seal_mode mode)
{
    return gc_params.cow.seal_mode >= mode && gc_config_full_mark_val && !dont_gc_val() && !during_gc &&
           !finalizing && objspace_live_slots(objspace) >= COW_SEAL_LEAST_LIVE;
}

/* Takes the VM lock and stops the other Ractors; gives the lock's level for rb_gc_vm_unlock. No Ruby runs
 * between the two: a finalizer that forked would wait for the lock that its own thread holds, and an object
 * that it made between a collection that promotes and the seal would be sealed, but young. */
static unsigned int
cow_seal_lock(void)
{
    unsigned int level = rb_gc_vm_lock();

    rb_gc_vm_barrier();
    return level;
}

/* Makes one full collection after which all survivors are old, then seals the heap. Runs no finalizers: the
 * caller does so, without the lock. Gives false, and seals nothing, if there is no memory for it, or if it is
 * not wanted any more: another Ractor may have switched full collections off before the lock was taken. */
static bool
cow_seal_prepare(rb_objspace_t *objspace)
{
    unsigned int level = cow_seal_lock();

    gc_rest(objspace);
    if (!cow_seal_wanted(objspace, COW_SEAL_AUTO) || !rb_gc_try_before_seal()) {
        rb_gc_vm_unlock(level);
        return false;
    }
    garbage_collect(objspace, GPR_FLAG_AT_ONCE | GPR_FLAG_PROMOTE);
    if (!is_lazy_sweeping(objspace) && !is_incremental_marking(objspace)) {
        cow_seal_pages(objspace);
        cow_heap_allowance_reset(objspace);
    }
    cow_allocator_trim();
    rb_gc_vm_unlock(level);
    return true;
}

/* What rb_gc_try_before_seal does, for a fork. Gives false if there is no memory for it. */
static bool
cow_prepare_heap_for_fork(rb_objspace_t *objspace)
{
    unsigned int level = cow_seal_lock();

    gc_rest(objspace);
    bool done = rb_gc_try_before_seal();
    rb_gc_vm_unlock(level);
    return done;
}

/* Opens all sealed pages, because Process.warmup compacts the whole heap, and makes all objects candidates to
 * become old (gc_set_candidate_object_i). Raises NoMemoryError, without the lock, if there is no memory. */
static void
cow_prepare_heap_begin(rb_objspace_t *objspace)
{
    unsigned int level = cow_seal_lock();

    gc_rest(objspace);
    if (!rb_gc_try_before_seal()) {
        rb_gc_vm_unlock(level);
        rb_memerror();
    }
    gc_rest(objspace);
    for (int i = 0; i < HEAP_COUNT; i++) {
        while (heaps[i].seal.last) cow_seal_open_page(objspace, &heaps[i], heaps[i].seal.last);
        cow_seal_forget_opened(&heaps[i]);
    }
    for (int i = 0; i < HEAP_COUNT; i++) {
        struct heap_page *page;

        ccan_list_for_each(&heaps[i].pages, page, page_node) {
            cow_page_each_run(page, false, gc_set_candidate_object_i, objspace);
        }
    }
    rb_gc_vm_unlock(level);
}

/* Makes one collection of Process.warmup. If few objects died, or +last+ is true, the heap is in order: seals
 * it if +seal+ is true, and gives true. */
static bool
cow_prepare_heap_round(rb_objspace_t *objspace, bool seal, bool last)
{
    unsigned int level = cow_seal_lock();
    size_t live_slots = objspace_live_slots(objspace);
    int full_marking_p = gc_config_full_mark_val;
    double orig_max_free_slots = gc_params.heap_free_slots_max_ratio;

    /* Other threads run between two rounds, so both settings hold for this collection only. With this ratio
     * all empty pages go to empty_pages. */
    gc_config_full_mark_set(TRUE);
    gc_params.heap_free_slots_max_ratio = 0.0;
    garbage_collect(objspace, GPR_FLAG_AT_ONCE | GPR_FLAG_COMPACT | (seal ? GPR_FLAG_PROMOTE : 0));
    gc_params.heap_free_slots_max_ratio = orig_max_free_slots;
    gc_config_full_mark_set(full_marking_p);

    /* An object that dies lets others die in the next collection (a symbol its name). Each of these that is
     * left costs every child an OS page. */
    last = last || objspace_live_slots(objspace) + COW_PREPARE_HEAP_DEAD_SLOTS >= live_slots;
    if (last) {
        objspace->heap_pages.allocatable_slots = 0;
        heap_pages_free_unused_pages(objspace);
        GC_ASSERT(objspace->empty_pages_count == 0);
        if (seal && !is_lazy_sweeping(objspace)) cow_seal_pages(objspace);
        cow_heap_allowance_reset(objspace);
    }
    rb_gc_vm_unlock(level);
    return last;
}

/* Runs finalizers before a fork. The code that forks expects none, so they run as a postponed job does. */
static void
cow_finalize_as_job(void *objspace_ptr)
{
    rb_objspace_t *objspace = objspace_ptr;

    if (heap_pages_deferred_final) rb_gc_call_as_postponed_job(gc_finalize_deferred, objspace);
}

/* Prepares the heap as Process.warmup does, without the VM lock; +finalize+ runs finalizers between the
 * collections. */
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

    /* Another Ractor that forks has the allocator's state to itself by the same lock. */
    unsigned int level = rb_gc_vm_lock();
    cow_allocator_warmup();
    rb_gc_vm_unlock(level);
}

/* Process.warmup. */
void
rb_gc_impl_prepare_heap(void *objspace_ptr)
{
    cow_prepare_heap(objspace_ptr, gc_finalize_deferred);
}

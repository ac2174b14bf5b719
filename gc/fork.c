/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fork: what the collector does at a fork, in order.
 *
 *     cow_prefork            in the process that forks, before fork(2), without the VM lock:
 *         1. seal            prepares and seals the heap, if seal_policy.h says that it pays
 *         2. young tables    for the child are made (young_tables.h); that may collect
 *         3. finalizers      of dead objects run here, so that they do not run in both processes; then
 *                            handlers of signals
 *         4. mark stack      chunks that are not in use go back to the system
 *         5. VM words        that a child has freed are used again, if that child forks in turn
 *         6. malloc          what is free shall not be where a child allocates
 *         7. pressure        memory that both processes share is made
 *         8. report          a line on standard error, if RUBY_GC_FORK_REPORT asks for it (fork_report.h)
 *     cow_postfork_child     in the child, with the VM lock:
 *         1. malloc          gives the child an arena of its own, if it has arenas to give
 *         2. walks           of threads that do not exist in the child are dropped
 *         3. finalizers      that such a thread was running are left to the parent
 *         4. VM's words      that the parent has freed or not yet used are left alone
 *         5. seal            pages that the parent has sealed count as inherited, none as the child's own
 *         6. nursery         is sized by what the child has of its own
 *         7. growth          the model of a heap that is not inherited ends; its clocks start anew
 *         8. pressure        its clocks and counts of collections start anew
 *     cow_postfork_parent    in the parent, with the VM lock:
 *         1. nursery         is sized, because the sealed pages are shared from now on
 *         2. growth          the model rests meanwhile
 *
 * Entry points: rb_gc_impl_before_fork and rb_gc_impl_after_fork, which the VM calls.
 *
 * Who writes this memory after a fork: both processes write a few words of their objspace and of their heaps.
 */

#include "fork_report.h"

void rb_gc_check_ints(void); /* vm_hooks.c */
void rb_gc_allocate_for_child(void); /* vm_hooks.c */

/* Would a full collection find the memory that it needs? Maps so much memory and unmaps it. */
static bool
cow_seal_has_room(rb_objspace_t *objspace)
{
#if COW_HAS_MMAP
    size_t size = cow_seal_room(objspace_live_slots(objspace));
    void *room = cow_os_alloc(size);

    if (room == NULL) return false;
    cow_os->unmap(room, size);
#endif
    return true;
}

/* Prepares and seals the heap before a fork if seal_policy.h says that it is due, that it is paid for and
 * that there is memory for it. Without the VM lock. */
static void
cow_seal_before_fork(rb_objspace_t *objspace)
{
    if (!cow_seal_wanted(objspace, COW_SEAL_AUTO)) return;
    size_t survivors = cow_seal_survivors(objspace->seal.survivors, objspace_live_slots(objspace),
                                          1 - cow_growth_waste(&objspace->growth));
    bool exact = objspace->seal.exact && survivors == objspace->seal.survivors;
    struct cow_seal_budget *budget = &objspace->seal.budget, before = *budget;
    size_t collections = objspace->profile.major_gc_count;
    if (!cow_seal_due(survivors, objspace->seal.survivors_at_seal, COW_SEAL_LEAST_LIVE)) return;
    if (!cow_seal_paid(budget, survivors, exact)) return;
    if (!cow_seal_has_room(objspace)) return;

    /* Compaction moves objects; a walk that is not finished would miss them. */
    if (gc_params.cow.seal_compact && objspace->walks == NULL) {
        if (!cow_prepare_heap_for_fork(objspace)) return;
        cow_prepare_heap(objspace, cow_finalize_as_job);
    }
    else if (!cow_seal_prepare(objspace)) {
        return;
    }
    collections = objspace->profile.major_gc_count - collections;
    *budget = before;
    cow_seal_prepared(budget, survivors, exact, objspace->seal.live, objspace->seal.live * collections);
}

/* Sizes the nursery of a process that has forked (+child+ is false) or was forked; with the VM lock. Where
 * pages are sealed, inherited slots are those of sealed pages; elsewhere they are all slots. */
static void
cow_nursery_after_fork(rb_objspace_t *objspace, bool child)
{
    size_t total_slots = objspace_available_slots(objspace);
    size_t floor_slots = cow_nursery_floor_slots(objspace);
    size_t sealed_slots = cow_seal_total(objspace, slots);
    /* A child inherits open pages as well: where hardly any page is sealed, all its slots are inherited. */
    bool sealed = child ? !cow_seal_is_over(total_slots, sealed_slots) : sealed_slots > 0;

    if (sealed && objspace->seal.sized == objspace->seal.count) return;
    objspace->seal.sized = objspace->seal.count;

    for (int i = 0; i < HEAP_COUNT; i++) {
        rb_heap_t *heap = &heaps[i];
        heap->inherited =
            sealed ? cow_nursery_inherit(heap->seal.slots, heap->seal.slots, total_slots, floor_slots)
                   : cow_nursery_inherit(cow_heap_live_slots(objspace, heap), heap->total_slots, total_slots,
                                         floor_slots);
        heap->inherited.allocated = cow_heap_allocated_objects(objspace, heap);
    }
    if (total_slots <= floor_slots) return;

    size_t inherited_allowance = objspace->heap_pages.allocatable_slots;
    cow_heap_allowance_reset(objspace);
    objspace->heap_pages.allocatable_slots = MIN(objspace->heap_pages.allocatable_slots, inherited_allowance);
}

/* Ends the model in the child of a big process, and where the nursery's rule holds from now on; with the VM
 * lock. */
static void
cow_growth_after_fork(rb_objspace_t *objspace, bool child)
{
    if (child) {
        cow_growth_pause(&objspace->growth);
        /* With or without a nursery: its collections would be paid in shared pages. */
        size_t big = cow_nursery_floor(COW_NURSERY_LEAST_SLOTS, 0, gc_params.heap_free_slots_min_ratio);
        if (objspace_available_slots(objspace) > big) objspace->growth_limits.inherited = true;
    }
    cow_growth_limit(objspace);
}

/* Gives the bytes of the regions that +words+ has given to streams. */
static size_t
cow_fork_words_bytes(const struct cow_vm_words *words)
{
    size_t sum = 0;

    for (size_t i = 0; i < words->count; i++) {
        sum += words->regions[i].used;
    }
    return sum;
}

/* The process that has written its report last: a child has one of its own. */
static rb_pid_t cow_fork_reported;

/* Writes the report of a process before its first fork. Without the VM lock, because the line may have to
 * wait for its reader. */
static void
cow_fork_write_report(rb_objspace_t *objspace)
{
    const rb_pid_t pid = getpid();
    char line[COW_FORK_REPORT_LINE];

    if (cow_fork_reported == pid) return;
    cow_fork_reported = pid;

    unsigned int level = rb_gc_vm_lock();
    struct cow_fork_report report = {
        .pid = pid,
        .heap_pages = rb_darray_size(objspace->heap_pages.sorted),
        .sealed_pages = cow_seal_total(objspace, pages),
        .malloc_bytes = cow_allocator_allocated(),
        .vm_bytes = cow_fork_words_bytes(&cow_vm_words),
        .yjit_bytes = cow_fork_words_bytes(&cow_yjit_words)
    };
    rb_gc_vm_unlock(level);

    report.heap_bytes = report.heap_pages * HEAP_PAGE_SIZE;
    cow_fork_report_read(&report);
    cow_fork_report_write(STDERR_FILENO, line, cow_fork_report_text(&report, line));
}

/* Before fork(2), without the VM lock. */
static void
cow_prefork(rb_objspace_t *objspace)
{
    cow_seal_before_fork(objspace);
    rb_gc_allocate_for_child();
    cow_finalize_as_job(objspace);
    /* What has come until now is this process's alone. This thread runs no Ruby from here to fork(2); others
     * may until before_fork_ruby has the VM lock. */
    rb_gc_check_ints();

    /* Each process would write the chunks in its next collection, and so copy them. */
    unsigned int level = rb_gc_vm_lock();
    mark_stack_free_cache(&objspace->mark_stack);
    cow_vm_words_prefork(&cow_vm_words);
    cow_vm_words_prefork(&cow_yjit_words);
    cow_allocator_prefork(objspace->seal.count, total_allocated_objects(objspace),
                          objspace_live_slots(objspace));
    cow_pressure_prefork(objspace);
    rb_gc_vm_unlock(level);
    if (gc_params.cow.fork_report) cow_fork_write_report(objspace);
}

/* In the parent, with the VM lock; +forked+ is false if fork(2) failed. */
static void
cow_postfork_parent(rb_objspace_t *objspace, bool forked)
{
    /* The parent shares its sealed pages with the child from now on. */
    if (forked && gc_params.cow.nursery_least_slots > 0 && cow_seal_total(objspace, pages) > 0)
        cow_nursery_after_fork(objspace, false);
    cow_growth_after_fork(objspace, false);
}

/* Takes the finalizers, and what the parent frees with them, from a list of dead objects. Gives its last one;
 * 0: it is empty. */
static VALUE
cow_zombies_leave_to_parent(rb_objspace_t *objspace, VALUE zombies)
{
    VALUE last = 0;

    for (VALUE zombie = zombies; zombie; zombie = RZOMBIE(zombie)->next) {
        st_data_t key = zombie;

        RZOMBIE(zombie)->dfree = NULL;
        FL_UNSET_RAW(zombie, FL_FINALIZE);
        st_delete(finalizer_table, &key, NULL);
        last = zombie;
    }
    return last;
}

/* Where another thread of the parent was running finalizers it goes on with them there, and with those that
 * waited for it. Here their objects shall be freed without them, as others that die; files and memory that
 * they hold outside of the heap stay as they are. In the child, with the VM lock. */
static void
cow_finalizers_postfork_child(rb_objspace_t *objspace)
{
    const VALUE first = objspace->finalizer.zombies;
    VALUE last;

    if (!finalizing || objspace->finalizer.thread == rb_gc_current_thread()) return;
    cow_zombies_leave_to_parent(objspace, heap_pages_deferred_final);
    last = cow_zombies_leave_to_parent(objspace, first);
    if (last) {
        RZOMBIE(last)->next = heap_pages_deferred_final;
        heap_pages_deferred_final = first;
    }
    objspace->finalizer.zombies = 0;
    RUBY_ATOMIC_SET(finalizing, 0);
}

/* In the child, with the VM lock. */
static void
cow_postfork_child(rb_objspace_t *objspace)
{
    cow_allocator_inherit();
    objspace->flags.forked_child = TRUE;
    rb_gc_fork_depth++;
    cow_walks_postfork_child(objspace);
    cow_finalizers_postfork_child(objspace);
    cow_vm_words_inherit(&cow_vm_words);
    cow_vm_words_inherit(&cow_yjit_words);
    for (int i = 0; i < HEAP_COUNT; i++) {
        heaps[i].seal.last_inherited = heaps[i].seal.last;
    }
    objspace->seal.closed = 0;
    if (gc_params.cow.nursery_least_slots > 0) cow_nursery_after_fork(objspace, true);
    cow_growth_after_fork(objspace, true);
    cow_pressure_postfork_child(objspace);
}

void
rb_gc_impl_before_fork(void *objspace_ptr)
{
    cow_prefork(objspace_ptr);
}

void
rb_gc_impl_native_thread_started(void *objspace_ptr)
{
    cow_allocator_thread();
}

void
rb_gc_impl_after_fork(void *objspace_ptr, rb_pid_t pid)
{
    if (pid == 0) cow_postfork_child(objspace_ptr);
    else cow_postfork_parent(objspace_ptr, pid > 0);
}

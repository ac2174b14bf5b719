/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * pressure: gives memory back when others need it.
 *
 * Job: reads when a collection begins what pressure_files.h finds, with the other processes of the tree
 * (pressure_tree.h), and does what pressure_policy.h says: a smaller room (heap_growth.c), fewer free pages,
 * a full collection. At the end of the sweep the memory of empty pages and what malloc has free go back to
 * the system. Empty pages that a heap may soon want stay in the list, and read as 0 when they are used again.
 * Without pressure nothing is given back here, as the second seed found best.
 *
 * Entry points: cow_pressure_collect (a collection begins), cow_pressure_collects_first (a page is asked
 * for), cow_pressure_max_free (how many free slots are kept), cow_pressure_unlinks (how many pages a heap may
 * lose), cow_pressure_swept (all heaps are swept), cow_pressure_taken (an empty page is used again),
 * cow_pressure_prefork, cow_pressure_postfork_child, cow_pressure_mode_set. None of them changes errno.
 *
 * Who writes this memory after a fork: a process writes .pressure of its objspace at readings, and the
 * descriptors of the empty pages that it gives back.
 */

/* Is the process there? One that may not be asked is. */
static bool
cow_pressure_alive(int32_t pid)
{
#ifdef HAVE_KILL
    return kill(pid, 0) == 0 || errno != ESRCH;
#else
    return true;
#endif
}

/* Gives ns of the program's own time, all collections that were measured left out; +cpu+ is that of both. */
static double
cow_pressure_busy(rb_objspace_t *objspace, double cpu)
{
    return cpu - (double)objspace->profile.marking_time_ns - (double)objspace->profile.sweeping_time_ns;
}

/* Puts what the process and its tree take into +reading+. To ask for Pss takes ms in a big process, and most
 * of a second in one of 64 GB, so it is asked for less often while the sum is far from the limit, and where
 * it takes long. In between the process's anonymous memory says by how much it has grown or shrunk: else a
 * full collection that has freed enough would be followed by others. Files, which others may map, are left
 * out. */
static void
cow_pressure_read_own(struct cow_pressure_space *space, struct cow_pressure_reading *reading, uint64_t now)
{
    const double allowed = (double)gc_params.cow.memory_limit;
    const bool far = space->taken < allowed / 2;
    const uint64_t window = COW_PRESSURE_WINDOW_NS * (far ? 2 : 1);
    const bool asks = space->taken_at == 0 ||
                      now - space->taken_at >= MAX(window, cow_pressure_rest(space->taking));

    if (asks) {
        const double taken = cow_pressure_files_taken(&space->files, 0);

        if (taken < 0) return;
        space->taken = taken;
        if (space->tree) {
            const uint64_t started = cow_pressure_files_started(&space->files, 0);

            space->noted = cow_pressure_tree_account(space->tree, (int32_t)getpid(), started, taken, now);
            space->taken = cow_pressure_tree_sum(space->tree, &space->files, cow_pressure_alive, now);
            if (!space->noted) space->taken += taken;
        }
        const int64_t end = cow_os->clock();
        space->taken_at = end > (int64_t)now ? (uint64_t)end : now;
        space->taking = space->taken_at - now;
    }
    const double anonymous = cow_pressure_files_anonymous(&space->files);

    if (asks) space->taken_anonymous = anonymous;
    const bool known = anonymous >= 0 && space->taken_anonymous >= 0;

    reading->own = MAX(space->taken + (known ? anonymous - space->taken_anonymous : 0), 0);
    reading->own_allowed = allowed;
}

/* Takes a level into account, and counts it. */
static void
cow_pressure_found(struct cow_pressure_space *space, enum cow_pressure_level level,
                   enum cow_pressure_cause cause, uint64_t now)
{
    const enum cow_pressure_level before = space->policy.level;

    if (cow_pressure_note(&space->policy, level, cause, now)) {
        space->gives = true;
        space->causes[cause]++;
    }
    if (space->policy.level > before) space->levels[space->policy.level]++;
}

/* Makes a reading, or takes that of another process of the tree. Only where nothing is asked in particular
 * the processes share one; and each adds its own limit. */
static void
cow_pressure_sense(rb_objspace_t *objspace, uint64_t now)
{
    struct cow_pressure_space *const space = &objspace->pressure;
    const enum cow_pressure_mode mode = gc_params.cow.pressure_mode;
    struct cow_pressure_tree *const tree = mode == COW_PRESSURE_AUTO ? space->tree : NULL;
    struct cow_pressure_reading reading = COW_PRESSURE_NO_READING, own = COW_PRESSURE_NO_READING;
    enum cow_pressure_cause cause, own_cause;
    enum cow_pressure_level level, own_level;
    bool files = false;

    if (!cow_pressure_due(&space->policy, now)) return;
    space->policy.read_at = now;
    if (tree == NULL || cow_pressure_tree_due(tree, now)) {
        space->readings++;
        files = cow_pressure_files_read(&space->files, tree ? &tree->sums : &space->sums, &reading, mode,
                                        getenv("MEMORY_PRESSURE_WATCH"), now);
        level = cow_pressure_of(&reading, &cause);
        if (tree) cow_pressure_tree_publish(tree, level, cause, files, now);
    }
    else {
        level = cow_pressure_tree_level(tree, &cause, &files, now);
    }
    space->faults_only = !files;

    if (gc_params.cow.memory_limit > 0) cow_pressure_read_own(space, &own, now);
    own_level = cow_pressure_of(&own, &own_cause);
    cow_pressure_raise(&level, &cause, own_level, own_cause);
    cow_pressure_found(space, level, cause, now);
}

/* Called when a collection begins. Where it shall be a full one, asks for that as upstream does, in
 * gc_needs_major_flags. */
static void
cow_pressure_collect(rb_objspace_t *objspace)
{
    struct cow_pressure_space *const space = &objspace->pressure;
    const int saved = errno;

    if (gc_params.cow.pressure_mode == COW_PRESSURE_OFF) return;
    const int64_t now = cow_os->clock();
    if (now > 0) cow_pressure_sense(objspace, (uint64_t)now);
    if (now > 0 && space->policy.level == COW_PRESSURE_CRITICAL && gc_config_full_mark_val) {
        const double cpu = cow_process_cpu();

        if (cow_pressure_collects(&space->policy, (uint64_t)now, cow_pressure_busy(objspace, cpu)) &&
            (space->tree == NULL || cow_pressure_tree_turn(space->tree, (int32_t)getpid(),
                                                           cow_pressure_alive, (uint64_t)now))) {
            space->collections++;
            space->collecting = true;
            space->began = cpu;
            space->resident = cow_pressure_files_resident(&space->files, "/proc/self");
            space->gives = true;
            gc_needs_major_flags |= GPR_FLAG_MAJOR_BY_FORCE | GPR_FLAG_IMMEDIATE_MARK;
            objspace->flags.immediate_sweep = TRUE;
        }
    }
    errno = saved;
}

/* Called when a heap that has no free slot asks for a page. Gives true if the process shall collect before it
 * grows, because it has waited for a page that was not in memory since it asked last. */
static bool
cow_pressure_collects_first(rb_objspace_t *objspace)
{
    struct cow_pressure_space *const space = &objspace->pressure;
    const enum cow_pressure_mode mode = gc_params.cow.pressure_mode;
    const int saved = errno;
    bool collects = false;

    if (mode != COW_PRESSURE_RUSAGE && (mode != COW_PRESSURE_AUTO || !space->faults_only)) return false;
    if (gc_mode(objspace) != gc_mode_none || dont_gc_val() || during_gc) return false;

    const long faults = cow_os->faults();
    const int64_t now = cow_os->clock();
    if (faults >= 0 && now > 0 && cow_pressure_fault(&space->policy, faults, (uint64_t)now)) {
        cow_pressure_found(space, COW_PRESSURE_MODERATE, COW_PRESSURE_FAULTS, (uint64_t)now);
        collects = true;
    }
    errno = saved;
    return collects;
}

/* Gives the memory of empty pages back, in one call that of neighbours that were added one after the other.
 * Gives how many bytes. */
static size_t
cow_pressure_release_pages(rb_objspace_t *objspace)
{
    const size_t count = rb_darray_size(objspace->heap_pages.sorted);
    size_t bytes = 0, first = 0, wanted = 0;

    if (!cow_locate_can_decommit()) return 0;
    for (struct heap_page *page = objspace->empty_pages; page; page = page->free_next) {
        page->flags.give_back = !page->flags.given_back;
        wanted += page->flags.give_back;
    }
    while (wanted > 0 && first < count) {
        char *const from = (char *)rb_darray_get(objspace->heap_pages.sorted, first)->body;
        size_t end = first;

        while (end < count && rb_darray_get(objspace->heap_pages.sorted, end)->flags.give_back &&
               (char *)rb_darray_get(objspace->heap_pages.sorted, end)->body ==
                   from + (end - first) * HEAP_PAGE_SIZE) {
            end++;
        }
        const bool given = end > first && cow_locate_decommit(from, (end - first) * HEAP_PAGE_SIZE);
        if (given) bytes += (end - first) * HEAP_PAGE_SIZE;
        for (size_t i = first; i < end; i++) {
            struct heap_page *page = rb_darray_get(objspace->heap_pages.sorted, i);
            page->flags.give_back = FALSE;
            page->flags.given_back = given;
        }
        wanted -= end - first;
        first = MAX(end, first + 1);
    }
    return bytes;
}

/* Called when all heaps are swept, and before empty pages are freed. */
static void
cow_pressure_swept(rb_objspace_t *objspace)
{
    struct cow_pressure_space *const space = &objspace->pressure;
    const int saved = errno;

    if (space->gives) {
        space->gives = false;
        space->released_bytes += cow_pressure_release_pages(objspace);
        space->releases++;
        cow_allocator_release(objspace->flags.forked_child, space->policy.level == COW_PRESSURE_CRITICAL);
    }
    if (space->collecting) {
        const int64_t now = cow_os->clock();
        const double cpu = cow_process_cpu();

        space->collecting = false;
        /* Its own time is not yet among what was measured: twice its time passes until the next one. */
        cow_pressure_collected(&space->policy, now > 0 ? (uint64_t)now : 1, cow_pressure_busy(objspace, cpu),
                               cpu > space->began ? cpu - space->began : 0, space->resident,
                               cow_pressure_files_resident(&space->files, "/proc/self"));
        if (space->tree) cow_pressure_tree_done(space->tree, (int32_t)getpid());
    }
    errno = saved;
}

/* Called when an empty page is taken from the list. */
static inline void
cow_pressure_taken(struct heap_page *page)
{
    if (RB_UNLIKELY(page->flags.given_back)) page->flags.given_back = FALSE;
}

/* Gives how many free slots the heaps keep, of which they need +least+ and would keep +most+ when calm. */
static size_t
cow_pressure_max_free(rb_objspace_t *objspace, size_t least, size_t most)
{
    if (most <= least) return most;
    switch (objspace->pressure.policy.level) {
      case COW_PRESSURE_CALM: return most;
      case COW_PRESSURE_MODERATE: return least + (most - least) / 2;
      default: return least;
    }
}

/* Gives how many pages a step of the sweep may take from its heap: +usual+, or all that are empty if this
 * collection gives memory back. */
static int
cow_pressure_unlinks(rb_objspace_t *objspace, int usual)
{
    return objspace->pressure.gives ? INT_MAX : usual;
}

/* Makes a note in the tree of the process, which may not collect for a long time, as a master that waits:
 * others ask the kernel what it takes, when they add up. It does not say itself: Pss falls with each fork,
 * and a note that others may not renew stays. */
static void
cow_pressure_note_at_fork(struct cow_pressure_space *space)
{
    if (gc_params.cow.pressure_mode == COW_PRESSURE_OFF || gc_params.cow.memory_limit == 0) return;
    if (space->tree == NULL || space->noted) return;
    space->noted = cow_pressure_tree_account(space->tree, (int32_t)getpid(),
                                             cow_pressure_files_started(&space->files, 0), 0, 0);
}

/* Makes the memory that the process shares with all that it forks. Where there is none each process reads
 * for itself. */
static void
cow_pressure_prefork(rb_objspace_t *objspace)
{
#if COW_HAS_MMAP
    struct cow_pressure_space *const space = &objspace->pressure;

    if (gc_params.cow.pressure_mode == COW_PRESSURE_OFF) return;
    if (space->tree == NULL) {
        void *memory = cow_os->map(NULL, sizeof(struct cow_pressure_tree), PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED) return;
        space->tree = memory;
        cow_pressure_tree_begin(space->tree, cow_os_processors());
    }
    cow_pressure_note_at_fork(space);
#endif
}

static void
cow_pressure_postfork_child(rb_objspace_t *objspace)
{
    struct cow_pressure_space *const space = &objspace->pressure;

    space->policy.faults_known = false;
    space->policy.collected_at = 0;
    space->policy.busy_ns = 0;
    space->policy.wait_ns = 0;
    space->collecting = space->gives = space->noted = false;
    space->taken_at = 0;
    cow_pressure_note_at_fork(space);
}

/* Sets RUBY_GC_PRESSURE from Ruby: what was read before is forgotten. */
static void
cow_pressure_mode_set(rb_objspace_t *objspace, enum cow_pressure_mode mode)
{
    gc_params.cow.pressure_mode = mode;
    objspace->pressure.policy = (struct cow_pressure){ 0 };
    objspace->pressure.sums = (struct cow_pressure_sums){ 0 };
    objspace->pressure.faults_only = false;
    cow_growth_limit(objspace);
}

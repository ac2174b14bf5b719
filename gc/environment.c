/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * environment: reads CowRuby's environment variables (doc/settings.md) when the process starts. For a bad
 * value it warns and keeps the default.
 *
 * Entry point: cow_read_settings.
 *
 * Who writes this memory after a fork: nobody.
 */

/* Reads the environment. +sized_by_user+ says that upstream's settings size the heap; then the nursery is
 * off. */
static void
cow_read_settings(bool sized_by_user)
{
    bool fork_nursery = true;
    const char *env = getenv("RUBY_GC_FORK_NURSERY");
    if (!cow_setting_switch(env, &fork_nursery)) {
        rb_warn("RUBY_GC_FORK_NURSERY=%s is ignored: it must be 0 or 1", env);
    }
    env = getenv("RUBY_GC_FORK_NURSERY_SLOTS");
    if (!get_envparam_size("RUBY_GC_FORK_NURSERY_SLOTS", &gc_params.cow.nursery_least_slots, 0) && env &&
        *env) {
        rb_warn("RUBY_GC_FORK_NURSERY_SLOTS=%s is ignored: it must be a number of slots greater than 0", env);
    }
    if (sized_by_user || !fork_nursery) gc_params.cow.nursery_least_slots = 0;

    env = getenv("RUBY_GC_SEAL");
    if (!cow_seal_mode_read(env, &gc_params.cow.seal_mode)) {
        rb_warn("RUBY_GC_SEAL=%s is ignored: it must be auto, warmup or off", env);
    }
    env = getenv("RUBY_GC_FORK_COMPACT");
    if (!cow_setting_switch(env, &gc_params.cow.seal_compact)) {
        rb_warn("RUBY_GC_FORK_COMPACT=%s is ignored: it must be 0 or 1", env);
    }
    if (gc_params.cow.seal_compact && !GC_COMPACTION_SUPPORTED) {
        rb_warn("RUBY_GC_FORK_COMPACT=%s is ignored: this heap cannot be compacted", env);
        gc_params.cow.seal_compact = false;
    }

    bool fork_malloc = true;
    env = getenv("RUBY_GC_FORK_MALLOC");
    if (!cow_setting_switch(env, &fork_malloc)) {
        rb_warn("RUBY_GC_FORK_MALLOC=%s is ignored: it must be 0 or 1", env);
    }
    size_t leave_limit = COW_ALLOCATOR_LEAVE_LIMIT;
    env = getenv("RUBY_GC_FORK_MALLOC_LEAVE");
    if (env && strcmp(env, "0") == 0) {
        leave_limit = 0;
    }
    else if (!get_envparam_size("RUBY_GC_FORK_MALLOC_LEAVE", &leave_limit, 0) && env && *env) {
        rb_warn("RUBY_GC_FORK_MALLOC_LEAVE=%s is ignored: it must be a number of bytes", env);
    }
    cow_allocator_find(fork_malloc, leave_limit);

    env = getenv("RUBY_GC_SWEEP");
    if (!cow_sweep_mode_read(env, &gc_params.cow.sweep_mode)) {
        rb_warn("RUBY_GC_SWEEP=%s is ignored: it must be keep, discard or visit-all", env);
    }
}

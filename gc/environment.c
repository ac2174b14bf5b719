/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * environment: reads CowRuby's environment variables (doc/settings.md) when the process starts. For a bad
 * value it warns and keeps the default.
 *
 * Entry points: cow_given, cow_read_settings.
 *
 * Who writes this memory after a fork: nobody.
 */

#include "allocator.c"

/* Notes that a setting of upstream's is given, which decides +what+ (enum cow_given), if +given+. */
static bool
cow_given(enum cow_given what, bool given)
{
    if (given) gc_params.cow.given |= what;
    return given;
}

/* Reads the environment, after upstream's settings. Where they say how many slots are free, the nursery is
 * off. */
static void
cow_read_settings(void)
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
    if ((gc_params.cow.given & COW_GIVEN_FREE_SLOTS) || !fork_nursery) gc_params.cow.nursery_least_slots = 0;

    env = getenv("RUBY_GC_TARGET_TIME");
    double target_time = gc_params.cow.target_time;
    if (cow_setting_number(env, &target_time) && cow_growth_target(target_time)) {
        gc_params.cow.target_time = target_time;
    }
    else {
        rb_warn("RUBY_GC_TARGET_TIME=%s is ignored: it must be 0 or a number from %g to %g, in per cent", env,
                COW_GROWTH_LEAST_TARGET_TIME, COW_GROWTH_MOST_TARGET_TIME);
    }

    env = getenv("RUBY_GC_PRESSURE");
    if (!cow_pressure_mode_read(env, &gc_params.cow.pressure_mode)) {
        rb_warn("RUBY_GC_PRESSURE=%s is ignored: it must be auto, rusage, psi, cgroup or off", env);
    }
    env = getenv("RUBY_GC_MEMORY_LIMIT");
    if (!cow_setting_bytes(env, &gc_params.cow.memory_limit)) {
        rb_warn("RUBY_GC_MEMORY_LIMIT=%s is ignored: it must be a number of bytes", env);
    }

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

    env = getenv("RUBY_GC_FORK_REPORT");
    if (!cow_setting_switch(env, &gc_params.cow.fork_report)) {
        rb_warn("RUBY_GC_FORK_REPORT=%s is ignored: it must be 0 or 1", env);
    }

    bool fork_malloc = true;
    env = getenv("RUBY_GC_FORK_MALLOC");
    if (!cow_setting_switch(env, &fork_malloc)) {
        rb_warn("RUBY_GC_FORK_MALLOC=%s is ignored: it must be 0 or 1", env);
    }
    size_t leave_limit = COW_ALLOCATOR_LEAVE_LIMIT;
    env = getenv("RUBY_GC_FORK_MALLOC_LEAVE");
    if (!cow_setting_bytes(env, &leave_limit)) {
        rb_warn("RUBY_GC_FORK_MALLOC_LEAVE=%s is ignored: it must be a number of bytes", env);
    }
    cow_allocator_find(fork_malloc, leave_limit);

    env = getenv("RUBY_GC_SWEEP");
    if (!cow_sweep_mode_read(env, &gc_params.cow.sweep_mode)) {
        rb_warn("RUBY_GC_SWEEP=%s is ignored: it must be keep, discard or visit-all", env);
    }
}

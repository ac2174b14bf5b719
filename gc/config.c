/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * config: CowRuby's keys of GC.config (doc/settings.md).
 *
 * Job: values are converted by methods of theirs, which may raise, change the hash that was given, or let
 * other threads do so. So all are read, from a copy that nobody else sees, before any is set.
 *
 * Entry points: cow_config_get, cow_config_read, cow_config_set.
 *
 * Who writes this memory after a fork: a process writes its settings in GC.config.
 */

enum {
    COW_CONFIG_SEAL = 1,
    COW_CONFIG_TARGET_TIME = 2,
    COW_CONFIG_PRESSURE = 4,
    COW_CONFIG_MEMORY_LIMIT = 8
};

/* What GC.config is to set: of the keys of CowRuby those in .given. */
struct cow_config {
    unsigned int given; /* a sum */
    enum cow_seal_mode seal;
    double target_time;
    enum cow_pressure_mode pressure;
    size_t memory_limit;
    VALUE hash; /* the copy */
};

static void
cow_config_get(VALUE hash)
{
#define SET(key, value) rb_hash_aset(hash, ID2SYM(rb_intern(key)), (value))
    SET("seal", ID2SYM(rb_intern(cow_seal_mode_names[gc_params.cow.seal_mode])));
    SET("target_time", DBL2NUM(gc_params.cow.target_time));
    SET("pressure", ID2SYM(rb_intern(cow_pressure_mode_names[gc_params.cow.pressure_mode])));
    SET("memory_limit", SIZET2NUM(gc_params.cow.memory_limit));
#undef SET
}

static void
cow_config_read_seal(struct cow_config *config, VALUE value)
{
    VALUE name = rb_String(value);

    if (RSTRING_LEN(name) == 0 || !cow_seal_mode_read(StringValueCStr(name), &config->seal))
        rb_raise(rb_eArgError, "seal must be :auto, :warmup or :off, not %+"PRIsVALUE, value);
}

static void
cow_config_read_target_time(struct cow_config *config, VALUE value)
{
    const double percent = NUM2DBL(value);

    if (!cow_growth_target(percent)) {
        rb_raise(rb_eArgError, "target_time must be 0 or a number from %g to %g, not %+"PRIsVALUE,
                 COW_GROWTH_LEAST_TARGET_TIME, COW_GROWTH_MOST_TARGET_TIME, value);
    }
    config->target_time = percent == 0 ? 0 : percent; /* not -0 */
}

static void
cow_config_read_pressure(struct cow_config *config, VALUE value)
{
    VALUE name = rb_String(value);

    if (RSTRING_LEN(name) == 0 || !cow_pressure_mode_read(StringValueCStr(name), &config->pressure)) {
        rb_raise(rb_eArgError, "pressure must be :auto, :rusage, :psi, :cgroup or :off, not %+"PRIsVALUE,
                 value);
    }
}

/* A number of bytes; 0 or nil: no limit. */
static void
cow_config_read_memory_limit(struct cow_config *config, VALUE value)
{
    const ssize_t limit = NIL_P(value) ? 0 : NUM2SSIZET(value);

    if (limit < 0) rb_raise(rb_eArgError, "memory_limit must be a number of bytes, not %+"PRIsVALUE, value);
    config->memory_limit = (size_t)limit;
}

static int
cow_config_read_key(st_data_t key, st_data_t value, st_data_t data)
{
    static const struct {
        const char *name;
        unsigned int given;
        void (*read)(struct cow_config *config, VALUE value);
    } keys[] = {
        { "seal", COW_CONFIG_SEAL, cow_config_read_seal },
        { "target_time", COW_CONFIG_TARGET_TIME, cow_config_read_target_time },
        { "pressure", COW_CONFIG_PRESSURE, cow_config_read_pressure },
        { "memory_limit", COW_CONFIG_MEMORY_LIMIT, cow_config_read_memory_limit },
    };
    struct cow_config *const config = (struct cow_config *)data;
    const ID id = rb_sym2id((VALUE)key);

    for (int i = 0; i < numberof(keys); i++) {
        if (id != rb_intern(keys[i].name)) continue;
        keys[i].read(config, (VALUE)value);
        config->given |= keys[i].given;
    }
    return ST_CONTINUE;
}

/* Gives what GC.config shall set by +hash+, and changes +hash+ to a copy. Raises ArgumentError, RangeError or
 * TypeError for a value that a key of CowRuby cannot have, TypeError for a key that is no symbol. */
static struct cow_config
cow_config_read(VALUE *hash)
{
    struct cow_config config = { 0 };

    *hash = config.hash = rb_obj_hide(rb_hash_dup(*hash));
    rb_hash_stlike_foreach(config.hash, cow_config_read_key, (st_data_t)&config);
    return config;
}

/* Sets it. */
static void
cow_config_set(rb_objspace_t *objspace, struct cow_config *config)
{
    if (config->given & COW_CONFIG_SEAL) gc_params.cow.seal_mode = config->seal;
    if (config->given & COW_CONFIG_TARGET_TIME) cow_target_time_set(objspace, config->target_time);
    if (config->given & COW_CONFIG_PRESSURE) cow_pressure_mode_set(objspace, config->pressure);
    if (config->given & COW_CONFIG_MEMORY_LIMIT) gc_params.cow.memory_limit = config->memory_limit;
    RB_GC_GUARD(config->hash);
}

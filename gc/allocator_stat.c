/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * allocator_stat: GC.malloc_stat, what malloc holds.
 *
 * Entry point: cow_malloc_stat, the method.
 *
 * Who writes this memory after a fork: nobody. jemalloc writes the figures that it gathers.
 */

/* Sets +key+ of +hash+ to a number of bytes or of other things. */
static void
cow_malloc_stat_set(VALUE hash, const char *key, size_t value)
{
    rb_hash_aset(hash, ID2SYM(rb_intern(key)), SIZET2NUM(value));
}

/* Adds an entry to +arenas+, and gives it. */
static VALUE
cow_malloc_stat_arena(VALUE arenas, size_t index, size_t allocated)
{
    VALUE arena = rb_hash_new();

    cow_malloc_stat_set(arena, "index", index);
    cow_malloc_stat_set(arena, "allocated_bytes", allocated);
    rb_ary_push(arenas, arena);
    return arena;
}

/* Gives a number of jemalloc's for an arena; 0 if it has none of that name. */
static size_t
cow_jemalloc_number(const char *format, unsigned arena)
{
    char name[64];
    size_t number = 0, size = sizeof(number);

    snprintf(name, sizeof(name), format, arena);
    return cow_allocator.calls.control(name, &number, &size, NULL, 0) == 0 ? number : 0;
}

/* Adds jemalloc's arenas to +arenas+; gives what is allocated in those of this process. */
static size_t
cow_jemalloc_arenas(VALUE arenas)
{
    const struct cow_allocator *const a = &cow_allocator;
    const unsigned count = cow_jemalloc_arena_count();
    size_t size, sum = 0;

    for (unsigned i = 0; i < count; i++) {
        char name[64];
        bool initialized = false, own = a->own_arena == NULL || *a->own_arena == i;

        size = sizeof(initialized);
        snprintf(name, sizeof(name), "arena.%u.initialized", i);
        if (a->calls.control(name, &initialized, &size, NULL, 0) != 0 || !initialized) continue;
        size_t allocated = cow_jemalloc_number("stats.arenas.%u.small.allocated", i) +
                           cow_jemalloc_number("stats.arenas.%u.large.allocated", i);
        VALUE arena = cow_malloc_stat_arena(arenas, i, allocated);

        cow_malloc_stat_set(arena, "resident_bytes", cow_jemalloc_number("stats.arenas.%u.resident", i));
        if (a->on) rb_hash_aset(arena, ID2SYM(rb_intern("own")), RBOOL(own));
        if (own) sum += allocated;
    }
    return sum;
}

/* Adds glibc's arenas to +arenas+, from the text that malloc_info writes. */
static void
cow_glibc_arenas(VALUE arenas)
{
#if COW_ALLOCATOR_FINDS && defined(__GLIBC__)
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);

    if (stream == NULL) return;
    malloc_info(0, stream);
    if (fclose(stream) != 0) {
        free(text);
        return;
    }

    unsigned index = 0;
    size_t free_bytes = 0, size;
    bool in_heap = false; /* after the arenas come their sums */

    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (sscanf(line, "<heap nr=\"%u\">", &index) == 1) {
            in_heap = true;
            free_bytes = 0;
        }
        else if (sscanf(line, "<total type=\"%*[a-z]\" count=\"%*u\" size=\"%zu\"/>", &size) == 1) {
            free_bytes += size;
        }
        else if (in_heap && sscanf(line, "<system type=\"current\" size=\"%zu\"/>", &size) == 1) {
            cow_malloc_stat_arena(arenas, index, size - MIN(size, free_bytes));
            in_heap = false;
        }
    }
    free(text);
#endif
}

/*
 *  call-seq:
 *    GC.malloc_stat -> hash
 *
 *  Gives what malloc holds, in a hash: the keys are in doc/settings.md. What the allocator does not tell is
 *  missing.
 */
static VALUE
cow_malloc_stat(VALUE self)
{
    const struct cow_allocator *const a = &cow_allocator;
    VALUE hash = rb_hash_new(), arenas = rb_ary_new();
    size_t allocated = cow_allocator_allocated();

    rb_hash_aset(hash, ID2SYM(rb_intern("allocator")), rb_str_new_cstr(cow_allocator_name()));
    if (allocated > 0) {
        size_t own = allocated;

        if (a->kind == COW_ALLOCATOR_JEMALLOC) own = cow_jemalloc_arenas(arenas);
        else {
            own -= MIN(own, a->inherited_bytes);
            cow_glibc_arenas(arenas);
        }
        cow_malloc_stat_set(hash, "allocated_bytes", allocated);
        if (a->on) { /* otherwise nobody has noted it at the fork */
            cow_malloc_stat_set(hash, "own_bytes", MIN(own, allocated));
            cow_malloc_stat_set(hash, "inherited_bytes", allocated - MIN(own, allocated));
        }
        if (a->kind == COW_ALLOCATOR_JEMALLOC)
            cow_malloc_stat_set(hash, "resident_bytes", cow_jemalloc_number("stats.resident", 0));
        rb_hash_aset(hash, ID2SYM(rb_intern("arenas")), arenas);
    }
    cow_malloc_stat_set(hash, "filler_bytes", a->filler_bytes);
    cow_malloc_stat_set(hash, "left_bytes", a->left_bytes);
    cow_malloc_stat_set(hash, "left_blocks", a->left_blocks);
    return hash;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * allocator.h, with calls that stand for jemalloc's and mimalloc's; test_allocator_glibc.c has glibc's:
 * cc -I../../gc test_allocator.c -lcmocka
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "allocator.c"
#include "os.c"

/* What the calls below were asked for. */
static struct {
    int flushes, purges, arena_purges, creations, switches;
    int background_starts, uncached_frees, uncached_reallocations;
    unsigned arena;
    bool background, refuses;
} asked;

static int
control(const char *name, void *old, size_t *old_size, void *new_value, size_t new_size)
{
    unsigned arena;

    if (asked.refuses) return EAGAIN;
    if (strcmp(name, "thread.tcache.flush") == 0) asked.flushes++;
    else if (strcmp(name, "arena.4096.purge") == 0) asked.purges++;
    else if (strcmp(name, "arenas.create") == 0) *(unsigned *)old = (unsigned)(7 + asked.creations++);
    else if (strcmp(name, "thread.arena") == 0) asked.switches++, asked.arena = *(unsigned *)new_value;
    else if (strcmp(name, "background_thread") == 0 && old) *(bool *)old = asked.background;
    else if (strcmp(name, "background_thread") == 0) asked.background_starts += *(bool *)new_value;
    else if (strcmp(name, "arenas.narenas") == 0) *(unsigned *)old = (unsigned)(7 + asked.creations);
    else if (sscanf(name, "arena.%u.purge", &arena) == 1) {
        assert_int_not_equal(arena, asked.arena);
        asked.arena_purges++;
    }
    else return ENOENT;
    return 0;
}

static void
deallocate(void *block, int flags)
{
    assert_int_equal(flags, COW_JEMALLOC_UNCACHED);
    asked.uncached_frees++;
    free(block);
}

static void *
reallocate(void *block, size_t size, int flags)
{
    assert_int_equal(flags, COW_JEMALLOC_UNCACHED);
    asked.uncached_reallocations++;
    return realloc(block, size);
}

/* Sets up an allocator in which nothing is inherited yet. */
static int
setup(void **state)
{
    memset(&asked, 0, sizeof(asked));
    if (cow_allocator.inherited) cow_os_free(cow_allocator.inherited, COW_ALLOCATOR_MAP_SIZE);
    if (cow_allocator.children_inherited)
        cow_os_free(cow_allocator.children_inherited, COW_ALLOCATOR_MAP_SIZE);
    memset(&cow_allocator, 0, sizeof(cow_allocator));
    return 0;
}

static void
be_jemalloc(void)
{
    cow_allocator.on = true;
    cow_allocator.kind = COW_ALLOCATOR_JEMALLOC;
    cow_allocator.calls =
        (struct cow_allocator_calls){ control, .deallocate = deallocate, .reallocate = reallocate };
}

static void
test_nothing_is_inherited_before_a_fork(void **state)
{
    void *block = malloc(100);

    be_jemalloc();
    assert_false(cow_allocator_inherited_p(block));
    block = cow_allocator_realloc(block, 200);
    assert_non_null(block);
    cow_allocator_free(block);
    assert_int_equal(asked.uncached_frees + asked.uncached_reallocations, 0);
}

/* AddressSanitizer's malloc is another one, of which nothing is known. */
static void
test_another_malloc(void **state)
{
    cow_allocator_find(true, 1000);
    assert_string_equal(cow_allocator_name(), "other");
    cow_allocator_trim();
    cow_allocator_prefork(1, 0, 1);
    cow_allocator_inherit();
    assert_int_equal(cow_allocator_allocated(), 0);
    cow_allocator_free(cow_allocator_realloc(malloc(10), 20));
    assert_int_equal(cow_allocator.left_blocks, 0);
}

static void
test_marks(void **state)
{
    unsigned char *map = cow_os_alloc(COW_ALLOCATOR_MAP_SIZE);
    const uintptr_t region = (uintptr_t)1 << COW_ALLOCATOR_REGION_SHIFT;

    cow_allocator.inherited = map;
    cow_allocator_mark(map, 5 * region + 4096, 7 * region); /* its end is not a part of it */
    cow_allocator_mark_line(map, "2000000-2001000 rw-p 00000000 00:00 0");        /* region 16 */
    cow_allocator_mark_line(map, "2200000-2201000 r--p 00000000 00:00 0");        /* is not written */
    cow_allocator_mark_line(map, "2400000-2401000 rw-s 00000000 00:00 0 a file"); /* others see it */
    cow_allocator_mark_line(map, "2600000-2601000");
    cow_allocator_mark_line(map, "");
    cow_allocator_mark_line(map, "nonsense");
    cow_allocator_mark_line(map, "ffffffffff600000-ffffffffff601000 rw-p 00000000 00:00 0 [vsyscall]");
    for (uintptr_t i = 0; i < 64; i++)
        assert_int_equal(cow_allocator_inherited_p((void *)(i * region + 8)), i == 5 || i == 6 || i == 16);
    assert_false(cow_allocator_inherited_p((void *)UINTPTR_MAX));
    assert_false(cow_allocator_inherited_p((void *)((uintptr_t)1 << COW_ALLOCATOR_ADDRESS_BITS)));

    cow_allocator.inherited_from = 30 * region + 100;
    cow_allocator.inherited_size = region;
    assert_false(cow_allocator_inherited_p((void *)(30 * region + 99)));
    assert_true(cow_allocator_inherited_p((void *)(30 * region + 100)));
    assert_true(cow_allocator_inherited_p((void *)(31 * region + 99)));
    assert_false(cow_allocator_inherited_p((void *)(31 * region + 100)));
    cow_allocator_mark(map, UINTPTR_MAX - 5 * region, UINTPTR_MAX); /* ends */
    cow_allocator_mark(map, 70 * region, 70 * region);
    assert_false(cow_allocator_inherited_p((void *)(70 * region)));
}

/* Lines that end where the buffer does, and one that is longer than it. */
static void
test_a_file_of_mappings(void **state)
{
    unsigned char *map = cow_os_alloc(COW_ALLOCATOR_MAP_SIZE);
    FILE *file = tmpfile();

    cow_allocator.inherited = map;
    for (unsigned long i = 1; i <= 1000; i++) {
        fprintf(file, "%lx-%lx rw-p 00000000 00:00 0 %*s\n", i << 22, (i << 22) + 4096, (int)(i % 50), "");
    }
    for (int i = 0; i < 20000; i++) fputc('x', file);
    fprintf(file, "\n%lx-%lx rw-p 00000000 00:00 0", 2000ul << 22, (2000ul << 22) + 1); /* no end of a line */
    fflush(file);
    lseek(fileno(file), 0, SEEK_SET);
    assert_true(cow_allocator_mark_maps(map, fileno(file)));
    for (uintptr_t i = 1; i <= 1000; i++) {
        assert_true(cow_allocator_inherited_p((void *)(i << 22)));
        assert_false(cow_allocator_inherited_p((void *)((i << 22) + (1 << 21))));
    }
    fclose(file);
    assert_false(cow_allocator_mark_maps(map, -1));
}

static void
test_jemalloc(void **state)
{
    void *inherited = malloc(100), *grown = malloc(100);

    be_jemalloc();
    asked.background = true;
    cow_allocator_release(true, false);
    assert_int_equal(asked.purges, 1);
    cow_allocator_collected(5);
    assert_int_equal(asked.arena_purges, 0); /* jemalloc does it */
    cow_allocator_prefork(1, 0, 1);
    assert_int_equal(asked.flushes, 2);
    assert_int_equal(asked.purges, 2);
    assert_false(cow_allocator_inherited_p(inherited)); /* here it is not */

    cow_allocator_inherit();
    assert_int_equal(asked.arena, 7);
    cow_allocator_collected(5);
    assert_int_equal(asked.arena_purges, 7); /* all but its own */
    cow_allocator_collected(5);
    assert_int_equal(asked.arena_purges, 7);
    cow_allocator_collected(6);
    assert_int_equal(asked.arena_purges, 14);
    assert_int_equal(asked.background_starts, 1);
    cow_allocator_thread();
    assert_int_equal(asked.switches, 2);
    assert_true(cow_allocator_inherited_p(inherited));
    cow_allocator_free(inherited);
    grown = cow_allocator_realloc(grown, 300);
    assert_int_equal(asked.uncached_frees, 1);
    assert_int_equal(asked.uncached_reallocations, 1);
    cow_allocator_free(grown);
}

/* What children get is made once for each seal, and one arena for all of them. */
static void
test_children_of_one_parent(void **state)
{
    be_jemalloc();
    cow_allocator_prefork(0, 0, 1);
    unsigned char *map = cow_allocator.children_inherited;
    assert_non_null(map);
    memset(map, 0, COW_ALLOCATOR_MAP_SIZE);
    cow_allocator_prefork(0, 10, 100);
    assert_int_equal(map[(uintptr_t)state >> COW_ALLOCATOR_REGION_SHIFT >> 3], 0); /* as it was */
    cow_allocator_prefork(1, 10, 100); /* after a seal */
    assert_ptr_equal(cow_allocator.children_inherited, map);
    assert_int_not_equal(map[(uintptr_t)state >> COW_ALLOCATOR_REGION_SHIFT >> 3], 0);
    memset(map, 0, COW_ALLOCATOR_MAP_SIZE);
    cow_allocator_prefork(1, 30, 100); /* after an eighth more objects */
    assert_ptr_equal(cow_allocator.children_inherited, map);
    assert_int_not_equal(map[(uintptr_t)state >> COW_ALLOCATOR_REGION_SHIFT >> 3], 0);
    assert_int_equal(asked.creations, 1);
    assert_int_equal(asked.switches, 0);
}

/* Each child of a child gets an arena of its own, up to a number; then they take turns. */
static void
test_a_chain_of_forks(void **state)
{
    be_jemalloc();
    for (int i = 0; i < 1000; i++) {
        cow_allocator_prefork(1, 0, 1);
        cow_allocator_inherit();
        assert_int_equal(asked.arena, 7 + i % COW_ALLOCATOR_MOST_ARENAS);
        asked.arena_purges = 0;
        cow_allocator_collected((size_t)i + 1);
        assert_int_equal(asked.arena_purges, 7 + asked.creations - 1);
    }
    assert_int_equal(asked.creations, COW_ALLOCATOR_MOST_ARENAS);
}

static void
test_jemalloc_refuses(void **state)
{
    void *inherited = malloc(10);

    be_jemalloc();
    asked.refuses = true;
    cow_allocator_trim();
    cow_allocator_prefork(1, 0, 1);
    cow_allocator_inherit();
    assert_int_equal(cow_allocator.arena_count, 0);
    cow_allocator_thread();
    assert_int_equal(asked.switches, 0);
    cow_allocator_free(inherited);
    assert_int_equal(asked.uncached_frees, 1);
}

static void *
no_memory(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    errno = ENOMEM;
    return MAP_FAILED;
}

/* Without a bitmap blocks are freed by free; the child has its arena nevertheless. */
static void
inherit_without_bitmap(void)
{
    cow_allocator_inherit();
    assert_int_equal(asked.arena, 7);
    assert_null(cow_allocator.inherited);
    cow_allocator_free(malloc(10));
    assert_int_equal(asked.uncached_frees, 0);
}

static void
test_no_memory_for_the_bitmap(void **state)
{
    const struct cow_os_calls *before = cow_os;
    struct cow_os_calls calls = *cow_os;

    be_jemalloc();
    calls.map = no_memory;
    cow_os = &calls;
    cow_allocator_prefork(1, 0, 1);
    cow_os = before;
    inherit_without_bitmap();
}

static void
test_no_file_of_mappings(void **state)
{
    struct rlimit before, none;

    be_jemalloc();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    cow_allocator_prefork(1, 0, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    inherit_without_bitmap();
}

static void
collect(bool force)
{
    asked.purges += force;
}

static void *
heap_new(void)
{
    return asked.refuses ? NULL : &asked;
}

static void *
heap_set_default(void *heap)
{
    assert_ptr_equal(heap, &asked);
    asked.switches++;
    return NULL;
}

static void
test_mimalloc(void **state)
{
    cow_allocator.on = true;
    cow_allocator.kind = COW_ALLOCATOR_MIMALLOC;
    cow_allocator.calls = (struct cow_allocator_calls){ .collect = collect, .heap_new = heap_new,
                                                        .heap_set_default = heap_set_default };
    cow_allocator_trim();
    assert_int_equal(asked.purges, 1);
    cow_allocator_prefork(1, 0, 1);
    cow_allocator_inherit();
    assert_int_equal(asked.switches, 1);
    asked.refuses = true;
    cow_allocator_inherit();
    assert_int_equal(asked.switches, 1);
    asked.refuses = false;
    for (int i = 0; i < 100; i++) cow_allocator_inherit();
    assert_int_equal(asked.switches, COW_ALLOCATOR_MOST_ARENAS);
}

static void
test_switched_off(void **state)
{
    be_jemalloc();
    cow_allocator.on = false;
    cow_allocator_trim();
    cow_allocator_prefork(1, 0, 1);
    cow_allocator_inherit();
    cow_allocator_thread();
    assert_int_equal(asked.flushes + asked.purges + asked.creations + asked.switches, 0);
    assert_null(cow_allocator.inherited);
}

int
main(void)
{
    (void)cow_os_reserve;
    (void)cow_allocator_warmup;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nothing_is_inherited_before_a_fork, setup),
        cmocka_unit_test_setup(test_another_malloc, setup),
        cmocka_unit_test_setup(test_marks, setup),
        cmocka_unit_test_setup(test_a_file_of_mappings, setup),
        cmocka_unit_test_setup(test_jemalloc, setup),
        cmocka_unit_test_setup(test_children_of_one_parent, setup),
        cmocka_unit_test_setup(test_a_chain_of_forks, setup),
        cmocka_unit_test_setup(test_jemalloc_refuses, setup),
        cmocka_unit_test_setup(test_no_memory_for_the_bitmap, setup),
        cmocka_unit_test_setup(test_no_file_of_mappings, setup),
        cmocka_unit_test_setup(test_mimalloc, setup),
        cmocka_unit_test_setup(test_switched_off, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * allocator: the parts of allocator.h that are not inlined. environment.c and prepare_heap.c call them and
 * both include this file, because patch 0360 compiles the former without the latter, and later patches
 * compile the latter first.
 */
#ifndef COW_ALLOCATOR_C
#define COW_ALLOCATOR_C

#ifndef _GNU_SOURCE
# define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
# include <dlfcn.h>
# include <malloc.h>
#endif
#include "allocator.h"
#include "assertion.h"
#include "os.h"

/* jemalloc's flag for "past the thread's cache", and its index for "all arenas". */
#define COW_JEMALLOC_UNCACHED 0x100
#define COW_JEMALLOC_ALL "4096"

/* The most arenas of glibc, unless the environment says it. */
enum { COW_GLIBC_ARENAS = 2 };

#if defined(__linux__) && !defined(malloc)
# define COW_ALLOCATOR_FINDS 1
#else
/* Without dladdr, or where a macro gives malloc another name. */
# define COW_ALLOCATOR_FINDS 0
#endif

#if COW_ALLOCATOR_FINDS
/* Gives the function +name+ if it is of the object that malloc is of; NULL otherwise. A program may have
 * loaded a second allocator that is not in use. */
static void *
cow_allocator_symbol(const void *object, const char *name)
{
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, name);

    return address && dladdr(address, &info) && info.dli_fbase == object ? address : NULL;
}

/* Gives the malloc to which this program is bound. The linker's default version of it may be another one.
 * Where the address is that of a stub in the program, the linker is asked nevertheless. */
static void *
cow_allocator_malloc(void)
{
    Dl_info info;
    void *bound = (void *)malloc;

    if (dladdr(bound, &info) && info.dli_saddr == bound) return bound;
    return dlsym(RTLD_DEFAULT, "malloc");
}

/* Is it jemalloc, from 5.0 on, that malloc calls? Valgrind puts its own functions in the place of malloc and
 * free, but not in that of dallocx. */
static bool
cow_jemalloc_allocates(const struct cow_allocator_calls *calls)
{
    const char *version;
    uint64_t before, after;
    size_t size = sizeof(version);

    if (calls->control("version", &version, &size, NULL, 0) != 0 || atoi(version) < 5) return false;
    size = sizeof(before);
    if (calls->control("thread.allocated", &before, &size, NULL, 0) != 0) return false;
    void *volatile block = malloc(100);
    bool asked = calls->control("thread.allocated", &after, &size, NULL, 0) == 0;

    free(block);
    return asked && after != before;
}

/* glibc: few arenas, unless the environment says how many. The thresholds are left to glibc, which adapts
 * them to the program as long as nobody sets one. */
static void
cow_glibc_defaults(void)
{
# ifdef __GLIBC__
    const char *arenas = getenv("MALLOC_ARENA_MAX"), *tunables = getenv("GLIBC_TUNABLES");

    if (arenas && *arenas) return;
    if (tunables && strstr(tunables, "glibc.malloc.arena_max=")) return;
    mallopt(M_ARENA_MAX, COW_GLIBC_ARENAS);
# endif
}
#endif

/* Finds out which malloc is in use and what it has, once, when the process starts. +on+: shall it know about
 * fork? +leave_limit+: how many bytes of inherited blocks a child may leave, where that helps. */
static void
cow_allocator_find(bool on, size_t leave_limit)
{
    struct cow_allocator *const a = &cow_allocator;

    a->on = on;
#if COW_ALLOCATOR_FINDS
    Dl_info info;
    void *address = cow_allocator_malloc();
    if (address == NULL || !dladdr(address, &info)) return;
    const void *const object = info.dli_fbase;
    struct cow_allocator_calls *const calls = &a->calls;
# define FIND(field, name) \
    ((calls->field = (__typeof__(calls->field))cow_allocator_symbol(object, name)) != NULL)

    if (FIND(control, "mallctl") && FIND(deallocate, "dallocx") && FIND(reallocate, "rallocx")) {
        if (cow_jemalloc_allocates(calls)) a->kind = COW_ALLOCATOR_JEMALLOC;
    }
    else if (FIND(collect, "mi_collect") && FIND(heap_new, "mi_heap_new") &&
             FIND(heap_set_default, "mi_heap_set_default"))
        a->kind = COW_ALLOCATOR_MIMALLOC;
    else if (FIND(release_free_memory, "MallocExtension_ReleaseFreeMemory"))
        a->kind = COW_ALLOCATOR_TCMALLOC;
    else if (cow_allocator_symbol(object, "gnu_get_libc_version") && FIND(trim, "malloc_trim") &&
             FIND(usable_size, "malloc_usable_size"))
        a->kind = COW_ALLOCATOR_GLIBC;
    if (a->kind != COW_ALLOCATOR_GLIBC) return;

# if COW_ALLOCATOR_HAS_MALLINFO
    (void)FIND(information, "mallinfo2");
# endif
    if (!on) return;
    a->leave_limit = leave_limit;
    cow_glibc_defaults();
# undef FIND
#endif
}

/* Gives the name of the malloc in use. */
static const char *
cow_allocator_name(void)
{
    static const char *const names[] = { "other", "glibc", "jemalloc", "mimalloc", "tcmalloc" };

    return names[cow_allocator.kind];
}

/* Frees the blocks that fill holes. */
static void
cow_allocator_empty_holes(void)
{
    struct cow_allocator *const a = &cow_allocator;

    while (a->fillers) {
        struct cow_allocator_filler *filler = a->fillers;

        a->fillers = filler->next;
        free(filler);
    }
    a->filler_count = a->filler_bytes = 0;
    a->filled_size = 0;
}

/* Gives free memory back to the system, and empties the thread's cache. */
static void
cow_allocator_trim(void)
{
    const struct cow_allocator_calls *const calls = &cow_allocator.calls;

    if (!cow_allocator.on) return;
    switch (cow_allocator.kind) {
      case COW_ALLOCATOR_JEMALLOC:
        calls->control("thread.tcache.flush", NULL, NULL, NULL, 0);
        calls->control("arena." COW_JEMALLOC_ALL ".purge", NULL, NULL, NULL, 0);
        break;
      case COW_ALLOCATOR_MIMALLOC: calls->collect(true); break;
      case COW_ALLOCATOR_TCMALLOC: calls->release_free_memory(); break;
      case COW_ALLOCATOR_GLIBC:
        cow_allocator_empty_holes();
        calls->trim(0);
        break;
      case COW_ALLOCATOR_OTHER: break;
    }
}

/* The same in Process.warmup, where CRuby trims glibc's heap: also if the user has switched this file off. */
static void
cow_allocator_warmup(void)
{
    if (cow_allocator.kind == COW_ALLOCATOR_GLIBC && !cow_allocator.on) cow_allocator.calls.trim(0);
    cow_allocator_trim();
}

/* Gives free memory back because others need it. glibc writes headers of blocks when it does so, and copies
 * their pages if other processes share them: in a +child+, and in a parent that has filled its holes, only if
 * it is +critical+. A filler stays: to free it would be a write, and the next child would use its hole. */
static void
cow_allocator_release(bool child, bool critical)
{
    const bool shared = child || cow_allocator.fillers != NULL;

    if (!shared || cow_allocator.kind != COW_ALLOCATOR_GLIBC) cow_allocator_trim();
    else if (cow_allocator.on && critical) cow_allocator.calls.trim(0);
}

/* Gives the size of the blocks to fill holes with after those of +size+. glibc's blocks have sizes of 24, 40,
 * 56 and so on; up to CACHED bytes the thread's cache has a list of each. */
static size_t
cow_allocator_smaller_filler(size_t size)
{
    enum { CACHED = 1032 };
    const size_t smaller = size - (size / 8 & ~(size_t)15);

    if (size <= CACHED) return size - 16;
    return smaller > CACHED ? smaller : CACHED;
}

/* Where the main heap of glibc is, without its top, in which it grows, and how much is allocated in all. In a
 * thread that has another arena, or if glibc does not tell: false. Visits every hole. */
static bool
cow_glibc_main_heap(uintptr_t *from, uintptr_t *to, size_t *allocated)
{
#if COW_ALLOCATOR_HAS_MALLINFO
    enum { UNCACHED = 2000 };
    void *volatile block = malloc(UNCACHED);
    const uintptr_t probe = (uintptr_t)block, end = (uintptr_t)sbrk(0);

    free(block);
    if (cow_allocator.calls.information == NULL || probe >= end) return false;
    struct mallinfo2 info = cow_allocator.calls.information();

    /* .arena counts the memory of other arenas as well; the heap begins where the first of its blocks is. */
    *from = info.arena < end ? end - info.arena : 0;
    *to = (uintptr_t)sbrk(0) - info.keepcost;
    *allocated = info.uordblks + info.hblkhd;
    return probe >= *from;
#else
    return false;
#endif
}

/* Fills the holes of glibc's main heap, which is from +from+ to +top+: with blocks of each size, from the
 * largest, until one comes from elsewhere. */
static void
cow_allocator_fill_holes(uintptr_t from, uintptr_t top)
{
    enum { LARGEST = (64 << 10) - 8, SMALLEST = 24 };
    struct cow_allocator *const a = &cow_allocator;

    for (size_t size = LARGEST; size >= SMALLEST; size = cow_allocator_smaller_filler(size)) {
        for (;;) {
            struct cow_allocator_filler *filler = malloc(size);

            if (filler == NULL) return;
            if ((uintptr_t)filler < from || (uintptr_t)filler >= top) {
                free(filler);
                break;
            }
            if (a->filler_count == COW_ALLOCATOR_MOST_FILLERS) {
                free(filler);
                return;
            }
            filler->next = a->fillers;
            a->fillers = filler;
            a->filler_count++;
            a->filler_bytes += size;
        }
    }
    a->filled_from = from;
    a->filled_size = top - from;
}

/* Gives how many bytes are allocated in all arenas; 0 if the allocator does not tell. */
static size_t
cow_allocator_allocated(void)
{
    const struct cow_allocator_calls *const calls = &cow_allocator.calls;

    if (cow_allocator.kind == COW_ALLOCATOR_JEMALLOC) {
        uint64_t epoch = 1;
        size_t allocated = 0, size = sizeof(allocated);

        calls->control("epoch", NULL, NULL, &epoch, sizeof(epoch));
        return calls->control("stats.allocated", &allocated, &size, NULL, 0) == 0 ? allocated : 0;
    }
#if COW_ALLOCATOR_HAS_MALLINFO
    if (calls->information) {
        struct mallinfo2 info = calls->information();

        return info.uordblks + info.hblkhd;
    }
#endif
    return 0;
}

/* Shall the holes be filled now, after a seal? This process has made +objects+, of which +live+ are there. If
 * it has made an eighth more since its last seal it works, and needs them. */
static bool
cow_allocator_fills(size_t allocated, size_t objects, size_t live)
{
    const struct cow_allocator *const a = &cow_allocator;

    if (allocated / 4 < a->inherited_bytes) return false;
    return allocated / 2 >= a->filled_bytes || objects - a->noted_objects < live / 8;
}

/* glibc, at the first fork after a seal, which has emptied the holes: fills those that are there now if that
 * pays. In a thread that has another arena: nothing, and the next fork tries again. */
static void
cow_glibc_prefork(size_t seals, size_t objects, size_t live)
{
    struct cow_allocator *const a = &cow_allocator;
    uintptr_t from, top;
    size_t allocated;

    if (a->noted_seals == seals || !cow_glibc_main_heap(&from, &top, &allocated)) return;
    const bool fills = cow_allocator_fills(allocated, objects, live);

    a->noted_seals = seals;
    a->noted_objects = objects;
    a->noted_bytes = allocated;
    if (!fills) return;
    a->filled_bytes = allocated;
    cow_allocator_fill_holes(from, top);
}

#if COW_ALLOCATOR_FINDS
/* Marks the memory from +from+ to +to+ as inherited. */
static void
cow_allocator_mark(unsigned char *map, uintptr_t from, uintptr_t to)
{
    if (from >= to) return;
    const uintptr_t last = (to - 1) >> COW_ALLOCATOR_REGION_SHIFT;

    for (uintptr_t region = from >> COW_ALLOCATOR_REGION_SHIFT; region <= last; region++) {
        if (region / 8 >= COW_ALLOCATOR_MAP_SIZE) return;
        unsigned char *byte = &map[region / 8], bit = (unsigned char)(1 << region % 8);
        if (!(*byte & bit)) *byte |= bit;
    }
}

/* Marks what a line of /proc/self/maps ("from-to access ...") says, if it is private and may be written. */
static void
cow_allocator_mark_line(unsigned char *map, const char *line)
{
    char *rest;
    uintptr_t from = (uintptr_t)strtoull(line, &rest, 16), to;

    if (*rest != '-') return;
    to = (uintptr_t)strtoull(rest + 1, &rest, 16);
    if (strncmp(rest, " rw", 3) == 0 && rest[3] && rest[4] == 'p') cow_allocator_mark(map, from, to);
}

/* Marks what is mapped, as the file +maps+ (/proc/self/maps) says. Allocates nothing. Gives false if the file
 * cannot be read. */
static bool
cow_allocator_mark_maps(unsigned char *map, int maps)
{
    enum { LONGEST = 8192 }; /* a path has at most 4,096 bytes */
    char text[LONGEST + 1];
    size_t filled = 0;

    for (;;) {
        ssize_t got = read(maps, text + filled, LONGEST - filled);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        if (got == 0) return true;
        filled += (size_t)got;
        text[filled] = '\0';

        char *line = text, *end;
        while ((end = memchr(line, '\n', filled - (size_t)(line - text))) != NULL) {
            cow_allocator_mark_line(map, line);
            line = end + 1;
        }
        filled -= (size_t)(line - text);
        if (filled == LONGEST) filled = 0;
        memmove(text, line, filled);
    }
}

#endif

/* Adds to a bitmap what children inherit from this process; without one (NULL) makes it. Gives it, or NULL
 * without memory for it or if the system does not tell: then free frees inherited blocks. */
static unsigned char *
cow_allocator_mark_all(unsigned char *map)
{
#if COW_ALLOCATOR_FINDS
    const bool made = map == NULL;
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

    if (maps < 0) return map;
    if (made) map = cow_os_alloc(COW_ALLOCATOR_MAP_SIZE);
    if (map != NULL && !cow_allocator_mark_maps(map, maps) && made) {
        cow_os_free(map, COW_ALLOCATOR_MAP_SIZE);
        map = NULL;
    }
    close(maps);
#endif
    return map;
}

/* jemalloc: makes an arena for the children of this process, or takes one that an ancestor has made. */
static void
cow_jemalloc_prepare_arena(void)
{
    struct cow_allocator *const a = &cow_allocator;
    unsigned *const arena = &a->arenas[a->arena_count % COW_ALLOCATOR_MOST_ARENAS];
    size_t size = sizeof(*arena);

    if (a->children_arena) return;
    if (a->arena_count < COW_ALLOCATOR_MOST_ARENAS) {
        if (a->calls.control("arenas.create", arena, &size, NULL, 0) != 0) return;
        a->arena_count++;
        a->children_arena = arena;
    }
    else {
        const ptrdiff_t own = a->own_arena ? a->own_arena - a->arenas : -1;
        a->children_arena = &a->arenas[(own + 1) % COW_ALLOCATOR_MOST_ARENAS];
    }
}

/* jemalloc: gives free pages back, or each child would do so. And makes ready what children need, here, so
 * that they share it: at the first fork, after a seal, and when the process has made an eighth more objects
 * since. */
static void
cow_jemalloc_prefork(size_t seals, size_t objects, size_t live)
{
    struct cow_allocator *const a = &cow_allocator;
    size_t size = sizeof(a->background);

    if (a->calls.control("background_thread", &a->background, &size, NULL, 0) != 0) a->background = false;
    cow_allocator_trim();
    if (a->children_ready && a->children_seals == seals && objects - a->children_objects < live / 8) return;
    a->children_seals = seals;
    a->children_objects = objects;
    cow_jemalloc_prepare_arena();
    a->children_inherited = cow_allocator_mark_all(a->children_inherited);
    a->children_ready = a->children_arena && a->children_inherited;
}

/* In a process that is about to fork: what is free shall not be where a child allocates. The process has
 * sealed its heap +seals+ times and has made +objects+, of which +live+ are there. */
static void
cow_allocator_prefork(size_t seals, size_t objects, size_t live)
{
    struct cow_allocator *const a = &cow_allocator;

    if (!a->on) return;
    if (a->kind == COW_ALLOCATOR_JEMALLOC) cow_jemalloc_prefork(seals, objects, live);
    else if (a->kind == COW_ALLOCATOR_GLIBC) cow_glibc_prefork(seals, objects, live);
}

/* Makes the thread that calls it allocate in this child's arena. */
static void
cow_allocator_thread(void)
{
    const struct cow_allocator *const a = &cow_allocator;

    if (a->own_arena == NULL) return;
    unsigned arena = *a->own_arena;
    a->calls.control("thread.arena", NULL, NULL, &arena, sizeof(arena));
}

/* Gives the number of jemalloc's arenas: their indices are below it. */
static unsigned
cow_jemalloc_arena_count(void)
{
    unsigned count = 0;
    size_t size = sizeof(count);

    return cow_allocator.calls.control("arenas.narenas", &count, &size, NULL, 0) == 0 ? count : 0;
}

/* After a sweep, when there were +full_collections+ so far. jemalloc gives free pages of an arena back while
 * it is used, and a child hardly uses those that it has inherited. */
static void
cow_allocator_collected(size_t full_collections)
{
    struct cow_allocator *const a = &cow_allocator;

    if (a->own_arena == NULL || a->collections == full_collections) return;
    a->collections = full_collections;
    const unsigned count = cow_jemalloc_arena_count();

    for (unsigned i = 0; i < count; i++) {
        char name[32];

        if (*a->own_arena == i) continue;
        snprintf(name, sizeof(name), "arena.%u.purge", i);
        a->calls.control(name, NULL, NULL, NULL, 0);
    }
}

/* jemalloc: gives a child what its parent has made ready. Without an arena it allocates as its parent did. */
static void
cow_jemalloc_inherit(void)
{
    struct cow_allocator *const a = &cow_allocator;

    if (a->inherited) cow_os_free(a->inherited, COW_ALLOCATOR_MAP_SIZE);
    a->inherited = a->children_inherited;
    if (a->children_arena) a->own_arena = a->children_arena;
    a->children_ready = false;
    a->children_inherited = NULL;
    a->children_arena = NULL;
    a->calls.control("thread.tcache.flush", NULL, NULL, NULL, 0);
    cow_allocator_thread();
    /* jemalloc's thread that gives memory back ends at a fork. */
    if (a->background)
        a->calls.control("background_thread", NULL, NULL, &a->background, sizeof(a->background));
}

/* glibc: notes in a child what it has inherited. If holes are left the child allocates there, and to leave
 * its own blocks would only cost memory. */
static void
cow_glibc_inherit(void)
{
    struct cow_allocator *const a = &cow_allocator;

    a->inherited_from = a->filled_from;
    a->inherited_size = a->filled_size;
    if (a->noted_bytes > a->inherited_bytes) a->inherited_bytes = a->noted_bytes;
    /* They are inherited blocks like others. */
    a->fillers = NULL;
    a->filler_count = a->filler_bytes = 0;
    a->filled_size = a->filled_bytes = 0;
}

/* In a child, at once after the fork. */
static void
cow_allocator_inherit(void)
{
    struct cow_allocator *const a = &cow_allocator;

    if (!a->on) return;
    switch (a->kind) {
      case COW_ALLOCATOR_JEMALLOC: cow_jemalloc_inherit(); break;
      case COW_ALLOCATOR_GLIBC: cow_glibc_inherit(); break;
      case COW_ALLOCATOR_MIMALLOC: {
        /* mimalloc never uses the partly used pages of a heap that is not the default any more. */
        void *heap = a->heap_count < COW_ALLOCATOR_MOST_ARENAS ? a->calls.heap_new() : NULL;

        if (heap == NULL) break;
        a->heap_count++;
        a->calls.heap_set_default(heap);
        break;
      }
      case COW_ALLOCATOR_TCMALLOC:
      case COW_ALLOCATOR_OTHER: break;
    }
}

/* Frees a block that is inherited. */
static void
cow_allocator_free_inherited(void *block)
{
    struct cow_allocator *const a = &cow_allocator;

    if (a->kind == COW_ALLOCATOR_JEMALLOC) {
        a->calls.deallocate(block, COW_JEMALLOC_UNCACHED);
        return;
    }
    const size_t size = a->calls.usable_size(block);

    if (size <= COW_ALLOCATOR_MOST_LEFT && a->left_bytes < a->leave_limit) {
        if (__atomic_add_fetch(&a->left_bytes, size, __ATOMIC_RELAXED) <= a->leave_limit) {
            __atomic_fetch_add(&a->left_blocks, 1, __ATOMIC_RELAXED);
            return;
        }
        __atomic_fetch_sub(&a->left_bytes, size, __ATOMIC_RELAXED);
    }
    free(block);
}

/* Resizes a block that is inherited; the contract is realloc's. */
static void *
cow_allocator_realloc_inherited(void *block, size_t size)
{
    const struct cow_allocator *const a = &cow_allocator;

    if (a->kind == COW_ALLOCATOR_JEMALLOC) return a->calls.reallocate(block, size, COW_JEMALLOC_UNCACHED);
    if (a->leave_limit == 0) return realloc(block, size);

    size_t old_size = a->calls.usable_size(block);
    if (old_size > COW_ALLOCATOR_MOST_LEFT) return realloc(block, size);
    if (size <= old_size) return block;

    void *copy = malloc(size);
    if (copy == NULL) return NULL;
    memcpy(copy, block, old_size);
    cow_allocator_free_inherited(block);
    return copy;
}

#endif /* COW_ALLOCATOR_C */

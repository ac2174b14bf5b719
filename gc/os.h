#ifndef COW_OS_H
#define COW_OS_H

/*
 * os: the calls to the system that the collector's memory needs. Tests put their own
 * in place of +os+: a system that has no memory left, or that forbids a call.
 *
 * Entry points: os_reserve, os_commit, os_give_back, os_release, os_name; os_take.
 *
 * Addresses and sizes are multiples of the OS page. All but os_reserve give whether the
 * system did it; errno is the system's.
 *
 * Who writes this memory after a fork: nobody.
 */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

/* 0 on systems that have no mmap: all is denied there. */
#ifndef COW_HAS_MMAP
# define COW_HAS_MMAP 1
#endif

#if COW_HAS_MMAP
# include <sys/mman.h>
# include <sys/resource.h>
#else
# define PROT_NONE 0
# define PROT_READ 1
# define PROT_WRITE 2
# define MAP_PRIVATE 0
# define MAP_ANONYMOUS 0
# define MAP_FAILED ((void *)-1)
# define MADV_DONTNEED 0
struct rlimit { size_t rlim_cur; };
# undef RLIMIT_AS
# define RLIM_INFINITY SIZE_MAX
#endif
#if COW_HAS_MMAP && defined(__linux__)
# include <sys/prctl.h>
# ifndef PR_SET_VMA
#  define PR_SET_VMA 0x53564d41
#  define PR_SET_VMA_ANON_NAME 0
# endif
#endif

#ifndef MAP_ANONYMOUS
# define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
# define MAP_NORESERVE 0
#endif
/* A kernel that does not know it takes the address for a hint. */
#ifndef MAP_FIXED_NOREPLACE
# define MAP_FIXED_NOREPLACE 0
#endif

struct os_calls {
    void *(*map)(void *address, size_t size, int protection, int flags, int file, off_t offset);
    int (*unmap)(void *address, size_t size);
    int (*protect)(void *address, size_t size, int protection);
    int (*advise)(void *address, size_t size, int advice);
    int (*limit)(struct rlimit *limit);
};

static int
os_address_limit(struct rlimit *limit)
{
#ifdef RLIMIT_AS
    return getrlimit(RLIMIT_AS, limit);
#else
    errno = ENOSYS;
    return -1;
#endif
}

#if COW_HAS_MMAP
static const struct os_calls os_system = { mmap, munmap, mprotect, madvise, os_address_limit };
#else
static void *
os_no_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    errno = ENOSYS;
    return MAP_FAILED;
}

static int
os_no_unmap(void *address, size_t size)
{
    errno = ENOSYS;
    return -1;
}

static int
os_no_change(void *address, size_t size, int what)
{
    errno = ENOSYS;
    return -1;
}

static const struct os_calls os_system = { os_no_map, os_no_unmap, os_no_change, os_no_change, os_address_limit };
#endif
static const struct os_calls *os = &os_system;

/* Bytes that the process may map in all; SIZE_MAX where nobody says. */
static inline size_t
os_address_space(void)
{
    struct rlimit limit;

    if (os->limit(&limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > SIZE_MAX) return SIZE_MAX;
    return (size_t)limit.rlim_cur;
}

static inline void *
os_map_reserved(void *address, size_t size, int flags)
{
    void *memory = os->map(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* Tries multiples of +alignment+ near the place where the system would put it: where
 * there is not enough room for more than it needs. */
static void *
os_reserve_tight(size_t size, size_t alignment)
{
    enum { TRIES = 16 };
    char *there = os_map_reserved(NULL, size, 0);

    if (there == NULL) return NULL;
    if ((uintptr_t)there % alignment == 0) return there;
    os->unmap(there, size);

    char *below = there - (uintptr_t)there % alignment;
    for (size_t i = 0; i < TRIES && (uintptr_t)below > i * alignment; i++) {
        char *place = below - i * alignment;
        char *memory = os_map_reserved(place, size, MAP_FIXED_NOREPLACE);
        if (memory == place) return memory;
        if (memory != NULL) os->unmap(memory, size);
    }
    errno = ENOMEM;
    return NULL;
}

/* Reserves +size+ bytes at a multiple of +alignment+ (a power of two) without committing
 * memory. Gives NULL where there is no such room. */
static void *
os_reserve(size_t size, size_t alignment)
{
    char *memory = os_map_reserved(NULL, size + alignment, 0);

    if (memory == NULL) return os_reserve_tight(size, alignment);

    size_t before = -(uintptr_t)memory & (alignment - 1);
    if (before > 0) os->unmap(memory, before);
    if (before < alignment) os->unmap(memory + before + size, alignment - before);
    return memory + before;
}

/* Memory of the process's own that is given back by os_release alone; it reads as zero.
 * Gives NULL where there is none. */
static inline void *
os_take(size_t size)
{
#if COW_HAS_MMAP
    void *memory = os->map(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
#else
    return calloc(1, size);
#endif
}

/* Lets reserved memory be read and written. It reads as zero until then. */
static inline bool
os_commit(void *memory, size_t size)
{
    return os->protect(memory, size, PROT_READ | PROT_WRITE) == 0;
}

/* Gives what stands there back to the system; it reads as zero afterwards, and what
 * other processes share of it stays theirs. */
static inline bool
os_give_back(void *memory, size_t size)
{
    return os->advise(memory, size, MADV_DONTNEED) == 0;
}

/* Ends a reservation, or a part of one, or gives back what os_take gave. */
static inline bool
os_release(void *memory, size_t size)
{
#if COW_HAS_MMAP
    return os->unmap(memory, size) == 0;
#else
    free(memory);
    return true;
#endif
}

/* Names it in /proc/PID/maps, where the kernel can. +name+ must stay. */
static inline void
os_name(void *memory, size_t size, const char *name)
{
#ifdef PR_SET_VMA
    int saved = errno;

    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, (unsigned long)(uintptr_t)memory, size, (unsigned long)(uintptr_t)name);
    errno = saved;
#endif
}

#endif /* COW_OS_H */

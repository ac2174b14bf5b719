#ifndef COW_OS_H
#define COW_OS_H

/*
 * os: the calls to the system that the collector's memory needs. Tests put their own
 * in place of +os+: a system that has no memory left, or that forbids a call.
 *
 * Entry points: cow_os_reserve, cow_os_commit, cow_os_decommit, cow_os_free, cow_os_name; cow_os_alloc.
 *
 * Addresses and sizes are multiples of the OS page. All but cow_os_reserve give whether the
 * system did it; errno is the system's.
 *
 * Where a reservation stands is random (os_random_place), as far as its alignment leaves a choice:
 * who wants to guess an address of the heap shall not know it from another process, nor from where
 * libraries are. Of 47 bits that programs have, 20 are left at multiples of 128 MB.
 *
 * Who writes this memory after a fork: nobody.
 */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* 0 on systems that have no mmap: every call fails there. */
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
# include <sys/auxv.h>
# include <sys/personality.h>
# include <sys/prctl.h>
# include <sys/random.h>
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

struct cow_os_calls {
    void *(*map)(void *address, size_t size, int protection, int flags, int file, off_t offset);
    int (*unmap)(void *address, size_t size);
    int (*protect)(void *address, size_t size, int protection);
    int (*advise)(void *address, size_t size, int advice);
    int (*limit)(struct rlimit *limit);
    bool (*random)(uint64_t *bits); /* NULL, or false: the system's own choice of a place is taken */
    size_t (*page_size)(void);
    void *(*allocate)(size_t size); /* zeroed memory of malloc's, for pages that no arena has */
    void (*deallocate)(void *memory);
};

/* A part of a reservation: from byte .from behind its beginning to .to. */
struct cow_os_span { size_t from, to; };

/* The calls in use: the system's (os.c), or a test's. */
static const struct cow_os_calls *cow_os;

/* Bytes that the process may map in all; SIZE_MAX if that is unlimited or unknown. */
static inline size_t
cow_os_address_space(void)
{
    struct rlimit limit;

    if (cow_os->limit(&limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > SIZE_MAX)
        return SIZE_MAX;
    return (size_t)limit.rlim_cur;
}

static inline void *
cow_os_map_reserved(void *address, size_t size, int flags)
{
    void *memory =
        cow_os->map(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* Memory of the process's own that is given back by cow_os_free alone; it reads as zero.
 * Gives NULL where there is none. */
static inline void *
cow_os_alloc(size_t size)
{
#if COW_HAS_MMAP
    void *memory = cow_os->map(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
#else
    return calloc(1, size);
#endif
}

/* Lets reserved memory be read and written. It reads as zero until then. */
static inline bool
cow_os_commit(void *memory, size_t size)
{
    return cow_os->protect(memory, size, PROT_READ | PROT_WRITE) == 0;
}

/* Gives what stands there back to the system; it reads as zero afterwards, and what
 * other processes share of it stays theirs. */
static inline bool
cow_os_decommit(void *memory, size_t size)
{
    return cow_os->advise(memory, size, MADV_DONTNEED) == 0;
}

/* Ends a reservation, or a part of one, or gives back what cow_os_alloc gave. */
static inline bool
cow_os_free(void *memory, size_t size)
{
#if COW_HAS_MMAP
    return cow_os->unmap(memory, size) == 0;
#else
    free(memory);
    return true;
#endif
}

/* Names it in /proc/PID/maps, where the kernel can. +name+ must stay. */
static inline void
cow_os_name(void *memory, size_t size, const char *name)
{
#ifdef PR_SET_VMA
    int saved = errno;

    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, (unsigned long)(uintptr_t)memory, size,
          (unsigned long)(uintptr_t)name);
    errno = saved;
#endif
}

#endif /* COW_OS_H */

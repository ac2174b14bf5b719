/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_OS_H
#define COW_OS_H

/*
 * os: the calls to the system that the collector's memory needs. A test puts its own calls in place of
 * cow_os: a system that has no memory left, or that refuses a call.
 *
 * Entry points: cow_os_commit, cow_os_decommit, cow_os_free, cow_os_name; cow_os_alloc; cow_os_address_space.
 * In os.c: cow_os_reserve.
 *
 * Addresses and sizes are multiples of the OS page. Where a function gives a bool, it says whether the system
 * did it; errno is the system's.
 *
 * The address of a reservation is random (cow_os_reserve_random), as far as its alignment leaves a choice: an
 * attacker cannot know an address of the heap from another process, or from where libraries are. Of 47 bits
 * that programs have, 20 are random at multiples of 128 MB.
 *
 * Who writes this memory after a fork: nobody; this file has no memory of its own.
 */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#include "assertion.h"

/* 0 on a system without mmap: every call fails there. */
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
# include <sys/syscall.h>
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
/* A kernel that does not know this flag takes the address as a hint. */
#ifndef MAP_FIXED_NOREPLACE
# define MAP_FIXED_NOREPLACE 0
#endif

/* The calls themselves. */
struct cow_os_calls {
    void *(*map)(void *address, size_t size, int protection, int flags, int file, off_t offset);
    int (*unmap)(void *address, size_t size);
    int (*protect)(void *address, size_t size, int protection);
    int (*advise)(void *address, size_t size, int advice);
    int (*limit)(struct rlimit *limit);
    bool (*random)(uint64_t *bits); /* NULL, or false: the system chooses the address */
    size_t (*page_size)(void);
    /* malloc's memory, for heap pages outside arenas and what is known of them. */
    void *(*allocate)(size_t size);
    void *(*allocate_zeroed)(size_t size);
    void (*deallocate)(void *memory);
    /* How the machine is. Gives -1 where it cannot be read. */
    long (*faults)(void); /* the major faults of the process */
    int64_t (*clock)(void); /* ns, of a clock that only goes forward */
    ssize_t (*read)(const char *path, char *text, size_t size); /* a whole small file; the bytes read */
};

/* A part of a reservation: the bytes [from, to), counted from its beginning. */
struct cow_os_span { size_t from, to; };

/* The calls in use: the system's (os.c), or a test's. */
static const struct cow_os_calls *cow_os;

/* Gives how many bytes the process may map in all; SIZE_MAX if that is unlimited or unknown. */
static inline size_t
cow_os_address_space(void)
{
    struct rlimit limit;

    if (cow_os->limit(&limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > SIZE_MAX)
        return SIZE_MAX;
    return (size_t)limit.rlim_cur;
}

/* Do +memory+ and +size+ consist of whole OS pages? Without mmap any memory does. */
static inline bool
cow_os_is_whole(const void *memory, size_t size)
{
    return !COW_HAS_MMAP || ((uintptr_t)memory | size) % cow_os->page_size() == 0;
}

/* Gives how many processors the machine has; 1 where the system does not say. */
static inline long
cow_os_processors(void)
{
#ifdef _SC_NPROCESSORS_ONLN
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (processors > 0) return processors;
#endif
    return 1;
}

/* Reserves +size+ bytes, at +address+ if +flags+ or the system say so. Gives NULL if the system refuses. */
static inline void *
cow_os_map_reserved(void *address, size_t size, int flags)
{
    void *memory =
        cow_os->map(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* Gives zeroed memory, which only cow_os_free gives back; NULL if there is none. */
static inline void *
cow_os_alloc(size_t size)
{
#if COW_HAS_MMAP
    void *memory = cow_os->map(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
#else
    return cow_os->allocate_zeroed(size);
#endif
}

/* Makes reserved memory readable and writable. It reads as 0. */
static inline bool
cow_os_commit(void *memory, size_t size)
{
    return cow_os->protect(memory, size, PROT_READ | PROT_WRITE) == 0;
}

/* Gives the contents of memory back to the system; it reads as 0 afterwards. Other processes keep what they
 * share of it. */
static inline bool
cow_os_decommit(void *memory, size_t size)
{
    COW_ASSERT(cow_os_is_whole(memory, size));
    return cow_os->advise(memory, size, MADV_DONTNEED) == 0;
}

/* Ends a reservation or a part of one, or gives back what cow_os_alloc gave. */
static inline bool
cow_os_free(void *memory, size_t size)
{
    COW_ASSERT(cow_os_is_whole(memory, size));
#if COW_HAS_MMAP
    return cow_os->unmap(memory, size) == 0;
#else
    cow_os->deallocate(memory);
    return true;
#endif
}

/* Reads a small file of the kernel's into +text+, which has room for +size+ bytes with the 0 at the end. A
 * longer file is cut. Gives false if it cannot be read; errno is the system's. */
static inline bool
cow_os_read(const char *path, char *text, size_t size)
{
    COW_ASSERT(size > 0);
    ssize_t length = cow_os->read(path, text, size - 1);

    if (length < 0) return false;
    text[length] = '\0';
    return true;
}

/* Gives memory a name in /proc/PID/maps, where the kernel can. +name+ must stay valid. */
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

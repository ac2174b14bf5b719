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

struct os_calls {
    void *(*map)(void *address, size_t size, int protection, int flags, int file, off_t offset);
    int (*unmap)(void *address, size_t size);
    int (*protect)(void *address, size_t size, int protection);
    int (*advise)(void *address, size_t size, int advice);
    int (*limit)(struct rlimit *limit);
    bool (*random)(uint64_t *bits); /* NULL, or false: the system's own choice of a place is taken */
};

/* A part of a reservation: from byte .from behind its beginning to .to. */
struct os_span { size_t from, to; };

/* The lower of the limits of what may be mapped and of what may be written to. */
static int
os_address_limit(struct rlimit *limit)
{
#ifdef RLIMIT_AS
    struct rlimit data;

    if (getrlimit(RLIMIT_AS, limit) != 0) return -1;
    if (getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur < limit->rlim_cur) *limit = data;
    return 0;
#else
    errno = ENOSYS;
    return -1;
#endif
}

/* Random bits for an address. It never waits: early after the machine's start, or where the call
 * is forbidden, they come from those that the kernel has given this program, and other ones in
 * each process that it forks. Gives false where addresses are to be the same each time, as
 * debuggers ask the kernel (setarch -R), and where the system has none. */
static bool
os_random_bits(uint64_t *bits)
{
#if COW_HAS_MMAP && defined(__linux__)
    static uint64_t calls;
    const int saved = errno, asked = personality(0xffffffff);

    if (asked != -1 && asked & ADDR_NO_RANDOMIZE) return false;
    if (getrandom(bits, sizeof(*bits), GRND_NONBLOCK) != (ssize_t)sizeof(*bits)) {
        const char *given = (const char *)getauxval(AT_RANDOM); /* sixteen bytes */

        errno = saved;
        if (given == NULL) return false;
        memcpy(bits, given + 8, sizeof(*bits));
        *bits = (*bits ^ (uint64_t)getpid() << 32 ^ ++calls) * UINT64_C(0x9e3779b97f4a7c15);
        *bits = (*bits ^ *bits >> 31) * UINT64_C(0xd1b54a32d192ed03);
    }
    return true;
#else
    return false;
#endif
}

#if COW_HAS_MMAP
static const struct os_calls os_system = { mmap, munmap, mprotect, madvise, os_address_limit, os_random_bits };
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

static const struct os_calls os_system = { os_no_map, os_no_unmap, os_no_change, os_no_change, os_address_limit, NULL };
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

/* Reserves the spans of a reservation that begins at +place+. Where that is denied nothing is
 * reserved, and errno is ENOMEM if there is no room for them anywhere. */
static bool
os_reserve_at(char *place, const struct os_span *spans, int count)
{
    for (int i = 0; i < count; i++) {
        const size_t size = spans[i].to - spans[i].from;
        char *memory = os_map_reserved(place + spans[i].from, size, MAP_FIXED_NOREPLACE);
        if (memory == place + spans[i].from) continue;

        const int error = memory ? EEXIST : errno;
        if (memory) os->unmap(memory, size); /* a kernel that takes the address for a hint */
        while (i-- > 0) os->unmap(place + spans[i].from, spans[i].to - spans[i].from);
        errno = error;
        return false;
    }
    return true;
}

/* Where the system would map +size+ bytes now; NULL: nowhere. */
static char *
os_vacant(size_t size)
{
    char *there = os_map_reserved(NULL, size, 0);

    if (there) os->unmap(there, size);
    return there;
}

/* Reservations keep away from addresses that fit into 32 bits. */
#define OS_LOWEST_PLACE (UINT64_C(1) << 32)

/* Reserves at a random multiple of +alignment+ below +there+. Above it are the libraries and the
 * stack, which grows. Where addresses are short that would leave no long pieces between: there
 * the system chooses. */
static char *
os_reserve_random(const struct os_span *spans, int count, size_t alignment, const char *there)
{
    enum { TRIES = 8 };
    const uint64_t lowest = OS_LOWEST_PLACE / alignment, highest = (uintptr_t)there / alignment;
    const uint64_t needed = (spans[count - 1].to + alignment - 1) / alignment;
    uint64_t bits;

    errno = EEXIST;
    if (UINTPTR_MAX <= 0xffffffffu || highest <= lowest + needed) return NULL;
    if (os->random == NULL || !os->random(&bits)) return NULL;

    for (int i = 0; i < TRIES; i++) {
        char *place = (char *)(uintptr_t)((lowest + (bits >> 16) % (highest - lowest - needed)) * alignment);

        if (os_reserve_at(place, spans, count)) return place;
        if (errno == ENOMEM) return NULL;
        bits = bits * UINT64_C(0x5851f42d4c957f2d) + UINT64_C(0x14057b7ef767814f);
    }
    return NULL;
}

/* Reserves at multiples of +alignment+ from +there+ downwards. */
static char *
os_reserve_below(const struct os_span *spans, int count, size_t alignment, char *there)
{
    enum { TRIES = 256 };
    char *below = there - (uintptr_t)there % alignment;

    for (size_t i = 0; i < TRIES && (uintptr_t)below > i * alignment; i++) {
        if (os_reserve_at(below - i * alignment, spans, count)) return below - i * alignment;
        if (errno == ENOMEM) return NULL;
    }
    errno = ENOMEM;
    return NULL;
}

/* Reserves address space that begins at a multiple of +alignment+ (a power of two), without
 * committing memory: the spans, in ascending order, and what lies between them is left to others.
 * So what counts against a limit is what the spans have. Gives NULL where there is no such room. */
static void *
os_reserve(const struct os_span *spans, int count, size_t alignment)
{
    char *there = os_vacant((size_t)sysconf(_SC_PAGESIZE)), *place;

    if (there == NULL) return NULL;
    if ((place = os_reserve_random(spans, count, alignment, there)) || errno == ENOMEM) return place;

    char *room = os_vacant(spans[count - 1].to + alignment);
    if (room) {
        place = room + (-(uintptr_t)room & (alignment - 1));
        if (os_reserve_at(place, spans, count)) return place;
        if (errno == ENOMEM) return NULL;
    }
    return os_reserve_below(spans, count, alignment, there);
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

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * os: the parts of os.h that are not inlined: the calls of the system, and reservations.
 */

#include <fcntl.h>
#include <time.h>
#include "os.h"

/* Gives the lower of the two limits of how much a process may map and how much it may write to. Gives -1,
 * with errno, where there is none to read. */
static int
cow_os_address_limit(struct rlimit *limit)
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

/* Writes random bits, for an address. Never waits: early after the machine's start, or where the call is
 * forbidden, it makes them from the random bytes that the kernel has given this program, other ones in each
 * forked process. Gives false if the system has none, or if addresses shall be the same in each run, as
 * debuggers ask the kernel (setarch -R). */
static bool
cow_os_random_bits(uint64_t *bits)
{
#if COW_HAS_MMAP && defined(__linux__)
    static uint64_t calls;
    const int saved = errno, persona = personality(0xffffffff);

    if (persona != -1 && persona & ADDR_NO_RANDOMIZE) return false;
# ifdef SYS_getrandom
    /* getrandom(2) came with glibc 2.25. */
    enum { COW_GRND_NONBLOCK = 1 };

    if (syscall(SYS_getrandom, bits, sizeof(*bits), COW_GRND_NONBLOCK) == (long)sizeof(*bits)) return true;
# endif
    const char *bytes = (const char *)getauxval(AT_RANDOM); /* 16 */

    errno = saved;
    if (bytes == NULL) return false;
    memcpy(bits, bytes + 8, sizeof(*bits));
    calls++;
    *bits = (*bits ^ (uint64_t)getpid() << 32 ^ calls) * UINT64_C(0x9e3779b97f4a7c15);
    *bits = (*bits ^ *bits >> 31) * UINT64_C(0xd1b54a32d192ed03);
    return true;
#else
    return false;
#endif
}

/* Gives zeroed memory of malloc's; NULL if there is none. */
static void *
cow_os_allocate_zeroed(size_t size)
{
    return calloc(1, size);
}

/* Gives the bytes of an OS page. */
static size_t
cow_os_page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Gives how often the process has waited for a page to be read; -1 where the system does not say. */
static long
cow_os_faults(void)
{
#if COW_HAS_MMAP
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) == 0) return usage.ru_majflt;
#endif
    return -1;
}

/* Gives the ns of a clock that only goes forward; -1 where there is none. */
static int64_t
cow_os_clock(void)
{
#ifdef CLOCK_MONOTONIC
    struct timespec now;

    if (clock_gettime(CLOCK_MONOTONIC, &now) == 0) return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
    return -1;
}

/* Reads at most +size+ bytes of a file; gives their number, or -1, with errno. */
static ssize_t
cow_os_read_file(const char *path, char *text, size_t size)
{
#ifdef O_CLOEXEC
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t length = 0;

    if (file < 0) return -1;
    while (length < size) {
        const ssize_t more = read(file, text + length, size - length);

        if (more < 0 && errno == EINTR) continue;
        if (more < 0) {
            const int error = errno;
            close(file);
            errno = error;
            return -1;
        }
        if (more == 0) break;
        length += (size_t)more;
    }
    close(file);
    return (ssize_t)length;
#else
    errno = ENOSYS;
    return -1;
#endif
}

#if COW_HAS_MMAP
static const struct cow_os_calls cow_os_system = {
    mmap, munmap, mprotect, madvise, cow_os_address_limit, cow_os_random_bits, cow_os_page_size,
    malloc, cow_os_allocate_zeroed, free, cow_os_faults, cow_os_clock, cow_os_read_file
};
#else
static void *
cow_os_no_map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    errno = ENOSYS;
    return MAP_FAILED;
}

static int
cow_os_no_unmap(void *address, size_t size)
{
    errno = ENOSYS;
    return -1;
}

static int
cow_os_no_change(void *address, size_t size, int what)
{
    errno = ENOSYS;
    return -1;
}

static const struct cow_os_calls cow_os_system = {
    cow_os_no_map, cow_os_no_unmap, cow_os_no_change, cow_os_no_change, cow_os_address_limit, NULL,
    cow_os_page_size, malloc, cow_os_allocate_zeroed, free, cow_os_faults, cow_os_clock, cow_os_read_file
};
#endif

static const struct cow_os_calls *cow_os = &cow_os_system;

/* After a fork one word that is written would copy the whole of a huge page, and khugepaged makes huge pages
 * of what a worker shares in part. CRuby asks for none in its process (PR_SET_THP_DISABLE), but a sandbox may
 * deny that and an embedding program undo it. A kernel without huge pages refuses; nothing is lost. */
static void
cow_os_without_huge_pages(void *memory, size_t size)
{
#ifdef MADV_NOHUGEPAGE
    cow_os->advise(memory, size, MADV_NOHUGEPAGE);
#endif
}

/* Reserves the spans of a reservation that begins at +address+. If the system refuses one, reserves nothing
 * and gives false; errno is ENOMEM if there is no room for them anywhere. */
static bool
cow_os_reserve_at(char *address, const struct cow_os_span *spans, int count)
{
    for (int i = 0; i < count; i++) {
        const size_t size = spans[i].to - spans[i].from;
        COW_ASSERT(cow_os_is_whole(address + spans[i].from, size));
        char *memory = cow_os_map_reserved(address + spans[i].from, size, MAP_FIXED_NOREPLACE);
        if (memory == address + spans[i].from) {
            cow_os_without_huge_pages(memory, size);
            continue;
        }

        const int error = memory ? EEXIST : errno;
        if (memory) cow_os->unmap(memory, size); /* this kernel took the address as a hint only */
        while (i-- > 0) cow_os->unmap(address + spans[i].from, spans[i].to - spans[i].from);
        errno = error;
        return false;
    }
    return true;
}

/* Gives the address at which the system would map +size+ bytes now; NULL: it would not. */
static char *
cow_os_vacant(size_t size)
{
    char *vacant = cow_os_map_reserved(NULL, size, 0);

    if (vacant) cow_os->unmap(vacant, size);
    return vacant;
}

/* A reservation never begins at an address that fits into 32 bits. */
#define COW_OS_LOWEST_PLACE (UINT64_C(1) << 32)

/* Reserves at a random multiple of +alignment+ below +top+, because the libraries and the stack, which grows,
 * lie above it. Gives NULL if the system has no random bits, if it refuses (errno), or where addresses have
 * 32 bits: random places would leave no long gaps there, so the system chooses. */
static char *
cow_os_reserve_random(const struct cow_os_span *spans, int count, size_t alignment, const char *top)
{
    enum { COW_OS_TRIES = 8 };
    const uint64_t lowest = COW_OS_LOWEST_PLACE / alignment, highest = (uintptr_t)top / alignment;
    const uint64_t needed = (spans[count - 1].to + alignment - 1) / alignment;
    uint64_t bits;

    errno = EEXIST;
    if (UINTPTR_MAX <= 0xffffffffu || highest <= lowest + needed) return NULL;
    if (cow_os->random == NULL || !cow_os->random(&bits)) return NULL;

    for (int i = 0; i < COW_OS_TRIES; i++) {
        const uint64_t number = lowest + (bits >> 16) % (highest - lowest - needed);
        char *address = (char *)(uintptr_t)(number * alignment);

        if (cow_os_reserve_at(address, spans, count)) return address;
        if (errno == ENOMEM) return NULL;
        bits = bits * UINT64_C(0x5851f42d4c957f2d) + UINT64_C(0x14057b7ef767814f);
    }
    return NULL;
}

/* Reserves at a multiple of +alignment+ at or below +top+, the highest that is free. Gives NULL with ENOMEM
 * if there is none among the first COW_OS_TRIES. */
static char *
cow_os_reserve_below(const struct cow_os_span *spans, int count, size_t alignment, char *top)
{
    enum { COW_OS_TRIES = 256 };
    char *below = top - (uintptr_t)top % alignment;

    for (size_t i = 0; i < COW_OS_TRIES && (uintptr_t)below > i * alignment; i++) {
        if (cow_os_reserve_at(below - i * alignment, spans, count)) return below - i * alignment;
        if (errno == ENOMEM) return NULL;
    }
    errno = ENOMEM;
    return NULL;
}

/* Reserves address space that begins at a multiple of +alignment+ (a power of two), and commits no memory:
 * the +count+ spans, in ascending order; what lies between them is left to others. So only the spans count
 * against a limit. Gives NULL if the system refuses. */
static void *
cow_os_reserve(const struct cow_os_span *spans, int count, size_t alignment)
{
    COW_ASSERT(count > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
    char *top = cow_os_vacant(cow_os->page_size()), *address;

    if (top == NULL) return NULL;
    if ((address = cow_os_reserve_random(spans, count, alignment, top)) || errno == ENOMEM) return address;

    char *room = cow_os_vacant(spans[count - 1].to + alignment);
    if (room) {
        address = room + (-(uintptr_t)room & (alignment - 1));
        if (cow_os_reserve_at(address, spans, count)) return address;
        if (errno == ENOMEM) return NULL;
    }
    return cow_os_reserve_below(spans, count, alignment, top);
}

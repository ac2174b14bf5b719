/* The slow part of os.h. */

#include "os.h"

/* The lower of the limits of what may be mapped and of what may be written to. */
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

/* Random bits for an address. It never waits: early after the machine's start, or where the call
 * is forbidden, they come from those that the kernel has given this program, and other ones in
 * each process that it forks. Gives false where addresses are to be the same each time, as
 * debuggers ask the kernel (setarch -R), and where the system has none. */
static bool
cow_os_random_bits(uint64_t *bits)
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

/* Zeroed memory of malloc's. */
static void *
cow_os_allocate(size_t size)
{
    return calloc(1, size);
}

static size_t
cow_os_page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

#if COW_HAS_MMAP
static const struct cow_os_calls cow_os_system = {
    mmap, munmap, mprotect, madvise, cow_os_address_limit, cow_os_random_bits, cow_os_page_size,
    cow_os_allocate, free
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
    cow_os_page_size, cow_os_allocate, free
};
#endif

static const struct cow_os_calls *cow_os = &cow_os_system;

/* Reserves the spans of a reservation that begins at +place+. Where that is denied nothing is
 * reserved, and errno is ENOMEM if there is no room for them anywhere. */
static bool
cow_os_reserve_at(char *place, const struct cow_os_span *spans, int count)
{
    for (int i = 0; i < count; i++) {
        const size_t size = spans[i].to - spans[i].from;
        char *memory = cow_os_map_reserved(place + spans[i].from, size, MAP_FIXED_NOREPLACE);
        if (memory == place + spans[i].from) continue;

        const int error = memory ? EEXIST : errno;
        if (memory) cow_os->unmap(memory, size); /* a kernel that takes the address for a hint */
        while (i-- > 0) cow_os->unmap(place + spans[i].from, spans[i].to - spans[i].from);
        errno = error;
        return false;
    }
    return true;
}

/* Where the system would map +size+ bytes now; NULL: nowhere. */
static char *
cow_os_vacant(size_t size)
{
    char *there = cow_os_map_reserved(NULL, size, 0);

    if (there) cow_os->unmap(there, size);
    return there;
}

/* Reservations keep away from addresses that fit into 32 bits. */
#define COW_OS_LOWEST_PLACE (UINT64_C(1) << 32)

/* Reserves at a random multiple of +alignment+ below +there+. Above it are the libraries and the
 * stack, which grows. Where addresses are short that would leave no long pieces between: there
 * the system chooses. */
static char *
cow_os_reserve_random(const struct cow_os_span *spans, int count, size_t alignment, const char *there)
{
    enum { COW_OS_TRIES = 8 };
    const uint64_t lowest = COW_OS_LOWEST_PLACE / alignment, highest = (uintptr_t)there / alignment;
    const uint64_t needed = (spans[count - 1].to + alignment - 1) / alignment;
    uint64_t bits;

    errno = EEXIST;
    if (UINTPTR_MAX <= 0xffffffffu || highest <= lowest + needed) return NULL;
    if (cow_os->random == NULL || !cow_os->random(&bits)) return NULL;

    for (int i = 0; i < COW_OS_TRIES; i++) {
        char *place = (char *)(uintptr_t)((lowest + (bits >> 16) % (highest - lowest - needed)) * alignment);

        if (cow_os_reserve_at(place, spans, count)) return place;
        if (errno == ENOMEM) return NULL;
        bits = bits * UINT64_C(0x5851f42d4c957f2d) + UINT64_C(0x14057b7ef767814f);
    }
    return NULL;
}

/* Reserves at multiples of +alignment+ from +there+ downwards. */
static char *
cow_os_reserve_below(const struct cow_os_span *spans, int count, size_t alignment, char *there)
{
    enum { COW_OS_TRIES = 256 };
    char *below = there - (uintptr_t)there % alignment;

    for (size_t i = 0; i < COW_OS_TRIES && (uintptr_t)below > i * alignment; i++) {
        if (cow_os_reserve_at(below - i * alignment, spans, count)) return below - i * alignment;
        if (errno == ENOMEM) return NULL;
    }
    errno = ENOMEM;
    return NULL;
}

/* Reserves address space that begins at a multiple of +alignment+ (a power of two), without
 * committing memory: the spans, in ascending order, and what lies between them is left to others.
 * So what counts against a limit is what the spans have. Gives NULL where there is no such room. */
static void *
cow_os_reserve(const struct cow_os_span *spans, int count, size_t alignment)
{
    char *there = cow_os_vacant((size_t)sysconf(_SC_PAGESIZE)), *place;

    if (there == NULL) return NULL;
    if ((place = cow_os_reserve_random(spans, count, alignment, there)) || errno == ENOMEM) return place;

    char *room = cow_os_vacant(spans[count - 1].to + alignment);
    if (room) {
        place = room + (-(uintptr_t)room & (alignment - 1));
        if (cow_os_reserve_at(place, spans, count)) return place;
        if (errno == ENOMEM) return NULL;
    }
    return cow_os_reserve_below(spans, count, alignment, there);
}

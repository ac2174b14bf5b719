/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * faults: a library to load before all others (LD_PRELOAD), which makes calls of a ruby fail.
 *
 * Job: counts the calls of the kinds below that the ruby program itself makes (its extensions and libraries
 * may call as they like), and fails those that the plan says: one, all from one on, or some at random. A
 * process counts from its start if the plan says so, else between two calls of kill(2) with signal 0 and the
 * process ids below, which need no memory. Forked processes count on together: the plan and its counters lie
 * in a file that all of them map.
 *
 * harness.rb writes the plan, and reads what was counted; struct faults_plan is the layout.
 *
 * jemalloc's functions are here as well, because gc/allocator.c looks for them in the library that malloc is
 * in. With -DFAULTS_GLIBC those of glibc are in their place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#define EXPORT __attribute__((visibility("default")))

/* The calls that can fail; harness.rb has the same list. */
enum kind {
    MMAP, MADVISE, MUNMAP, MPROTECT, MALLOC, REALLOC, CALLOC, MEMALIGN, FORK, THREAD, OPEN, READ, KINDS
};

/* Process ids that no process has. */
enum { ARM = 2000000001, DISARM = 2000000002 };

enum mode { COUNT, ONCE, ONWARDS, RANDOMLY };

enum { FRAMES = 20, SPARED = 64 };

/* A call that was counted: its kind, and the places in the program that called, from the innermost. */
struct record {
    uint64_t kind, order;
    uint64_t frames[FRAMES];
};

struct faults_plan {
    uint64_t mode, kinds; /* kinds: a bit for each */
    uint64_t number;      /* of the call that fails, from 1; at random: of 65,536 calls so many fail */
    uint64_t seed, at_start, error;
    uint64_t room;        /* for records */
    uint64_t calls, failed, armed;
    uint64_t spared[SPARED][2]; /* parts of the program, from and to, whose calls do not count */
    struct record first;  /* the first call that failed */
    struct record records[];
};

static struct faults_plan *plan;
static bool armed;
static uintptr_t program, program_size; /* where the ruby program lies */
static __thread bool inside __attribute__((tls_model("initial-exec")));

/* ---- which calls fail */

struct walk {
    struct record *record;
    int count;
};

static _Unwind_Reason_Code
walk_frame(struct _Unwind_Context *context, void *argument)
{
    struct walk *walk = argument;
    const uintptr_t place = _Unwind_GetIP(context) - program;

    if (place >= program_size) return walk->count ? _URC_END_OF_STACK : _URC_NO_REASON;
    walk->record->frames[walk->count++] = place;
    return walk->count < FRAMES ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void
note(struct record *record, enum kind kind, uint64_t order)
{
    struct walk walk = { record, 0 };

    record->kind = kind;
    record->order = order;
    _Unwind_Backtrace(walk_frame, &walk);
}

static uint64_t
mixed(uint64_t bits)
{
    bits = (bits ^ bits >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ bits >> 29) * UINT64_C(0xd1b54a32d192ed03);
    return bits ^ bits >> 32;
}

static bool
is_spared(uintptr_t place)
{
    for (int i = 0; i < SPARED && plan->spared[i][1]; i++) {
        if (plan->spared[i][0] <= place && place < plan->spared[i][1]) return true;
    }
    return false;
}

/* Shall this call fail? Counts it. */
static bool
fails(enum kind kind, const void *caller)
{
    const uintptr_t place = (uintptr_t)caller - program;

    if (!armed || inside || place >= program_size || !(plan->kinds >> kind & 1)) return false;
    if (is_spared(place)) return false;
    const uint64_t order = __atomic_add_fetch(&plan->calls, 1, __ATOMIC_RELAXED);
    bool result = false;

    switch ((enum mode)plan->mode) {
      case COUNT: break;
      case ONCE: result = order == plan->number; break;
      case ONWARDS: result = order >= plan->number; break;
      case RANDOMLY: result = mixed(plan->seed + order) % 65536 < plan->number; break;
    }
    inside = true;
    if (plan->mode == COUNT && order <= plan->room) note(&plan->records[order - 1], kind, order);
    if (result && __atomic_fetch_add(&plan->failed, 1, __ATOMIC_RELAXED) == 0)
        note(&plan->first, kind, order);
    inside = false;
    return result;
}

static int
error_of(int usual)
{
    return plan->error ? (int)plan->error : usual;
}

/* ---- the functions themselves */

#define NEXT(name) ((__typeof__(&name))next(&next_##name, #name))

/* Memory for those who ask before the next malloc is known. Nobody frees it. */
static char early[4096] __attribute__((aligned(16)));
static size_t early_used;
static bool finding;

static void *
next(void **function, const char *name)
{
    if (*function == NULL) {
        finding = true;
        *function = dlsym(RTLD_NEXT, name);
        finding = false;
    }
    return *function;
}

static void *
early_block(size_t size)
{
    void *block = early + early_used;

    size = (size + 15) & ~(size_t)15;
    if (early_used + size > sizeof(early)) _exit(99);
    early_used += size;
    return block;
}

static bool
is_early(const void *block)
{
    return (uintptr_t)block - (uintptr_t)early < sizeof(early);
}

static void *next_malloc, *next_calloc, *next_realloc, *next_free, *next_posix_memalign, *next_aligned_alloc,
    *next_memalign, *next_malloc_usable_size, *next_fork, *next_pthread_create, *next_fopen, *next_kill;

#define CALLER __builtin_return_address(0)
#define FAIL(kind, usual, result) \
    do { if (fails(kind, CALLER)) { errno = error_of(usual); return result; } } while (0)

EXPORT void *
malloc(size_t size)
{
    if (finding) return early_block(size);
    FAIL(MALLOC, ENOMEM, NULL);
    return NEXT(malloc)(size);
}

EXPORT void *
calloc(size_t count, size_t size)
{
    if (finding) return early_block(count * size);
    FAIL(CALLOC, ENOMEM, NULL);
    return NEXT(calloc)(count, size);
}

EXPORT void *
realloc(void *block, size_t size)
{
    if (is_early(block)) return NULL;
    FAIL(REALLOC, ENOMEM, NULL);
    return NEXT(realloc)(block, size);
}

EXPORT void
free(void *block)
{
    if (!is_early(block)) NEXT(free)(block);
}

EXPORT int
posix_memalign(void **block, size_t alignment, size_t size)
{
    if (fails(MEMALIGN, CALLER)) return error_of(ENOMEM);
    return NEXT(posix_memalign)(block, alignment, size);
}

EXPORT void *
aligned_alloc(size_t alignment, size_t size)
{
    FAIL(MEMALIGN, ENOMEM, NULL);
    return NEXT(aligned_alloc)(alignment, size);
}

EXPORT void *
memalign(size_t alignment, size_t size)
{
    FAIL(MEMALIGN, ENOMEM, NULL);
    return NEXT(memalign)(alignment, size);
}

EXPORT size_t
malloc_usable_size(void *block)
{
    return is_early(block) ? 0 : NEXT(malloc_usable_size)(block);
}

#ifdef FAULTS_GLIBC
extern const char *gnu_get_libc_version(void);
static void *next_malloc_trim, *next_mallinfo2, *next_gnu_get_libc_version;

EXPORT const char *
gnu_get_libc_version(void)
{
    return NEXT(gnu_get_libc_version)();
}

EXPORT int
malloc_trim(size_t pad)
{
    return NEXT(malloc_trim)(pad);
}

EXPORT struct mallinfo2
mallinfo2(void)
{
    return NEXT(mallinfo2)();
}
#else
static void *next_mallctl, *next_rallocx, *next_dallocx;
int mallctl(const char *, void *, size_t *, void *, size_t);
void *rallocx(void *, size_t, int);
void dallocx(void *, int);

EXPORT int
mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size)
{
    if (next(&next_mallctl, "mallctl") == NULL) return ENOENT;
    return NEXT(mallctl)(name, old, old_size, new, new_size);
}

EXPORT void *
rallocx(void *block, size_t size, int flags)
{
    FAIL(REALLOC, ENOMEM, NULL);
    return NEXT(rallocx)(block, size, flags);
}

EXPORT void
dallocx(void *block, int flags)
{
    NEXT(dallocx)(block, flags);
}
#endif

/* The kernel's own calls: the C library's functions do no more. */
EXPORT void *
mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    FAIL(MMAP, ENOMEM, MAP_FAILED);
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

EXPORT void *
mmap64(void *address, size_t size, int protection, int flags, int file, off64_t offset)
{
    FAIL(MMAP, ENOMEM, MAP_FAILED);
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

EXPORT int
munmap(void *address, size_t size)
{
    FAIL(MUNMAP, ENOMEM, -1);
    return (int)syscall(SYS_munmap, address, size);
}

EXPORT int
mprotect(void *address, size_t size, int protection)
{
    FAIL(MPROTECT, ENOMEM, -1);
    return (int)syscall(SYS_mprotect, address, size, protection);
}

EXPORT int
madvise(void *address, size_t size, int advice)
{
    FAIL(MADVISE, ENOMEM, -1);
    return (int)syscall(SYS_madvise, address, size, advice);
}

EXPORT pid_t
fork(void)
{
    FAIL(FORK, EAGAIN, -1);
    return NEXT(fork)();
}

EXPORT int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument)
{
    if (fails(THREAD, CALLER)) return error_of(EAGAIN);
    return NEXT(pthread_create)(thread, attributes, function, argument);
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

EXPORT int
open(const char *path, int flags, ...)
{
    MODE_OF(flags)
    FAIL(OPEN, EMFILE, -1);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORT int
open64(const char *path, int flags, ...)
{
    MODE_OF(flags)
    FAIL(OPEN, EMFILE, -1);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORT int
openat(int directory, const char *path, int flags, ...)
{
    MODE_OF(flags)
    FAIL(OPEN, EMFILE, -1);
    return (int)syscall(SYS_openat, directory, path, flags, mode);
}

EXPORT FILE *
fopen(const char *path, const char *mode)
{
    FAIL(OPEN, EMFILE, NULL);
    return NEXT(fopen)(path, mode);
}

EXPORT ssize_t
read(int file, void *bytes, size_t size)
{
    FAIL(READ, EIO, -1);
    return (ssize_t)syscall(SYS_read, file, bytes, size);
}

EXPORT int
kill(pid_t pid, int number)
{
    if (plan && number == 0 && (pid == ARM || pid == DISARM)) {
        armed = pid == ARM && program_size > 0;
        if (armed) __atomic_fetch_add(&plan->armed, 1, __ATOMIC_RELAXED);
        return 0;
    }
    return NEXT(kill)(pid, number);
}

/* ---- the beginning */

/* The first object is the program. */
static int
find_program(struct dl_phdr_info *info, size_t size, void *argument)
{
    uintptr_t end = 0;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];

        if (part->p_type != PT_LOAD) continue;
        if (part->p_vaddr + part->p_memsz > end) end = part->p_vaddr + part->p_memsz;
    }
    program = info->dlpi_addr;
    program_size = end;
    return 1;
}

__attribute__((constructor)) static void
begin(void)
{
    const char *path = getenv("COWRUBY_FAULTS");
    struct stat status;

    /* All are found now: a process that has just forked must not look for them, nor dlsym when it fails. */
    (void)(NEXT(malloc), NEXT(calloc), NEXT(realloc), NEXT(free), NEXT(posix_memalign), NEXT(fork));
    (void)(NEXT(pthread_create), NEXT(fopen), NEXT(kill), NEXT(malloc_usable_size));
    /* In a build tree another program runs ruby. */
    if (path == NULL || dlsym(RTLD_DEFAULT, "ruby_init") == NULL) return;
    const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);

    if (file < 0 || fstat(file, &status) != 0) return;
    plan = (void *)syscall(SYS_mmap, NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (plan == MAP_FAILED) {
        plan = NULL;
        return;
    }
    dl_iterate_phdr(find_program, NULL);
    struct record first = { 0 };
    note(&first, KINDS, 0); /* the unwinder makes itself ready */
    armed = plan->at_start;
    plan->armed += armed;
}
